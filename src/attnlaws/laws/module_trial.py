"""What trials of layers and of models share: comparisons of outputs, each of which leaves evidence."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..targets.call import Array, BoolArray, TargetRaised
from ..targets.module_copy import ModuleCopy
from .trial import Broken, Crashed, Evidence, Session, Unsuitable, worst

UNITS = {"float32": (2.0**-24,), "float64": (2.0**-53, 2.0**-24)}


class ModuleTrial:
    """One law on one problem of a module; outputs are (B, L, width)."""

    #: what an output is called where an element of it is told
    OUT = "out"

    def __init__(self, problem: Any, session: Session, evidence: Evidence) -> None:
        self.problem, self.session, self.evidence = problem, session, evidence

    def slack(self, unit: float) -> float:
        """How far two right computations of the same output may be apart in arithmetic of this unit roundoff."""
        raise NotImplementedError

    @property
    def units(self) -> tuple[float, ...]:
        """The unit roundoffs that may be the module's in this dtype, the strictest first."""
        return UNITS[self.problem.dtype]

    def agree(
        self,
        got: Array,
        want: Array,
        what: str,
        *,
        hoped: bool = False,
        rows: BoolArray | None = None,
        times: float = 1.0,
    ) -> None:
        """Two outputs that are equal in exact arithmetic: the same bits, or within the slack, or so many times it where one
        is a sum of so many outputs. `rows` (B, L) are compared.
        """
        chosen = np.ones(got.shape[:2], dtype=bool) if rows is None else rows
        first, second = got[chosen], want[chosen]
        if np.array_equal(first, second):
            self.evidence.add(first.size, 0.0)
            return
        self.evidence.not_exact += hoped
        found = self.session.precision.get(self.problem.dtype, 0)
        for step, unit in enumerate(self.units[found:]):
            limit = times * self.slack(unit)
            ratio, _, _ = worst(first, second, np.full(first.shape, limit))
            if ratio <= 1.0:
                if step:
                    self.session.precision[self.problem.dtype] = found + step
                self.evidence.add(first.size, ratio, (self.problem.dtype, self.problem.length))
                return
        self._break(got, want, np.full(got.shape, limit), what, chosen)

    def equal(self, got: Array, want: Array, what: str, rows: BoolArray | None = None) -> None:
        """Bit for bit; NaN is NaN, which other laws forbid where it may not be."""
        chosen = np.ones(got.shape[:2], dtype=bool) if rows is None else rows
        if not np.array_equal(got[chosen], want[chosen], equal_nan=True):
            self._break(got, want, np.zeros(got.shape), what, chosen)
        self.evidence.add(got[chosen].size, 0.0)

    def _break(self, got: Array, want: Array, allowed: Array, what: str, rows: BoolArray) -> None:
        shown = rows[..., None] & np.ones(got.shape, dtype=bool)
        _, index, limit = worst(np.where(shown, got, 0.0), np.where(shown, want, 0.0), allowed)
        place = f"{self.OUT}[{', '.join(map(str, index))}]"
        self.evidence.add(int(shown.sum()), 0.0)
        raise Broken(what, got=float(got[index]), want=float(want[index]), allowed=limit, where=place, index=index)

    def broken(self, got: Array, want: Array, allowed: Array, what: str, rows: BoolArray | None = None) -> None:
        """Raise Broken with the worst element."""
        self._break(got, want, allowed, what, np.ones(got.shape[:2], dtype=bool) if rows is None else rows)

    def require(self, holds: bool, what: str) -> None:
        """A plain condition."""
        self.evidence.add(1, 0.0)
        if not holds:
            raise Broken(what)

    def suitable(self, condition: bool) -> None:
        """Leave this problem alone unless it can show something."""
        if not condition:
            raise Unsuitable

    def move(self, module: ModuleCopy, dtype: str) -> None:
        """module.to(dtype). Raises Crashed."""
        try:
            module.to(dtype)
        except TargetRaised as failure:
            raise Crashed(f"moved to {dtype}: {failure}", None) from failure

    def close(self, got: float, wanted: list[tuple[float, float]], what: str, where: str = "slope") -> None:
        """One number near the first of these that fits, each with its limit."""
        for want, limit in wanted:
            if abs(got - want) <= limit:
                self.evidence.add(1, abs(got - want) / limit if limit else 0.0)
                return
        self.evidence.add(1, 0.0)
        raise Broken(what, got=got, want=wanted[0][0], allowed=wanted[0][1], where=where)
