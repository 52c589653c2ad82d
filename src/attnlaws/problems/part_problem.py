"""A problem of a part of a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .problem import check_fields


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

    @classmethod
    def from_json(cls, data: Any) -> PartProblem:
        """The problem in a case file. Raises CorruptCase naming the field that is wrong."""
        check_fields(cls, data)
        return cls(**data)

    def smaller(self) -> Iterator[PartProblem]:
        """None."""
        return iter(())
