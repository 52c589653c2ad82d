"""What only a cheater does, looked for on fresh inputs: trivial answers, replayed ones, answers that depend on the count of calls.

Each look is a function of a `Looker` that gives the `Suspicion`, or None. All compare with the oracle in this process, which the code
that is judged can't reach.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..judge.precision import PROFILES, Precision
from ..laws.trial import Evidence, Session, Trial, worst
from ..problems.problem import Problem
from ..targets.call import Answer, Array, Call, TargetRaised, WrongResult
from ..targets.target import Target
from ..targets.trying import base_call, plain_call, size_of

#: fresh inputs that a look takes, and calls after which a count of calls is taken to show
FRESH, CALLS = 3, 48
_LENGTH = 5


@dataclass(frozen=True)
class Suspicion:
    """What was seen, the law that it breaks, and the sizes of the call on which it was seen."""

    what: str
    law: str
    witness: str


class Looker:
    """A target, and fresh inputs of one size for it. `renew` makes its process a new one."""

    def __init__(self, target: Target, seed: int, renew: Callable[[], None]) -> None:
        self.target, self.seed, self.renew = target, seed, renew
        self.trial = Trial(target, Problem(seed=seed), Session(), Evidence())
        self.calls = [self.fresh(n) for n in range(FRESH)]

    def fresh(self, number: int, dtype: str | None = None) -> Call:
        """A call of the same sizes as all others, with values of its own."""
        a, base = self.target.abilities, base_call(self.target, _LENGTH, _LENGTH)
        batch, heads, _, _, _, size, _ = base.sizes
        made = plain_call(batch, heads, _LENGTH, _LENGTH, size, size, seed=self.seed * 1000 + number)
        return made.but(dtype=dtype or a.dtypes[0])

    def answer(self, call: Call, **options: Any) -> Answer | None:
        """The target's answer, None where it raises or its result can't be read."""
        try:
            return self.target(call, **options)
        except (TargetRaised, WrongResult):
            return None

    def outputs(self, dtype: str | None = None) -> list[tuple[Call, Array]]:
        """The outputs for all fresh inputs that are answered."""
        calls = [call.but(dtype=dtype or call.dtype) for call in self.calls]
        return [(call, answer.output) for call in calls if (answer := self.answer(call)) is not None]

    def truth(self, call: Call) -> Array:
        """The oracle's output."""
        return np.asarray(self.trial.exact(call).output)

    def right(self, call: Call, output: Array, precision: Precision | None = None) -> bool:
        """Whether an output is within the bound of a precision: the loosest that is legitimate for its dtype, or the given one."""
        exact = self.trial.exact(call)
        bound = 2.0 * self.trial.bound(call, precision or self.trial.ladder(call.dtype)[-1], exact)
        return output.shape == exact.output.shape and worst(output, exact.output, bound)[0] <= 1.0

    def alike(self, call: Call, first: Array, second: Array) -> bool:
        """Whether two outputs of a call differ by no more than rounding can; NaN is like NaN."""
        if np.array_equal(first, second, equal_nan=True):
            return True
        bound = 4.0 * self.trial.bound(call, self.trial.ladder(call.dtype)[-1], self.trial.exact(call))
        return first.shape == second.shape == bound.shape and worst(first, second, bound)[0] <= 1.0

    def says(self, what: str, law: str, call: Call | None = None) -> Suspicion:
        """A suspicion, on a fresh call."""
        call = call or self.calls[0]
        batch, heads, _, queries, keys, width, _ = call.sizes
        return Suspicion(
            what, law, f"B={batch} H={heads} Lq={queries} Lk={keys} D={width} {call.dtype}, seed {self.seed}"
        )


def _mean(call: Call) -> Array:
    return np.broadcast_to(call.value.mean(2, keepdims=True), call.value.shape)


#: answers that need no attention
TRIVIAL: dict[str, Callable[[Call, Array], Array]] = {
    "zeros": lambda call, got: np.zeros_like(got),
    "NaN": lambda call, got: np.full_like(got, np.nan),
    "a constant": lambda call, got: np.full_like(got, got.flat[0]),
    "the mean of V": lambda call, got: _mean(call),
    "V itself": lambda call, got: call.value,
    "the query itself": lambda call, got: call.query,
    "the key itself": lambda call, got: call.key,
}


