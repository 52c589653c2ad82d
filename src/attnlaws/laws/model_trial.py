"""A trial of a model: one law on one problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from ..faults.model_impostors import IMPOSTORS, Impostor
from ..problems.model_problem import ModelProblem, generator, inputs_of
from ..targets.call import Array, BoolArray, TargetRaised, WrongResult
from ..targets.model import ModelTarget
from ..targets.model_cache import Decoding
from ..targets.model_generate import generate
from ..targets.model_inputs import Inputs, IntArray, places_of
from ..targets.model_instance import ModelInstance
from ..targets.model_training import train
from ..targets.redraw import CALM, SIZE, redrawn
from .module_trial import ModuleTrial
from .trial import Crashed, Evidence, Refused, Session, worst

T = TypeVar("T")
PLAIN = Impostor()


class ModelTrial(ModuleTrial):
    """One law on one problem of a model: the `inputs`, what is real of them, and copies of the module.

    In a disguise an impostor answers in the place of the target.
    """

    OUT = "logits"

    def __init__(
        self,
        target: ModelTarget,
        problem: ModelProblem,
        session: Session,
        evidence: Evidence,
        disguise: str = "",
        slacks: dict[float, float] | None = None,
    ) -> None:
        super().__init__(problem, session, evidence)
        self.target = target
        self.disguise = IMPOSTORS[disguise] if disguise else PLAIN
        self.inputs = inputs_of(problem, target)
        self.rng = generator(problem, 2)
        self.slacks: dict[float, float] = {} if slacks is None else slacks
        own = target.itself()
        self._own, self._trainable = own.parameters(), own.trainable()

    # -- the model ---------------------------------------------------------------------------------------------------

    def model(self, dtype: str | None = None, *, training: bool = False, calm: bool = False) -> ModelInstance:
        """A fresh copy with the problem's parameters, in eval mode unless `training`; with `calm` ones every token tells."""
        made = self.target.fresh(dtype or self.problem.dtype, training=training)
        if self.problem.redrawn or calm:
            made.set(redrawn(self._own, self._trainable, self.problem.seed, size=CALM if calm else SIZE))
        return made

    def run(
        self, model: ModelInstance, inputs: Inputs | None = None, *, seed: int = 0, grad: bool | None = None
    ) -> Array:
        """Its logits (B, L, V) for some inputs, or for the problem's.

        Raises Crashed where it raises or returns no logits, Refused for NotImplementedError.
        """
        given = self.inputs if inputs is None else inputs
        if (disguised := self.disguise.run) is not None:
            return self._told(lambda: disguised(model, given))
        recorded = self.problem.grad if grad is None else grad
        return self._told(lambda: model.run(given, grad=recorded, seed=seed))

    def _told(self, call: Callable[[], T]) -> T:
        self.evidence.calls += 1
        try:
            return call()
        except TargetRaised as failure:
            if isinstance(failure.error, NotImplementedError):
                raise Refused(failure.cause_line) from failure
            raise Crashed(failure.cause_line, None) from failure
        except WrongResult as failure:
            raise Crashed(str(failure), None) from failure

    @property
    def rows(self) -> BoolArray:
        """(B, L), True for a real token: what is said of others is a convention."""
        return np.ones(self.inputs.ids.shape, dtype=bool) if self.inputs.real is None else self.inputs.real

    def sees(self) -> BoolArray:
        """(L, L), True where the logits at i depend on token j."""
        return self.target.dependence.pattern(self.problem.length)

    def other(self, ids: IntArray, where: Any, *, source: bool = False) -> IntArray:
        """The ids with other ones, none of them the pad id, at some places."""
        size = self.target.source_vocabulary if source else self.target.vocabulary
        real = np.array([i for i in range(size) if i != self.target.pad_id])
        moved = ids.copy()
        at = np.searchsorted(real, ids[where]) + self.rng.integers(1, len(real), ids[where].shape)
        moved[where] = real[at % len(real)]
        return moved

    # -- how far right computations may be apart -------------------------------------------------------------------------

    def slack(self, unit: float) -> float:
        """How far two right computations of the same logits may be apart in arithmetic of this unit roundoff.

        A chain of products and sums of length n gives the exact result for parameters that are moved by a relative
        lambda sqrt(n) u at most, with lambda = 6 but for chance 1e-7 (Higham & Mary 2019). They are moved at random by that
        much, in the widest dtype in which the logits are numbers; the logits move by m. What is allowed is four times the largest
        m of three, for each of the two, and the rounding of the logits.
        """
        if unit not in self.slacks:
            limits = (self._moved(dtype, unit) for dtype in reversed(self.target.dtypes))
            self.slacks[unit] = next((limit for limit in limits if limit is not None), 0.0)
        return self.slacks[unit]

    def _moved(self, dtype: str, unit: float) -> float | None:
        """The slack measured in one dtype; None where a logit is NaN in it."""
        exact, rng, inputs = self._scratch(dtype), generator(self.problem, 3), self.inputs
        values, names = exact.parameters(), self._trainable
        base = self._told(lambda: exact.run(inputs, grad=False))[self.rows]
        if np.isnan(base).any():
            return None
        widest = max([max(v.shape) for v in values.values() if v.ndim > 1], default=1)
        moved_by, largest = 6.0 * np.sqrt(min(widest, 4096) + inputs.length + 16.0) * unit, 0.0
        for _ in range(3):
            exact.set({n: values[n] * (1.0 + moved_by * rng.uniform(-1, 1, values[n].shape)) for n in names})
            change = np.abs(self._told(lambda: exact.run(inputs, grad=False))[self.rows] - base)
            largest = max(largest, float(change[np.isfinite(change)].max(initial=0.0)))
        return 8.0 * largest + 8.0 * unit * float(np.abs(base[np.isfinite(base)]).max(initial=0.0))

    def _scratch(self, dtype: str) -> ModelInstance:
        """A copy with the problem's parameters, the same one for all problems of a run."""
        if dtype not in self.session.scratch:
            self.session.scratch[dtype] = self.target.fresh(dtype)
        made: ModelInstance = self.session.scratch[dtype]
        other = redrawn(self._own, self._trainable, self.problem.seed) if self.problem.redrawn else {}
        made.set({**{n: self._own[n] for n in self._trainable}, **other})
        return made

    def near(self, got: Array, want: Array, limit: float) -> bool:
        """Whether each element is within a limit; no evidence."""
        return bool(worst(got, want, np.full(got.shape, limit))[0] <= 1.0)

    def learn(self, model: ModelInstance, texts: Iterable[IntArray]) -> None:
        """Some steps of training on texts (B, L)."""
        self._told(lambda: train(model, texts))

    # -- gradients, losses, caches, generation ------------------------------------------------------------------------------

    def differentiate(self, model: ModelInstance, upstream: Array) -> tuple[Array, dict[str, Array | None]]:
        """Logits and gradients for the problem's inputs. Raises Crashed where the model has none."""
        try:
            return model.gradients(self.inputs, upstream)
        except (TargetRaised, WrongResult) as failure:
            raise Crashed(f"for its gradients: {failure}", None) from failure

    def loss(self, model: ModelInstance, inputs: Inputs) -> tuple[float, Array]:
        """The loss for the labels in the inputs, and the logits beside it."""
        loss, logits = self._told(lambda: model.loss(inputs))
        if self.disguise.loss is not None:
            assert inputs.labels is not None
            return self.disguise.loss(loss, logits, inputs.labels), logits
        return loss, logits

    def decode(self, model: ModelInstance) -> Decoding:
        """An empty cache."""
        return self._told(lambda: Decoding(model, self.inputs))

    def feed(self, decoding: Decoding, ids: IntArray, real: BoolArray | None = None) -> Array:
        """The logits of a chunk of tokens, after those in the cache."""
        logits = self._told(lambda: decoding.feed(ids, real))
        disguised = self.disguise.feed
        return logits if disguised is None else self._told(lambda: disguised(decoding, ids))

    def generate(self, model: ModelInstance, prompt: Inputs, count: int, *, seed: int = 0, **options: Any) -> IntArray:
        """The new tokens (B, n)."""
        if self.disguise.generate is not None:
            return self.disguise.generate(model, prompt, count, seed)
        return self._told(lambda: generate(model, prompt, count, seed=seed, **options))

    def placed(self, inputs: Inputs) -> Inputs:
        """The inputs with position ids that count the real tokens alone, where the model takes them."""
        if not self.target.positions or inputs.real is None:
            return inputs
        return inputs.but(places=places_of(inputs.real) + self.target.first_place)
