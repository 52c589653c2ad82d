"""What laws of all kinds have: a name, a statement, a function that tries it, and the pytest test that is left of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hypothesis.strategies import SearchStrategy

if TYPE_CHECKING:
    from .trial import Evidence, Session


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


@dataclass(frozen=True, kw_only=True)
class Named:
    """The part of a law that says what it is. `basis` names more basic laws: where one of them is broken too, this one is
    folded under it.

    A `slow` law takes seconds: it is left for the profiles full and soak, unless it is asked for by name. A law of `chance`
    is tried on one problem, with sample sizes of its own.
    """

    name: str
    statement: str
    body: Callable[[Any], None]
    exact: bool = False
    basis: tuple[str, ...] = ()
    share: float = 1.0
    slow: bool = False
    chance: bool = False

    @property
    def formula(self) -> str:
        """The docstring of the law's function: the formula and why it holds."""
        return inspect.getdoc(self.body) or ""


Test = Callable[[Callable[[AnyLaw], None]], None]


def as_test(law: AnyLaw, body: Callable[[Any], None]) -> Test:
    """The pytest test of a law. It takes the plugin's fixture `attention_law`, which tries the law on the targets of its kind."""

    def test(attention_law: Callable[[AnyLaw], None]) -> None:
        attention_law(law)

    test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
    test.__qualname__ = body.__qualname__
    mark: Any = test
    mark.law = law
    return test
