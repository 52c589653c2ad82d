"""How far a correct kernel's gradients may be from the exact ones: the companion of `attnlaws.judge.bounds`.

Notation and sources as there. The gradients are those of softmax(c q k^T + bias) v by FlashAttention, arXiv:2205.14135,
appendix B.4, in the flash form (weights recomputed) or by autograd of the plain formula (weights stored).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from attnlaws.judge.bounds import forward_worst_from
from attnlaws.judge.exponent import Attended, Rows, exponent_error, gamma, grown, rounded, rows_of, sink_error
from attnlaws.judge.precision import Precision, with_storage_grads
from attnlaws.problems.dtypes import Array


@dataclass(frozen=True, slots=True)
class _Pullback:
    """One way of going backward: exact pieces, and how far a kernel's may be from them."""

    rows: Rows
    upstream: Array  # |do|  (B, H, L, Dv)
    pull: Array  # dp_ij = do_i . v_j  (B, H, L, S)
    delta: Array  # sum_c do_c o_c  (B, H, L, 1)
    off: Array  # |p_hat - p| at most  (B, H, L, S)
    unfused: bool
    precision: Precision

    @property
    def tiles(self) -> int:
        """How often dk and dv are rounded to storage on the way (0: never)."""
        tile = self.precision.grad_tile
        return math.ceil(self.pull.shape[-2] / tile) if tile else 0


