"""Laws of the scores: their scale, and what large ones do."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.law import law
from attnlaws.laws.trial import Trial
from attnlaws.problems.dtypes import UNIT_ROUNDOFF, round_to
from attnlaws.problems.wants import Wants


@law(
    "scores.default-scale",
    "without a scale argument the scores are scaled by 1/sqrt(D), or as declared",
    wants=Wants(causal=False, masks=("none",), bias=False, scale=False, min_keys=2, regimes=("normal",)),
    basis=("weights.uniform",),
)
def test_default_scale(trial: Trial) -> None:
    """log(w_ij / w_i0) = s q_i.(k_j - k_0), so the weights of two keys reveal s: D need not be a power of 4, nor Dv = D.

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    call, dtype = trial.call, trial.call.dtype
    scale, unit = trial.scale(call), UNIT_ROUNDOFF[dtype]
    gap = {"float16": 6.0}.get(dtype, 30.0)
    product = max(np.floor(gap / scale), 1.0)
    query, key = np.zeros_like(call.query), np.zeros_like(call.key)
    size = 2.0 ** np.floor(np.log2(product) / 2)
    query[..., 0], key[..., 1:, 0] = size, -np.floor(product / size)
    call = call.but(query=round_to(query, dtype), key=round_to(key, dtype))
    dot = float(call.query[0, 0, 0] @ call.key[0, 0, 1])
    weights = trial.weights(call)
    with np.errstate(all="ignore"):
        found = np.log(weights[..., 1:] / weights[..., :1]) / dot

    # Two weights err by 2u each (P and output), and a kernel that stores its scores by u|s| thrice on top.
    def allowed(precision: object) -> np.ndarray:  # type: ignore[type-arg]
        stored = getattr(precision, "u_scores", 0.0) + getattr(precision, "u_in", 0.0)
        inside = getattr(precision, "u_a", unit)
        slack = (4.5 * unit + 64 * inside) / abs(dot) + scale * (3 * stored + 16 * inside)
        return np.full_like(found, slack)

    trial.within(
        found,
        np.full_like(found, scale),
        allowed,
        "the default scale is not 1/sqrt(D)",
        call=trial.one_hot(call),
        name="scale",
    )


@law(
    "scores.scale-argument",
    "a scale given acts as that scale",
    wants=Wants(scale=True, regimes=("normal", "integer", "peaked", "tied")),
    basis=("scores.default-scale", "weights.row-stochastic"),
)
def test_scale_argument(trial: Trial) -> None:
    """o(q, k; c) = o(c q, k; 1) for c a power of two; negative c and c = 0 too, where the target computes them."""
    for scale in (0.5, 0.125, -0.5, 0.0):
        refused = trial.conventions.zero_scale if scale == 0 else trial.conventions.negative_scale
        if scale <= 0 and refused != "computed":
            continue
        given = trial.call.but(scale=scale)
        plain = trial.call.but(query=round_to(trial.call.query * scale, trial.call.dtype), scale=1.0)
        trial.agree(
            trial.run(given).output,
            given,
            trial.run(plain).output,
            plain,
            f"scale = {scale:g} doesn't act as the factor {scale:g} on q k^T",
        )


@law(
    "scores.magnitude",
    "scores of 1e4 give finite outputs and the row of the largest score",
    wants=Wants(regimes=("huge", "needle"), bias=False),
    basis=("scores.default-scale", "weights.row-stochastic", "causality.future-keys", "causality.past-matters"),
)
def test_magnitude(trial: Trial) -> None:
    """softmax(s) = softmax(s - max s): no overflow at |s| = 1e4, and a key ahead by a wide gap takes the whole row."""
    exact = trial.exact()
    output = trial.run().output
    trial.require(bool(np.isfinite(output).all()), "large scores give an output that is not finite")
    trial.agrees_with_oracle(output, trial.call, "large scores give another output than softmax(s - max s) v", exact)
