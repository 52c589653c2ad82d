"""Diagnosis of conduct: which fault that is no step of attention fails the same law in the very same way, problem by problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from ..laws.attempt import Failure, try_law
from ..laws.law import Law
from ..laws.trial import Broken, Crashed, Evidence, Refused, Session, Unsuitable
from ..problems.draw import covering
from ..problems.problem import Problem
from ..targets.probe import adapt
from ..targets.signature import CannotAdapt
from ..targets.target import Target
from .case import Fault

#: further problems on which a fault must fail, or hold, as the target does
FURTHER = 8


@dataclass(frozen=True)
class Alike:
    """A fault that fails as the target does on `problems` problems of the law that names it, `wrong` of which fail."""

    fault: Fault
    problems: int
    wrong: int


def explain_function(
    target: Target, broken: Sequence[tuple[Law, Problem]], faults: Sequence[Fault], *, seed: int = 0
) -> Alike | None:
    """The one fault whose law is broken and which breaks it as the target does; None where none does, or several do.

    `broken` begins with the root cause. A law that broke without a value to compare must be that one.
    """
    for law, witness in broken:
        mine = [f for f in faults if f.function is not None and f.law == law.name]
        failure = _failure(law, target, witness) if mine else None
        if isinstance(failure, Broken) and failure.got is None and law is not broken[0][0]:
            continue
        found = [alike for fault in mine if (alike := _alike(target, fault, law, witness, seed)) is not None]
        if len(found) == 1:
            return found[0]
        if found:
            return None
    return None


def _alike(target: Target, fault: Fault, law: Law, witness: Problem, seed: int) -> Alike | None:
    assert fault.function is not None
    try:
        other = adapt(
            fault.function,
            name=fault.name,
            device=getattr(target.framework, "device", "cpu"),
            declared=dict(fault.conventions),
        )
    except CannotAdapt:
        return None
    if law.not_applicable(other) or other.conventions.layout != target.conventions.layout:
        return None
    further = islice(covering(law.wants, target.abilities, target.conventions, seed), FURTHER)
    problems = [p for p in (witness, *further) if law.wants.fits(p, other.abilities, other.conventions)]
    if not problems or problems[0] != witness:
        return None
    wrong = 0
    for problem in problems:
        first, second = (_failure(law, each, problem) for each in (target, other))
        if not _same(first, second):
            return None
        wrong += isinstance(first, Broken | Crashed)
    return Alike(fault, len(problems), wrong) if wrong else None


def _failure(law: Law, target: Target, problem: Problem) -> Failure | str | None:
    """How a law fails on a problem; a word where it says nothing there."""
    try:
        return try_law(law, target, problem, Session(), Evidence())
    except (Unsuitable, Refused):
        return "says nothing"


def _same(first: Failure | str | None, second: Failure | str | None) -> bool:
    """Whether two failures are the same: the same words, place and value, rounding aside."""
    if isinstance(first, Broken) and isinstance(second, Broken):
        if (first.what, first.where) != (second.what, second.where) or (first.got is None) != (second.got is None):
            return False
        if first.got is None or second.got is None:
            return True
        slack = 4.0 * (first.allowed or 0.0) + 1e-4 * abs(first.got) + 1e-7
        return first.got == second.got or abs(first.got - second.got) <= slack
    if isinstance(first, Crashed) and isinstance(second, Crashed):
        return first.line == second.line
    return type(first) is type(second)
