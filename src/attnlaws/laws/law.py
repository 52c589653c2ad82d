"""A law: one statement about attention, one function that tries it on one problem."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hypothesis.strategies import SearchStrategy

from ..problems.draw import Wants, covering, problems
from ..problems.problem import Problem
from ..targets.target import Target

if TYPE_CHECKING:
    from .trial import Evidence, Session, Trial


class AnyLaw(Protocol):
    """What the search needs of a law, of whatever kind of target: problems come from it and go back to it."""

    @property
    def name(self) -> str: ...
    @property
    def statement(self) -> str: ...
    @property
    def share(self) -> float: ...
    @property
    def slow(self) -> bool: ...
    @property
    def chance(self) -> bool: ...
    @property
    def basis(self) -> tuple[str, ...]: ...
    @property
    def exact(self) -> bool: ...
    @property
    def kind(self) -> str: ...
    @property
    def formula(self) -> str: ...
    def not_applicable(self, target: Any) -> str | None: ...
    def attempt(self, target: Any, problem: Any, session: Session, evidence: Evidence) -> None: ...
    def covering(self, target: Any, seed: int) -> Iterator[Any]: ...
    def drawn(self, target: Any) -> SearchStrategy[Any]: ...
    def fits(self, target: Any, problem: Any) -> bool: ...


@dataclass(frozen=True)
class Law:
    """A named law. `basis` names more basic laws: where one of them is broken too, this one is folded under it.

    A `slow` law takes seconds: it is left for the profiles full and soak, unless it is asked for by name. A law of `chance`
    is tried on one problem, with sample sizes of its own.
    """

    name: str
    statement: str
    wants: Wants
    body: Callable[[Trial], None]
    applies: Callable[[Target], str | None] | None
    exact: bool
    basis: tuple[str, ...]
    share: float
    slow: bool = False
    chance: bool = False
    kind: str = "attention"

    @property
    def formula(self) -> str:
        """The docstring of the law's function: the formula and why it holds."""
        return inspect.getdoc(self.body) or ""

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


class _Runner(Protocol):
    def __call__(self, law: Law) -> None: ...


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
) -> Callable[[Callable[[Trial], None]], Callable[[_Runner], None]]:
    """Register a law; what is left in the module is a pytest test of the same name.

    The test takes the plugin's fixture `attention_law`, which runs the law on the target of the session.
    """

    def decorate(body: Callable[[Trial], None]) -> Callable[[_Runner], None]:
        made = Law(name, statement, wants or Wants(), body, applies, exact, basis, share, slow, chance)
        LAWS[name] = made

        def test(attention_law: _Runner) -> None:
            attention_law(made)

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.__qualname__ = body.__qualname__
        mark: Any = test
        mark.law = made
        return test

    return decorate
