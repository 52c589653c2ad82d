"""Where two targets differ, on which smallest problem, and which convention or fault explains it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np

from ..faults.diagnose import Diagnosis, diagnose
from ..judge.precision import PROFILES
from ..laws.trial import Crashed, Refused, Session, Unsuitable, worst
from ..problems.common import Ground, NothingInCommon, drawn, meet, only_one_takes
from ..problems.problem import Problem
from ..targets.quiet import OutOfTime
from ..targets.target import Target
from ..targets.trying import FAILS, effective_mask
from .budget import deadline_alarm
from .check import only_dtypes
from .minimise import minimise
from .sides import Said, Share, Side, responsible, share_of
from .trying import one_thread

PROBLEMS = 150
BUDGET = 120.0
SIDES = ("A", "B")


@dataclass(frozen=True)
class Reason:
    """Why two outputs differ: conventions (name, choice of A, choice of B), faults (side, words, fix), a side that raises,
    and laws that a side breaks with no explanation."""

    conventions: tuple[tuple[str, str, str], ...] = ()
    faults: tuple[tuple[str, str, str], ...] = ()
    raises: str = ""
    breaks: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Element:
    """One element of the outputs: where it is, what each side gives, and how far apart they may be."""

    where: str
    first: float
    second: float
    allowed: float


@dataclass(frozen=True)
class Cause:
    """One explanation: how many of the differing problems it explains, the share of the difference, and a witness."""

    reason: Reason
    problems: int
    share: float | None
    witness: Problem
    element: Element | None = None
    #: what the side that raises says
    line: str = ""
    #: the pairs that each side attends on the witness, where they differ and are few
    seen: tuple[tuple[str, ...], tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Difference:
    """Two targets compared. Prints itself; `exit_code` is what the command line returns."""

    first: Target
    second: Target
    compared: int = 0
    elements: int = 0
    causes: tuple[Cause, ...] = ()
    #: problems that could not be compared, by who declined or raised, in words
    not_compared: dict[str, int] = field(default_factory=dict)
    #: what only one takes, in words; and the way of A's masks that carries what another way of B's does
    only: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    routes: dict[str, str] = field(default_factory=dict)
    #: the precision found for each side, by dtype
    precision: tuple[dict[str, str], dict[str, str]] = field(default_factory=lambda: ({}, {}))
    #: why nothing could be compared
    nothing: str = ""
    seed: int = 0
    seconds: float = 0.0
    out_of_time: bool = False

    @property
    def differing(self) -> int:
        """Problems on which the two differ."""
        return sum(cause.problems for cause in self.causes)

    @property
    def exit_code(self) -> int:
        """0 no difference found, 1 they differ, 4 nothing could be compared, 124 out of time before a difference."""
        if self.causes:
            return 1
        if self.out_of_time:
            return 124
        return 0 if self.compared else 4

    def __str__(self) -> str:
        from ..report.difference import render

        return render(self)


@dataclass(frozen=True, eq=False)
class _Compared:
    """One problem on which both were asked; `said` has None for a side that raised, `line` its words."""

    problem: Problem
    said: tuple[Said | None, Said | None]
    line: str = ""

    @property
    def ratio(self) -> float:
        """The largest |A - B| over what is allowed; infinite where one raised."""
        return self._worst()[0]

    @property
    def differs(self) -> bool:
        return self.ratio > 1.0

    def both(self) -> tuple[Said, Said]:
        a, b = self.said
        assert a is not None
        assert b is not None
        return a, b

    def element(self) -> Element | None:
        if None in self.said:
            return None
        a, b = self.both()
        _, index, allowed = self._worst()
        place = f"out[{', '.join(map(str, index))}]"
        return Element(place, float(a.output[index]), float(b.output[index]), allowed)

    def _worst(self) -> tuple[float, tuple[int, ...], float]:
        if None in self.said:
            return np.inf, (), 0.0
        a, b = self.both()
        neither = not a.own and not b.own
        return worst(a.output, b.output, np.maximum(a.bound, b.bound) if neither else a.bound + b.bound)


class _Differs(Exception):
    """Two targets differ on a problem, for the reason that is looked for."""

    def __init__(self, compared: _Compared) -> None:
        super().__init__("they differ")
        self.compared = compared


def run_diff(
    first: Target,
    second: Target,
    *,
    seed: int = 0,
    problems: int = PROBLEMS,
    dtypes: Sequence[str] | None = None,
    budget: float = BUDGET,
    progress: Callable[[str], None] = lambda _: None,
) -> Difference:
    """Compare two targets on about so many problems. Raises ValueError for a dtype that one of them doesn't take."""
    first, second = only_dtypes(first, dtypes), only_dtypes(second, dtypes)
    only = tuple(only_one_takes(first, second)), tuple(only_one_takes(second, first))
    found = Difference(first, second, only=only, seed=seed)
    started = time.monotonic()
    try:
        ground = meet(first, second)
    except NothingInCommon as reason:
        return replace(found, nothing=str(reason))
    search = _Search(ground, progress)
    search.run(seed, problems, budget)
    return replace(
        found,
        routes=ground.routes,
        compared=search.compared,
        elements=search.elements,
        causes=search.told(),
        not_compared=search.not_compared,
        precision=(_precision(search.sides[0]), _precision(search.sides[1])),
        seconds=time.monotonic() - started,
        out_of_time=search.out_of_time,
    )


