"""The job of `attnlaws bench`: each case judged, timed beside the other side, judged again, and held against the roof."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..laws.trial import Broken, Crashed, Refused, Session
from ..run.trying import one_thread
from ..targets.frameworks import framework_named
from ..targets.target import Target
from .calibrate import VERSION, calibration
from .cases import CASES, MODEL_PASSES, Case, not_taken
from .contest import settle
from .history import Kept, Machine, this_machine
from .model import ModelWork
from .roof import Meter, Roof, roof_of
from .timing import Race, Side, clock_of
from .verdict import LOOKS, THRESHOLD, Comparison, compare_apart, judge
from .work import FunctionWork, judge_small

Floats = NDArray[np.float64]
Work = FunctionWork | ModelWork
BUDGET = 100.0
NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Row:
    """What became of one case. Without `wrong` and `skipped` it was timed, and `error` is error / bound, before and after."""

    case: Case
    skipped: str = ""
    wrong: str = ""
    error: float = 0.0
    #: (blocks, rounds) seconds a call, of the target and of the other side
    seconds: Floats | None = None
    other: Floats | None = None
    comparison: Comparison | None = None
    verdict: str = ""
    threshold: float = THRESHOLD
    roof: Roof | None = None
    clock: str = ""
    times: int = 1
    #: (blocks, rounds) log ratios of the target to the calibration kernel
    calibrated: Floats | None = None

    @property
    def median(self) -> float:
        """Seconds a call."""
        assert self.seconds is not None
        return float(np.median(self.seconds))


@dataclass(frozen=True)
class Bench:
    """A whole run. Prints itself."""

    target: str
    against: str | None
    rows: tuple[Row, ...]
    machine: Machine
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def timed(self) -> tuple[Row, ...]:
        """The rows with times."""
        return tuple(row for row in self.rows if row.seconds is not None)

    @property
    def wrong(self) -> tuple[Row, ...]:
        """The rows with a side that is wrong."""
        return tuple(row for row in self.rows if row.wrong)

    def __str__(self) -> str:
        from ..report.bench import render

        return render(self)


@dataclass
class _Entry:
    """A case in the making."""

    row: Row
    works: list[Work]
    race: Race | None = None


def run_bench(
    target: Target,
    against: Target | Sequence[Kept] | None = None,
    *,
    cases: Sequence[Case] = CASES,
    thresholds: Mapping[str, float] | None = None,
    budget: float = BUDGET,
    calibrated: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Time a target on cases, alone, beside another target, or against a stored run.

    `thresholds` are differences that are no matter, by the name of a case, or "" for all. With `calibrated` the calibration
    kernel is timed too, as it is for a stored run. Nothing is timed that is wrong, and nothing is told that was wrong when
    it was timed. `budget` in seconds bounds the timing: what is undecided then is inconclusive.
    """
    started = time.monotonic()
    device = str(getattr(target.framework, "device", "cpu"))
    limits = {"": THRESHOLD, **(thresholds or {})}
    stored = against if against is not None and not isinstance(against, Target) else None
    sides = [target, *([against] if isinstance(against, Target) else [])]
    meter = Meter(device)
    with contextlib.redirect_stdout(io.StringIO()), one_thread(framework_named("torch")):
        sessions = [Session() for _ in sides]
        entries = [_judged(sides, case, limits.get(case.name, limits[""]), sessions, progress) for case in cases]
        ready = [entry for entry in entries if entry.works]
        for entry in ready:
            meter.rates(entry.row.case)
            timed = [Side(work.name, work.prepare) for work in entry.works]
            timed += [calibration(entry.row.case, device)] if calibrated or stored is not None else []
            entry.race = Race(timed, clock_of(device))
        _time(ready, len(sides) == 2, time.monotonic() + budget, progress)
        rows = tuple(_row(entry, meter, len(sides) == 2) for entry in entries)
    machine = this_machine(device)
    notes: tuple[str, ...] = ()
    if stored is not None:
        rows, notes = against_stored(rows, stored, machine)
    other = against.name if isinstance(against, Target) else _stored_name(stored) if stored else None
    return Bench(target.name, other, rows, machine, time.monotonic() - started, notes)


