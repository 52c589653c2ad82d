"""The signature test: is the error of an output what rounding leaves, or the trace of a named alternative?

The first-order effect g of an alternative (a scale off by a fraction, a gain, a soft cap, ...) is fitted to the error e by
weighted least squares, beta = <e, h> / <g, h> with h = g / sigma^2. The errors of one row share its rounded weights, so
the standard error is propagated through the independent roundings: of each score, each weight and each output.
For dense generic inputs only: on structured ones roundings are coherent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..problems.dtypes import Array
from .exponent import Attended, Rows, exponent_variance, power_below, rows_of
from .precision import Precision

#: estimates beyond this many standard errors are no accident: correct kernels stay below 3 on generic inputs
THRESHOLD = 8.0


@dataclass(frozen=True)
class Fit:
    """How much of one alternative is in an error: `estimate` of its coefficient, with its standard error.

    `removed` is the share of the weighted sum of squares that it explains: alternatives overlap, this tells them apart.
    """

    name: str
    words: str
    estimate: float
    error: float
    removed: float

    @property
    def z(self) -> float:
        """Estimate over standard error."""
        return self.estimate / self.error if self.error > 0 else 0.0


WORDS = {
    "scale": "the scale multiplied by 1 + {0:.3g}",
    "gain": "the output multiplied by 1 + {0:.3g}",
    "cubic": "a soft cap near {1:.3g} on the scores",
    "slope": "a bias of {0:.3g} times the key position",
    "diagonal": "a bias of {0:.3g} on the diagonal",
    "last key": "{0:.3g} of the last key left out",
    "sink": "{0:.3g} added to the softmax denominator at score 0",
}


def signatures(rows: Rows, signed: Array, output: Array) -> dict[str, Array]:
    """The first-order effects on the output (B, H, L, Dv); `signed` are the scaled scores with their sign."""
    p, v = rows.probs, rows.value
    queries, keys = p.shape[-2:]

    def moved(change: Array) -> Array:
        """The effect of adding `change` to the scores: sum_j p_j (change_j - mean) v_j."""
        centred = change - (p * change).sum(-1, keepdims=True)
        return np.asarray(np.matmul(p * centred, v))

    position = np.broadcast_to(np.arange(keys) - (keys - 1) / 2.0, p.shape)
    return {
        "scale": moved(signed),
        "gain": output,
        "cubic": moved(-(signed**3) / 3.0),
        "slope": moved(position),
        "diagonal": moved(np.broadcast_to(np.eye(queries, keys), p.shape)),
        "last key": -p[..., -1:] * (v[..., -1:, :] - output),
        "sink": -output * np.exp(-rows.lse),
    }


def fit_signatures(
    query: Array,
    key: Array,
    value: Array,
    exact: Attended,
    error: Array,
    scale: float,
    precision: Precision,
    sigma: Array,
) -> list[Fit]:
    """Fit each alternative to `error` = output - exact (B, H, L, Dv); `sigma` as `forward_random` gives it."""
    rows = rows_of(query, key, value, exact)
    variance = exponent_variance(rows, scale, precision) + 3.0 * precision.exp_rms**2
    fits = []
    for name, effect in signatures(rows, exact.scaled, exact.output).items():
        weighted = effect / np.maximum(sigma, 1e-300) ** 2
        size = float((effect * weighted).sum())
        if not 0.0 < size < math.inf:
            continue
        estimate = float((error * weighted).sum()) / size
        spread = math.sqrt(_variance(rows, exact, query, key, weighted, variance, scale, precision)) / size
        cap = abs(estimate) ** -0.5 if estimate else math.inf
        whole = float((error**2 / np.maximum(sigma, 1e-300) ** 2).sum())
        removed = estimate**2 * size / whole if whole > 0 else 0.0
        fits.append(Fit(name, WORDS[name].format(estimate, cap), estimate, spread, removed))
    return fits


def _variance(
    rows: Rows,
    exact: Attended,
    query: Array,
    key: Array,
    weighted: Array,
    variance: Array,
    scale: float,
    precision: Precision,
) -> float:
    """Variance of <e, h>: roundings of scores, weights, outputs, of q and k themselves, and of the scale constant."""
    third = precision.u_a**2 / 3.0
    keys = rows.probs.shape[-1]
    along = np.matmul(weighted, rows.value.swapaxes(-1, -2))
    own = (weighted * exact.output).sum(-1, keepdims=True)
    pull = rows.probs * (along - own)
    weights = (precision.u_probs**2 + precision.u_value**2 + precision.u_in**2) / 3.0 + third * (keys / 2.0 + 1.0)
    half = precision.u_out * power_below(np.abs(exact.output) * (1.0 + 2.0 * precision.u_out))
    total = float((pull**2 * variance).sum()) + weights * float(((rows.probs * along) ** 2).sum())
    total += float(((weighted * half) ** 2).sum()) / 3.0
    total += third * float(((rows.probs**2).sum(-1, keepdims=True) * own**2).sum())
    shared = max(precision.u_in, 2.0 * precision.u_a) ** 2 / 3.0 * scale**2
    expanded = np.repeat(key, query.shape[1] // key.shape[1], axis=1)
    by_key = np.matmul(pull.swapaxes(-1, -2), query) * expanded
    by_query = np.matmul(pull, expanded) * query
    total += shared * float((by_key**2).sum() + (by_query**2).sum())
    constant = 2.0 * precision.u_a * float((pull * exact.scaled).sum())
    return float(total + constant * constant)
