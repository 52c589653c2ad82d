"""The kill matrix: each fault of the catalogue against each law, what catches it first, on how little, and how it is named.

Each law gets the first problems of its covering design, as in a check; where none of them shows the fault to any law,
more of it, up to that of a full check, until one does.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import random
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..laws.law import Law
from ..laws.load import load_laws
from ..laws.trial import Crashed, Evidence, Refused, Session, Unsuitable
from ..problems.draw import covering
from ..problems.problem import Problem
from ..run.check import one_thread
from ..run.minimise import minimise
from ..run.one_law import Failure, try_law
from ..targets.target import Target
from .as_options import with_options
from .as_target import case_of, function_of
from .as_torch import differentiable
from .case import Fault
from .catalogue import FAULTS
from .diagnose import diagnose

R = TypeVar("R")

#: problems a law, at most; the same where nothing broke, step by step; attempts at a smaller witness
FIRST, FURTHER, SHRINKING = 25, (50, 100, 350), 120
SEED = 0
STORED = Path(__file__).with_name("kills.json")
#: there in a checkout only
CHECKOUT = STORED.parents[3] / "docs" / "make.py"

NAMED, UNNAMED, OTHERWISE = "named right", "not named", "named otherwise"


class UnknownFault(ValueError):
    """A fault that is not in the catalogue; the message names the nearest that is."""


@dataclass(frozen=True)
class Kill:
    """What became of one fault.

    `first` is the first law that the report shows as broken, the more basic ones before those folded under them;
    `problems` says how many that law took, `size` and `witness` what its smallest witness is; `laws` has the number of
    problems for each law that broke. Without a break `first` is empty.
    """

    fault: str
    first: str
    problems: int
    size: int
    witness: str
    laws: Mapping[str, int]
    diagnosis: str


@dataclass(frozen=True)
class Control:
    """A right function under all laws: how many problems were tried, and the laws that broke, which must be none."""

    name: str
    problems: int
    laws: Mapping[str, int] = field(default_factory=dict)
    diagnosis: str = UNNAMED


@dataclass(frozen=True)
class Matrix:
    """The rows of the faults, in the order of the catalogue, and those of the controls."""

    kills: tuple[Kill, ...]
    controls: tuple[Control, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether every fault is caught, none is named as another, and no control is red or named."""
        caught = all(kill.first and not kill.diagnosis.startswith(OTHERWISE) for kill in self.kills)
        return caught and not any(c.laws or c.diagnosis != UNNAMED for c in self.controls)


@dataclass(frozen=True)
class Break:
    """A law that a target breaks, after how many problems, and on which."""

    law: Law
    problems: int
    problem: Problem
    failure: Failure


# Running it ------------------------------------------------------------------------------------------------------


def kill(fault: Fault) -> Kill:
    """The row of one fault, tried now."""
    from .. import api

    with settings_kept():
        target = api.function_of(function_of(fault), conventions=fault.conventions)
        with one_thread(target):
            session = Session()
            breaks = list(_breaks(target, session, FIRST)[0])
            for cap in FURTHER:
                breaks = breaks or _breaks(target, session, cap, until_one=True)[0]
            if not breaks:
                return Kill(fault.name, "", 0, 0, "", {}, UNNAMED)
            first = _shown_first(breaks)
            smallest = _smallest(first, target, session)
            seen = [(b, smallest if b is first else b.problem) for b in breaks]
            named = _named(target, [problem for b, problem in seen if not isinstance(b.failure, Crashed)])
    diagnosis = NAMED if named == fault.name else f"{OTHERWISE}: {named}" if named else UNNAMED
    laws = {b.law.name: b.problems for b in breaks}
    return Kill(fault.name, first.law.name, first.problems, smallest.size, smallest.describe(), laws, diagnosis)


def control(name: str) -> Control:
    """The row of one right function, tried now."""
    from .. import api

    with settings_kept():
        target = api.function_of(_CONTROLS[name] or name)
        with one_thread(target):
            breaks, tried = _breaks(target, Session(), FIRST, all_laws=True)
            named = _named(target, [Problem()])
    diagnosis = f"{OTHERWISE}: {named}" if named else UNNAMED
    return Control(name, tried, {b.law.name: b.problems for b in breaks}, diagnosis)


#: right functions: those that the faults are made of, and shipped implementations by their names
_CONTROLS: dict[str, Any] = {
    "the steps without a fault": function_of(None),
    "the options without a fault": with_options(None, case_of),
    "the gradients without a fault": differentiable(None),
    "attnlaws.reference.attention:attention": None,
    "attnlaws.reference.attention:chunked_attention": None,
    "torch.sdpa": None,
}