def _judged(
    sides: Sequence[Target], case: Case, limit: float, sessions: Sequence[Session], progress: Callable[[str], None]
) -> _Entry:
    """A case with the sides that are right on it; without works where one doesn't take it, or is wrong."""
    row = Row(case, threshold=limit)
    for side in sides:
        reason = not_taken(case, side)
        if reason is not None:
            return _Entry(replace(row, skipped=f"{side.name} {reason}"), [])
    progress(f"{case.name}: judging")
    works: list[Work] = []
    for side, session in zip(sides, sessions, strict=True):
        try:
            judge_small(side)
            made: Work = (
                ModelWork(side, case, session) if case.kind in MODEL_PASSES else FunctionWork(side, case, session)
            )
            row = replace(row, error=max(row.error, made.judge()))
            works.append(made)
        except Refused as refusal:
            return _Entry(replace(row, skipped=f"{side.name} declined: {refusal}"), [])
        except (Broken, Crashed) as failure:
            return _Entry(replace(row, wrong=f"{side.name} is wrong, so it is not timed: {failure}"), [])
    return _Entry(row, works)


def _time(entries: Sequence[_Entry], paired: bool, deadline: float, progress: Callable[[str], None]) -> None:
    """Fill the races, and compare where there are two sides."""
    races = [entry.race for entry in entries if entry.race is not None]
    names = [entry.row.case.name for entry in entries]
    if not paired:
        for name, race in zip(names, races, strict=True):
            progress(f"{name}: timing")
            race.run(LOOKS[1], deadline)
        return
    found = settle(
        races,
        [entry.row.threshold for entry in entries],
        deadline=deadline,
        tick=lambda number, look: progress(f"{names[number]}: timing, look {look + 1} of {len(LOOKS)}"),
    )
    for entry, (comparison, verdict) in zip(entries, found, strict=True):
        entry.row = replace(entry.row, comparison=comparison, verdict=verdict)


def _row(entry: _Entry, meter: Meter, paired: bool) -> Row:
    """The row of a case, after a second look at what was timed."""
    row, race = entry.row, entry.race
    if race is None or not race.taken:
        return row
    for number, work in enumerate(entry.works):
        try:
            errors = [work.judge_timed(block, given[number]) for block, given in race.last]
            row = replace(row, error=max(row.error, *errors))
        except (Broken, Crashed) as failure:
            return replace(
                Row(row.case), wrong=f"{work.name} is right when it is asked, but was wrong while timed: {failure}"
            )
    more: dict[str, Any] = {}
    if len(race.sides) > len(entry.works):
        more["calibrated"] = race.log_ratios(0, len(entry.works))
    return replace(
        row,
        seconds=race.seconds(0),
        other=race.seconds(1) if paired else None,
        roof=roof_of(row.case, meter.rates(row.case)),
        clock=race.clock_name,
        times=race.times,
        **more,
    )


def against_stored(
    rows: Sequence[Row], stored: Sequence[Kept], machine: Machine
) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """The rows with verdicts against stored runs, through the calibration; and what can't be compared, in words."""
    by_case: dict[str, list[Kept]] = {}
    for kept in stored:
        by_case.setdefault(kept.case, []).append(kept)
    notes = _other_machine(stored[0].machine, machine)
    found: list[tuple[int, Comparison]] = []
    out = list(rows)
    for at, row in enumerate(rows):
        runs = by_case.pop(row.case.sizes, [])
        if row.calibrated is None:
            continue
        if not runs:
            out[at] = replace(row, verdict="new: not in the baseline")
            continue
        comparison = compare_apart(row.calibrated, [run.ratios for run in runs], row.threshold)
        refused = any(
            not run.machine.same(machine) or run.clock != row.clock or run.calibration != VERSION for run in runs
        )
        out[at] = replace(row, comparison=comparison, verdict=NOT_COMPARABLE if refused else "")
        if not refused:
            found.append((at, comparison))
    verdicts = judge([c for _, c in found], [rows[at].threshold for at, _ in found], looks=1)
    for (at, _), verdict in zip(found, verdicts, strict=True):
        out[at] = replace(out[at], verdict=verdict)
    notes += [f"missing: the baseline has {case}, and this run has not" for case in by_case]
    return tuple(out), tuple(notes)


def _stored_name(stored: Sequence[Kept]) -> str:
    files = sorted({kept.file for kept in stored})
    return files[0] if len(files) == 1 else f"{len(files)} runs, {files[0]} .. {files[-1]}"


def _other_machine(then: Machine, now: Machine) -> list[str]:
    """What differs between the machine of a baseline and this one."""
    notes = []
    if not then.same(now):
        notes.append(f"the baseline is of another machine ({then.cpu}, {then.cores} cores, {then.device}): no verdicts")
    software = now.other_software(then)
    return [*notes, f"other versions: {software}"] if software else notes
