"""A side of a case: a target's function on the case's inputs, judged before it is timed and again on what was timed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ..judge.precision import Precision
from ..laws.trial import Crashed, Evidence, Session, Trial
from ..targets.call import Array, TargetRaised, WrongResult
from ..targets.reading import read_result
from ..targets.target import Target
from .cases import Case
from .timing import Run

#: as many sets of values take turns, block by block: a result that is remembered is then wrong
SEEDS = (1, 2)


class FunctionWork:
    """A function of query, key and value on a case: forward, or forward and backward."""

    def __init__(self, target: Target, case: Case, session: Session | None = None) -> None:
        session = Session() if session is None else session
        self.target, self.case, self.name = target, case, target.name
        asks = case.causal and target.conventions.causal != "always"  # that has no flag
        trials = [Trial(target, case.problem(seed, causal=asks), session, Evidence()) for seed in SEEDS]
        self.inputs = [Judged(trial, gradients=case.kind == "backward") for trial in trials]
        self._made: list[dict[str, Any]] = [{} for _ in SEEDS]

    def prepare(self, block: int) -> Run:
        """The call on the values of this block, in fresh memory."""
        at = block % len(SEEDS)
        run, self._made[at] = self.inputs[at].ready()
        return run

    def judge(self) -> float:
        """Each set of values once against the oracle: the largest error / bound. Raises Broken or Crashed."""
        return max(inputs.judge(inputs.called(), None) for inputs in self.inputs)

    def judge_timed(self, block: int, result: Any) -> float:
        """What was timed: the result is right, and the inputs are as they were. Raises Broken or Crashed."""
        at = block % len(SEEDS)
        return self.inputs[at].judge(result, self._made[at])


class Judged:
    """One call with its exact result, and the judge of results: of outputs, and of gradients where they are wanted."""

    def __init__(self, trial: Trial, *, gradients: bool) -> None:
        self.trial, self.target = trial, trial.target
        self.upstream: Array | None = None
        if gradients:
            call = trial.call
            self.upstream = trial.rng.integers(-8, 9, (*call.query.shape[:3], call.value.shape[3])) / 4.0

    def ready(self) -> tuple[Run, dict[str, Any]]:
        """The call in fresh memory, and its tensors."""
        return self.target.ready(self.trial.call, self.upstream)

    def called(self) -> Any:
        """The raw result of one call. Raises Crashed."""
        run, _ = self.ready()
        try:
            with np.errstate(all="ignore"):
                return run()
        except Exception as error:
            raise Crashed(TargetRaised(error).cause_line, self.trial.call) from error

    @cached_property
    def exact(self) -> Any:
        """The oracle's output, and its gradients or None."""
        call = self.trial.call
        found = self.trial.exact(call)
        return found, None if self.upstream is None else self.trial.exact_gradients(call, self.upstream)

    def judge(self, result: Any, made: dict[str, Any] | None) -> float:
        """The largest error / bound of a raw result; `made` are the tensors that the call was given."""
        trial, call = self.trial, self.trial.call
        before = trial.evidence.worst
        trial.evidence.worst = 0.0
        raw, gradients = (result, None) if self.upstream is None else result
        try:
            answer, _ = read_result(self.target, raw, call, {})
        except WrongResult as failure:
            raise Crashed(str(failure), call) from failure
        exact, wanted = self.exact
        trial.agrees_with_oracle(answer.output, call, "the output is not softmax(scale q k^T + mask) v", exact)
        if gradients is not None:
            self._judge_gradients(gradients, exact, wanted)
        for role, tensor in (made or {}).items():
            self._unchanged(role, tensor)
        worst, trial.evidence.worst = trial.evidence.worst, max(before, trial.evidence.worst)
        return worst

    def _judge_gradients(self, gradients: list[Any], exact: Any, wanted: Any) -> None:
        trial, call = self.trial, self.trial.call
        assert self.upstream is not None
        upstream, factor = self.upstream, 2.0 if call.dtype == "float64" else 1.0
        for at, (role, gradient) in enumerate(zip(("query", "key", "value"), gradients, strict=True)):
            trial.require(gradient is not None, f"no gradient reaches {role}", call)
            got = self.target.from_layout(self.target.framework.to_numpy(gradient), call.sizes[0])

            def allowed(precision: Precision, at: int = at) -> Array:
                return factor * trial.gradient_bounds(call, upstream, wanted, precision, exact)[at]

            trial.within(
                got, getattr(wanted, role), allowed, f"the gradient by {role} is wrong", call=call, name=f"d{role}"
            )

    def _unchanged(self, role: str, tensor: Any) -> None:
        array = getattr(self.trial.call, role, None)
        if isinstance(array, np.ndarray) and role in ("query", "key", "value"):
            now = self.target.from_layout(self.target.framework.to_numpy(tensor), self.trial.call.sizes[0])
            self.trial.require(np.array_equal(now, array), f"the call changes {role} in place", self.trial.call)


def judge_small(target: Target) -> None:
    """A small causal problem, where causality is a flag: who is wrong on it is not timed. Raises Broken or Crashed."""
    if target.conventions.causal == "flag":
        size = (target.abilities.head_dims or (8,))[0]
        FunctionWork(target, Case("small", "forward", 1, 1, 1, 24, 24, size, target.abilities.dtypes[0], True)).judge()
