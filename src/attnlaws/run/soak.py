"""A soak: fresh seeds without end on one target, what was found before first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..laws.named import AnyLaw
from .found import Found
from .ledger import Report

#: the profile of the first round, which is short: every case that is known is tried before anything long begins
FIRST = "glance"


@dataclass(frozen=True)
class Round:
    """What one seed gave: plain enough to come from another process. `text` tells of it, `left` counts laws that didn't break."""

    seed: int
    problems: int
    broken: tuple[str, ...]
    left: int
    faults: int
    code: int
    cut: bool
    text: str = ""

    @classmethod
    def of(cls, report: Report, text: str = "") -> Round:
        """A report as a round."""
        broken = tuple(verdict.law for verdict in report.failures)
        faults = sum(verdict.status == "fault" for verdict in report.verdicts)
        left, cut = len(report.verdicts) - len(broken), report.out_of_time or bool(report.cut)
        return cls(report.seed, report.problems, broken, left, faults, report.exit_code, cut, text)


#: a run of a target's laws with these options: those of `run_checks`
Run = Callable[..., Round]


def soak(
    run: Run,
    found: Found,
    *,
    seconds: float,
    first_seed: int = 0,
    profile: str = "soak",
    laws: Sequence[str] | None = None,
) -> Iterator[Round]:
    """The rounds, one a seed, until the time ends or every law is broken.

    A law that broke is left out of later rounds: one break of each is enough to look at.
    """
    deadline = time.monotonic() + seconds
    broken: set[str] = set()

    def rest(chosen: Sequence[AnyLaw], target: Any) -> list[AnyLaw]:
        return [law for law in chosen if law.name not in broken]

    seed = first_seed
    while (left := deadline - time.monotonic()) > 0:
        effort = FIRST if seed == first_seed else profile
        made = run(laws=laws, profile=effort, seed=seed, budget=left, pick=rest, found=found)
        yield made
        broken.update(made.broken)
        if not made.left:
            return
        seed += 1
