"""The kill matrix: each fault of the catalogue against each law, what catches it first, on how little, and how it is named.

Each law gets the first problems of its covering design, as in a check. The law that the catalogue names for a fault gets as
many as in a full check; where no law breaks, so do all, until one does.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from ..faults.as_options import with_options
from ..faults.as_target import case_of, function_of
from ..faults.as_torch import differentiable
from ..faults.case import Fault
from ..faults.catalogue import FAULTS
from ..faults.diagnose import diagnose, explain
from ..laws.attempt import Failure, try_law
from ..laws.law import Law
from ..laws.load import load_laws
from ..laws.trial import Crashed, Evidence, Refused, Session, Unsuitable
from ..problems.draw import covering
from ..problems.problem import Problem
from ..targets.target import Target
from .folding import shadow
from .ledger import BROKEN, Verdict
from .minimise import minimise
from .trying import one_thread

R = TypeVar("R")

#: problems a law, at most; the same where nothing broke, step by step, the last also for the law that a fault names
FIRST, FURTHER = 25, (50, 100, 350)
#: attempts at a smaller witness
SHRINKING = 120
SEED = 0
STORED = Path(__file__).parents[1] / "faults" / "kills.json"
#: there in a checkout only
CHECKOUT = STORED.parents[3] / "docs" / "make.py"

NAMED, UNNAMED, OTHERWISE = "named right", "not named", "named otherwise"


class UnknownFault(ValueError):
    """A fault that is not in the catalogue; the message names the nearest that is."""


@dataclass(frozen=True)
class Kill:
    """What became of one fault.

    `first` is the first law that the report shows as broken and folds under no other, empty without a break; `problems` says
    how many it took, `size` and `witness` what its smallest witness is; `laws` has the problems that each broken law took.
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
            breaks = _all_breaks(fault, target, session)
            if not breaks:
                return Kill(fault.name, "", 0, 0, "", {}, UNNAMED)
            first, smallest = _shown_first(breaks, target, session)
            seen = [(b, smallest if b is first else b.problem) for b in breaks]
            values = [(b.law, problem) for b, problem in seen if not isinstance(b.failure, Crashed)]
            named = _named(target, sorted(values, key=lambda each: each[0] is not first.law))
    diagnosis = (
        NAMED if named and named in (fault.name, fault.same_as) else f"{OTHERWISE}: {named}" if named else UNNAMED
    )
    laws = {b.law.name: b.problems for b in breaks}
    return Kill(fault.name, first.law.name, first.problems, smallest.size, smallest.describe(), laws, diagnosis)


def _all_breaks(fault: Fault, target: Target, session: Session) -> list[Break]:
    """The laws that break, in the order of the report."""
    breaks = _breaks(target, session, FIRST)[0]
    if fault.law and fault.law not in {b.law.name for b in breaks}:
        breaks += _breaks(target, session, FURTHER[-1], only=fault.law)[0]
    for cap in FURTHER:
        breaks = breaks or _breaks(target, session, cap, until_one=True)[0]
    order = list(load_laws())
    return sorted(breaks, key=lambda b: order.index(b.law.name))


def control(name: str) -> Control:
    """The row of one right function, tried now."""
    from .. import api

    with settings_kept():
        target = api.function_of(_CONTROLS[name] or name)
        with one_thread(target):
            breaks, tried = _breaks(target, Session(), FIRST, all_laws=True)
            found = diagnose(target, seed=SEED, witnesses=(Problem(),))
            named = found.fault.name if found else ""
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
    target: Target, session: Session, cap: int, *, only: str = "", until_one: bool = False, all_laws: bool = False
) -> tuple[list[Break], int]:
    """The laws that break within `cap` problems each, and the number of problems tried in all."""
    found, tried = [], 0
    for law in load_laws().values():
        slow = law.name == "conduct.compile" or law.name.startswith("statistics.")
        costs = law.name.startswith("cost.")  # no fault of the catalogue is one of cost alone
        if costs or (slow and not (until_one or all_laws)) or (only and law.name != only) or law.not_applicable(target):
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


def _shown_first(breaks: Sequence[Break], target: Target, session: Session) -> tuple[Break, Problem]:
    """The first that the report folds under no other law that broke, and its smallest witness."""
    broken = {b.law.name for b in breaks if not isinstance(b.failure, Crashed)}
    for found in breaks:
        crashed = found.law.name not in broken
        if not crashed and broken.intersection(found.law.basis):
            continue
        witness = _smallest(found, target, session)
        if crashed or not shadow(Verdict(found.law.name, found.law.statement, BROKEN, witness=witness), broken):
            return found, witness
    return breaks[0], _smallest(breaks[0], target, session)


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


def _named(target: Target, broken: Sequence[tuple[Law, Problem]]) -> str:
    """The name that the diagnosis gives; empty where it gives none, or where no law about values broke."""
    with settings_kept(), np.errstate(all="ignore"):
        found = explain(target, broken, seed=SEED) if broken else None
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
    yield from each(_kill_by_name, names, jobs)


def run_controls(jobs: int = 1) -> Iterator[Control]:
    """The rows of the right functions."""
    yield from each(control, list(_CONTROLS), jobs)


def _kill_by_name(name: str) -> Kill:
    return kill(BY_NAME[name])


def each(job: Callable[[str], R], names: Sequence[str], jobs: int) -> Iterator[R]:
    """The job on each name, in order, in `jobs` processes."""
    if jobs == 1:
        yield from map(job, names)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=warnings.simplefilter, initargs=("ignore",)) as pool:
        yield from pool.map(job, names)


BY_NAME = {fault.name: fault for fault in FAULTS}


class Named(Protocol):
    """What has a name."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


def select(names: Iterable[str] = ()) -> list[Fault]:
    """The faults of these names, all where none is given; hyphens may stand for spaces. Raises UnknownFault."""
    return pick(names, FAULTS)


def pick(names: Iterable[str], faults: Sequence[N]) -> list[N]:
    """Those of these faults that have these names, likewise. Raises UnknownFault."""
    known = {_plain(fault.name): fault for fault in faults}
    chosen = {}
    for name in names:
        if _plain(name) not in known:
            near = get_close_matches(_plain(name), known, n=1, cutoff=0.3)
            hint = f"did you mean {known[near[0]].name!r}?" if near else "see attnlaws faults"
            raise UnknownFault(f"unknown fault {name!r}; {hint}")
        chosen[_plain(name)] = known[_plain(name)]
    return list(chosen.values()) or list(faults)


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


def merged(old: Matrix, new: Matrix) -> Matrix:
    """The old matrix with the rows of the new one in their place, and without faults that are no more."""
    kills = {row.fault: row for row in (*old.kills, *new.kills) if row.fault in BY_NAME}
    controls = {row.name: row for row in (*old.controls, *new.controls) if row.name in _CONTROLS}
    return Matrix(tuple(kills.values()), tuple(controls.values()))


def told_by_its_law(row: Kill) -> bool:
    """Whether a fault that is no step, and so can't be named, breaks the law whose words say what is wrong."""
    fault = BY_NAME[row.fault]
    return fault.function is not None and fault.law in row.laws
