"""A whole comparison: several races at once, each until its verdict is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .timing import Race
from .verdict import INCONCLUSIVE, LOOKS, Comparison, compare, judge


def settle(
    races: Sequence[Race],
    thresholds: Sequence[float],
    *,
    deadline: float = float("inf"),
    tick: Callable[[int, int], None] = lambda race, look: None,
) -> list[tuple[Comparison, str]]:
    """The comparison of side 0 with side 1 in each race, and the verdict on it.

    Each look takes all races in turn, so that a bad minute of the machine falls on none alone; a race that has its verdict
    is timed no more. What is undecided at the last look, or at the deadline (of time.monotonic), is inconclusive.
    """
    found: dict[int, Comparison] = {}
    verdicts = [INCONCLUSIVE] * len(races)
    for look, blocks in enumerate(LOOKS):
        complete = True
        for number, race in enumerate(races):
            if verdicts[number] == INCONCLUSIVE:
                tick(number, look)
                complete &= race.run(blocks - len(race.taken), deadline)
                found[number] = compare(race.log_ratios(0, 1), thresholds[number])
        now = judge([found[number] for number in range(len(races))], thresholds)
        verdicts = [new if old == INCONCLUSIVE else old for old, new in zip(verdicts, now, strict=True)]
        if not complete or INCONCLUSIVE not in verdicts:
            break
    return [(found[number], verdict) for number, verdict in enumerate(verdicts)]
