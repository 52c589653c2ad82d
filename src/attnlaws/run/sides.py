"""One side of a comparison: its output beside its own oracle, and which conventions make two oracles differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from ..faults.case import Fault
from ..faults.diagnose import case_of_trial
from ..judge.precision import Precision
from ..laws.trial import Evidence, Session, Trial, Unsuitable, worst
from ..problems.common import Ground
from ..problems.problem import Problem
from ..reference.oracle import Attended
from ..targets.call import Array, Call
from ..targets.conventions import TABLE, Conventions

#: the conventions that an oracle follows, in the order in which they are tried
FOLLOWED = (
    "causal",
    "alignment",
    "single_query",
    "mask_and_causal",
    "empty_bool",
    "empty_additive",
    "empty_keep",
    "empty_padding",
    "empty_causal",
    "window",
    "window_anchor",
    "alibi",
    "default_scale",
)
assert set(FOLLOWED) <= set(TABLE)


@dataclass(frozen=True, eq=False)
class Said:
    """What one side said on a problem: its output, its oracle's, how far apart they may be, and whether they are not."""

    trial: Trial
    output: Array
    exact: Attended
    bound: Array
    own: bool

    @property
    def call(self) -> Call:
        """The call in the words of this side."""
        return self.trial.call

    @property
    def broken_law(self) -> str:
        """The law that a side which is not its own oracle breaks."""
        with np.errstate(all="ignore"):
            close = np.abs(self.output - self.exact.output) <= self.bound
        wrong = ~(close | (np.isnan(self.output) & np.isnan(self.exact.output)))
        return "masks.empty-row" if not wrong[self.exact.visible.any(-1)].any() else "weights.oracle"

    def output_of(self, fault: Fault) -> Array | None:
        """The output that this fault gives, if it is that of this side.

        A row that is NaN has no key: the oracle has its convention, but not where the fault took the keys away.
        """
        made = None if fault.output is None else fault.output(case_of_trial(self.trial, self.call))
        if made is None:
            return None
        seen = self.exact.visible.any(-1, keepdims=True)
        candidate = np.where(np.isnan(made), np.where(seen, self.output, self.exact.output), made)
        slack = 4.0 * self.bound.max((2, 3), keepdims=True) + 2.0**-18 * np.abs(self.output)
        ratio = worst(self.output, candidate, np.broadcast_to(slack, candidate.shape))[0]
        return candidate if ratio <= 1.0 else None


class Side:
    """One of the two targets on their common ground, with the precision found so far."""

    def __init__(self, ground: Ground, number: int, session: Session) -> None:
        self.ground, self.number, self.session = ground, number, session
        self.target = (ground.first, ground.second)[number]
        self.conventions = self._as_first() if number else self.target.conventions

    def _as_first(self) -> Conventions:
        """The conventions of the second, with rows without a key named by the route of the first's masks."""
        conventions = self.target.conventions
        for mine, own in self.ground.routes.items():
            how = conventions.known.get(f"empty_{own}", "assumed")
            conventions = conventions.found(how, **{f"empty_{mine}": getattr(conventions, f"empty_{own}")})
        return conventions

    def ask(self, problem: Problem) -> Said:
        """What the target says. Raises Crashed, Refused, or Unsuitable where conventions promise nothing."""
        trial = Trial(self.target, problem, self.session, Evidence())
        own = self.ground.of(problem, self.number)
        trial.call = self.ground.call(problem, self.target.conventions).but(route=own.route)
        exact = trial.exact()
        _promised(trial, exact)
        output = trial.run().output
        ladder = trial.ladder(problem.dtype)
        for step, precision in enumerate(ladder):
            bound = _bound(trial, exact, precision)
            if worst(output, exact.output, bound)[0] <= 1.0:
                self.session.precision[problem.dtype] = self.session.precision.get(problem.dtype, 0) + step
                return Said(trial, output, exact, bound, own=True)
        return Said(trial, output, exact, bound, own=False)

    def oracle(self, problem: Problem, conventions: Conventions) -> Array:
        """What the oracle says on a problem under these conventions."""
        trial = Trial(self.target.but(conventions=conventions), problem, self.session, Evidence())
        return np.asarray(trial.exact(self.ground.call(problem, conventions)).output)


