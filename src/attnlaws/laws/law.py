"""A law: one statement about attention, one function that tries it on one problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis.strategies import SearchStrategy

from ..problems.draw import covering, problems
from ..problems.problem import Problem
from ..problems.wants import Wants
from ..targets.target import Target
from .named import Named, Test, as_test

if TYPE_CHECKING:
    from .trial import Evidence, Session, Trial


@dataclass(frozen=True, kw_only=True)
class Law(Named):
    """A named law of attention functions."""

    wants: Wants
    applies: Callable[[Target], str | None] | None = None
    kind: str = "attention"

    def not_applicable(self, target: Target) -> str | None:
        """Why the law says nothing about this target; None where it does."""
        missing = self.wants.missing(target.abilities, target.conventions)
        return missing or (self.applies(target) if self.applies else None)

    def attempt(self, target: Target, problem: Problem, session: Session, evidence: Evidence) -> None:
        """The law on one problem. Raises Broken, Crashed, Unsuitable or Refused."""
        from .trial import Trial

        self.body(Trial(target, problem, session, evidence))

    def covering(self, target: Target, seed: int) -> Iterator[Problem]:
        """The covering design for this law and target."""
        return covering(self.wants, target.abilities, target.conventions, seed)

    def drawn(self, target: Target) -> SearchStrategy[Problem]:
        """Hypothesis' strategy."""
        return problems(self.wants, target.abilities, target.conventions)

    def fits(self, target: Target, problem: Problem) -> bool:
        """Whether a shrunk problem is still one that this law could be given for this target."""
        return self.wants.fits(problem, target.abilities, target.conventions)


LAWS: dict[str, Law] = {}


def law(
    name: str,
    statement: str,
    *,
    wants: Wants | None = None,
    applies: Callable[[Target], str | None] | None = None,
    exact: bool = False,
    basis: tuple[str, ...] = (),
    share: float = 1.0,
    slow: bool = False,
    chance: bool = False,
) -> Callable[[Callable[[Trial], None]], Test]:
    """Register a law; what is left in the module is its test."""

    def decorate(body: Callable[[Trial], None]) -> Test:
        LAWS[name] = Law(
            name=name,
            statement=statement,
            wants=wants or Wants(),
            body=body,
            applies=applies,
            exact=exact,
            basis=basis,
            share=share,
            slow=slow,
            chance=chance,
        )
        return as_test(LAWS[name], body)

    return decorate
