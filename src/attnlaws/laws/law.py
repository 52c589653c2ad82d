"""A law: one statement about attention, one function that tries it on one problem."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..problems.draw import Wants
from ..targets.target import Target

if TYPE_CHECKING:
    from .trial import Trial


@dataclass(frozen=True)
class Law:
    """A named law. `basis` names more basic laws: where one of them is broken too, this one is folded under it.

    A `slow` law takes seconds: it is left for the profiles full and soak, unless it is asked for by name.
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

    @property
    def formula(self) -> str:
        """The docstring of the law's function: the formula and why it holds."""
        return inspect.getdoc(self.body) or ""

    def not_applicable(self, target: Target) -> str | None:
        """Why the law says nothing about this target; None where it does."""
        missing = self.wants.missing(target.abilities, target.conventions)
        return missing or (self.applies(target) if self.applies else None)


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
) -> Callable[[Callable[[Trial], None]], Callable[[_Runner], None]]:
    """Register a law; what is left in the module is a pytest test of the same name.

    The test takes the plugin's fixture `attention_law`, which runs the law on the target of the session.
    """

    def decorate(body: Callable[[Trial], None]) -> Callable[[_Runner], None]:
        made = Law(name, statement, wants or Wants(), body, applies, exact, basis, share, slow)
        LAWS[name] = made

        def test(attention_law: _Runner) -> None:
            attention_law(made)

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.__qualname__ = body.__qualname__
        mark: Any = test
        mark.law = made
        return test

    return decorate
