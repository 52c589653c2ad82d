"""How far a correct attention kernel may be from the exact result, per element and from the actual inputs.

Model. s_ij = c q_i.k_j (+ bias, perhaps soft-capped), p = softmax(s), o = p v, with inputs that are exact
in their dtype. Every error made before the exponential, and that of the exponential, is a perturbation
delta_ij of the exponent with |delta_ij| <= D_ij; then, exactly,

    o_hat - o = sum_j p_j (e^delta_j - 1) (v_j - o) / sum_k p_k e^delta_k .

To this come the roundings of the weights, of the accumulation and of the output. Two tiers: *worst* holds
for every input and every order of summation; *random* assumes independent roundings of mean zero.

Sources: gamma_n = n u / (1 - n u) and the error of a dot product, Higham, Accuracy and Stability of Numerical
Algorithms (2002), 3.1; the softmax, Blanchard, Higham & Higham, IMA J. Numer. Anal. 41 (2021); gamma_n
replaced by lambda sqrt(n) u, Higham & Mary, SIAM J. Sci. Comput. 41 (2019); rounding errors as random
variables, Connolly, Higham & Mary, SIAM J. Sci. Comput. 43 (2021).

A sink (a key of value 0 whose weight is what the row sum leaves) is understood; dropout is not: the weights
must be those that meet the values.

Limits. Tiles are visited in either direction, with at most three splits of the keys. The exact result is
itself computed in float64: where the kernel under test is float64 too, the caller doubles the bound. Output
beyond the largest finite number of the dtype is the caller's affair. Bounds are finite for finite inputs.

Shapes: query (B, H, L, D), key (B, Hkv, S, D), value (B, Hkv, S, Dv), with H a multiple of Hkv.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from attnlaws.judge.exponent import (
    Attended,
    Rows,
    centred,
    exponent_error,
    exponent_variance,
    gamma,
    grown,
    power_below,
    reach,
    rounded,
    rows_of,
    second_moment,
    sink_error,
    underflow,
)
from attnlaws.judge.precision import Precision, with_storage_grads
from attnlaws.problems.dtypes import Array

__all__ = ["Attended", "backward_worst", "forward_random", "forward_worst", "row_sum_slack"]


def _empty_rows(bound: Array, rows: Rows, exact: Attended, precision: Precision) -> Array:
    """Replace the bound of rows without a visible key: a plain mean of S values, or an exact 0 (or NaN).

    mean: (gamma_{S+8} + u_p + u_value + e_exp + S tiny_p) mean_j |v_j|, and the rounding of the output.
    """
    if rows.seen is None:
        return bound
    full = rows.seen.any(-1, keepdims=True)
    if np.all(full):
        return bound
    weight = np.nan_to_num(np.abs(exact.weights).max(-1, keepdims=True), nan=0.0)
    unit = gamma(exact.weights.shape[-1] + 8, precision.u_a) + precision.u_probs + precision.u_value
    mean = np.abs(rows.value).mean(-2, keepdims=True)
    size = np.abs(np.nan_to_num(exact.output))
    unit += precision.exp_error + rows.probs.shape[-1] * precision.tiny_probs
    before = np.broadcast_to(unit * mean, size.shape)
    return np.where(full, bound, np.where(weight > 0, rounded(before, size, precision), 0.0))


def forward_worst(query: Array, key: Array, value: Array, exact: Attended, scale: float, precision: Precision) -> Array:
    """Largest |o_hat - o| of any correct kernel of this precision (B, H, L, Dv).

    E = min(sum_j p_j (e^D_j - 1)|v_j - o| / sum_k p_k e^-D_k, reach of the visible values from o);
    M = min(sum_j p_j e^D_j |v_j| / sum_k p_k e^-D_k, max_j |v_j|);
    pre = E + (u_p + u_value + gamma_{n+R+4}) M + (gamma_{n+6} + e_exp + 4u_a |lse|)(|o| + E) + underflow;
    bound = pre + u_out ufp((|o| + pre)(1 + 2u_out)) + tiny_out.
    e_exp and |lse| stand for the weights of splits that are combined without another division.
    """
    if exact.output.size == 0 or key.shape[-2] == 0:
        return np.zeros_like(exact.output)
    with np.errstate(all="ignore"):
        rows = rows_of(query, key, value, exact)
        return _forward_worst(rows, exact, exponent_error(rows, scale, precision), precision)


def _forward_worst(rows: Rows, exact: Attended, spread: Array, precision: Precision) -> Array:
    """forward_worst from D (B, H, L, S)."""
    unit, keys, output = precision.u_a, rows.probs.shape[-1], exact.output
    apart = sink_error(rows, precision)
    gain, upper, lower = grown(rows, spread, apart)
    moved = centred(gain, rows.value, output)
    if rows.sink is not None and apart is not None:
        moved += rows.sink * np.expm1(np.minimum(apart, 300.0)) * np.abs(output)
    moved /= lower
    mass: Array = np.matmul(upper, np.abs(rows.value)) / lower
    if spread.max() > 0.25:
        away, largest = reach(rows, output)
        moved, mass = np.fmin(moved, away), np.fmin(mass, largest)
    size = np.abs(output)
    cast = (1 + precision.u_probs) * (1 + precision.u_value) - 1
    before = moved + (cast + gamma(keys + float(rows.records.max()) + 4, unit)) * mass
    own = gamma(keys + 6, unit) + precision.exp_error + np.minimum(4 * unit * np.abs(rows.lse), 1.0)
    before += own * (size + moved)
    before += underflow(rows, size, precision)
    return _empty_rows(rounded(before, size, precision), rows, exact, precision)


def forward_random(
    query: Array,
    key: Array,
    value: Array,
    exact: Attended,
    scale: float,
    precision: Precision,
    lam: float = 6.0,
) -> tuple[Array, Array]:
    """(lambda sigma + half an ulp, sigma with the output's own rounding), both (B, H, L, Dv).

    sigma^2 = sum_j p_j^2 var(delta_j)(v_j - o)^2 + [(u_p^2 + u_value^2)/3 + (u_a^2/3)(n/2 + 1)] sum_j p_j^2
    v_j^2 + (u_a^2/3)(2n/3 + 4) o^2 + (4u_a^2 lse^2/3 + e_rms^2) o^2 + underflow. An element exceeds the
    bound with probability 2 exp(-lambda^2 / 2) at most. Where lambda sd(delta) is large the bound (not
    sigma) takes e^(lambda sd) - 1 for lambda sd, up to the reach of the visible values.
    """
    if exact.output.size == 0 or key.shape[-2] == 0:
        return np.zeros_like(exact.output), np.zeros_like(exact.output)
    with np.errstate(all="ignore"):
        rows = rows_of(query, key, value, exact)
        variance = exponent_variance(rows, scale, precision)
        output, size = exact.output, np.abs(exact.output)
        moved = second_moment(rows.probs**2 * variance, rows.value, output)
        rest = _random_rest(rows, size, precision)
        apart = sink_error(rows, precision)
        if rows.sink is not None and apart is not None:
            rest += (rows.sink * apart * size) ** 2
        drift = _drift(rows, output, precision)
        before = lam * np.sqrt(moved + rest) + drift
        spread = lam * np.sqrt(variance)
        if spread.max() > 0.5:
            gain, _, lower = grown(rows, spread, apart)
            far = np.sqrt(second_moment(np.minimum(gain / lower, 1e100) ** 2, rows.value, output))
            away, _ = reach(rows, output)
            before = np.fmin(np.hypot(far, lam * np.sqrt(rest)), away + lam * np.sqrt(rest)) + drift
        lost = underflow(rows, size, precision)
        bound = _empty_rows(rounded(before + lost, size, precision), rows, exact, precision)
        own = (precision.u_out * power_below(size)) ** 2 / 3
        sigma = np.sqrt(moved + rest + lost**2 + own) + precision.tiny_out / 3 + drift
        return bound, np.where(bound > 0, np.fmin(sigma, bound), 0.0)


def _random_rest(rows: Rows, size: Array, precision: Precision) -> Array:
    """The part of sigma^2 that does not come from the exponent, without underflow (B, H, L, Dv)."""
    third, keys = precision.u_a**2 / 3, rows.probs.shape[-1]
    cast = (precision.u_probs**2 + precision.u_value**2) / 3 + third * (keys / 2 + 1)
    rest: Array = cast * np.matmul(rows.probs**2, rows.value**2) + third * (2 * keys / 3 + 4) * size**2
    combined = np.minimum(4 * third * rows.lse**2, 1.0) + precision.exp_rms**2
    return rest + combined * size**2


def _drift(rows: Rows, output: Array, precision: Precision) -> Array | float:
    """What truncation adds to the mean (B, H, L, Dv): it shrinks each factor by u / 2 on average.

    u_in sum_j p_j |c q.k_j| |v_j - o| + (u_p + u_value)/2 sum_j p_j |v_j|; 0 where the kernel rounds to
    nearest.
    """
    if not precision.truncates:
        return 0.0
    mass = np.matmul(rows.probs, np.abs(rows.value))
    moved = precision.u_in * centred(rows.probs * rows.scaled, rows.value, output)
    drift: Array = moved + (precision.u_probs + precision.u_value) / 2 * mass
    return drift


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
    upstream, output = signed[1], np.nan_to_num(exact.output)
    spread = exponent_error(rows, scale, precision)
    output_error = None if unfused else _forward_worst(rows, exact, spread, precision)
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
    slope = None if cap_slope is None else _slope_error(cap_slope, spread, precision)
    error, score = _score_gradient(back, exact, output_error, scale, slope)
    return _collected(back, signed, grads, error, score)


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


def row_sum_slack(keys: int, precision: Precision, lse: float = 0.0) -> float:
    """How far the recovered weights of a row (V one-hot, output in storage) may sum from 1.

    The perturbed weights themselves sum to 1, and each is then off by a relative u_p, u_value, u_out and the
    accumulation: (1 + u_p)(1 + u_value)(1 + u_out)(1 + gamma_{2n+R+10} + e_exp + 4u_a |lse|) - 1, with R <=
    n + 3, and n (2 tiny_p + tiny_out) of underflow.
    """
    unit = precision.u_a
    inside = gamma(3 * keys + 13, unit) + precision.exp_error + 4 * unit * abs(lse)
    cast = (1 + precision.u_probs) * (1 + precision.u_value) * (1 + precision.u_out)
    return cast * (1 + inside) - 1 + keys * (2 * precision.tiny_probs + precision.tiny_out)
