"""Tests of chance for the ledger: a first look, and one confirmation on a fresh independent sample.

A right prediction is refuted only if the first look has p < FIRST and the second, on new data, p < SECOND: with
probability FIRST * SECOND = 5e-9. p-values that rest on the central limit theorem may be off by a factor of two in the
tail, so 1e-8 a test is granted, and a ledger of at most LIMIT tests has a family-wise false alarm of at most 1e-6. Where
a claim is to be refuted the sample is large enough that a miss is as rare.

Samples come from Philox, a counter-based generator (Salmon et al. 2011), keyed by the name of the test and the stage.
A result is therefore the same in each run; looking again adds nothing, and is not done.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from ..judge.chance import variance_of_products
from .claim import Measured

Floats = NDArray[np.float64]

FIRST, SECOND = 1e-3, 5e-6
LIMIT = 100
#: half the width of the intervals that are printed, in standard errors: 99.9 %
WIDTH = 3.29


@dataclass(frozen=True)
class Look:
    """One sample against one prediction: the two-sided p-value under the prediction, and the numbers in words."""

    p_value: float
    words: str

    def __str__(self) -> str:
        return f"{self.words}, p = {self.p_value:.2g}"


Sample = Callable[[np.random.Generator], Look]


def generator(name: str, stage: int = 0) -> np.random.Generator:
    """The generator of one stage of one test."""
    return np.random.Generator(np.random.Philox(key=[zlib.crc32(name.encode()), stage]))


@contextmanager
def torch_seeded(rng: np.random.Generator) -> Iterator[None]:
    """PyTorch's own generator seeded from `rng` inside, and as it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**62)))
        yield


def product(left: Floats, right: Floats) -> Floats:
    """left @ right by PyTorch, whose threads the ledger limits; NumPy's are slow where cores are shared."""
    value: Floats = torch.matmul(torch.from_numpy(left), torch.from_numpy(right)).numpy()
    return value


def rank_of(matrix: Floats) -> int:
    """The numerical rank, by PyTorch for the same reason."""
    return int(torch.linalg.matrix_rank(torch.from_numpy(matrix)))


def confirmed(name: str, sample: Sample) -> tuple[Look, bool]:
    """The last look taken, and whether the prediction is refuted by both."""
    first = sample(generator(name, 0))
    if first.p_value >= FIRST:
        return first, False
    second = sample(generator(name, 1))
    return second, second.p_value < SECOND


def holds(name: str, sample: Sample) -> Measured:
    """Shows unless the prediction is refuted twice."""
    look, wrong = confirmed(name, sample)
    return Measured(not wrong, f"{name} {look}", tests=1)


def fails(name: str, sample: Sample) -> Measured:
    """Shows if the prediction is refuted twice."""
    look, wrong = confirmed(name, sample)
    return Measured(wrong, f"{name} {look}: refuted", tests=1)


def mean_look(values: Floats, predicted: float, deviation: float | None = None) -> Look:
    """The mean against `predicted`, by the central limit theorem; `deviation` of one value where it is known."""
    n = values.size
    spread = float(values.std(ddof=1)) if deviation is None else deviation
    error = spread / math.sqrt(n)
    mean = float(values.mean())
    p = 2.0 * float(stats.norm.sf(abs(mean - predicted) / error)) if error else float(mean == predicted)
    return Look(p, f"{mean:.5g} +- {WIDTH * error:.2g} (n = {n}) against {predicted:.5g}")


def variance_look(values: Floats, predicted: float) -> Look:
    """The mean square of independent normal values of mean 0: sum x^2 / sigma^2 is chi-square with n degrees, exactly."""
    n = values.size
    total = float((values**2).sum()) / predicted
    law = stats.chi2(n)
    p = min(1.0, 2.0 * min(float(law.cdf(total)), float(law.sf(total))))
    estimate = total * predicted / n
    width = WIDTH * math.sqrt(2.0 / n) * estimate
    return Look(p, f"{estimate:.5g} +- {width:.2g} (n = {n}) against {predicted:.5g}")


def products_look(scores: Floats, dim: int, predicted: float) -> Look:
    """The mean square of independent q.k with N(0, 1) entries in `dim` dimensions, fourth moment 3d^2 + 6d."""
    n = scores.size
    estimate = float((scores**2).mean())
    found = variance_of_products(estimate / predicted, n, dim)
    width = WIDTH * math.sqrt((2.0 + 6.0 / dim) / n) * estimate
    return Look(found.p_value, f"{estimate:.5g} +- {width:.2g} (n = {n}) against {predicted:.5g}")


def count_look(hits: int, n: int, predicted: float) -> Look:
    """A count of `hits` in `n` independent trials: binomial, exactly."""
    law = stats.binom(n, predicted)
    p = min(1.0, 2.0 * min(float(law.cdf(hits)), float(law.sf(hits - 1))))
    share = hits / n
    width = WIDTH * math.sqrt(max(share * (1.0 - share), 1.0 / n) / n)
    return Look(p, f"{share:.5g} +- {width:.2g} (n = {n}) against {predicted:.5g}")


def law_look(values: Floats, distribution: Callable[[Floats], Floats]) -> Look:
    """The largest distance between the empirical and a fully known distribution function (Kolmogorov)."""
    n = values.size
    at = distribution(np.sort(values))
    steps = np.arange(n + 1) / n
    distance = float(max((steps[1:] - at).max(), (at - steps[:-1]).max()))
    p = float(stats.kstwo.sf(distance, n))
    return Look(p, f"Kolmogorov distance {distance:.4f} (n = {n})")
