"""Slower, faster, the same, or not to be told: a verdict on ratios of times, whose errors are stated.

A difference below the threshold x is no matter. A case is slower if its ratio is above 1 + x: a signed-rank test on the
medians of the blocks says so after Holm's correction over the cases, and the whole interval does. It is the same if the
whole interval lies between 1 / (1 + x) and 1 + x. Otherwise more is timed, up to the last look. Error rates as measured:
docs/benchmarks.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

SLOWER, FASTER, SAME, INCONCLUSIVE = "slower", "faster", "same", "inconclusive"
#: blocks of rounds after which a comparison is looked at: 70 to 360 rounds, and up to five times as many of short calls.
#: With fewer than 14 blocks no p is small enough for Holm's first step over a dozen cases.
LOOKS = (14, 24, 48, 72)
#: the chance of a wrong verdict in a whole comparison: all its cases, all its looks
ALPHA = 0.01
THRESHOLD = 0.05
#: how sure an interval is
LEVEL = 0.99
RESAMPLES = 2000


@dataclass(frozen=True)
class Comparison:
    """The ratio of two times with its interval, and how likely it is that far off 1 by chance (one-sided p values)."""

    ratio: float
    low: float
    high: float
    p_slower: float
    p_faster: float
    rounds: int

    @property
    def noise(self) -> float:
        """Half the width of the interval, as a fraction."""
        return math.sqrt(self.high / self.low) - 1.0


def compare(ratios: Floats, threshold: float = THRESHOLD) -> Comparison:
    """A comparison out of log ratios (blocks, rounds).

    The interval is the bootstrap of the median, blocks resampled whole: rounds of one block share their memory and what
    the machine did then. p by Wilcoxon's signed ranks of the block medians against log(1 + x) and -log(1 + x).
    """
    spread = np.median(resampled(ratios), axis=1)
    low, high = np.quantile(spread, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    blocks, limit = np.median(ratios, axis=1), math.log1p(threshold)
    return Comparison(
        math.exp(float(np.median(ratios))),
        math.exp(low),
        math.exp(high),
        _signed_rank(blocks - limit),
        _signed_rank(-blocks - limit),
        ratios.size,
    )


def compare_apart(now: Floats, then: Floats, threshold: float, between: float) -> Comparison:
    """The same for log ratios to a calibration, now and in an earlier run, (blocks, rounds) each.

    `between` is the standard deviation of log ratios between runs of the same code, which no sample of one run shows. It
    widens the interval as a normal error of that size, and it is in p: of the difference of medians, normal.
    """
    change = float(np.median(now) - np.median(then))
    spread = np.median(resampled(now), axis=1) - np.median(resampled(then, seed=1), axis=1)
    error = math.hypot(float(np.std(spread)), math.sqrt(2.0) * between)
    reach, limit = float(stats.norm.ppf((1 + LEVEL) / 2)) * error, math.log1p(threshold)
    return Comparison(
        math.exp(change),
        math.exp(change - reach),
        math.exp(change + reach),
        float(stats.norm.sf((change - limit) / max(error, 1e-12))),
        float(stats.norm.sf((-change - limit) / max(error, 1e-12))),
        now.size,
    )


def resampled(ratios: Floats, seed: int = 0) -> Floats:
    """(RESAMPLES, blocks * rounds): whole blocks drawn with replacement, the same draws each time."""
    rng = np.random.Generator(np.random.Philox(key=[len(ratios), seed]))
    chosen = rng.integers(0, len(ratios), (RESAMPLES, len(ratios)))
    return ratios[chosen].reshape(RESAMPLES, -1)


def _signed_rank(values: Floats) -> float:
    """One-sided p: are they above 0."""
    return float(stats.wilcoxon(values, alternative="greater").pvalue) if values.any() else 1.0


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which hypotheses are rejected, the chance of a false one among them at most alpha (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > alpha / (len(order) - rank):
            break
        rejected[i] = True
    return rejected


def judge(comparisons: Sequence[Comparison], thresholds: Sequence[float], looks: int = len(LOOKS)) -> list[str]:
    """The verdict on each case of a comparison that is looked at `looks` times."""
    certain = holm([2 * min(c.p_slower, c.p_faster) for c in comparisons], ALPHA / looks)
    return [_one(c, x, sure) for c, x, sure in zip(comparisons, thresholds, certain, strict=True)]


def _one(comparison: Comparison, threshold: float, certain: bool) -> str:
    upper, lower = 1 + threshold, 1 / (1 + threshold)
    if certain and comparison.low > upper:
        return SLOWER
    if certain and comparison.high < lower:
        return FASTER
    return SAME if lower < comparison.low and comparison.high < upper else INCONCLUSIVE
