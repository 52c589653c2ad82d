"""The report on benchmarks as text: a table of times and verdicts, and what the history says."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bench.history import Change, Kept, Timed, change_point
from ..bench.run import NOT_COMPARABLE, Bench, Row
from ..bench.verdict import ALPHA, FASTER, INCONCLUSIVE, LEVEL, SAME, SLOWER

Floats = NDArray[np.float64]
HEAD = ("case", "time", "of limit", "against", "ratio", f"{LEVEL:.0%} interval", "verdict", "right")


def render(bench: Bench, history: Mapping[str, Sequence[Kept]] | None = None) -> str:
    """The whole report."""
    against = f" against {bench.against}" if bench.against else ""
    clocks = sorted({row.clock for row in bench.timed})
    machine = f"{bench.machine.cpu}, torch {bench.machine.torch}, one thread"
    lines = [f"{bench.target}{against}", "; ".join([machine, *([", ".join(clocks)] if clocks else [])]), ""]
    lines += table(bench) if bench.timed else []
    lines += [f"  · {line}" for line in _by_reason([(row.case.name, row.skipped) for row in bench.rows])]
    lines += [f"  ✗ {line}" for line in _by_reason([(row.case.name, row.wrong) for row in bench.rows])]
    lines += [f"  ! {note}" for note in bench.notes]
    lines += [f"  ! {line}" for line in changes(bench, history or {})]
    return "\n".join([*lines, "", summary(bench)])


def _by_reason(reasons: Sequence[tuple[str, str]]) -> list[str]:
    """A line for each reason that is not empty, with the cases that have it."""
    cases: dict[str, list[str]] = {}
    for case, reason in reasons:
        if reason:
            cases.setdefault(reason, []).append(case)
    return [f"{_all(names, len(reasons))}: {reason}" for reason, names in cases.items()]


def _all(names: Sequence[str], count: int) -> str:
    return "all cases" if len(names) == count > 1 else ", ".join(names)


def table(bench: Bench) -> list[str]:
    """One line a case that was timed."""
    rows = [HEAD if bench.against else (*HEAD[:3], HEAD[-1])]
    for row in bench.timed:
        assert row.roof is not None
        cells = (row.case.name, _seconds(row), f"{row.roof.share(row.median):.0%} {row.roof.limit}")
        rows.append((*cells, *(_compared(row) if bench.against else ()), f"✓ {row.error:.2g}"))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _seconds(row: Row) -> str:
    """The median, and half the distance of the quartiles in percent."""
    assert row.seconds is not None
    q1, _, q3 = np.quantile(row.seconds, [0.25, 0.5, 0.75])
    return f"{unit(row.median)} ±{(q3 - q1) / 2 / row.median:.0%}"


def unit(seconds: float) -> str:
    """A time with the unit that fits."""
    scale, name = next(((s, n) for s, n in ((1.0, "s"), (1e-3, "ms")) if seconds >= s), (1e-6, "us"))
    return f"{seconds / scale:.3g} {name}"


def _compared(row: Row) -> tuple[str, str, str, str]:
    other = "" if row.other is None else unit(float(np.median(row.other)))
    if row.comparison is None:
        return other, "", "", row.verdict
    c = row.comparison
    interval = f"{c.low:.3f} .. {c.high:.3f}" if c.low > 0 else "too few rounds"
    return other, f"{c.ratio:.3f}", interval, in_words(row)


def in_words(row: Row) -> str:
    """The verdict on a row."""
    assert row.comparison is not None
    if row.verdict == SLOWER:
        return f"slower by {row.comparison.ratio - 1:.0%}"
    if row.verdict == FASTER:
        return f"faster, {1 / row.comparison.ratio:.2g} times"
    if row.verdict == SAME:
        return f"same within {row.threshold:.0%}"
    if row.verdict != INCONCLUSIVE:
        return row.verdict
    noise = row.comparison.noise
    return f"inconclusive (noise {noise:.0%})" if noise < math.inf else "inconclusive (the budget ended)"


def changes(bench: Bench, history: Mapping[str, Sequence[Kept]]) -> list[str]:
    """A line for each case whose level changed in the course of the stored runs and this one."""
    lines = []
    for row in bench.timed:
        runs = history.get(row.case.sizes, ())
        found = _change(row, runs)
        if found is not None:
            since = runs[found.at].file if found.at < len(runs) else "this run"
            word = f"slower by {found.ratio - 1:.0%}" if found.ratio > 1 else f"faster, {1 / found.ratio:.2g} times"
            lines.append(f"{row.case.name}: {word} since {since} (p = {found.p_value:.2g} over {len(runs)} runs)")
    return lines


def _change(row: Row, runs: Sequence[Kept]) -> Change | None:
    levels = [float(np.median(run.ratios)) for run in runs]
    if row.calibrated is not None:
        levels.append(float(np.median(row.calibrated)))
    return change_point(levels)


def summary(bench: Bench) -> str:
    """The last line."""
    words = f"{len(bench.timed)} cases timed, each right before and after" if bench.timed else "no case timed"
    if bench.wrong:
        words += f", {len(bench.wrong)} wrong"
    verdicts = [row.verdict for row in bench.timed]
    counts = [(v, verdicts.count(v)) for v in (SLOWER, FASTER, SAME, INCONCLUSIVE, NOT_COMPARABLE) if v in verdicts]
    if counts:
        words += "; " + ", ".join(f"{n} {v}" for v, n in counts)
        words += f" (a wrong verdict in at most {ALPHA:.0%} of comparisons)"
    return f"{words}; {bench.seconds:.0f} s."


def kept(bench: Bench) -> list[Timed]:
    """What is kept of a run that was timed with the calibration."""
    return [_kept(bench, row, row.seconds, row.calibrated) for row in bench.timed if row.calibrated is not None]


def _kept(bench: Bench, row: Row, seconds: Floats | None, calibrated: Floats | None) -> Timed:
    assert seconds is not None
    assert calibrated is not None
    more: dict[str, Any] = {"error_over_bound": row.error}
    if row.roof is not None:
        more |= {"share_of_limit": row.roof.share(row.median), "limit": row.roof.limit}
    if row.comparison is not None:
        c = row.comparison
        more |= {"against": bench.against, "ratio": c.ratio, "interval": [c.low, c.high], "verdict": row.verdict}
    return Timed(bench.target, row.case.sizes, row.case.name, seconds, row.times, calibrated, row.clock, more)


@dataclass(frozen=True)
class FailIf:
    """What makes a run fail: cases that are slower, with a median ratio above 1 + limit."""

    limit: float

    def failing(self, bench: Bench) -> tuple[Row, ...]:
        """The rows that are slower beyond doubt, and by more than the limit."""
        return tuple(
            row
            for row in bench.timed
            if row.verdict == SLOWER and row.comparison is not None and row.comparison.ratio > 1 + self.limit
        )


def fail_if(text: str) -> FailIf:
    """The rule in a text such as "median>10%". Raises ValueError."""
    found = re.fullmatch(r"\s*median\s*>\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if not found:
        raise ValueError(f"{text!r} is no rule; write median>10%")
    return FailIf(float(found[1]) / 100)
