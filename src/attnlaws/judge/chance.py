"""Tests of chance with stated error rates: a first look, and one confirmation on a fresh independent sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy import stats

#: a right target fails the first look with FIRST, and both looks with at most FIRST * SECOND = 1.67e-8
FIRST, SECOND = 1e-3, 1.67e-5


@dataclass(frozen=True)
class Estimate:
    """A sample variance over its prediction: `ratio`, from `size` values, two-sided `p_value` under prediction 1."""

    ratio: float
    size: int
    p_value: float
    smallest_effect: float

    def __str__(self) -> str:
        effect = f"smallest relative error of a standard deviation it would have seen {self.smallest_effect:.1%}"
        return f"variance / prediction = {self.ratio:.5f}, n = {self.size}, p = {self.p_value:.2g}, {effect}"


def variance_of_products(squares_mean: float, size: int, dim: int) -> Estimate:
    """The mean of s^2 / d for s = q.k with independent N(0, 1) entries in d dimensions, against 1.

    E s^2 = d and E s^4 = 3d^2 + 6d, so Var(mean s^2 / d) = (2 + 6/d) / n: not the 2/n of normal values. The
    statistic nu V is referred to chi-square with nu = n d / (d + 3) degrees of freedom (two moments matched).
    """
    freedom = size * dim / (dim + 3.0)
    law = stats.chi2(freedom)
    p = 2.0 * min(law.cdf(freedom * squares_mean), law.sf(freedom * squares_mean))
    deviation = math.sqrt((2.0 + 6.0 / dim) / size)
    smallest = (float(stats.norm.isf(FIRST / 2)) + float(stats.norm.isf(1e-4))) * deviation / 2.0
    return Estimate(squares_mean, size, min(float(p), 1.0), smallest)


def confirmed(sample: Callable[[int], Estimate]) -> tuple[Estimate, bool]:
    """Whether a deviation shows in a first sample and again in a fresh one. `sample(0)`, `sample(1)` draw them."""
    first = sample(0)
    if first.p_value >= FIRST:
        return first, False
    second = sample(1)
    return second, second.p_value < SECOND
