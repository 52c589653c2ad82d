"""How time and memory grow with the length: exponents out of doublings, measured in turn in one run.

A cost c(n) n^p grows by 2^p where n doubles, so p is log2 of the ratio of two costs. Times of n and 2n are taken in turn, so that
what the machine does meanwhile falls on both. Caches make any attention dearer where it leaves them; a plain kernel of the
same sizes, timed in turn with the two, shows by how much, and its growth is taken off in `beyond`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .calibrate import calibration
from .cases import Case
from .timing import Clock, CpuClock, Race, Run, Side
from .verdict import LEVEL, resampled

Floats = NDArray[np.float64]

#: blocks of rounds for each doubling
BLOCKS = 8
#: The longest call in seconds and the largest memory in bytes: what is larger, or would be at twice the length, is left out.
LONGEST, LARGEST = 0.1, 400_000_000
#: An exponent may be above the one that is declared by this: a cost of n log n has 1.13 between 512 and 8192.
MARGIN = 0.2


@dataclass(frozen=True)
class Growth:
    """An exponent over some lengths, with an interval where it was timed; `last` is the cost at the longest.

    `beyond_low` is the low end of the interval for the exponent less that of the plain kernel of the same sizes.
    """

    lengths: tuple[int, ...]
    exponent: float
    low: float
    high: float
    last: float
    beyond_low: float = 0.0


#: a call at a length, in fresh memory; None where the target doesn't take the length
At = Callable[[int], Run | None]


def memory_growth(peak: Callable[[Run], int], at: At, lengths: Sequence[int]) -> Growth | None:
    """The exponent of peak memory by least squares on the logarithms; None with fewer than three lengths. It has no noise."""
    taken, found = [], []
    for n in lengths:
        run = at(n)
        if run is None:
            break
        # What is kept after a first call, such as a table, is no part of the cost of a call.
        seconds = CpuClock().take(run, 1)[0]
        taken.append(n)
        found.append(max(peak(run), 1))
        if found[-1] > LARGEST / 4 or seconds > LONGEST:
            break
    if len(taken) < 3:
        return None
    exponent = float(np.polyfit(np.log(taken), np.log(found), 1)[0])
    return Growth(tuple(taken), exponent, exponent, exponent, found[-1])


def time_growth(at: At, case: Callable[[int], Case], lengths: Sequence[int], device: str = "cpu") -> Growth | None:
    """The exponent of time: the mean of log2(t(2n) / t(n)) over doublings; None with fewer than two doublings.

    `lengths` double. The interval is the bootstrap's, each doubling resampled by blocks.
    """
    if any(b != 2 * a for a, b in itertools.pairwise(lengths)):
        raise ValueError(f"the lengths {lengths} don't double")
    clock = CpuClock()
    usable = list(itertools.takewhile(lambda n: _quick(at, n, clock), lengths))
    if len(usable) < 3:
        return None
    steps, beyond, last = [], [], math.nan
    for n, twice in itertools.pairwise(usable):
        race = Race([*(_side(at, m) for m in (n, twice)), *(calibration(case(m), device) for m in (n, twice))])
        race.run(BLOCKS)
        step = race.log_ratios(1, 0) / math.log(2)
        steps.append(step)
        beyond.append(step - race.log_ratios(3, 2) / math.log(2))
        last = float(np.median(race.seconds(1)))
    mean = float(np.mean([np.median(step) for step in steps]))
    low, high = _interval(steps)
    return Growth(tuple(usable), mean, low, high, last, _interval(beyond)[0])


def _side(at: At, n: int) -> Side:
    def prepare(block: int) -> Run:
        run = at(n)
        assert run is not None
        return run

    return Side(str(n), prepare)


def _quick(at: At, n: int, clock: Clock) -> bool:
    """Whether a call at this length is taken, and short enough to be timed many times."""
    run = at(n)
    if run is None:
        return False
    run()
    return clock.take(run, 1)[0] <= LONGEST


def _interval(steps: Sequence[Floats]) -> tuple[float, float]:
    """Of the mean over the doublings of their medians."""
    medians = [np.median(resampled(step, seed), axis=1) for seed, step in enumerate(steps)]
    low, high = np.quantile(np.mean(medians, axis=0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
