"""Tests of chance with stated error rates: a first look, and one confirmation on a fresh independent sample.

A right prediction is refuted only if the first look has p < FIRST and the second, on new data, p < SECOND: with
probability FIRST * SECOND = 5e-9. p-values that rest on matched moments or on the central limit theorem may be off by a
factor of two in the tail, so 1e-8 a test is granted, and a run of at most LIMIT tests has a family-wise false alarm of at
most 1e-6. A wrong one is missed with probability 2 MISS = 1e-4 at the effect that a finding states.

Samples come from Philox, a counter-based generator (Salmon et al. 2011), keyed by the name of the test, the seed and the
stage. A result is therefore the same in each run with a seed; looking again adds nothing, and is not done.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

FIRST, SECOND = 1e-3, 5e-6
LIMIT = 100
MISS = 5e-5
#: the relative change of a standard deviation that a test sees unless it says otherwise
EFFECT = 0.02
#: half the width of the intervals that are printed, in standard errors: 99.9 %
WIDTH = 3.29


@dataclass(frozen=True)
class Finding:
    """One estimate against its prediction.

    `error` is the standard error under the prediction, `p_value` two-sided, `effect` the smallest deviation that the
    two looks would have seen with probability 0.9999, in the words of `effect_of`; a test whose effect is not of this
    kind says so in `effect_of` alone.
    """

    quantity: str
    estimate: float
    error: float
    predicted: float
    size: int
    p_value: float
    effect: float = math.nan
    effect_of: str = ""
    #: where among many the estimate was found
    at: str = ""

    def within(self, place: str) -> Finding:
        """The same finding, found at a place."""
        return replace(self, at=place)

    @property
    def interval(self) -> tuple[float, float]:
        """99.9 % around the estimate."""
        return self.estimate - WIDTH * self.error, self.estimate + WIDTH * self.error

    @property
    def sees(self) -> str:
        """The smallest effect that would have been seen, in words."""
        return self.effect_of if math.isnan(self.effect) else f"{self.effect:.2g} {self.effect_of}".strip()

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.quantity}{self.at and f' ({self.at})'} {self.estimate:.5g} ({low:.5g} .. {high:.5g}), predicted {self.predicted:.5g}, "
            f"n = {self.size}, p = {self.p_value:.2g}; sees {self.sees}"
        )


#: draws a fresh sample for a stage (0 or 1) and gives what was found on it; the same quantities at each stage
Sample = Callable[[np.random.Generator, int], Sequence[Finding]]


def generator(name: str, seed: int = 0, stage: int = 0) -> np.random.Generator:
    """The generator of one stage of one test."""
    return np.random.Generator(np.random.Philox(key=[(seed << 32) + zlib.crc32(name.encode()), stage]))


def looks(name: str, seed: int, sample: Sample) -> tuple[list[Finding], list[Finding]]:
    """What was found by the last look taken at each quantity, and those findings that refute their prediction."""
    first = list(sample(generator(name, seed, 0), 0))
    doubted = {f.quantity for f in first if not f.p_value >= FIRST}
    if not doubted:
        return first, []
    second = {f.quantity: f for f in sample(generator(name, seed, 1), 1)}
    found = [second[f.quantity] if f.quantity in doubted else f for f in first]
    return found, [f for f in second.values() if f.quantity in doubted and not f.p_value >= SECOND]


def reach(stage: int) -> float:
    """How many standard errors off a prediction must be for a look to refute it with probability 1 - MISS."""
    return float(stats.norm.isf((FIRST, SECOND)[stage] / 2) + stats.norm.isf(MISS))


def size_for_scale(kurtosis: float, stage: int, effect: float = EFFECT) -> int:
    """How many independent values show a standard deviation that is off by this fraction: (kappa - 1)/4 (z/ln(1+e))^2."""
    return math.ceil((kurtosis - 1.0) / 4.0 * (reach(stage) / math.log1p(effect)) ** 2)


def size_for_rate(rate: float, stage: int, effect: float = EFFECT) -> int:
    """How many independent trials show a rate that is off by this fraction."""
    return math.ceil(1.05 * (1.0 - rate) / rate * (reach(stage) / effect) ** 2)
