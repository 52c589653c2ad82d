"""The float64 oracle: scaled dot-product attention in NumPy, its gradients, and the merge of partial results.

    Attention(Q, K, V) = softmax(scale Q K^T) V        Vaswani et al. 2017, arXiv:1706.03762, equation (1)

Letters in shapes: B batch, H query heads, Hkv key and value heads, G = H / Hkv, L queries, S keys, D head
size, Dv value size. The order of steps is scale, cap, ALiBi, bias, mask, softmax, drop, combine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Causal = Literal["top-left", "bottom-right"]
Window = tuple[int | None, int | None]
EmptyRow = Literal["zeros", "nan", "uniform", "unmasked"]

LOWEST = float(np.finfo(np.float64).min)


@dataclass(frozen=True)
class Attended:
    """What attention computed. For an empty row `weights` and `output` hold what `empty_row` asks for, while
    `scores`, `lse` and `visible` say that it is empty."""

    output: Floats  # (B, H, L, Dv)
    weights: Floats  # (B, H, L, S) probabilities before dropout, 0 where masked
    scores: Floats  # (B, H, L, S) capped and biased, -inf where masked
    scaled: Floats  # (B, H, L, S) scale q.k, before cap, bias and mask
    lse: Floats  # (B, H, L) log of the sum of exp(scores), the sink included; -inf for an empty row
    visible: Bools  # (B, H, L, S) True = may attend


@dataclass(frozen=True)
class Gradients:
    """The derivative of sum(output * upstream) by each input."""

    query: Floats  # (B, H, L, D)
    key: Floats  # (B, Hkv, S, D) summed over the G query heads that read it
    value: Floats  # (B, Hkv, S, Dv) likewise
    bias: Floats  # (B, H, L, S) 0 where masked; sum it over the broadcast axes of your bias


def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    visible: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    causal: Causal | None = None,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    dropout_keep: ArrayLike | None = None,
    dropout_p: float = 0.0,
    empty_row: EmptyRow = "zeros",
) -> Attended:
    """Scaled dot-product attention of query (B, H, L, D) over key (B, Hkv, S, D) and value (B, Hkv, S, Dv).

        x[i,j]  = scale q[i].k[j]                             scale = 1 / sqrt(D) unless given
        s[i,j]  = cap tanh(x / cap) + slope (j - i - offset) + bias[i,j],  -inf where masked
        p[i,j]  = exp(s[i,j]) / (exp(sink) + sum_j exp(s[i,j]))
        out[i]  = sum_j p[i,j] keep[i,j] / (1 - dropout_p) v[j]

    Query head h reads key head h // G. offset = S - L if causal is "bottom-right", else 0; causal is
    j <= i + offset and window (left, right) is i + offset - left <= j <= i + offset + right, both ends
    included, None without end. A bias of -inf masks. `empty_row` says what a row without a visible key
    returns: zeros, nan, the mean of all values, or what it would be with no mask at all; where a finite sink
    takes part, such a row is 0 by the formula. NaN and inf at pairs of weight 0 never reach the output.

    Sources: ALiBi arXiv:2108.12409; cap arXiv:2408.00118; grouped heads arXiv:2305.13245; sinks
    arXiv:2309.17453.
    """
    q, k, v = _checked(query, key, value)
    B, H, L, D = q.shape
    Hkv, S = k.shape[1], k.shape[2]
    if empty_row not in ("zeros", "nan", "uniform", "unmasked"):
        raise ValueError(f"empty_row must be zeros, nan, uniform or unmasked, not {empty_row!r}")
    full = (B, H, L, S)
    if scale is None:
        scale = _default_scale(D)
    offset = S - L if causal == "bottom-right" else 0

    with np.errstate(all="ignore"):
        # (B, Hkv, G*L, D) @ (B, Hkv, D, S) -> (B, H, L, S): the G heads of a group are rows of one product
        scaled = (_grouped(q, Hkv) @ k.swapaxes(-1, -2)).reshape(full)
        scaled *= scale

        free = scaled  # the scores before any mask
        if softcap:
            free = softcap * np.tanh(free / softcap)
        if alibi_slopes is not None:
            slopes = np.asarray(alibi_slopes, dtype=np.float64)
            if slopes.shape != (H,):
                raise ValueError(f"alibi_slopes must have shape ({H},), one for each query head, not {slopes.shape}")
            free = free + slopes[:, None, None] * _distance(L, S, offset)
        shown = _structure(B, H, L, S, causal, window)
        masked = causal is not None or window is not None
        if visible is not None:
            allowed = np.asarray(visible)
            if allowed.dtype != np.bool_:
                raise ValueError(f"visible must be boolean, True = attend, not {allowed.dtype}; give floats as bias")
            shown = shown & _fits(allowed, full, "visible")
            masked = True
        if bias is not None:
            added = _fits(np.asarray(bias, dtype=np.float64), full, "bias")
            hidden = added == -np.inf
            if hidden.any():
                shown = shown & ~hidden
                masked = True
                free = free + np.where(hidden, 0.0, added)
            else:
                free = free + added
        scores = np.where(shown, free, -np.inf) if masked else free

        # softmax, safe for a row that is -inf throughout: exp(-inf - LOWEST) = 0
        peak = np.maximum(scores.max(axis=-1, keepdims=True, initial=LOWEST), LOWEST)
        if sinks is not None:
            sink = np.asarray(sinks, dtype=np.float64)
            if sink.shape != (H,):
                raise ValueError(f"sinks must have shape ({H},), one for each query head, not {sink.shape}")
            peak = np.maximum(peak, sink[:, None, None])
        weights = np.exp(scores - peak)
        total = weights.sum(axis=-1, keepdims=True)  # (B, H, L, 1)
        if sinks is not None:
            total = total + np.exp(sink[:, None, None] - peak)
        lse = (peak + np.log(total))[..., 0]
        weights /= total
        if not (total > 0).all():  # rows that are empty, or not a number
            empty = total == 0
            weights = np.where(shown & ~empty, weights, 0.0)
            if empty_row != "zeros" and S:
                np.copyto(weights, _empty_weights(empty_row, free), where=empty)
        output = _product(_grouped(_dropped(weights, dropout_keep, dropout_p), Hkv), v).reshape(B, H, L, v.shape[3])
    return Attended(output, weights, scores, scaled, lse, shown)


def gradients(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    upstream: ArrayLike,
    *,
    visible: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    causal: Causal | None = None,
    window: Window | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    dropout_keep: ArrayLike | None = None,
    dropout_p: float = 0.0,
    empty_row: EmptyRow = "zeros",
    empty_row_gradient: Literal["zero", "derivative"] = "zero",
) -> Gradients:
    """The gradients of sum(upstream * attention(query, key, value).output), upstream (B, H, L, Dv).

        dp = upstream v^T keep / (1 - dropout_p)
        ds = p (dp - sum_j p dp)                        dbias = ds
        dx = ds (1 - tanh(x / cap)^2)                   dq = scale dx k         dk = scale dx^T q
        dv = (p keep / (1 - dropout_p))^T upstream

    An empty row gives no gradient; with empty_row_gradient = "derivative" it gives that of what it returned:
    under "uniform" dv = upstream / S (as in JAX) and nothing else, under "unmasked" all but dbias, which is 0
    where masked.

    Source: FlashAttention, arXiv:2205.14135, appendix B.4; the cap by the chain rule.
    """
    seen = attention(
        query,
        key,
        value,
        visible=visible,
        bias=bias,
        causal=causal,
        window=window,
        scale=scale,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        dropout_keep=dropout_keep,
        dropout_p=dropout_p,
        empty_row=empty_row,
    )
    q, k, v = _checked(query, key, value)
    B, H, L, D = q.shape
    Hkv, S = k.shape[1], k.shape[2]
    if scale is None:
        scale = _default_scale(D)
    above = np.asarray(upstream, dtype=np.float64)
    if above.shape != seen.output.shape:
        raise ValueError(f"upstream must have the output's shape {seen.output.shape}, not {above.shape}")

    with np.errstate(all="ignore"):
        p = seen.weights
        empty = (seen.lse == -np.inf)[..., None]  # (B, H, L, 1)
        if empty_row_gradient == "zero" or empty_row in ("zeros", "nan"):
            p = np.where(empty, 0.0, p)
        dp = (_grouped(above, Hkv) @ v.swapaxes(-1, -2)).reshape(B, H, L, S)
        dp = np.where(p == 0, 0.0, _dropped(dp, dropout_keep, dropout_p))
        ds = np.where(p == 0, 0.0, p * (dp - (p * dp).sum(axis=-1, keepdims=True)))
        if empty_row == "uniform":  # its weights are constants
            ds = np.where(empty, 0.0, ds)
        dx = ds
        if softcap:
            dx = np.where(ds == 0, 0.0, ds * (1 - np.tanh(seen.scaled / softcap) ** 2))
        rows = _grouped(dx, Hkv)  # (B, Hkv, G*L, S)
        return Gradients(
            query=scale * _product(rows, k).reshape(B, H, L, D),
            key=scale * _product(rows.swapaxes(-1, -2), _grouped(q, Hkv)),
            value=_product(_grouped(_dropped(p, dropout_keep, dropout_p), Hkv).swapaxes(-1, -2), _grouped(above, Hkv)),
            bias=np.where(seen.visible, ds, 0.0),
        )


def merge(outputs: Sequence[ArrayLike], lses: Sequence[ArrayLike]) -> tuple[Floats, Floats]:
    """Attention over a union of disjoint key sets, from each set's output (B, H, L, Dv) and lse (B, H, L).

        lse = log sum_n exp(lse[n])        out = sum_n exp(lse[n] - lse) out[n]

    Returns the output and its lse. A part whose lse is -inf has no weight whatever its output holds; where
    every part is empty the output is 0 and the lse -inf. At most one part may include a sink.

    Source: FlashAttention, arXiv:2205.14135, section 3.1.
    """
    if not outputs or len(outputs) != len(lses):
        raise ValueError(f"merge needs as many outputs as lses and at least one, not {len(outputs)} and {len(lses)}")
    parts = np.stack([np.asarray(part, dtype=np.float64) for part in outputs])  # (N, B, H, L, Dv)
    logs = np.stack([np.asarray(log, dtype=np.float64) for log in lses])  # (N, B, H, L)
    if parts.shape[:-1] != logs.shape:
        raise ValueError(f"each lse must have its output's shape without the last axis, not {logs.shape[1:]}")
    with np.errstate(all="ignore"):
        peak = np.maximum(logs.max(axis=0), LOWEST)
        share = np.exp(logs - peak)
        total = share.sum(axis=0)
        share = share / np.where(total == 0, 1.0, total)
        output = np.where(share[..., None] == 0, 0.0, share[..., None] * parts).sum(axis=0)
        return output, peak + np.log(total)


def _checked(query: ArrayLike, key: ArrayLike, value: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """The three inputs in float64, or a ValueError that says what does not fit."""
    q = np.asarray(query, dtype=np.float64)
    k = np.asarray(key, dtype=np.float64)
    v = np.asarray(value, dtype=np.float64)
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise ValueError(f"query, key and value must have 4 axes (B, H, L, D), not {q.shape}, {k.shape}, {v.shape}")
    if k.shape[:3] != v.shape[:3]:
        raise ValueError(f"key {k.shape} and value {v.shape} must agree on batch, heads and length")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"query {q.shape} and key {k.shape} must agree on batch and head size")
    H, Hkv = q.shape[1], k.shape[1]
    if H % Hkv if Hkv else H:
        raise ValueError(f"{H} query heads can not be shared out over {Hkv} key heads")
    return q, k, v


def _default_scale(D: int) -> float:
    return 1 / math.sqrt(D) if D else 1.0


def _grouped(x: Floats, Hkv: int) -> Floats:
    """(B, H, L, N) -> (B, Hkv, G*L, N): query head h becomes a block of L rows of key head h // G."""
    B, H, L, N = x.shape
    return x if Hkv == H else x.reshape(B, Hkv, H // Hkv * L if Hkv else L, N)


def _fits(x: NDArray[Any], full: tuple[int, ...], name: str) -> NDArray[Any]:
    if x.shape == full:
        return x
    try:
        return np.broadcast_to(x, full)
    except ValueError:
        raise ValueError(f"{name} of shape {x.shape} does not broadcast to (B, H, L, S) = {full}") from None


@lru_cache(maxsize=64)
def _distance(L: int, S: int, offset: int) -> Floats:
    """(L, S): j - i - offset, how far key j lies after query i."""
    distance = (np.arange(S)[None, :] - np.arange(L)[:, None] - offset).astype(np.float64)
    distance.flags.writeable = False
    return distance


@lru_cache(maxsize=64)
def _structure(B: int, H: int, L: int, S: int, causal: Causal | None, window: Window | None) -> Bools:
    """(B, H, L, S), read-only: the pairs that causality and the window leave visible."""
    if causal not in (None, "top-left", "bottom-right"):
        raise ValueError(f"causal must be None, top-left or bottom-right, not {causal!r}")
    distance = _distance(L, S, S - L if causal == "bottom-right" else 0)
    shown = np.ones((L, S), dtype=np.bool_)
    if causal is not None:
        shown &= distance <= 0
    if window is not None:
        left, right = window
        if (left is not None and left < 0) or (right is not None and right < 0):
            raise ValueError(f"window ends must be None (without end) or counts, at least 0, not {window}")
        if left is not None:
            shown &= distance >= -left
        if right is not None:
            shown &= distance <= right
    return np.broadcast_to(shown, (B, H, L, S))


def _empty_weights(empty_row: EmptyRow, free: Floats) -> Floats:
    """The weights of rows without a visible key, () or (B, H, L, S); `free` (B, H, L, S) is before masks."""
    if empty_row == "nan":
        return np.full((), np.nan)
    if empty_row == "uniform":
        return np.full((), 1 / free.shape[-1])
    raised: Floats = np.exp(free - free.max(axis=-1, keepdims=True))
    raised /= raised.sum(axis=-1, keepdims=True)
    return raised


def _dropped(weights: Floats, keep: ArrayLike | None, p: float) -> Floats:
    """Inverted dropout with a given mask (True = kept); p = 1 drops everything."""
    if keep is None:
        if p:
            raise ValueError("dropout_p without dropout_keep: the oracle draws nothing at random, give it the mask")
        return weights
    kept = _fits(np.asarray(keep, dtype=np.bool_), weights.shape, "dropout_keep")
    if not 0 <= p <= 1:
        raise ValueError(f"dropout_p must lie in [0, 1], not {p}")
    return np.where(kept, weights / (1 - p), 0.0) if p < 1 else np.zeros_like(weights)


def _product(left: Floats, right: Floats) -> Floats:
    """left (..., M, N) @ right (..., N, P), where a factor of exactly 0 on the left cancels NaN or inf."""
    product: Floats = left @ right
    if math.isfinite(product.sum()):  # nothing spoiled it
        return product
    finite = np.isfinite(right)
    product = left @ np.where(finite, right, 0.0)
    spoiled = ~finite.all(axis=-1)  # (..., N)
    for n in np.flatnonzero(spoiled.reshape(-1, right.shape[-2]).any(axis=0)):
        factor = left[..., :, n, None]
        row = np.where(finite[..., n, :], 0.0, right[..., n, :])[..., None, :]
        product += np.where((factor == 0) | (row == 0), 0.0, factor * row)
    return product
