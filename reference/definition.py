"""Attention a second time, as loops over its definition, to hold the oracle against. It shares no helper.

    out[b,h,i] = sum_j p[j] v[b, h // G, j]      p[j] = exp(s[j]) / (exp(sink) + sum_j exp(s[j]))

Source: Vaswani et al. 2017, arXiv:1706.03762, equation (1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from .oracle import Attended


def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    visible: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    causal: Literal["top-left", "bottom-right"] | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    dropout_keep: ArrayLike | None = None,
    dropout_p: float = 0.0,
    empty_row: Literal["zeros", "nan", "uniform", "unmasked"] = "zeros",
) -> Attended:
    """query (B, H, L, D), key (B, Hkv, S, D), value (B, Hkv, S, Dv) -> `Attended`; options as in `oracle`."""
    q = np.asarray(query, dtype=np.float64)
    k = np.asarray(key, dtype=np.float64)
    v = np.asarray(value, dtype=np.float64)
    B, H, L, D = q.shape
    _, Hkv, S, Dv = v.shape
    if Hkv == 0 or H % Hkv != 0:
        raise ValueError(f"{Hkv} key heads can not serve {H} query heads")
    if scale is None:
        scale = D**-0.5 if D else 1.0
    shift = S - L if causal == "bottom-right" else 0
    allowed = None if visible is None else np.broadcast_to(np.asarray(visible), (B, H, L, S))
    added = None if bias is None else np.broadcast_to(np.asarray(bias, dtype=np.float64), (B, H, L, S))
    slopes = None if alibi_slopes is None else np.asarray(alibi_slopes, dtype=np.float64)
    sink_logits = None if sinks is None else np.asarray(sinks, dtype=np.float64)
    keep = None if dropout_keep is None else np.broadcast_to(np.asarray(dropout_keep), (B, H, L, S))

    out = np.zeros((B, H, L, Dv))
    weights = np.zeros((B, H, L, S))
    scores = np.full((B, H, L, S), -math.inf)
    scaled = np.zeros((B, H, L, S))
    lse = np.full((B, H, L), -math.inf)
    shown = np.zeros((B, H, L, S), dtype=np.bool_)

    for b, h, i in np.ndindex(B, H, L):
        reads = h // (H // Hkv)
        position = i + shift
        unmasked = []
        for j in range(S):
            x = scale * _sum(float(q[b, h, i, d]) * float(k[b, reads, j, d]) for d in range(D))
            scaled[b, h, i, j] = x

            may = True
            if causal is not None and j > position:
                may = False
            if window is not None:
                left, right = window
                if left is not None and j < position - left:
                    may = False
                if right is not None and j > position + right:
                    may = False
            if allowed is not None and not allowed[b, h, i, j]:
                may = False

            s = x if softcap is None or softcap == 0 else softcap * math.tanh(x / softcap)
            if slopes is not None:
                s += float(slopes[h]) * (j - position)
            if added is not None:
                if added[b, h, i, j] == -math.inf:
                    may = False
                else:
                    s += float(added[b, h, i, j])
            unmasked.append(s)
            shown[b, h, i, j] = may
            if may:
                scores[b, h, i, j] = s

        row = [float(s) for s in scores[b, h, i]]
        extra = [] if sink_logits is None else [float(sink_logits[h])]
        p, lse[b, h, i] = _softmax(row, extra)
        if math.isnan(lse[b, h, i]):
            p = [p[j] if shown[b, h, i, j] else 0.0 for j in range(S)]
        if lse[b, h, i] == -math.inf and S > 0:  # nothing to attend to
            if empty_row == "zeros":
                p = [0.0] * S
            elif empty_row == "nan":
                p = [math.nan] * S
            elif empty_row == "uniform":
                p = [1 / S] * S
            else:
                p, _ = _softmax(unmasked, [])
        weights[b, h, i] = p
        if keep is not None:
            p = [p[j] / (1 - dropout_p) if keep[b, h, i, j] and dropout_p < 1 else 0.0 for j in range(S)]
        for c in range(Dv):
            out[b, h, i, c] = _sum(p[j] * float(v[b, reads, j, c]) for j in range(S) if p[j] != 0)
    return Attended(out, weights, scores, scaled, lse, shown)


def _softmax(row: list[float], extra: list[float]) -> tuple[list[float], float]:
    """The probabilities of `row`, normalised together with `extra`, and the log of the normaliser."""
    joined = row + extra
    if any(math.isnan(s) for s in joined) or math.inf in joined:  # inf - inf is not a number
        return [math.nan] * len(row), math.nan
    if all(s == -math.inf for s in joined):
        return [math.nan] * len(row), -math.inf
    peak = max(joined)
    total = math.fsum(math.exp(s - peak) for s in joined)
    return [math.exp(s - peak) / total for s in row], peak + math.log(total)


def _sum(terms: Iterable[float]) -> float:
    """The correctly rounded sum; where it overflows or holds infinities or NaN, what plain addition gives."""
    listed = list(terms)
    try:
        return math.fsum(listed)
    except (OverflowError, ValueError):
        return sum(listed)
