"""Findings about moments and laws of numbers: second moments, means, correlations, distributions, matrices of scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from .chance import FIRST, MISS, SECOND, Finding, Floats, reach


def second_moment(
    quantity: str, mean_square: float, size: int, predicted: float, *, kurtosis: float = 3.0, stage: int = 0
) -> Finding:
    """The mean of `size` independent squares with this expectation; `kurtosis` is E x^4 / (E x^2)^2.

    Var(mean x^2) = (kappa - 1) sigma^4 / n. nu V / sigma^2 is referred to chi-square with nu = 2 n / (kappa - 1) degrees of
    freedom: exact for normal values of mean 0, two moments matched for others.
    """
    freedom = 2.0 * size / (kurtosis - 1.0)
    return _chi2(quantity, mean_square, size, predicted, freedom, stage)


def products(quantity: str, mean_square: float, size: int, predicted: float, *, dim: int, stage: int = 0) -> Finding:
    """The mean square of `size` independent q.k with N(0, 1) entries in `dim` dimensions: E s^4 = 3 d^2 + 6 d."""
    return second_moment(quantity, mean_square, size, predicted, kurtosis=3.0 + 6.0 / dim, stage=stage)


def score_matrices(
    quantity: str,
    mean_square: float,
    count: int,
    predicted: float,
    *,
    rows: int,
    columns: int,
    dim: int,
    stage: int = 0,
) -> Finding:
    """The mean square over `count` independent matrices Q K^T, (n, d) times (d, m), whose entries are not independent.

    |Q K^T|^2 = tr(A B) with independent Wishart matrices A = Q^T Q, B = K^T K, so for T = |Q K^T|^2 / (n m d)
    E T = 1 and Var T = 2 (n + m + d + 1) / (n m d). Entries taken as independent would give 2 (1 + 3/d) / (n m).
    """
    n, m, d = rows, columns, dim
    variance = 2.0 * (n + m + d + 1.0) / (n * m * d)
    return _chi2(quantity, mean_square, count * n * m, predicted, 2.0 * count / variance, stage)


def _chi2(quantity: str, estimate: float, size: int, predicted: float, freedom: float, stage: int) -> Finding:
    law = stats.chi2(freedom)
    at = freedom * estimate / predicted
    p = min(1.0, 2.0 * min(float(law.cdf(at)), float(law.sf(at))))
    error = math.sqrt(2.0 / freedom)
    effect = 100.0 * math.expm1(reach(stage) * error / 2.0)
    return Finding(quantity, estimate, error * predicted, predicted, size, p, effect, "% of a standard deviation")


def mean(quantity: str, values: Floats, predicted: float, *, deviation: float | None = None, stage: int = 0) -> Finding:
    """The mean of independent values, by the central limit theorem; `deviation` of one value where it is known.

    Where the deviation is estimated from the same values the law is Student's, whose tails are longer for few of them.
    """
    n = values.size
    spread = float(values.std(ddof=1)) if deviation is None else deviation
    law = stats.t(n - 1) if deviation is None else stats.norm
    error, at = spread / math.sqrt(n), float(values.mean())
    p = 2.0 * float(law.sf(abs(at - predicted) / error)) if error else float(at == predicted)
    sees = float(law.isf((FIRST, SECOND)[stage] / 2) + law.isf(MISS)) * error
    return Finding(quantity, at, error, predicted, n, p, sees, "off")


def correlation(quantity: str, pairs: dict[str, tuple[Floats, Floats]], *, stage: int = 0) -> Finding:
    """The largest correlation over named pairs of blocks; Bonferroni over the pairs.

    For independent normal blocks of n entries r^2 has the law Beta(1/2, (n - 2)/2), exactly.
    """
    least, worst, name, size = math.inf, 0.0, "", 0
    for label, (one, other) in pairs.items():
        a, b = one - one.mean(), other - other.mean()
        r = float((a * b).sum() / math.sqrt(float((a * a).sum() * (b * b).sum())))
        p = float(stats.beta.sf(min(r * r, 1.0), 0.5, (a.size - 2) / 2))
        size += a.size
        if p < least:
            least, worst, name = p, r, label
    count = len(pairs)
    alpha = (FIRST, SECOND)[stage] / count
    error = 1.0 / math.sqrt(max(size / count, 1.0))
    sees = float(stats.norm.isf(alpha / 2) + stats.norm.isf(MISS)) * error
    p = min(1.0, least * count)
    return Finding(quantity, worst, error, 0.0, size, p, sees, "of a correlation", name)


def distribution(quantity: str, values: Floats, cdf: Callable[[Floats], Floats], *, stage: int = 0) -> Finding:
    """The largest distance between the empirical and a fully known distribution function (Kolmogorov)."""
    n = values.size
    at = cdf(np.sort(values))
    steps = np.arange(n + 1) / n
    distance = float(max((steps[1:] - at).max(), (at - steps[:-1]).max()))
    p = float(stats.kstwo.sf(distance, n))
    critical = float(stats.kstwo.isf((FIRST, SECOND)[stage], n))
    sees = critical + float(stats.norm.isf(MISS)) / (2.0 * math.sqrt(n))
    # Kolmogorov's law has the mean sqrt(pi/2) ln 2 and the deviation 0.2603, over sqrt(n)
    root = math.sqrt(n)
    return Finding(quantity, distance, 0.2603 / root, 0.8687 / root, n, p, sees, "of a distance")


def head_ratios(values: Floats, heads: int) -> list[tuple[float, float, int]]:
    """For each head of (builds, out, in): its mean square over that of all, the standard error, and its size."""
    parts = np.split(values, heads, axis=1)
    whole = float((values**2).mean())
    kurtosis = float((values**4).mean()) / whole**2
    n = parts[0].size
    error = math.sqrt(max(kurtosis - 1.0, 1e-6) / n * (1.0 - 1.0 / heads))
    return [(float((part**2).mean()) / whole, error, n) for part in parts]


def largest(quantity: str, found: dict[str, tuple[float, float, int]], predicted: float, *, stage: int = 0) -> Finding:
    """The one of several estimates (value, standard error, size) that is farthest from the prediction; Bonferroni, normal law."""
    name, (value, error, _) = max(found.items(), key=lambda item: abs(item[1][0] - predicted) / item[1][1])
    count = len(found)
    p = min(1.0, 2.0 * count * float(stats.norm.sf(abs(value - predicted) / error)))
    sees = float(stats.norm.isf((FIRST, SECOND)[stage] / (2.0 * count)) + stats.norm.isf(MISS)) * error
    size = sum(n for _, _, n in found.values())
    return Finding(quantity, value, error, predicted, size, p, sees, "off", name)