def backward_worst(
    query: Array,
    key: Array,
    value: Array,
    upstream: Array,
    exact: Attended,
    grads: tuple[Array, Array, Array],
    scale: float,
    precision: Precision,
    *,
    stored: bool = False,
    unfused: bool | None = None,
    cap_slope: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Largest errors of dq (B, H, L, D), dk (B, Hkv, S, D), dv (B, Hkv, S, Dv); grads are the exact three.

    upstream is do (B, H, L, Dv). unfused True: autograd of the plain formula, with P, dP and dS stored;
    False: the flash form, P recomputed and delta = sum_c do_c o_c from the rounded output; None: the larger
    of the two. stored: dk and dv are kept in storage precision between tiles of 32 query rows (as
    `with_storage_grads`). cap_slope: the derivative 1 - tanh^2 of a soft cap, with cap >= 1 (B, H, L, S).
    With fewer key than query heads dk and dv may be rounded for each head before they are summed.
    """
    if query.size == 0 or key.size == 0 or value.size == 0:
        return np.zeros_like(grads[0]), np.zeros_like(grads[1]), np.zeros_like(grads[2])
    if stored and precision.grad_tile == 0:
        precision = with_storage_grads(precision)
    with np.errstate(all="ignore"):
        rows = rows_of(query, key, value, exact)
        signed = (query, upstream)
        forms = [
            _one_form(rows, signed, exact, grads, scale, precision, form, cap_slope)
            for form in ((False, True) if unfused is None else (unfused,))
        ]
    dq, dk, dv = (np.maximum(one, other) for one, other in zip(forms[0], forms[-1], strict=True))
    return dq, dk, dv


def _one_form(
    rows: Rows,
    signed: tuple[Array, Array],
    exact: Attended,
    grads: tuple[Array, Array, Array],
    scale: float,
    precision: Precision,
    unfused: bool,
    cap_slope: Array | None,
) -> tuple[Array, Array, Array]:
    """backward_worst of one of its two forms; signed is (q, do)."""
    back, output_error, spread = _pullback(rows, signed[1], exact, scale, precision, unfused)
    slope = None if cap_slope is None else _slope_error(cap_slope, spread, precision)
    error, score = _score_gradient(back, exact, output_error, scale, slope)
    return _collected(back, signed, grads, error, score)


def _pullback(
    rows: Rows, upstream: Array, exact: Attended, scale: float, precision: Precision, unfused: bool
) -> tuple[_Pullback, Array | None, Array]:
    """What one form starts from, the error of its output (None where it needs none) and D."""
    output = np.nan_to_num(exact.output)
    spread = exponent_error(rows, scale, precision)
    output_error = None if unfused else forward_worst_from(rows, exact, spread, precision)
    rows = replace(rows, probs=np.nan_to_num(exact.weights))
    back = _Pullback(
        rows=rows,
        upstream=np.abs(upstream),
        pull=np.matmul(upstream, rows.value.swapaxes(-1, -2)),
        delta=(upstream * output).sum(-1, keepdims=True),
        off=_weights_error(rows, spread, precision, unfused),
        unfused=unfused,
        precision=precision,
    )
    return back, output_error, spread


def bias_worst(
    query: Array, key: Array, value: Array, upstream: Array, exact: Attended, scale: float, precision: Precision,
    axes: tuple[int, ...] = (),
) -> Array:  # fmt: skip
    """Largest error of dbias = ds (B, H, L, S), or of its sum over `axes` (kept, of size 1) for a broadcast bias.

    Each ds_ij may be stored before it is summed: |ds| u_out more, gamma of the sum's length in storage, and the cast.
    """
    with np.errstate(all="ignore"):
        rows = rows_of(query, key, value, exact)
        errors = []
        for unfused in (False, True):
            back, output_error, _ = _pullback(rows, upstream, exact, scale, precision, unfused)
            error, score = _score_gradient(back, exact, output_error, 1.0, None)
            size = np.abs(score) + error
            count = int(np.prod([score.shape[axis] for axis in axes])) if axes else 1
            error = error + (precision.u_out + gamma(count, precision.u_out)) * size
            total = np.abs(score.sum(axes, keepdims=True)) if axes else np.abs(score)
            summed = error.sum(axes, keepdims=True) if axes else error
            errors.append(rounded(summed + count * precision.tiny_out, total, precision, 2))
    return np.asarray(np.maximum(*errors))


def _weights_error(rows: Rows, spread: Array, precision: Precision, unfused: bool) -> Array:
    """|p_hat - p| <= p (e^D / sum_k p_k e^-D_k - 1), at most 2, and the rounding of a stored P (B, H, L, S).

    D grows by 3u_a (|s| + |max| + |lse|) + e_exp + gamma_{n+8}: the weights come from a stored log-sum-exp.
    """
    unit = precision.u_a
    extra = 3 * unit * (np.abs(rows.scores) + rows.peak + np.abs(rows.lse))
    wide = spread + extra + (precision.exp_error + gamma(rows.probs.shape[-1] + 8, unit))
    apart = sink_error(rows, precision)
    if apart is not None:
        apart = 2 * apart + gamma(rows.probs.shape[-1] + 8, unit)
    gain, _, lower = grown(rows, wide, apart)
    off: Array = np.fmin((gain + rows.probs * (1 - lower)) / lower, 2.0)
    if unfused:
        off = off + (rows.probs + off) * precision.u_probs
    return off + (precision.tiny_probs if rows.seen is None else precision.tiny_probs * rows.seen)


def _slope_error(slope: Array, spread: Array, precision: Precision) -> tuple[Array, Array]:
    """t = 1 - tanh^2(x / cap) and its error t (e^2D - 1) + 10u_a + 4u_s, as |d log t / dx| <= 2 / cap."""
    size = np.abs(slope)
    error = size * np.expm1(np.minimum(2 * spread, 50.0)) + 10 * precision.u_a + 4 * precision.u_scores
    return size, np.minimum(error, 1.0)


def _score_gradient(
    back: _Pullback,
    exact: Attended,
    output_error: Array | None,
    scale: float,
    slope: tuple[Array, Array] | None,
) -> tuple[Array, Array]:
    """(error of c ds_ij, c ds_ij), both (B, H, L, S), with ds = p (dp - delta) t.

    e_dp = (gamma_{dv+2} + 2u_value) |do|.|v|, plus u_p |dp| where dP is stored;
    e_delta = sum_c |do_c| B_c + gamma_{dv+2} sum_c |do_c|(|o_c| + B_c) with B the bound of the output, or
    sum_j [|p_hat - p|(|dp| + e_dp) + p e_dp] + gamma_{n+2} sum_j p_hat (|dp| + e_dp) where it is summed
    over keys; e_ds = |p_hat - p| |dp - delta| + p_hat (e_dp + e_delta + 3u_a (|dp| + |delta|)), then the
    slope and u_ds.
    """
    rows, precision, unit = back.rows, back.precision, back.precision.u_a
    pull, most = np.abs(back.pull), rows.probs + back.off
    width = gamma(rows.value.shape[-1] + 2, unit)
    factor = width + 2 * precision.u_value + precision.u_value**2
    off_pull = factor * np.matmul(back.upstream, np.abs(rows.value).swapaxes(-1, -2))
    if output_error is None or back.unfused:
        off_pull = off_pull + precision.u_probs * (pull + off_pull) + precision.tiny_probs
        summed = (gamma(rows.probs.shape[-1] + 2, unit) * most + back.off) * (pull + off_pull)
        off_delta = (summed + rows.probs * off_pull).sum(-1, keepdims=True)
    else:
        size = np.abs(np.nan_to_num(exact.output)) + output_error
        seen_error = output_error + (width + precision.u_value) * size
        off_delta = (back.upstream * seen_error).sum(-1, keepdims=True)
    exact_gradient = rows.probs * (back.pull - back.delta)
    error = back.off * np.abs(back.pull - back.delta)
    error += most * (off_pull + off_delta + 3 * unit * (pull + np.abs(back.delta)))
    size = np.abs(exact_gradient)
    if slope is not None:
        error = error * (slope[0] + slope[1]) + size * slope[1]
        exact_gradient, size = exact_gradient * slope[0], size * slope[0]
    casts = (2 if slope is None else 5) if back.unfused else 1
    error += (size + error) * gamma(casts, precision.u_grad_scores)
    return abs(scale) * error + precision.tiny_probs * (1 + abs(scale)), scale * exact_gradient


def _collected(
    back: _Pullback,
    signed: tuple[Array, Array],
    grads: tuple[Array, Array, Array],
    error: Array,
    score: Array,
) -> tuple[Array, Array, Array]:
    """The bounds of dq, dk, dv from the error of c ds (B, H, L, S), c ds itself and the signed (q, do).

    dq: [e_ds + (gamma_{n+4} + u_in)(|c ds| + e_ds)] |k|; dk the same with q, transposed, and gamma_nb(u_out);
    dv: [|p_hat - p| + u_p p_hat + (gamma_{L+2} + gamma_nb(u_out) + u_value) p_hat]^T |do|.
    """
    rows, precision, unit = back.rows, back.precision, back.precision.u_a
    queries, keys = score.shape[-2:]
    times = 2 if back.unfused else 1
    size, tiled = np.abs(score) + error, gamma(back.tiles, precision.u_out)
    before = np.matmul(error + (gamma(keys + 4, unit) + precision.u_in) * size, rows.key)
    query_error = rounded(before, np.abs(grads[0]), precision, times)
    per_key = (error + (gamma(queries + 4, unit) + tiled + precision.u_in) * size).swapaxes(-1, -2)
    key_error = _over_group(back, np.matmul(per_key, rows.query), score, signed[0], grads[1], times)
    cast = back.off if back.unfused else back.off + precision.u_probs * (rows.probs + back.off)
    most = (gamma(queries + 2, unit) + tiled + precision.u_value) * (rows.probs + cast)
    before = np.matmul((cast + most).swapaxes(-1, -2), back.upstream)
    value_error = _over_group(back, before, rows.probs, signed[1], grads[2], 1)
    return query_error, key_error, value_error


def _over_group(back: _Pullback, before: Array, left: Array, right: Array, grad: Array, times: int) -> Array:
    """From errors per head (B, H, S, D) to those of the sum over the heads that share keys (B, Hkv, S, D).

    A head's contribution is left^T right; it may be rounded to storage, and so may the partial sums of the
    group.
    """
    precision, shared = back.precision, grad.shape[1]
    group = before.shape[1] // shared
    if group > 1:
        part = np.abs(np.matmul(left.swapaxes(-1, -2), right))
        before = before + precision.u_out * (part + before)
        split = (before.shape[0], shared, group, *before.shape[2:])
        before, part = before.reshape(split).sum(2), part.reshape(split).sum(2)
        before = before + (gamma(group, precision.u_out) + gamma(group, precision.u_a)) * (part + before)
        before = before + group * precision.tiny_out
    return rounded(before, np.abs(grad), precision, times) + back.tiles * precision.tiny_out