def trivial(look: Looker) -> Suspicion | None:
    """Wrong on all fresh inputs, and each time the same trivial answer, to a hundredth."""
    found = look.outputs()
    if not found or any(look.right(call, got) for call, got in found):
        return None
    for name, make in TRIVIAL.items():
        if all(
            make(call, got).shape == got.shape and np.allclose(got, make(call, got), 0.0, 0.01, equal_nan=name == "NaN")
            for call, got in found
        ):
            return look.says(
                f"answers {name}, whatever the inputs are ({len(found)} of {len(found)} fresh ones)", "weights.oracle"
            )
    return None


def replayed(look: Looker) -> Suspicion | None:
    """The answer to earlier inputs for new values: of the same sizes, or in the same memory."""
    found = look.outputs()
    for (_, before), (call, got) in itertools.pairwise(found):
        if np.array_equal(before, got) and not look.right(call, got):
            return look.says("replays its answer to earlier inputs of the same sizes", "conduct.history", call)
    first, second = look.calls[:2]
    try:
        again = look.target.refilled(first, second).output
    except (TargetRaised, WrongResult):
        return None
    if not look.right(second, again) and look.right(first, again):
        return look.says("replays its answer to earlier inputs in the same memory", "conduct.history", second)
    return None


def counting(look: Looker) -> Suspicion | None:
    """The very same inputs, again and again with others between them, in a process that starts anew: another answer in the end.

    No oracle has a part in it: what the probe saw of a function that counts may be wrong.
    """
    look.renew()
    call, first = look.calls[0], look.answer(look.calls[0])
    if first is None:
        return None
    for number in range(1, CALLS):
        answer = look.answer(call if number % 2 == 0 else look.calls[1 + number % (FRESH - 1)])
        if number % 2 or answer is None:
            continue
        if not look.alike(call, first.output, answer.output):
            return look.says(f"the same inputs get another answer after {number} calls", "conduct.repeatable")
    return None


def meddling(look: Looker) -> Suspicion | None:
    """Inputs that are changed in place."""
    for call in look.calls:
        answer = look.answer(call, watch=True)
        if answer is not None and answer.mutated:
            return look.says(
                f"changes its inputs in place: {', '.join(answer.mutated)}", "conduct.inputs-untouched", call
            )
    return None


def disguised(look: Looker) -> Suspicion | None:
    """A result of a type of its own: a subclass can compute its values when it is compared."""
    plain = look.target.framework.kind_of(look.target.framework.tensor(np.zeros(1), look.calls[0].dtype))
    answer = look.answer(look.calls[0])
    if answer is not None and answer.kind != plain:
        return look.says(f"returns {answer.kind}, not {plain}", "layout.result")
    return None


def coarse(look: Looker) -> Suspicion | None:
    """Not right for its dtype, and right for a coarser one on all fresh inputs."""
    for dtype in ("float32", "float64"):
        found = look.outputs(dtype) if dtype in look.target.abilities.dtypes else []
        if not found or any(look.right(call, got) for call, got in found):
            continue
        for lower in ("float16", "bfloat16"):
            loosest = PROFILES[lower][-1]
            if all(look.right(call, got, loosest) for call, got in found):
                return look.says(f"computes {dtype} as roughly as {lower}", "scores.precision", found[0][0])
    return None


LOOKS: tuple[Callable[[Looker], Suspicion | None], ...] = (counting, trivial, replayed, meddling, disguised, coarse)


def suspicion(target: Target, seed: int, renew: Callable[[], None]) -> Suspicion | None:
    """The first suspicion, if there is one. Raises OutOfTime where the budget's alarm rings."""
    if not target.abilities.dtypes or size_of(target) > 256:
        return None
    look = Looker(target, seed, renew)
    return next((found for check in LOOKS if (found := check(look)) is not None), None)