def _breaks(
    target: Target, session: Session, cap: int, *, until_one: bool = False, all_laws: bool = False
) -> tuple[list[Break], int]:
    """The laws that break within `cap` problems each, and the number of problems tried in all."""
    found, tried = [], 0
    for law in load_laws().values():
        slow = law.name == "conduct.compile" or law.name.startswith("statistics.")
        if (slow and not (until_one or all_laws)) or law.not_applicable(target):
            continue
        with settings_kept():
            broken, judged = attempt(law, target, session, max(1, round(cap * min(law.share, 1.0))))
        tried += judged
        if broken is not None:
            found.append(broken)
            if until_one:
                break
    return found, tried


def attempt(law: Law, target: Target, session: Session, wanted: int) -> tuple[Break | None, int]:
    """One law on the first `wanted` problems that suit it, until it breaks."""
    judged = 0
    for problem in islice(covering(law.wants, target.abilities, target.conventions, SEED), 5 * wanted):
        try:
            failure = try_law(law, target, problem, session, Evidence())
        except (Unsuitable, Refused):
            continue
        judged += 1
        if failure is not None:
            return Break(law, judged, problem, failure), judged
        if judged == wanted:
            break
    return None, judged


def _shown_first(breaks: Sequence[Break]) -> Break:
    """The first that is not folded under a more basic law that broke too."""
    broken = {b.law.name for b in breaks}
    return next((b for b in breaks if not broken.intersection(b.law.basis)), breaks[0])


def _smallest(found: Break, target: Target, session: Session) -> Problem:
    def fails(problem: Problem) -> Failure | None:
        if not found.law.wants.fits(problem, target.abilities, target.conventions):
            return None
        try:
            return try_law(found.law, target, problem, session, Evidence())
        except (Unsuitable, Refused):
            return None

    with settings_kept():
        smallest: Problem = minimise(found.problem, found.failure, fails, limit=SHRINKING)[0]
    return smallest


def _named(target: Target, witnesses: Iterable[Problem]) -> str:
    """The name that the diagnosis gives; empty where it gives none, or where no law about values broke."""
    witnesses = tuple(witnesses)
    with settings_kept(), np.errstate(all="ignore"):
        found = diagnose(target, seed=SEED, witnesses=witnesses) if witnesses else None
    return found.fault.name if found else ""


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """Global settings and random states are as before afterwards, whatever a fault changed."""
    import torch

    dtype, threads, grad = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    modes = torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()
    errors = np.geterr()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torch.set_grad_enabled(grad)
        torch.use_deterministic_algorithms(modes[0])
        torch.set_float32_matmul_precision(modes[1])
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        np.seterr(**errors)


def run(names: Sequence[str], jobs: int = 1) -> Iterator[Kill]:
    """The rows of these faults, each given as soon as it is known, in `jobs` processes."""
    yield from _each(_kill_by_name, names, jobs)


def run_controls(jobs: int = 1) -> Iterator[Control]:
    """The rows of the right functions."""
    yield from _each(control, list(_CONTROLS), jobs)


def _kill_by_name(name: str) -> Kill:
    return kill(_BY_NAME[name])


def _each(job: Callable[[str], R], names: Sequence[str], jobs: int) -> Iterator[R]:
    if jobs == 1:
        yield from map(job, names)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=warnings.simplefilter, initargs=("ignore",)) as pool:
        yield from pool.map(job, names)


_BY_NAME = {fault.name: fault for fault in FAULTS}


def select(names: Iterable[str] = ()) -> list[Fault]:
    """The faults of these names, all where none is given; hyphens may stand for spaces. Raises UnknownFault."""
    known = {_plain(fault.name): fault for fault in FAULTS}
    chosen = {}
    for name in names:
        if _plain(name) not in known:
            near = get_close_matches(_plain(name), known, n=1, cutoff=0.3)
            hint = f"did you mean {known[near[0]].name!r}?" if near else "see attnlaws faults"
            raise UnknownFault(f"unknown fault {name!r}; {hint}")
        chosen[_plain(name)] = known[_plain(name)]
    return list(chosen.values()) or list(FAULTS)


def _plain(name: str) -> str:
    return name.lower().replace("-", " ").replace("_", " ")


# The stored one --------------------------------------------------------------------------------------------------


