"""A law of a part of a language model: one statement about a sampler, a corruption, a rule of initial weights, ..."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from ..judge.chance import generator
from ..targets.part import Part
from .trial import Broken, Evidence, Session


@dataclass(frozen=True, order=True)
class PartProblem:
    """A law of a part chooses its own inputs; a problem is a seed."""

    seed: int = 0

    @property
    def size(self) -> int:
        """Nothing to shrink."""
        return 1

    def but(self, **changes: Any) -> PartProblem:
        """This problem with some fields changed."""
        return replace(self, **changes)

    def describe(self) -> str:
        """One line."""
        return f"seed {self.seed}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"seed": self.seed}

    def smaller(self) -> Iterator[PartProblem]:
        """None."""
        return iter(())


class PartTrial:
    """One law on one part, with a seed."""

    def __init__(self, part: Part, problem: PartProblem, session: Session, evidence: Evidence) -> None:
        self.part, self.problem, self.session, self.evidence = part, problem, session, evidence
        self.rng = generator(f"part {part.kind}", problem.seed)

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
    """A named law of parts of one kind, with the face of a law of attention functions."""

    name: str
    statement: str
    part: str
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
        return None if target.kind == self.part else f"is about a {self.part}"

    def attempt(self, target: Part, problem: PartProblem, session: Session, evidence: Evidence) -> None:
        """The law on one problem. Raises Broken."""
        self.body(PartTrial(target, problem, session, evidence))

    def covering(self, target: Part, seed: int) -> Iterator[PartProblem]:
        """The one problem of a seed."""
        return iter([PartProblem(seed)])

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
    name: str, statement: str, *, part: str, basis: tuple[str, ...] = ()
) -> Callable[[Callable[[PartTrial], None]], Callable[[_Runner], None]]:
    """Register a law of parts; what is left in the module is a pytest test that takes the fixture `part_law`."""

    def decorate(body: Callable[[PartTrial], None]) -> Callable[[_Runner], None]:
        made = PartLaw(name, statement, part, body, basis)
        PART_LAWS[name] = made

        def test(part_law: _Runner) -> None:
            part_law(made)

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.__qualname__ = body.__qualname__
        mark: Any = test
        mark.law = made
        return test

    return decorate
