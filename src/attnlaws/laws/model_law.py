"""A law of models: one statement about a module from tokens to logits, one function that tries it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hypothesis.strategies import SearchStrategy

from ..problems.model_problem import ModelProblem, ModelWants, covering, model_problems
from ..targets.model import ModelTarget
from .trial import Broken, Crashed, Evidence, Refused, Unsuitable

if TYPE_CHECKING:
    from .model_trial import ModelTrial
    from .trial import Session

#: how many problems each impostor is tried on, for each law that must reject it
TRIED = 6


@dataclass(frozen=True)
class ModelLaw:
    """A named law of models. `rejects` names the impostors that it must refuse on the very problems on which it held."""

    name: str
    statement: str
    wants: ModelWants
    body: Callable[[ModelTrial], None]
    applies: Callable[[ModelTarget], str | None] | None
    exact: bool
    basis: tuple[str, ...]
    share: float
    rejects: tuple[str, ...] = ()
    slow: bool = False
    chance: bool = False
    kind: str = "model"

    @property
    def formula(self) -> str:
        """The docstring of the law's function: the formula and why it holds."""
        return inspect.getdoc(self.body) or ""

    def not_applicable(self, target: ModelTarget) -> str | None:
        """Why the law says nothing about this model; None where it does."""
        return self.wants.missing(target) or (self.applies(target) if self.applies else None)

    def attempt(self, target: ModelTarget, problem: ModelProblem, session: Session, evidence: Evidence) -> None:
        """The law on one problem; where it holds, on impostors too. Raises Broken, Crashed, Unsuitable or Refused."""
        from .model_trial import ModelTrial

        trial = ModelTrial(target, problem, session, evidence)
        self.body(trial)
        for name in self.rejects:
            tally = session.impostors.setdefault(f"{name} by {self.name}", [0, 0])
            if tally[0] >= TRIED:
                continue
            try:
                self.body(ModelTrial(target, problem, session, Evidence(), name, trial.slacks))
            except (Broken, Crashed):
                tally[1] += 1
            except (Unsuitable, Refused):
                continue
            tally[0] += 1

    def covering(self, target: ModelTarget, seed: int) -> Iterator[ModelProblem]:
        """The covering design for this law and model."""
        return covering(self.wants, target, seed)

    def drawn(self, target: ModelTarget) -> SearchStrategy[ModelProblem]:
        """Hypothesis' strategy."""
        return model_problems(self.wants, target)

    def fits(self, target: ModelTarget, problem: ModelProblem) -> bool:
        """Whether a shrunk problem still fits."""
        return self.wants.fits(problem, target)


MODEL_LAWS: dict[str, ModelLaw] = {}


class _Runner(Protocol):
    def __call__(self, law: ModelLaw) -> None: ...


def model_law(
    name: str,
    statement: str,
    *,
    wants: ModelWants | None = None,
    applies: Callable[[ModelTarget], str | None] | None = None,
    exact: bool = False,
    basis: tuple[str, ...] = (),
    share: float = 0.5,
    rejects: tuple[str, ...] = (),
    slow: bool = False,
    chance: bool = False,
) -> Callable[[Callable[[ModelTrial], None]], Callable[[_Runner], None]]:
    """Register a law of models; what is left in the module is a pytest test that takes the fixture `model_law`.

    A `slow` law is left for the profiles full and soak, unless it is asked for by name; a law of `chance` is tried on one problem.
    """

    def decorate(body: Callable[[ModelTrial], None]) -> Callable[[_Runner], None]:
        made = ModelLaw(
            name, statement, wants or ModelWants(), body, applies, exact, basis, share, rejects, slow, chance
        )
        MODEL_LAWS[name] = made

        def test(model_law: _Runner) -> None:
            model_law(made)

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.__qualname__ = body.__qualname__
        mark: Any = test
        mark.law = made
        return test

    return decorate
