"""Expectations of a softmax row with n independent N(0, sigma^2) scores, and the spectrum of its Jacobian.

With phi(t) = E exp(-t e^s) and the Gamma integrals 1/S^2 = int t exp(-t S) dt and ln S = int (e^-t - e^(-t S)) / t dt,

    E sum w^2  = n int t E[e^(2s) exp(-t e^s)] phi(t)^(n-1) dt
    E entropy  = int (e^-t - phi(t)^n) / t dt - n int E[s e^s exp(-t e^s)] phi(t)^(n-1) dt

each one integral over ln t of one integral over s. For large n the row is Derrida's random energy model (1981), which
freezes at sigma = sqrt(2 ln n): above it sum w^2 tends to 1 - sqrt(2 ln n) / sigma.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .chance import Floats


@dataclass(frozen=True)
class RowLaw:
    """E sum w^2 and E entropy (in nats) of a row."""

    concentration: float
    entropy: float


@lru_cache(maxsize=256)
def row_law(keys: int, deviation: float) -> RowLaw:
    """The expectations for `keys` independent N(0, deviation^2) scores.

    By the trapezoidal rule, whose error for these analytic integrands is exp(-pi^2 / step) with steps in units of the
    width of exp(-e^x), here 0.4 and 0.25 (Trefethen and Weideman 2014).
    """
    z = np.linspace(-9.0, 9.0, int(18.0 / min(0.1, 0.4 / deviation)) + 1)
    weight = np.exp(-z * z / 2.0) * (z[1] - z[0]) / math.sqrt(2.0 * math.pi)
    s = deviation * z
    end = 9.0 * deviation + 8.0
    step = 0.25
    squares = scores = logs = 0.0
    for u in np.array_split(np.arange(-end - math.log(keys), end, step), max(1, int(end / 64))):
        x = np.exp(np.clip(u[:, None] + s, -700.0, 7.0))  # t e^s; beyond e^7 exp(-x) is 0
        fall = np.exp(-x)
        phi = np.clip(fall @ weight, 1e-300, 1.0)
        others = np.exp((keys - 1) * np.log(phi))
        squares += step * keys * float((x * x * fall) @ weight @ others)
        scores += step * keys * float((s * x * fall) @ weight @ others)
        logs += step * float((np.exp(-np.exp(np.minimum(u, 7.0))) - phi * others).sum())
    return RowLaw(squares, logs - scores)


def softmax(scores: Floats) -> Floats:
    """softmax over the last axis."""
    raised: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    raised /= raised.sum(axis=-1, keepdims=True)
    return raised


def entropy(weights: Floats) -> Floats:
    """-sum w ln w over the last axis, in nats."""
    value: Floats = -(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=-1)
    return value


def largest_slope(weights: Floats) -> Floats:
    """The spectral norm of J = diag(w) - w w^T for each row: the root of sum w_i^2 / (w_i - x) = 1 between w_(2), w_(1).

    J is positive semidefinite, and its eigenvalues interlace the weights (a rank-one change of a diagonal matrix).
    """
    ordered = -np.sort(-weights, axis=-1)
    low, high = ordered[:, 1].copy(), ordered[:, 0].copy()
    for _ in range(60):
        middle = (low + high) / 2.0
        with np.errstate(divide="ignore", invalid="ignore"):
            above = (weights**2 / (weights - middle[:, None])).sum(axis=-1) > 1.0
        high = np.where(above, middle, high)
        low = np.where(above, low, middle)
    return (low + high) / 2.0
