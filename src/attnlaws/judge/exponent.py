"""The perturbation of the exponent, and how it moves a weighted mean: what every bound is made of.

Notation as in `attnlaws.judge.bounds`: s the scores, p the weights, v the values, o the output, c the
scale, n the number of keys, d the width of a head. Sources are given there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from attnlaws.judge.precision import Precision
from attnlaws.problems.dtypes import Array

_LARGE = 500_000  # above this many elements the (L, S, Dv) temporaries give way to matrix products
_LARGEST = 4_000_000  # and the visible values of each row to all values
_SPLITS = 3  # rescalings beyond the records of the running maximum


class Attended(Protocol):
    """The exact result: output (B, H, L, Dv); weights, scores and scaled (B, H, L, S); lse (B, H, L).

    scores is final, -inf where a key is invisible; scaled is c q.k; lse the log of the sum of exponentials.
    """

    @property
    def output(self) -> Array: ...
    @property
    def weights(self) -> Array: ...
    @property
    def scores(self) -> Array: ...
    @property
    def scaled(self) -> Array: ...
    @property
    def lse(self) -> Array: ...


@dataclass(frozen=True, slots=True)
class Rows:
    """What the bounds need of the exact result, without infinities (keys and values repeated to H heads)."""

    query: Array  # |q|  (B, H, L, D)
    key: Array  # |k|  (B, H, S, D)
    value: Array  # v  (B, H, S, Dv)
    probs: Array  # p, 0 where invisible  (B, H, L, S)
    scores: Array  # s, 0 where invisible  (B, H, L, S)
    scaled: Array  # |c q.k|  (B, H, L, S)
    shift: Array  # |s - c q.k|, 0 where invisible  (B, H, L, S)
    seen: NDArray[np.bool_] | None  # None: every key is visible  (B, H, L, S)
    peak: Array  # |max_j s_ij|, the sink included, 0 in an empty row  (B, H, L, 1)
    lse: Array  # log sum_j e^s_ij, 0 in an empty row  (B, H, L, 1)
    total: Array  # sum_j e^(s_ij - max), 1 in an empty row  (B, H, L, 1)
    records: Array  # R_i, rescalings that are not exact  (B, H, L, 1)
    sink: Array | None  # the weight of a key with value 0 that is in no array  (B, H, L, 1)


def gamma(terms: float, unit: float) -> float:
    """gamma_n = n u / (1 - n u), Higham (2002), lemma 3.1."""
    product = terms * unit
    return product / (1.0 - product) if product < 0.5 else 1e3 * product


def power_below(size: Array) -> Array:
    """The largest power of two not above each |x| (0 for 0): u times it is half a unit in the last place."""
    fraction, exponent = np.frexp(size)
    below: Array = np.ldexp(0.5, exponent) * (fraction != 0)
    return below


def repeat_heads(array: Array, heads: int) -> Array:
    """(B, Hkv, S, D) -> (B, H, S, D): each head repeated H / Hkv times in place."""
    shared = array.shape[1]
    return array if shared == heads else np.repeat(array, heads // shared, axis=1)


def rows_of(query: Array, key: Array, value: Array, exact: Attended) -> Rows:
    """Collect the magnitudes of one attention, with the invisible keys and the empty rows made harmless."""
    heads = query.shape[1]
    scores, probs, lse = exact.scores, exact.weights, exact.lse[..., None]
    seen: NDArray[np.bool_] | None = np.isfinite(scores)
    if np.all(seen):
        seen = None
        peak, records = _records(scores)
        shift = scores - exact.scaled
    else:
        assert seen is not None
        key, value = _finite(key), _finite(value)
        scores, lse, seen = _unmasked(exact, seen)
        peak, records = _records(scores)
        scores, shift = np.where(seen, scores, 0.0), np.where(seen, scores - exact.scaled, 0.0)
        probs = np.where(seen, probs, 0.0)
        full = seen.any(-1, keepdims=True)
        peak, lse = np.where(full, peak, 0.0), np.where(full, lse, 0.0)
    sink = _sink(probs, seen)
    top = peak if sink is None else np.maximum(peak, lse + np.log(np.maximum(sink, 1e-300)))
    return Rows(
        query=np.abs(query),
        key=repeat_heads(np.abs(key), heads),
        value=repeat_heads(value, heads),
        probs=probs,
        scores=scores,
        scaled=np.abs(exact.scaled),
        shift=np.abs(shift),
        seen=seen,
        peak=np.abs(top),
        lse=lse,
        total=np.exp(lse - top),
        records=records,
        sink=sink,
    )


def _finite(array: Array) -> Array:
    """0 in the place of NaN and infinity: behind a mask they must not reach the result."""
    finite = np.isfinite(array)
    return array if np.all(finite) else np.where(finite, array, 0.0)


def _unmasked(exact: Attended, seen: NDArray[np.bool_]) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Scores, lse and what is seen, where rows without a visible key were computed as if nothing were masked.

    Such a row has weights that differ; their logarithms, moved to the height of c q.k, are its scores.
    """
    scores, lse = exact.scores, exact.lse[..., None]
    empty = ~seen.any(-1, keepdims=True)
    if not np.any(empty):
        return scores, lse, seen
    free = empty & (exact.weights.max(-1, keepdims=True) > exact.weights.min(-1, keepdims=True))
    if not np.any(free):
        return scores, lse, seen
    logs = np.log(np.maximum(exact.weights, 1e-300))
    height = exact.scaled.max(-1, keepdims=True) - logs.max(-1, keepdims=True)
    return np.where(free, logs + height, scores), np.where(free, height, lse), seen | free


