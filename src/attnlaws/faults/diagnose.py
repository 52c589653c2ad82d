"""Diagnosis: which named fault gives what the target gives, on problems where the truth doesn't."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ..laws.law import Law
from ..laws.trial import Crashed, Refused, Trial
from ..problems.problem import Problem
from ..problems.wants import ALL, Wants
from ..targets.call import Call
from ..targets.options import band, distance
from ..targets.target import Target
from .case import Case, Fault
from .catalogue import FAULTS
from .diagnose_functions import explain_function
from .diagnose_gradients import GENERIC, explain_gradients, generic_trials

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Diagnosis:
    """A fault that reproduces the target on all of `problems` problems, `wrong` of which break the law of the oracle."""

    fault: Fault
    problems: int
    wrong: int

    def __str__(self) -> str:
        if self.fault.function is not None:
            return f"{self.fault.sentence} (fails as that does on {self.problems} of {self.problems} problems)"
        what = "outputs" if self.fault.gradients is None else "gradients"
        return (
            f"{self.fault.sentence} (reproduces {self.problems} of {self.problems} {what}, {self.wrong} of them wrong)"
        )


@dataclass(frozen=True, eq=False)
class _Seen:
    """One problem: the case, the target's output, the truth, and how far apart equal outputs may be."""

    case: Case
    output: Array
    truth: Array
    slack: Array

    def differs(self, candidate: Array) -> NDArray[np.bool_]:
        """Where an output is not the target's, rounding aside. A NaN of the candidate is a row that tells nothing."""
        with np.errstate(all="ignore"):
            close = np.abs(candidate - self.output) <= self.slack + 2.0**-18 * np.abs(self.output)
        return np.asarray(~(close | np.isnan(candidate)))

    def fits(self, candidate: Array) -> bool:
        """Whether an output is the target's."""
        return not self.differs(candidate).any()

    def shows(self, candidate: Array) -> bool:
        """Whether the candidate says something where the target is not the truth."""
        return bool((self.differs(self.truth) & np.isfinite(candidate)).any())


#: laws of conduct: where one is broken, an output depends on more than the call, and no step can be named for it
IMPURE = frozenset(
    f"conduct.{name}"
    for name in ("inputs-untouched", "no-grad", "repeatable", "history", "global-state", "whole-output")
)


def explain(target: Target, broken: Sequence[tuple[Law, Problem]], *, seed: int = 0) -> Diagnosis | None:
    """The fault that explains the breaks of these laws, given with their smallest witnesses, root causes first.

    A step of attention or of its gradients, where all laws of conduct hold; else a fault of conduct that fails alike.
    """
    found = None
    if not any(law.name in IMPURE for law, _ in broken):
        found = diagnose(target, seed=seed, witnesses=tuple(problem for _, problem in broken))
    if found is None:
        alike = explain_function(target, broken, FAULTS, seed=seed)
        found = None if alike is None else Diagnosis(alike.fault, alike.problems, alike.wrong)
    return found


def diagnose(target: Target, *, seed: int = 0, witnesses: tuple[Problem, ...] = ()) -> Diagnosis | None:
    """The fault that explains every output on some 60 generic problems and the witnesses, where the truth doesn't.

    None where no fault does.
    """
    seen = list(islice(_observed(target, seed, witnesses), 60))
    wrong = [s for s in seen if not s.fits(s.truth)]
    if not wrong:
        found = explain_gradients(target, case_of_trial, seed=seed, witnesses=witnesses)
        return None if found is None else Diagnosis(found.fault, found.problems, found.wrong)
    fitting = next((fault for fault in FAULTS if _explains(fault, seen, wrong)), None)
    return None if fitting is None else Diagnosis(fitting, len(seen), len(wrong))


def _explains(fault: Fault, seen: list[_Seen], wrong: list[_Seen]) -> bool:
    """Whether the fault gives the target's output everywhere; where it says nothing, the truth must be right."""
    if fault.output is None:
        return False
    shown = False
    for observed in [*wrong, *seen]:
        candidate = fault.output(observed.case)
        if not observed.fits(observed.truth if candidate is None else candidate):
            return False
        shown = shown or (candidate is not None and observed.shows(candidate))
    return shown


def _observed(target: Target, seed: int, witnesses: tuple[Problem, ...]) -> Iterator[_Seen]:
    for trial, exact in generic_trials(target, seed, witnesses, Wants(regimes=GENERIC, options=ALL), 200):
        dtype = trial.call.dtype
        try:
            output = trial.run().output
        except (Crashed, Refused):
            continue
        bound = trial.bound(trial.call, trial.ladder(dtype)[-1], exact)
        # The bound is the truth's; a fault's own is of that size, in the row where it is largest.
        slack = 4.0 * np.broadcast_to(bound.max((2, 3), keepdims=True), bound.shape)
        yield _Seen(case_of_trial(trial, trial.call), output, exact.output, slack)


def case_of_trial(trial: Trial, call: Call) -> Case:
    """A call taken apart under the conventions of the trial's target."""
    queries, keys, conventions = call.query.shape[2], call.key.shape[2], trial.conventions
    offset = keys - queries if conventions.alignment == "bottom-right" else 0
    plain = call.but(scale=None)
    if call.bias is not None and call.visible is not None:  # where the mask is -inf the bias is not there
        call = call.but(bias=np.where(call.visible, call.bias, 0.0))
    return Case(
        call,
        trial.scale(call),
        trial.scale(plain),
        trial.triangle() if trial.triangle_applies() else None,
        offset,
        band=None if call.window is None else band(call.window, queries, keys, conventions.window_anchor),
        distance=None if call.slopes is None else distance(queries, keys, conventions.alibi),
    )