def _precision(side: Side) -> dict[str, str]:
    """The precision that was found, by dtype."""
    found = side.session.precision
    return {
        d: side.target.declared_precision.get(d) or PROFILES[d][found.get(d, 0)].name
        for d in side.target.abilities.dtypes
    }


class _Search:
    """What is known of the difference so far."""

    def __init__(self, ground: Ground, progress: Callable[[str], None]) -> None:
        self.ground, self.progress = ground, progress
        self.sides = (Side(ground, 0, Session()), Side(ground, 1, Session()))
        self.compared = self.elements = 0
        self.not_compared: dict[str, int] = {}
        self.differing: list[_Compared] = []
        self.diagnoses: dict[int, Diagnosis | None] = {}
        self.groups: dict[Reason, list[_Compared]] = {}
        self.smallest: dict[Reason, _Compared] = {}
        self.seen: dict[Reason, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self.out_of_time = False

    def run(self, seed: int, problems: int, budget: float) -> None:
        """Everything within the budget; where it ends first, what was found is explained all the same."""
        with ExitStack() as settings:
            for side in self.sides:
                settings.enter_context(one_thread(side.target))
            settings.enter_context(deadline_alarm(budget, None))
            try:
                self.compare(drawn(self.ground, seed, problems))
                self.diagnose(seed)
                self.explain()
                self.shrink()
                self.draw()
                return
            except OutOfTime:
                self.out_of_time = True
        self.explain()

    def compare(self, problems: list[Problem]) -> None:
        """Ask both on each problem."""
        for number, problem in enumerate(problems):
            self.progress(f"comparing, problem {number + 1} of {len(problems)}: {len(self.differing)} differ")
            found = self._ask(problem)
            if isinstance(found, str):
                if found:
                    self.not_compared[found] = self.not_compared.get(found, 0) + 1
                continue
            self.compared += 1
            self.elements += 0 if None in found.said else found.both()[0].output.size
            if found.differs:
                self.differing.append(found)

    def _ask(self, problem: Problem) -> _Compared | str:
        """What both say, or in words why that can't be compared; no words where conventions promise nothing."""
        said: list[Said | None] = []
        lines: list[str] = []
        for side, name in zip(self.sides, SIDES, strict=True):
            try:
                said.append(side.ask(problem))
            except Refused as refusal:
                return f"{name} declined: {refusal}"
            except Unsuitable:
                return ""
            except Crashed as failure:
                said.append(None)
                lines.append(failure.line)
        if len(lines) == 2:
            return f"both raised: {lines[0]}"
        return _Compared(problem, (said[0], said[1]), "".join(lines))

    def diagnose(self, seed: int) -> None:
        """The fault of each side that is not its own oracle somewhere."""
        for number, side in enumerate(self.sides):
            wrong = [c for c in self.differing if None not in c.said and not c.both()[number].own]
            if wrong:
                self.progress(f"looking for a named fault that explains {side.target.name}")
                witnesses = sorted((c.problem for c in wrong), key=_size)[:4]
                own = tuple(self.ground.of(problem, number) for problem in witnesses)
                self.diagnoses[number] = diagnose(side.target, seed=seed, witnesses=own)

    def explain(self) -> None:
        """The differing problems by what explains them."""
        self.groups.clear()
        for compared in self.differing:
            self.groups.setdefault(self.reason(compared), []).append(compared)
        for reason, group in self.groups.items():
            self.smallest.setdefault(reason, min(group, key=lambda c: _size(c.problem)))

    def reason(self, compared: _Compared) -> Reason:
        """Conventions first, then faults; what is left breaks a law."""
        if None in compared.said:
            return Reason(raises=SIDES[compared.said.index(None)])
        pair = compared.both()
        faults, breaks = [], []
        for number, (name, said) in enumerate(zip(SIDES, pair, strict=True)):
            found = self.diagnoses.get(number)
            if said.own:
                continue
            if found is not None and said.output_of(found.fault) is not None:
                faults.append((name, str(found), found.fault.fix))
            else:
                breaks.append((name, said.broken_law))
        if breaks:
            return Reason(breaks=tuple(breaks))
        a, b = pair
        apart = worst(a.exact.output, b.exact.output, a.bound + b.bound)[0] > 1.0
        return Reason(responsible(self.sides, compared.problem) if apart else (), tuple(faults))

    def shrink(self) -> None:
        """The smallest problem of each reason."""
        for number, (reason, compared) in enumerate(self.smallest.items()):
            self.progress(f"shrinking difference {number + 1} of {len(self.smallest)}")
            _, found = minimise(compared.problem, _Differs(compared), self._again(reason), limit=200)
            self.smallest[reason] = found.compared

    def _again(self, reason: Reason) -> Callable[[Problem], _Differs | None]:
        def differs(problem: Problem) -> _Differs | None:
            if not self.ground.takes(problem):
                return None
            found = self._ask(problem)
            if isinstance(found, str) or not found.differs or self.reason(found) != reason:
                return None
            return _Differs(found)

        return differs

    def draw(self) -> None:
        """The pairs that each side attends on the witnesses, where those are the point."""
        for reason, compared in self.smallest.items():
            if reason.raises or max(compared.problem.queries, compared.problem.keys) > 8:
                continue
            masks = []
            for side, said in zip(self.sides, compared.both(), strict=True):
                try:
                    masks.append(effective_mask(side.target, said.call, strict=True))
                except FAILS:
                    break
            if len(masks) == 2 and (masks[0] != masks[1]).any():
                b, h = (int(n) for n in np.argwhere((masks[0] != masks[1]).any((2, 3)))[0])
                rows = [tuple(" ".join("1" if cell else "0" for cell in row) for row in m[b, h]) for m in masks]
                self.seen[reason] = rows[0], rows[1]

    def told(self) -> tuple[Cause, ...]:
        """The causes, the commonest first."""
        causes = []
        for reason, group in self.groups.items():
            compared = self.smallest[reason]
            share = None
            if not reason.raises and not reason.breaks:
                share = sum((self._share(c) for c in group), Share()).explained
            causes.append(
                Cause(
                    reason,
                    len(group),
                    share,
                    compared.problem,
                    compared.element(),
                    compared.line,
                    self.seen.get(reason),
                )
            )
        return tuple(sorted(causes, key=lambda c: (-c.problems, _size(c.witness))))

    def _share(self, compared: _Compared) -> Share:
        """How much of one difference the oracles and faults of the two sides give."""
        pair = compared.both()
        told = []
        for number, said in enumerate(pair):
            found = self.diagnoses.get(number)
            output = said.exact.output if said.own or found is None else said.output_of(found.fault)
            told.append(said.exact.output if output is None else output)
        outputs = [said.output for said in pair]
        return share_of((outputs[0], outputs[1]), (told[0], told[1]), pair[0].bound + pair[1].bound)


def _size(problem: Problem) -> tuple[int, Problem]:
    return problem.size, replace(problem, scale=problem.scale or 0.0)