def _sink(probs: Array, seen: NDArray[np.bool_] | None) -> Array | None:
    """What the weights of a row leave to a sink, 1 - sum_j p_j; None if that is nothing (B, H, L, 1)."""
    left: Array = 1.0 - probs.sum(-1, keepdims=True)
    if not left.max() > 1e-12:
        return None
    if seen is not None:
        left = np.where(seen.any(-1, keepdims=True), left, 0.0)
    return np.maximum(left, 0.0) if left.max() > 1e-12 else None


def _records(scores: Array) -> tuple[Array, Array]:
    """The maximum of each row, and R_i: how often it is raised in the worse direction, plus the splits."""
    onward = np.maximum.accumulate(scores, axis=-1)
    back = np.maximum.accumulate(scores[..., ::-1], axis=-1)
    rises = np.add.reduce(onward[..., 1:] > onward[..., :-1], axis=-1, dtype=np.float64, keepdims=True)
    falls = np.add.reduce(back[..., 1:] > back[..., :-1], axis=-1, dtype=np.float64, keepdims=True)
    return onward[..., -1:], np.maximum(rises, falls) + _SPLITS


def exponent_error(rows: Rows, scale: float, precision: Precision) -> Array:
    """D_ij, the largest perturbation of the exponent (B, H, L, S).

    D = (gamma_{d+6} + 2u_in) |c| |q|.|k| + u_a (4|c q.k| + 10|s| + 3|s - c q.k| + 3|max|)
        + u_s (2|c q.k| + |s| + 3|s - c q.k|) + e_exp + (e_exp + 4u_a) R_i .
    A soft cap has slope at most 1, so the errors before it pass unamplified; where s differs from c q.k the
    kernel may have stored a few more steps (division, tanh, product, bias): u_s 4|c q.k| more.
    """
    unit, stored = precision.u_a, precision.u_scores * (1 + 4 * precision.u_scores)
    product = gamma(rows.query.shape[-1] + 6, unit) + 2 * precision.u_in + precision.u_in**2
    spread: Array = np.matmul(rows.query, rows.key.swapaxes(-1, -2))
    spread *= product * abs(scale)
    spread += (4 * unit + 2 * stored) * rows.scaled
    spread += (10 * unit + stored) * np.abs(rows.scores)
    if rows.shift.any():
        spread += (3 * unit + 3 * stored) * rows.shift
        if stored > 0:
            spread += (4 * stored) * rows.scaled * (rows.shift > 0)
    constant = precision.exp_error + (4 * precision.tiny_out if stored > 0 else 0.0)
    spread += 3 * unit * rows.peak + (precision.exp_error + 4 * unit) * rows.records + constant
    return spread if rows.seen is None else np.where(rows.seen, spread, 0.0)


def grown(rows: Rows, spread: Array, apart: Array | None = None) -> tuple[Array, Array, Array]:
    """p (e^D - 1) and p e^D (B, H, L, S), and sum_k p_k e^-D_k (B, H, L, 1); for large D by way of log p.

    apart is D of the sink (B, H, L, 1), which takes part in the sum only.
    """
    lower: Array = (rows.probs * np.exp(-spread)).sum(-1, keepdims=True)
    if rows.sink is not None and apart is not None:
        lower = lower + rows.sink * np.exp(-apart)
    if spread.max(initial=0.0) < 1.0:
        gain = rows.probs * np.expm1(spread)
        return gain, rows.probs + gain, np.where(lower > 0, lower, 1.0)
    upper = np.exp(np.minimum(rows.scores - rows.lse + spread, 300.0))
    if rows.seen is not None:
        upper = np.where(rows.seen, upper, 0.0)
    gain = np.where(spread < 1.0, rows.probs * np.expm1(np.minimum(spread, 1.0)), upper)
    return gain, upper, np.maximum(lower, 1e-300)


def centred(weights: Array, value: Array, output: Array) -> Array:
    """sum_j w_ij |v_jc - o_ic| (B, H, L, Dv); for large sizes its bound by Cauchy and Schwarz.

    (sum_j w_j |v_j - o|)^2 <= (sum_j w_j) (sum_j w_j v_j^2 - 2 o sum_j w_j v_j + o^2 sum_j w_j).
    """
    if weights.size * value.shape[-1] <= _LARGE:
        apart = np.abs(value[:, :, None] - output[..., None, :])
        near: Array = np.matmul(weights[..., None, :], apart)[..., 0, :]
        return near
    mass = weights.sum(-1, keepdims=True)
    far: Array = np.sqrt(mass * second_moment(weights, value, output))
    return far


