"""Trying one law: a covering design first, then Hypothesis, then the smallest witness."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from ..laws.attempt import Failure, try_law
from ..laws.named import AnyLaw
from ..laws.trial import Crashed, Evidence, Refused, Session, Unsuitable
from ..targets.quiet import OutOfTime
from .ledger import BROKEN, COULD_NOT_TELL, CRASHED, FAULT, HELD, NONDETERMINISTIC, NOT_APPLICABLE, Verdict
from .minimise import minimise

#: problems after which a law that held on all of them may stop at the end of its share of the time
ENOUGH = 12
#: the same where each new size costs the compilation of a program, or where a problem takes longer than SLOW seconds
ENOUGH_WHERE_SLOW = 4
SLOW = 0.25


class _Failed(Exception):
    """Raised inside Hypothesis for a failing problem."""


@dataclass(frozen=True)
class Effort:
    """How much is tried: problems from the covering design, from Hypothesis, and steps of shrinking."""

    covering: int
    drawn: int
    shrinking: int = 400


class _Search:
    """The search for a failing problem of one law."""

    def __init__(self, law: AnyLaw, target: Any, session: Session, deadline: float, share_ends: float) -> None:
        self.law, self.target, self.session = law, target, session
        self.deadline, self.share_ends = deadline, share_ends
        self.costly = getattr(getattr(target, "abilities", None), "costly_sizes", False)
        self.started = time.monotonic()
        self.evidence = Evidence()
        self.judged = self.samples = self.declined = 0
        self.refusal = ""
        self.best: tuple[Any, Failure] | None = None

    @property
    def enough(self) -> bool:
        """Whether so many problems were judged that the law may stop at the end of its share of the time."""
        slow = self.costly or time.monotonic() - self.started > SLOW * max(self.judged, 1)
        return self.judged >= (ENOUGH_WHERE_SLOW if slow else ENOUGH)

    def judge(self, problem: Any) -> bool:
        """Whether the law held on a problem, as far as it could be tried there."""
        now = time.monotonic()
        if now > self.deadline or (now > self.share_ends and self.enough):
            raise OutOfTime
        try:
            failure = try_law(self.law, self.target, problem, self.session, self.evidence)
        except Unsuitable:
            return True
        except Refused as refusal:
            self.declined += 1
            self.refusal = self.refusal or str(refusal)
            return True
        self.judged += 1
        self.samples += getattr(problem, "batch", 1)
        if failure is None:
            return True
        if self.best is None or _size(problem) < _size(self.best[0]):
            self.best = (problem, failure)
        return False


def _size(problem: Any) -> tuple[int, Any]:
    """What is smaller comes first; a scale of None has no order."""
    return problem.size, problem.but(scale=problem.scale or 0.0) if hasattr(problem, "scale") else problem


def run_law(
    law: AnyLaw,
    target: Any,
    session: Session,
    effort: Effort,
    *,
    seed: int,
    deadline: float,
    share_ends: float,
    tick: Callable[[int], None] = lambda _: None,
    known: Sequence[Any] = (),
) -> Verdict:
    """The verdict on one law, tried on the problems that are known to have broken it first.

    Raises OutOfTime where the deadline passes before anything was found.
    """
    started = time.monotonic()
    verdict = Verdict(law.name, law.statement, HELD)
    reason = law.not_applicable(target)
    if reason is not None:
        return replace(verdict, status=NOT_APPLICABLE, reason=reason)
    search = _Search(law, target, session, deadline, share_ends)
    met = {name: tuple(tally) for name, tally in session.impostors.items()}
    if law.chance:
        effort = Effort(covering=1, drawn=0, shrinking=0)
    cut = False
    try:
        if all(search.judge(problem) for problem in known):
            _cover(search, effort, seed, tick)
        if search.best is None and effort.drawn:
            _draw(search, effort, seed)
    except OutOfTime:
        if search.best is None and not search.enough:
            raise
        cut = search.best is None
    done = replace(
        verdict,
        problems=search.judged,
        samples=search.samples,
        evidence=search.evidence,
        seconds=time.monotonic() - started,
        impostors=_since(met, session),
        cut=cut,
        declined=search.declined,
        refusal=search.refusal,
    )
    if search.best is None:
        if search.evidence.comparisons:
            return done
        why = f"the target declined: {search.refusal}" if search.refusal else "no problem could show it"
        return replace(done, status=NOT_APPLICABLE if search.refusal else COULD_NOT_TELL, reason=why)
    try:
        return _conclude(search, done, effort, started)
    except OutOfTime:  # found, but not confirmed and shrunk before the budget ended: told as it is
        problem, failure = search.best
        status = CRASHED if isinstance(failure, Crashed) else BROKEN
        reason = f"{failure} (the budget ended before this was confirmed and shrunk)"
        return replace(done, status=status, reason=reason, witness=problem, failure=failure)


def _since(before: Mapping[str, tuple[int, ...]], session: Session) -> dict[str, tuple[int, int]]:
    """How often each impostor was tried and rejected since then."""
    found = {}
    for name, (tried, rejected) in session.impostors.items():
        earlier = before.get(name, (0, 0))
        if tried > earlier[0]:
            found[name] = (tried - earlier[0], rejected - earlier[1])
    return found


def fault(law: AnyLaw, error: Exception) -> Verdict:
    """The verdict where the law itself failed, with the place of the error."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    return Verdict(law.name, law.statement, FAULT, f"{type(error).__name__}: {error} ({where}); please report this")


def _cover(search: _Search, effort: Effort, seed: int, tick: Callable[[int], None]) -> None:
    wanted = max(1, round(effort.covering * search.law.share))
    design = search.law.covering(search.target, seed)
    for count, problem in enumerate(design, start=1):
        held = search.judge(problem)
        tick(search.judged)
        if not held or search.judged >= wanted or count >= 5 * wanted:
            return


def _draw(search: _Search, effort: Effort, seed: int) -> None:
    """Hypothesis' own search. What fails is kept by `judge`, whatever Hypothesis makes of it."""
    wanted = max(1, round(effort.drawn * search.law.share))

    @hypothesis.seed(seed)
    @settings(
        max_examples=wanted,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(search.law.drawn(search.target))
    def attempt(problem: Any) -> None:
        if not search.judge(problem):
            raise _Failed

    try:
        attempt()
    except _Failed:
        return
    except OutOfTime:
        if search.best is None:
            raise
    except (hypothesis.errors.Flaky, BaseExceptionGroup):
        if search.best is None:
            raise


def _conclude(search: _Search, done: Verdict, effort: Effort, started: float) -> Verdict:
    """Confirm the failure by repeating it, shrink it, and say which kind it is."""
    assert search.best is not None
    problem, failure = search.best
    again = _repeat(search, problem)
    if again is None or type(again) is not type(failure):
        reason = f"fails once and then not, on the same input: {failure}"
        return replace(done, status=NONDETERMINISTIC, reason=reason, witness=problem, failure=failure)
    smallest, failure = minimise(problem, again, lambda p: _repeat(search, p), limit=effort.shrinking)
    status = CRASHED if isinstance(failure, Crashed) else BROKEN
    return replace(
        done, status=status, reason=str(failure), witness=smallest, failure=failure, seconds=time.monotonic() - started
    )


def _repeat(search: _Search, problem: Any) -> Failure | None:
    if not search.law.fits(search.target, problem):
        return None
    try:
        return try_law(search.law, search.target, problem, search.session, Evidence())
    except (Unsuitable, Refused):
        return None
