"""How far a correct attention layer may be from the exact one, per element and from the actual inputs.

    y = merge(softmax(c q k^T) v) Wo^T + bo,    q = x Wq^T + bq, k and v likewise

A projection in arithmetic u gives q + dq with |dq| <= gamma_{E+2} (|x| |Wq|^T + |bq|), whatever the order of its sums
(Higham 2002, 3.5). What the kernel then attends with are these: the exponent moves by at most

    P_ij = |c| (|dq_i|.|k_j| + |q_i|.|dk_j| + |dq_i|.|dk_j|)

beyond its own D_ij, and the values by dv. With S_i = max_j (D_ij + P_ij) each weight is at most p_ij e^(2 S_i), so the
heads are off by the kernel's bound for D + P, and by sum_j p_ij e^(2 S_i) dv_j. The kernel's roundings are taken relative
to q + dq and v + dv, which is second order: 1 % on top covers it. Through the output projection this dm becomes

    |dy| <= dm |Wo|^T + gamma_{HD+2} ((|m| + dm) |Wo|^T + |bo|) .
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnlaws.judge.bounds import forward_worst_from
from attnlaws.judge.exponent import Attended, exponent_error, gamma, repeat_heads, rows_of
from attnlaws.judge.precision import Precision
from attnlaws.problems.dtypes import Array


def projection_error(x: Array, matrix: Array, offset: Array, unit: float) -> Array:
    """|dq| for x (B, L, E), the matrix (out, E) and the offset (out,): gamma_{E+2} (|x| |W|^T + |b|)."""
    found: Array = gamma(x.shape[-1] + 2, unit) * (np.abs(x) @ np.abs(matrix).T + np.abs(offset))
    return found


def heads_error(
    operands: tuple[Array, Array, Array],
    errors: tuple[Array, Array, Array],
    exact: Attended,
    scale: float,
    precision: Precision,
) -> Array:
    """How far each head may be off (B, H, L, Dv), for q, k, v (B, H or Hkv, L, D) and how far these may be off."""
    query, key, value = operands
    dq, dk, dv = (repeat_heads(e, query.shape[1]) for e in errors)
    inside = replace(precision, u_out=precision.u_a)
    with np.errstate(all="ignore"):
        rows = rows_of(query, key, value, exact)
        moved = dq @ (rows.key + dk).swapaxes(-1, -2) + rows.query @ dk.swapaxes(-1, -2)
        spread = exponent_error(rows, scale, inside) + abs(scale) * moved
        if rows.seen is not None:
            spread = np.where(rows.seen, spread, 0.0)
        kernel = forward_worst_from(rows, exact, spread, inside)
        largest = np.minimum(2.0 * spread.max(-1, keepdims=True), 300.0)
        found: Array = 1.01 * (kernel + (rows.probs * np.exp(largest)) @ dv)
    return found


def output_error(merged: Array, error: Array, matrix: Array, offset: Array, unit: float) -> Array:
    """|dy| (B, L, E') for the merged heads (B, L, H*D), their error, and the output projection."""
    size = (np.abs(merged) + error) @ np.abs(matrix).T + np.abs(offset)
    found: Array = error @ np.abs(matrix).T + gamma(merged.shape[-1] + 2, unit) * size
    return found