def _promised(trial: Trial, exact: Attended) -> None:
    """A finite fill swallows scores only below half its last place: 16 at the end of float16."""
    empty = ~exact.visible.any(-1)
    large = float(np.abs(exact.scaled).max(initial=0.0)) >= 15.0
    if large and empty.any() and trial.empty_row(trial.call) == "uniform":
        raise Unsuitable


def _bound(trial: Trial, exact: Attended, precision: Precision) -> Array:
    """How far a side may be from its oracle; a row without a key that comes out unmasked lost a fill's last places."""
    bound = (2.0 if trial.call.dtype == "float64" else 1.0) * trial.bound(trial.call, precision, exact)
    empty = ~exact.visible.any(-1, keepdims=True)
    if not empty.any() or trial.empty_row(trial.call) != "unmasked":
        return bound
    free = trial.bound(trial.call.but(visible=None, causal=False), precision)
    unit = max(precision.u_a, precision.u_scores)
    spread = 2.0 * float(np.abs(trial.call.value).max(initial=0.0))
    return np.asarray(np.where(empty, free + min(float(np.expm1(min(4e4 * unit, 5.0))), 1.0) * spread, bound))


def differing(first: Conventions, second: Conventions) -> list[str]:
    """The conventions that an oracle follows and in which two differ."""
    return [name for name in FOLLOWED if getattr(first, name) != getattr(second, name)]


def responsible(sides: Sequence[Side], problem: Problem) -> tuple[tuple[str, str, str], ...]:
    """The fewest conventions that turn the oracle of A into that of B on a problem: one, two, or as many as it takes.

    Each is its name, the choice of A and the choice of B.
    """
    first, second = sides
    mine, other = first.conventions, second.conventions
    if "empty_causal" not in mine.known:  # no row of its triangle is without a key: it has no choice to change
        mine = replace(mine, empty_causal=other.empty_causal)
    names = differing(mine, other)
    wanted = first.oracle(problem, other)

    def enough(changed: tuple[str, ...]) -> bool:
        tried = replace(mine, **{name: getattr(other, name) for name in changed})
        return _same(first.oracle(problem, tried), wanted)

    found = next((changed for changed in _few(names) if enough(changed)), tuple(names))
    for name in found if len(found) > 2 else ():
        without = tuple(n for n in found if n != name)
        found = without if enough(without) else found
    return tuple((name, getattr(mine, name), getattr(other, name)) for name in found)


def _few(names: list[str]) -> Iterator[tuple[str, ...]]:
    for count in (1, 2):
        yield from combinations(names, count)


def _same(a: Array, b: Array) -> bool:
    return worst(a, b, 1e-9 * (1.0 + np.abs(np.nan_to_num(b))))[0] <= 1.0


@dataclass(frozen=True)
class Share:
    """How much of a difference is explained: sums of squares over finite elements, and a count of those NaN in one only."""

    apart: float = 0.0
    left: float = 0.0
    odd: int = 0
    right: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(self.apart + other.apart, self.left + other.left, self.odd + other.odd, self.right + other.right)

    @property
    def explained(self) -> float:
        """1 - |(A - B) - (what A and B are told to be)| / |A - B|; the share of the odd elements where that is less."""
        finite = 1.0 - float(np.sqrt(self.left / self.apart)) if self.apart else 1.0
        return min(finite, self.right / self.odd if self.odd else 1.0)


def share_of(outputs: tuple[Array, Array], told: tuple[Array, Array], allowed: Array) -> Share:
    """What is explained of one difference by what the two sides are told to give."""
    with np.errstate(all="ignore"):
        apart, predicted = outputs[0] - outputs[1], told[0] - told[1]
    finite = np.isfinite(apart)
    odd = np.isfinite(outputs[0]) != np.isfinite(outputs[1])
    as_told = np.logical_and(*(np.isnan(t) == np.isnan(o) for t, o in zip(told, outputs, strict=True)))
    counts = int(odd.sum()), int((odd & as_told).sum())
    if not (np.abs(apart) > allowed)[finite].any():
        return Share(0.0, 0.0, *counts)
    left = np.where(np.isfinite(predicted), apart - predicted, apart)[finite]
    return Share(float(np.sum(apart[finite] ** 2)), float(np.sum(left**2)), *counts)