def second_moment(weights: Array, value: Array, output: Array) -> Array:
    """sum_j w_ij (v_jc - o_ic)^2 (B, H, L, Dv), from above where it is expanded into products."""
    if weights.size * value.shape[-1] <= _LARGE:
        apart = value[:, :, None] - output[..., None, :]
        apart *= apart
        near: Array = np.matmul(weights[..., None, :], apart)[..., 0, :]
        return near
    middle = value.mean(-2, keepdims=True)
    value, output = value - middle, output - middle
    squares = np.matmul(weights, value * value)
    own = output * output * weights.sum(-1, keepdims=True)
    slack = (weights.shape[-1] + 8) * 2.0**-52 * (squares + own)
    far: Array = np.maximum(squares - 2 * output * np.matmul(weights, value) + own, 0.0) + slack
    return far


def reach(rows: Rows, output: Array) -> tuple[Array, Array]:
    """How far weighted means of the visible values lie from o, and from 0, at most (both B, H, L, Dv)."""
    value, seen = rows.value, rows.seen
    if seen is None or rows.probs.size * value.shape[-1] > _LARGEST:
        top, bottom = value.max(-2, keepdims=True), value.min(-2, keepdims=True)
    else:
        top = np.where(seen[..., None], value[:, :, None], -np.inf).max(-2)
        bottom = np.where(seen[..., None], value[:, :, None], np.inf).min(-2)
        full = seen.any(-1, keepdims=True)
        top, bottom = np.where(full, top, 0.0), np.where(full, bottom, 0.0)
    if rows.sink is not None:
        top, bottom = np.maximum(top, 0.0), np.minimum(bottom, 0.0)
    away = np.maximum(np.maximum(top - output, output - bottom), 0.0)
    return away, np.broadcast_to(np.maximum(np.abs(top), np.abs(bottom)), output.shape)


def underflow(rows: Rows, size: Array, precision: Precision) -> Array:
    """tiny_p (sum_j |v_j| + n |o|) / l: weights below the normal range, size = |o| (B, H, L, Dv)."""
    value = np.abs(rows.value)
    if rows.seen is None:
        lost: Array = value.sum(-2, keepdims=True) + rows.probs.shape[-1] * size
    else:
        lost = np.matmul(rows.seen.astype(np.float64), value) + rows.seen.sum(-1, keepdims=True) * size
    return precision.tiny_probs * (lost if precision.normalized_probs else lost / rows.total)


def rounded(before: Array, size: Array, precision: Precision, times: int = 1) -> Array:
    """before + times [u_out ufp((size + before)(1 + 2u_out)) + tiny_out]: the error after storing."""
    unit = precision.u_out
    half: Array = before + times * (unit * power_below((size + before) * (1 + 2 * unit)) + precision.tiny_out)
    return half


def sink_error(rows: Rows, precision: Precision) -> Array | None:
    """D of the sink, whose score log(p) + lse is given and not computed (B, H, L, 1); None without a sink."""
    if rows.sink is None:
        return None
    score = np.abs(np.log(np.maximum(rows.sink, 1e-300)) + rows.lse)
    spread = (10 * precision.u_a + precision.u_scores) * score + 3 * precision.u_a * rows.peak
    error: Array = spread + precision.exp_error + (precision.exp_error + 4 * precision.u_a) * rows.records
    return error


def exponent_variance(rows: Rows, scale: float, precision: Precision) -> Array:
    """Variance of delta_ij when roundings are independent, of mean zero and variance u^2 / 3 (B, H, L, S).

    c^2 [(u_a^2/3)(d/2 + 3) + 2u_in^2/3] sum q^2 k^2 + (u_a^2/3) [(d/3 + 3)(c q.k)^2 + 2(|s| + |max|)^2]
    + (u_s^2/3) [2 ufp(c q.k)^2 + ufp(s)^2 + 3 ufp(s - c q.k)^2] + (e_rms^2 + 2u_a^2/3)(1 + R/2);
    d/2 and d/3: the expected squares of the partial sums of a dot product in random order.
    """
    width, third, stored = rows.query.shape[-1], precision.u_a**2 / 3, precision.u_scores**2 / 3
    variance: Array = np.matmul(rows.query**2, (rows.key**2).swapaxes(-1, -2))
    variance *= scale**2 * (third * (width / 2 + 3) + 2 * precision.u_in**2 / 3)
    size = np.abs(rows.scores)
    variance += third * ((width / 3 + 3) * rows.scaled**2 + 2 * (size + rows.peak) ** 2)
    if rows.shift.any():
        variance += 6 * third * (rows.shift**2 + size**2)
    if stored > 0:
        product, total = power_below(rows.scaled), power_below(size)
        variance += stored * (2 * product**2 + total**2)
        if rows.shift.any():
            variance += stored * (3 * power_below(rows.shift) ** 2 + 4 * (product * (rows.shift > 0)) ** 2)
    variance += (precision.exp_rms**2 + 2 * third) * (1 + (rows.records - _SPLITS) / 2)
    return variance if rows.seen is None else np.where(rows.seen, variance, 0.0)
