"""A law of models: one statement about a module from tokens to logits, one function that tries it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis.strategies import SearchStrategy

from ..problems.model_problem import ModelProblem, ModelWants, covering, model_problems
from ..targets.model import ModelTarget
from .named import Named, Test, as_test
from .trial import Broken, Crashed, Evidence, Refused, Unsuitable

if TYPE_CHECKING:
    from .model_trial import ModelTrial
    from .trial import Session

#: how many problems each impostor is tried on, for each law that must reject it
TRIED = 6


@dataclass(frozen=True, kw_only=True)
class ModelLaw(Named):
    """A named law of models. `rejects` names the impostors that it must refuse on the very problems on which it held."""

    wants: ModelWants
    applies: Callable[[ModelTarget], str | None] | None = None
    rejects: tuple[str, ...] = ()
    kind: str = "model"

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
) -> Callable[[Callable[[ModelTrial], None]], Test]:
    """Register a law of models; what is left in the module is its test."""

    def decorate(body: Callable[[ModelTrial], None]) -> Test:
        MODEL_LAWS[name] = ModelLaw(
            name=name,
            statement=statement,
            wants=wants or ModelWants(),
            body=body,
            applies=applies,
            exact=exact,
            basis=basis,
            share=share,
            rejects=rejects,
            slow=slow,
            chance=chance,
        )
        return as_test(MODEL_LAWS[name], body)

    return decorate
