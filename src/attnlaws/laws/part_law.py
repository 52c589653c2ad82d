"""A law of a part of a language model: one statement about a sampler, a corruption, a rule of initial weights, ..."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ..judge.chance import generator
from ..problems.part_problem import PartProblem
from ..targets.call import Array, TargetRaised
from ..targets.part import Part
from .named import Named, Test, as_test
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


@dataclass(frozen=True, kw_only=True)
class PartLaw(Named):
    """A named law of parts of some kinds."""

    parts: tuple[str, ...]
    kind: str = "part"

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


def part_law(
    name: str, statement: str, *, part: str | tuple[str, ...], basis: tuple[str, ...] = (), chance: bool = True
) -> Callable[[Callable[[PartTrial], None]], Test]:
    """Register a law of parts; what is left in the module is its test."""

    def decorate(body: Callable[[PartTrial], None]) -> Test:
        kinds = (part,) if isinstance(part, str) else part
        PART_LAWS[name] = PartLaw(
            name=name, statement=statement, parts=kinds, body=body, basis=basis, share=0.1, chance=chance
        )
        return as_test(PART_LAWS[name], body)

    return decorate
