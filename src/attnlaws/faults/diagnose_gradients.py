"""Diagnosis of gradients: which named fault gives the derivatives that the target gives, where the output is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ..laws.trial import Crashed, Evidence, Refused, Session, Trial
from ..problems.draw import covering
from ..problems.problem import Problem
from ..problems.wants import Wants
from ..reference.oracle import Attended
from ..targets.call import Call
from ..targets.target import Target
from .case import Array, Case, Fault, Gradients
from .gradients import FAULTS

#: regimes of generic problems; what is structured or rounded coarsely can't tell faults apart
GENERIC = ("normal", "integer", "tied", "peaked")
ROLES = ("query", "key", "value")


@dataclass(frozen=True)
class Explained:
    """A fault whose gradients are the target's on all of `problems` problems, on `wrong` of which the truth is not."""

    fault: Fault
    problems: int
    wrong: int


@dataclass(frozen=True, eq=False)
class _Seen:
    """One problem: the target's dq, dk, dv, the true ones, and how far apart equal gradients may be."""

    case: Case
    upstream: Array
    found: Gradients
    truth: Gradients
    slack: Gradients

    def fits(self, candidate: Gradients) -> bool:
        """Whether these are the target's gradients, rounding aside."""
        return not any(_differs(*each).any() for each in zip(candidate, self.found, self.slack, strict=True))


def _differs(candidate: Array, found: Array, slack: Array) -> NDArray[np.bool_]:
    with np.errstate(all="ignore"):
        return np.asarray(~(np.abs(candidate - found) <= slack + 2.0**-18 * np.abs(found)))


def explain_gradients(
    target: Target,
    make_case: Callable[[Trial, Call], Case],
    *,
    seed: int = 0,
    witnesses: tuple[Problem, ...] = (),
    faults: tuple[Fault, ...] = FAULTS,
) -> Explained | None:
    """The fault that gives the target's dq, dk and dv on some 25 problems and the witnesses, where the true ones don't fit.

    None where the target has no gradients, where they are right, and where no fault explains them.
    """
    if not target.abilities.gradients:
        return None
    seen = list(islice(_observed(target, make_case, seed, witnesses), 25))
    wrong = [s for s in seen if not s.fits(s.truth)]
    if not wrong:
        return None
    fault = next((f for f in faults if _explains(f, [*wrong, *seen])), None)
    return None if fault is None else Explained(fault, len(seen), len(wrong))


def _explains(fault: Fault, seen: list[_Seen]) -> bool:
    """Whether the fault gives the target's gradients everywhere; where it says nothing, the truth must be right."""
    if fault.gradients is None:
        return False
    for observed in seen:
        candidate = fault.gradients(observed.case, observed.upstream)
        if not observed.fits(observed.truth if candidate is None else candidate):
            return False
    return True


def generic_trials(
    target: Target, seed: int, witnesses: tuple[Problem, ...], wants: Wants, most: int
) -> Iterator[tuple[Trial, Attended]]:
    """Trials that can tell faults apart, with the exact results: the witnesses and `most` problems at most, in float32 or
    float64, not large, each row with a key.
    """
    dtype = next((d for d in ("float32", "float64") if d in target.abilities.dtypes), None)
    if dtype is None:
        return
    generic = covering(replace(wants, dtypes=(dtype,)), target.abilities, target.conventions, seed)
    for problem in [*(w for w in witnesses if w.dtype == dtype), *islice(generic, most)]:
        if max(problem.queries, problem.keys) > 140:
            continue
        trial = Trial(target, problem, Session(), Evidence())
        exact = trial.exact()
        if exact.visible.any(-1).all():
            yield trial, exact


def _observed(
    target: Target, make_case: Callable[[Trial, Call], Case], seed: int, witnesses: tuple[Problem, ...]
) -> Iterator[_Seen]:
    for trial, exact in generic_trials(target, seed, witnesses, Wants(regimes=GENERIC, gradients=True), 80):
        call, dtype = trial.call, trial.call.dtype
        upstream = trial.rng.integers(-8, 9, (*call.query.shape[:3], call.value.shape[3])) / 4.0
        try:
            found = trial.run(upstream=upstream).gradients
        except (Crashed, Refused):
            continue
        grads = trial.exact_gradients(call, upstream)
        truth = (grads.query, grads.key, grads.value)
        bounds = trial.gradient_bounds(call, upstream, grads, trial.ladder(dtype)[-1], exact)
        # The bounds are the truth's; those of a fault are of that size, in the row where they are largest.
        first, second, third = (
            4.0 * np.broadcast_to(b.max((2, 3), keepdims=True, initial=0.0), b.shape) for b in bounds
        )
        given = [found[role] for role in ROLES]
        dq, dk, dv = (np.zeros_like(t) if g is None else g for g, t in zip(given, truth, strict=True))
        yield _Seen(make_case(trial, call), upstream, (dq, dk, dv), truth, (first, second, third))
