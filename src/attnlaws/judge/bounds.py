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
from attnlaws.judge.precision import Precision
from attnlaws.problems.dtypes import Array

__all__ = ["Attended", "forward_random", "forward_worst", "forward_worst_from", "row_sum_slack"]


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
        return forward_worst_from(rows, exact, exponent_error(rows, scale, precision), precision)


def forward_worst_from(rows: Rows, exact: Attended, spread: Array, precision: Precision) -> Array:
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
