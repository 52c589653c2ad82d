"""A law of layers: one statement about a module from (B, L, E) to (B, L, E'), one function that tries it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hypothesis.strategies import SearchStrategy

from ..problems.layer_problem import LayerProblem, LayerWants, covering, layer_problems
from ..targets.layer import LayerTarget

if TYPE_CHECKING:
    from .layer_trial import LayerTrial
    from .trial import Evidence, Session


@dataclass(frozen=True)
class LayerLaw:
    """A named law of layers, with the same face as a law of attention functions."""

    name: str
    statement: str
    wants: LayerWants
    body: Callable[[LayerTrial], None]
    applies: Callable[[LayerTarget], str | None] | None
    exact: bool
    basis: tuple[str, ...]
    share: float
    slow: bool = False
    chance: bool = False
    kind: str = "layer"

    @property
    def formula(self) -> str:
        """The docstring of the law's function: the formula and why it holds."""
        return inspect.getdoc(self.body) or ""

    def not_applicable(self, target: LayerTarget) -> str | None:
        """Why the law says nothing about this layer; None where it does."""
        return self.wants.missing(target) or (self.applies(target) if self.applies else None)

    def attempt(self, target: LayerTarget, problem: LayerProblem, session: Session, evidence: Evidence) -> None:
        """The law on one problem. Raises Broken, Crashed, Unsuitable or Refused."""
        from .layer_trial import LayerTrial

        self.body(LayerTrial(target, problem, session, evidence))

    def covering(self, target: LayerTarget, seed: int) -> Iterator[LayerProblem]:
        """The covering design for this law and layer."""
        return covering(self.wants, target, seed)

    def drawn(self, target: LayerTarget) -> SearchStrategy[LayerProblem]:
        """Hypothesis' strategy."""
        return layer_problems(self.wants, target)

    def fits(self, target: LayerTarget, problem: LayerProblem) -> bool:
        """Whether a shrunk problem still fits."""
        return self.wants.fits(problem, target)


LAYER_LAWS: dict[str, LayerLaw] = {}


class _Runner(Protocol):
    def __call__(self, law: LayerLaw) -> None: ...


def layer_law(
    name: str,
    statement: str,
    *,
    wants: LayerWants | None = None,
    applies: Callable[[LayerTarget], str | None] | None = None,
    exact: bool = False,
    basis: tuple[str, ...] = (),
    share: float = 0.5,
    chance: bool = False,
) -> Callable[[Callable[[LayerTrial], None]], Callable[[_Runner], None]]:
    """Register a law of layers; what is left in the module is a pytest test that takes the fixture `layer_law`."""

    def decorate(body: Callable[[LayerTrial], None]) -> Callable[[_Runner], None]:
        made = LayerLaw(name, statement, wants or LayerWants(), body, applies, exact, basis, share, chance=chance)
        LAYER_LAWS[name] = made

        def test(layer_law: _Runner) -> None:
            layer_law(made)

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.__qualname__ = body.__qualname__
        mark: Any = test
        mark.law = made
        return test

    return decorate
