"""Tests of chance for the ledger: the two looks of judge/chance.py, with what is measured in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from ..judge import counts, moments
from ..judge.chance import FIRST, LIMIT, SECOND, WIDTH, Finding, Floats, generator
from .claim import Measured

__all__ = [
    "FIRST", "LIMIT", "SECOND", "WIDTH", "Floats", "Look", "confirmed", "count_look", "fails", "generator", "holds", "law_look",
    "mean_look", "product", "products_look", "rank_of", "torch_seeded", "variance_look",
]  # fmt: skip


@dataclass(frozen=True)
class Look:
    """One sample against one prediction: the two-sided p-value under the prediction, and the numbers in words."""

    p_value: float
    words: str

    def __str__(self) -> str:
        return f"{self.words}, p = {self.p_value:.2g}"


Sample = Callable[[np.random.Generator], Look]


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
    first = sample(generator(name))
    if first.p_value >= FIRST:
        return first, False
    second = sample(generator(name, stage=1))
    return second, second.p_value < SECOND


def holds(name: str, sample: Sample) -> Measured:
    """Shows unless the prediction is refuted twice."""
    look, wrong = confirmed(name, sample)
    return Measured(not wrong, f"{name} {look}", tests=1)


def fails(name: str, sample: Sample) -> Measured:
    """Shows if the prediction is refuted twice."""
    look, wrong = confirmed(name, sample)
    return Measured(wrong, f"{name} {look}: refuted", tests=1)


def _look(found: Finding) -> Look:
    low, high = found.interval
    words = f"{found.estimate:.5g} +- {(high - low) / 2.0:.2g} (n = {found.size}) against {found.predicted:.5g}"
    return Look(found.p_value, words)


def mean_look(values: Floats, predicted: float, deviation: float | None = None) -> Look:
    """The mean against `predicted`, by the central limit theorem; `deviation` of one value where it is known."""
    return _look(moments.mean("", values, predicted, deviation=deviation))


def variance_look(values: Floats, predicted: float) -> Look:
    """The mean square of independent normal values of mean 0: sum x^2 / sigma^2 is chi-square with n degrees, exactly."""
    return _look(moments.second_moment("", float((values**2).mean()), values.size, predicted))


def products_look(scores: Floats, dim: int, predicted: float) -> Look:
    """The mean square of independent q.k with N(0, 1) entries in `dim` dimensions, fourth moment 3d^2 + 6d."""
    return _look(moments.products("", float((scores**2).mean()), scores.size, predicted, dim=dim))


def count_look(hits: int, n: int, predicted: float) -> Look:
    """A count of `hits` in `n` independent trials: binomial, exactly."""
    return _look(counts.rate("", hits, n, predicted))


def law_look(values: Floats, distribution: Callable[[Floats], Floats]) -> Look:
    """The largest distance between the empirical and a fully known distribution function (Kolmogorov)."""
    found = moments.distribution("", values, distribution)
    return Look(found.p_value, f"Kolmogorov distance {found.estimate:.4f} (n = {found.size})")
