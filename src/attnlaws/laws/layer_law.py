"""A law of layers: one statement about a module from (B, L, E) to (B, L, E'), one function that tries it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis.strategies import SearchStrategy

from ..problems.layer_problem import LayerProblem, LayerWants, covering, layer_problems
from ..targets.layer import LayerTarget
from .named import Named, Test, as_test

if TYPE_CHECKING:
    from .layer_trial import LayerTrial
    from .trial import Evidence, Session


@dataclass(frozen=True, kw_only=True)
class LayerLaw(Named):
    """A named law of layers."""

    wants: LayerWants
    applies: Callable[[LayerTarget], str | None] | None = None
    kind: str = "layer"

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
) -> Callable[[Callable[[LayerTrial], None]], Test]:
    """Register a law of layers; what is left in the module is its test."""

    def decorate(body: Callable[[LayerTrial], None]) -> Test:
        LAYER_LAWS[name] = LayerLaw(
            name=name,
            statement=statement,
            wants=wants or LayerWants(),
            body=body,
            applies=applies,
            exact=exact,
            basis=basis,
            share=share,
            chance=chance,
        )
        return as_test(LAYER_LAWS[name], body)

    return decorate