def load(path: Path = STORED) -> Matrix:
    """The matrix that comes with the package."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return Matrix(tuple(Kill(**row) for row in data["faults"]), tuple(Control(**row) for row in data["controls"]))


def save(matrix: Matrix, path: Path = STORED) -> None:
    """Write the matrix, one line a row, sorted by name."""
    parts = []
    for key, rows in (("controls", matrix.controls), ("faults", matrix.kills)):
        made = sorted(json.dumps(asdict(row), ensure_ascii=False) for row in rows)
        parts.append(f'"{key}": [\n' + ",\n".join(made) + "\n]")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def told_by_its_law(row: Kill) -> bool:
    """Whether a fault that is no step, and so can't be named, breaks the law whose words say what is wrong."""
    fault = _BY_NAME[row.fault]
    return fault.function is not None and fault.law in row.laws


# In words --------------------------------------------------------------------------------------------------------


def summary(matrix: Matrix) -> str:
    """The kill rate, the false alarms, and how the faults are named, in one sentence each."""
    kills, controls = matrix.kills, matrix.controls
    caught = sum(bool(k.first) for k in kills)
    named = sum(k.diagnosis == NAMED for k in kills)
    wrongly = sum(k.diagnosis.startswith(OTHERWISE) for k in kills)
    functions = [k for k in kills if _BY_NAME[k.fault].function is not None]
    told = sum(told_by_its_law(k) and k.diagnosis == UNNAMED for k in kills)
    red = sum(bool(c.laws) or c.diagnosis != UNNAMED for c in controls)
    tried = sum(c.problems for c in controls)
    lines = [
        f"{caught} of {len(kills)} faults caught ({100 * caught / max(1, len(kills)):.0f} %).",
        f"{red} of {len(controls)} right functions red or named as a fault, on {tried} problems."
        if controls
        else "The right functions were not run: they are with the whole catalogue.",
        f"Named right {named} of {len(kills)}, named wrongly {wrongly}, not named {len(kills) - named - wrongly}.",
        f"{len(functions)} of the {len(kills)} are no steps, which no diagnosis names; "
        f"{told} of the unnamed break the law whose words say what is wrong.",
    ]
    return "\n".join(lines)


def table(matrix: Matrix) -> str:
    """For the terminal: one line a row."""
    return "\n".join(
        [_line("fault", "first law", "problems", "elements", "laws", "diagnosis"), *map(line, matrix.kills)]
    )


def line(row: Kill) -> str:
    """One fault as a line of the table."""
    first = row.first or "NOT CAUGHT"
    return _line(row.fault, first, str(row.problems), str(row.size), str(len(row.laws)), row.diagnosis)


def _line(fault: str, first: str, problems: str, size: str, laws: str, diagnosis: str) -> str:
    return f"{fault:<34} {first:<30} {problems:>8} {size:>8} {laws:>5}  {diagnosis}"


def control_line(row: Control) -> str:
    """One right function as a line."""
    what = ", ".join(row.laws) if row.laws else "no law breaks"
    return f"{row.name:<42} {row.problems:>5} problems, {what}, {row.diagnosis}"


def about_fault(fault: Fault, row: Kill | None) -> str:
    """What is wrong, the fix, where it was reported, and what catches it."""
    parts = [("instead", fault.sentence), ("fix", fault.fix)]
    parts += [("reported", ", ".join(fault.sources))] if fault.sources else []
    if row is not None and row.first:
        parts.append(("first law", f"{row.first}, after {row.problems} problem{'s' * (row.problems != 1)}"))
        parts.append(("witness", f"{row.witness} ({row.size} elements)"))
        parts.append((f"{len(row.laws)} laws break", ", ".join(row.laws)))
        told = f"; the break of {fault.law} says what is wrong" if told_by_its_law(row) else ""
        parts.append(("diagnosis", row.diagnosis + told))
    return "\n".join([fault.name, *_rows(parts)])


def about_law(law: Law, matrix: Matrix) -> str:
    """What a law catches, and which laws are more basic."""
    caught = [k.fault for k in matrix.kills if law.name in k.laws]
    first = [k.fault for k in matrix.kills if k.first == law.name]
    others = [name for name in caught if name not in first]
    more = f", and {len(others) - 12} more" if len(others) > 12 else ""
    parts = [("catches", f"{len(caught)} of {len(matrix.kills)} faults (attnlaws faults NAME tells about one)")]
    parts += [("first", ", ".join(first))] if first else []
    parts += [("also", ", ".join(others[:12]) + more)] if others else []
    parts += [("basis", ", ".join(law.basis))] if law.basis else []
    return "\n".join(_rows(parts))


def _rows(parts: Iterable[tuple[str, str]]) -> list[str]:
    lines = []
    for name, words in parts:
        lines += textwrap.wrap(f"{name:<14}{words}", 116, initial_indent="    ", subsequent_indent=" " * 18)
    return lines
