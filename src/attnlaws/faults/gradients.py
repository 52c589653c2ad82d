"""Faults of the gradients: a right output, and a derivative with one step wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..problems.dtypes import round_to
from .case import Array, Bools, Case, Fault, Gradients, scores_of, weights_of
from .steps import backward, below, free, lengths

#: (weights, dw = do v^T) -> the gradient of the scores as they enter the softmax
Derivative = Callable[[Array, Array], Array]


def softmax_derivative(weights: Array, upward: Array) -> Array:
    """ds = w (dw - sum_k w_k dw_k)."""
    return np.asarray(weights * (upward - (weights * upward).sum(-1, keepdims=True)))


def _weights(case: Case, shown: Bools | None = None) -> Array:
    """The weights, 0 in a row without a key."""
    return np.nan_to_num(weights_of(case, shown), nan=0.0)


def group_sum(case: Case, array: Array) -> Array:
    """(B, H, S, .) summed over the query heads of each key head: (B, Hkv, S, .)."""
    return np.asarray(_by_group(case, array).sum(2))


def _by_group(case: Case, array: Array) -> Array:
    """(B, H, S, .) as (B, Hkv, H / Hkv, S, .)."""
    batch, heads = case.shape[:2]
    kv = case.call.key.shape[1]
    return array.reshape(batch, kv, heads // kv, *array.shape[2:])


def derive(
    case: Case, upstream: Array, *, weights: Array | None = None, derivative: Derivative = softmax_derivative,
    scale: float | None = None, reduce: Callable[[Case, Array], Array] = group_sum,
) -> Gradients:  # fmt: skip
    """dq, dk, dv with some steps replaced; `weights` are those that the backward pass computes again."""
    weights = _weights(case) if weights is None else weights
    key, value = case.grouped(case.call.key), case.grouped(case.call.value)
    scores = derivative(weights, np.matmul(upstream, value.swapaxes(-1, -2)))
    cap = case.call.softcap
    if cap:
        capped = np.tanh(case.scale * np.matmul(case.call.query, key.swapaxes(-1, -2)) / cap)
        scores = scores * (1.0 - capped * capped)
    scores = (case.scale if scale is None else scale) * scores
    query = np.matmul(scores, key)
    by_key = reduce(case, np.matmul(scores.swapaxes(-1, -2), case.call.query))
    return query, by_key, reduce(case, np.matmul(weights.swapaxes(-1, -2), upstream))


def bias_gradient(case: Case, upstream: Array) -> Array:
    """The gradient by what is added to the scores, (B, H, L, S)."""
    upward = np.matmul(upstream, case.grouped(case.call.value).swapaxes(-1, -2))
    return softmax_derivative(_weights(case), upward)


def _recomputed(shown: Callable[[Case], Bools | None]) -> Callable[[Case, Array], Gradients | None]:
    """The backward pass computes the weights again, with other pairs."""

    def gradients(case: Case, upstream: Array) -> Gradients | None:
        other = shown(case)
        if other is None or (other == case.pairs()).all():
            return None
        return derive(case, upstream, weights=_weights(case, other))

    return gradients


def _other_triangle(shift: Callable[[Case], int]) -> Callable[[Case], Bools | None]:
    return lambda case: None if case.triangle is None else case.pairs(causal=below(case, shift(case)))


def _derived(derivative: Derivative) -> Callable[[Case, Array], Gradients | None]:
    return lambda case, upstream: derive(case, upstream, derivative=derivative)


def _delta_one_row_off(weights: Array, upward: Array) -> Array:
    """Each row subtracts the delta of the row before."""
    delta = (weights * upward).sum(-1, keepdims=True)
    return np.asarray(weights * (upward - np.roll(delta, 1, -2)))


def _mean_subtracted(weights: Array, upward: Array) -> Array:
    return np.asarray(weights * (upward - upward.mean(-1, keepdims=True)))


def _unmasked_values(case: Case, upstream: Array) -> Gradients | None:
    """dv takes exp(s - lse) of all pairs, masked ones too."""
    shown = case.pairs()
    if shown.all():
        return None
    made = scores_of(case)
    with np.errstate(all="ignore"):
        kept = np.where(shown, made, -np.inf)
        peak = kept.max(-1, keepdims=True)
        total = np.exp(kept - peak).sum(-1, keepdims=True)
        weights = np.nan_to_num(np.exp(np.clip(made - peak, None, 80.0)) / total, nan=0.0, posinf=0.0)
    query, key, _ = derive(case, upstream)
    return query, key, group_sum(case, np.matmul(weights.swapaxes(-1, -2), upstream))


def _rows_lost(lost: Callable[[int], slice | None]) -> Callable[[Case, Array], Gradients | None]:
    """Some queries give no gradient to keys and values."""

    def gradients(case: Case, upstream: Array) -> Gradients | None:
        rows = lost(case.shape[2])
        if rows is None:
            return None
        kept = upstream.copy()
        kept[:, :, rows] = 0.0
        return derive(case, upstream)[0], *derive(case, kept)[1:]

    return gradients


def _alone_in_tile(queries: int) -> slice | None:
    return slice(-1, None) if queries > 1 and queries % 64 == 1 else None


def _all_but_the_last_tile(queries: int) -> slice | None:
    return slice(0, (queries - 1) // 64 * 64) if queries > 64 else None


def _part(*kept: bool) -> Callable[[Case, Array], Gradients | None]:
    """Some of dq, dk, dv are zero."""

    def gradients(case: Case, upstream: Array) -> Gradients:
        query, key, value = derive(case, upstream)
        return query * kept[0], key * kept[1], value * kept[2]

    return gradients


def _grouped(reduce: Callable[[Case, Array], Array]) -> Callable[[Case, Array], Gradients | None]:
    """A fault in the sum over the query heads of a key head."""

    def gradients(case: Case, upstream: Array) -> Gradients | None:
        if case.call.key.shape[1] == case.shape[1]:
            return None
        return derive(case, upstream, reduce=reduce)

    return gradients


def _sum_tiled(case: Case, array: Array) -> Array:
    """Key head h gets the gradients of the query heads h, h + Hkv, ..."""
    batch, heads = case.shape[:2]
    kv = case.call.key.shape[1]
    return np.asarray(array.reshape(batch, heads // kv, kv, *array.shape[2:]).sum(1))


def _not_transposed(case: Case, upstream: Array) -> Gradients | None:
    """dk = scale ds q where L = S."""
    queries, keys = lengths(case)
    if queries != keys or case.call.softcap:
        return None
    query, _, value = derive(case, upstream)
    upward = np.matmul(upstream, case.grouped(case.call.value).swapaxes(-1, -2))
    scores = case.scale * softmax_derivative(_weights(case), upward)
    return query, group_sum(case, np.matmul(scores, case.call.query)), value


def _keys_for_queries(case: Case, upstream: Array) -> Gradients | None:
    """dk = scale ds^T k where L = S."""
    queries, keys = lengths(case)
    if queries != keys or case.call.softcap:
        return None
    query, _, value = derive(case, upstream)
    exchanged = case.with_call(query=case.grouped(case.call.key))
    return query, derive(exchanged, upstream, weights=_weights(case))[1], value


def _scaled(factor: Callable[[Case], float | None]) -> Callable[[Case, Array], Gradients | None]:
    def gradients(case: Case, upstream: Array) -> Gradients | None:
        scale = factor(case)
        return None if scale is None or scale == case.scale else derive(case, upstream, scale=scale)

    return gradients


def _default_scale(case: Case) -> float | None:
    return None if case.call.scale is None else case.default_scale


def _cut(case: Case, upstream: Array) -> Gradients | None:
    query, key, value = (np.clip(g, -1.0, 1.0) for g in derive(case, upstream))
    return query, key, value


def _in_bfloat16(case: Case, upstream: Array) -> Gradients | None:
    def rounded(weights: Array, upward: Array) -> Array:
        return round_to(softmax_derivative(weights, upward), "bfloat16")

    return derive(case, upstream, derivative=rounded)


FAULTS: tuple[Fault, ...] = (
    backward("backward never causal", "the backward pass ignores the causal flag", _recomputed(lambda c: None if c.triangle is None else c.pairs(causal=free(c)))),
    backward("backward always causal", "the backward pass is causal whatever the flag says", _recomputed(lambda c: c.pairs(causal=below(c, c.offset)) if c.triangle is None else None), "triton-lang/triton#4541"),
    backward("backward aligned the other way", "the backward pass aligns the triangle with the other corner", _recomputed(_other_triangle(lambda c: c.shape[3] - c.shape[2] - c.offset))),
    backward("backward sees next", "in the backward pass each query also sees the key after it", _recomputed(_other_triangle(lambda c: c.offset + 1))),
    backward("backward hides self", "in the backward pass no query sees its own key", _recomputed(_other_triangle(lambda c: c.offset - 1))),
    backward("backward without mask", "the backward pass ignores the mask", _recomputed(lambda c: c.pairs(mask=c.everything()) if c.call.visible is not None else None)),
    backward("unmasked weights in dv", "dv is computed with the weights of masked pairs too", _unmasked_values),
    backward("no delta", "ds = w dw: the row sum of w dw is not subtracted", _derived(lambda w, dw: w * dw)),
    backward("delta one row off", "each row subtracts the sum of w dw of the row before", _derived(_delta_one_row_off)),
    backward("delta is a mean", "the mean of dw is subtracted, not its mean under the weights", _derived(_mean_subtracted)),
    backward("diagonal of the derivative", "ds = w (1 - w) dw: only the diagonal of the derivative is used", _derived(lambda w, dw: w * (1.0 - w) * dw)),
    backward("softmax taken for constant", "ds = dw: the derivative of the softmax is left out", _derived(lambda w, dw: dw * (w > 0))),
    backward("default scale in the backward", "the backward pass ignores the scale that is given", _scaled(_default_scale)),
    backward("no scale in the backward", "dq and dk lack the scale", _scaled(lambda c: 1.0), "ooples/AiDotNet.Tensors#49"),
    backward("scale twice in the backward", "dq and dk are scaled twice", _scaled(lambda c: c.scale**2)),
    backward("lone last query lost", "where L % 64 = 1 the last query gives no gradient to keys and values", _rows_lost(_alone_in_tile)),
    backward("last tile of queries alone", "dk and dv hold the last tile of 64 queries only", _rows_lost(_all_but_the_last_tile)),
    backward("first query of a group alone", "dk and dv of a key head hold the first of its query heads only", _grouped(lambda c, a: _by_group(c, a)[:, :, 0])),
    backward("last query of a group alone", "dk and dv of a key head hold the last of its query heads only", _grouped(lambda c, a: _by_group(c, a)[:, :, -1])),
    backward("group averaged", "dk and dv are averaged over the query heads of a key head", _grouped(lambda c, a: _by_group(c, a).mean(2))),
    backward("group tiled", "dk and dv of key head h are those of the query heads h mod Hkv", _grouped(_sum_tiled)),
    backward("dk from ds not transposed", "dk = ds q, without the transpose, where L = S", _not_transposed),
    backward("dk from the keys", "dk = ds^T k in the place of ds^T q, where L = S", _keys_for_queries),
    backward("no dq", "the gradient of the queries is zero", _part(False, True, True)),
    backward("no dk", "the gradient of the keys is zero", _part(True, False, True), "ooples/AiDotNet.Tensors#49"),
    backward("no dv", "the gradient of the values is zero", _part(True, True, False)),
    backward("upstream of ones", "the upstream gradient is taken for ones", lambda c, do: derive(c, np.ones_like(do))),
    backward("upstream of the first head", "all heads use the upstream gradient of the first", lambda c, do: derive(c, np.broadcast_to(do[:, :1], do.shape)) if c.shape[1] > 1 else None),
    backward("gradients cut at 1", "the gradients are cut to [-1, 1]", _cut),
    backward("bfloat16 in the backward", "the gradients of the scores pass through bfloat16", _in_bfloat16),
)  # fmt: skip
