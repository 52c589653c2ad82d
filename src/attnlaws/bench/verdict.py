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
#: blocks of rounds after which a comparison is looked at: 70 to 720 rounds, and up to five times as many of short calls.
#: With fewer than 14 blocks no p is small enough for Holm's first step over a dozen cases.
LOOKS = (14, 24, 48, 72, 144)
#: the chance of a wrong verdict in a whole comparison: all its cases, all its looks
ALPHA = 0.01
THRESHOLD = 0.05
#: how sure an interval is
LEVEL = 0.99
RESAMPLES = 1000
#: blocks below which there is no interval
ENOUGH = 8


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
        """Half the width of the interval, as a fraction; infinite where there is none."""
        return math.sqrt(self.high / self.low) - 1.0 if self.low > 0 else math.inf


def compare(ratios: Floats, threshold: float = THRESHOLD) -> Comparison:
    """A comparison out of log ratios (blocks, rounds).

    The interval is the bootstrap of the median, blocks resampled whole: rounds of one block share their memory and what
    the machine did then. p by Wilcoxon's signed ranks of the block medians against log(1 + x) and -log(1 + x).
    """
    low, high = -math.inf, math.inf  # of a few blocks all resamples are alike
    if len(ratios) >= ENOUGH:
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


#: The standard deviation of log(target / calibration) between runs of the same code, as measured (docs/benchmarks.md), and
#: how many runs of a history it is worth where that has its own.
BETWEEN, WORTH = 0.035, 4


def compare_apart(now: Floats, then: Sequence[Floats], threshold: float = THRESHOLD) -> Comparison:
    """The same for log ratios to a calibration, (blocks, rounds) now and in each of some earlier runs.

    Runs of the same code differ by more than one run shows: where memory lay, what else ran. Their standard deviation is
    estimated from the earlier runs and BETWEEN, b^2 = (WORTH BETWEEN^2 + sum (level - mean)^2) / (WORTH + n - 1), and is in the
    interval as b sqrt(1 + 1/n), beside the bootstrap's error of each median. Normal, on the log.
    """
    levels = np.array([np.median(ratios) for ratios in then])
    n, change = len(levels), float(np.median(now) - levels.mean())
    between = math.sqrt((WORTH * BETWEEN**2 + float(((levels - levels.mean()) ** 2).sum())) / (WORTH + n - 1))
    own = [float(np.median(resampled(ratios, seed), axis=1).std()) for seed, ratios in enumerate([now, *then])]
    error = math.sqrt(own[0] ** 2 + sum(e**2 for e in own[1:]) / n**2 + between**2 * (1 + 1 / n))
    reach, limit = float(stats.norm.ppf((1 + LEVEL) / 2)) * error, math.log1p(threshold)
    return Comparison(
        math.exp(change),
        math.exp(change - reach),
        math.exp(change + reach),
        float(stats.norm.sf((change - limit) / error)),
        float(stats.norm.sf((-change - limit) / error)),
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
