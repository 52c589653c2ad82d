"""A law of a part of a language model: one statement about a sampler, a corruption, a rule of initial weights, ..."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ..judge.chance import generator
from ..problems.part_problem import PartProblem
from ..targets.call import Array, TargetRaised
from ..targets.part import Part
from .trial import Broken, Crashed, Evidence, Session, worst


class PartTrial:
    """One law on one part, with a seed."""

    def __init__(self, part: Part, problem: PartProblem, session: Session, evidence: Evidence) -> None:
        self.part, self.problem, self.session, self.evidence = part, problem, session, evidence
        self.rng = generator(f"part {part.kind}", problem.seed)

    def near(self, got: Array, want: Array, allowed: Array | float, what: str) -> None:
        """Each element within its bound; Broken with the worst."""
        limit = np.broadcast_to(np.asarray(allowed, dtype=np.float64), np.shape(want))
        got = np.asarray(got, dtype=np.float64)
        if got.shape != np.shape(want):
            raise Broken(f"{what}: shape {got.shape}, not {np.shape(want)}")
        ratio, index, bound = worst(got, np.asarray(want, dtype=np.float64), limit)
        self.evidence.add(got.size, ratio if np.isfinite(ratio) else 0.0)
        if not ratio <= 1.0:
            place = f"out[{', '.join(map(str, index))}]"
            raise Broken(what, got=float(got[index]), want=float(want[index]), allowed=bound, where=place)

    def require(self, holds: bool, what: str) -> None:
        """A plain condition."""
        self.evidence.add(1, 0.0)
        if not holds:
            raise Broken(what)

    def seed(self, rng: np.random.Generator | None = None) -> int:
        """A fresh seed for a call."""
        return int((self.rng if rng is None else rng).integers(1 << 40))


@dataclass(frozen=True)
class PartLaw:
    """A named law of parts of some kinds, with the face of a law of attention functions."""

    name: str
    statement: str
    parts: tuple[str, ...]
    body: Callable[[PartTrial], None]
    basis: tuple[str, ...] = ()
    share: float = 0.1
    exact: bool = False
    slow: bool = False
    chance: bool = True
    kind: str = "part"

    @property
    def formula(self) -> str:
        """The docstring of the law's function: the formula and why it holds."""
        return inspect.getdoc(self.body) or ""

    def not_applicable(self, target: Part) -> str | None:
        """Why the law says nothing about this part."""
        return None if target.kind in self.parts else f"is about a part of the kind {' or '.join(self.parts)}"

    def attempt(self, target: Part, problem: PartProblem, session: Session, evidence: Evidence) -> None:
        """The law on one problem. Raises Broken, Crashed where the part raises."""
        try:
            self.body(PartTrial(target, problem, session, evidence))
        except TargetRaised as failure:
            raise Crashed(failure.cause_line, None) from failure

    def covering(self, target: Part, seed: int) -> Iterator[PartProblem]:
        """One seed after another; a law of chance takes the first."""
        return (PartProblem(seed + 1000 * k) for k in itertools.count())

    def drawn(self, target: Part) -> SearchStrategy[PartProblem]:
        """Hypothesis' strategy; laws of chance don't use it."""
        return st.builds(PartProblem, st.integers(0, 1 << 16))

    def fits(self, target: Part, problem: PartProblem) -> bool:
        """Always."""
        return True


PART_LAWS: dict[str, PartLaw] = {}


class _Runner(Protocol):
    def __call__(self, law: PartLaw) -> None: ...


def part_law(
    name: str, statement: str, *, part: str | tuple[str, ...], basis: tuple[str, ...] = (), chance: bool = True
) -> Callable[[Callable[[PartTrial], None]], Callable[[_Runner], None]]:
    """Register a law of parts; what is left in the module is a pytest test that takes the fixture `part_law`."""

    def decorate(body: Callable[[PartTrial], None]) -> Callable[[_Runner], None]:
        kinds = (part,) if isinstance(part, str) else part
        made = PartLaw(name, statement, kinds, body, basis, chance=chance)
        PART_LAWS[name] = made

        def test(part_law: _Runner) -> None:
            part_law(made)

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.__qualname__ = body.__qualname__
        mark: Any = test
        mark.law = made
        return test

    return decorate
