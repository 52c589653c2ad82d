"""A soak: fresh seeds without end on one target, what was found before first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..laws.named import AnyLaw
from .found import Found
from .ledger import Report

#: the profile of the first round, which is short: every case that is known is tried before anything long begins
FIRST = "glance"

#: a run of a target's laws with these options: those of `run_checks`
Run = Callable[..., Report]


def soak(
    run: Run,
    found: Found,
    *,
    seconds: float,
    first_seed: int = 0,
    profile: str = "soak",
    laws: Sequence[str] | None = None,
    progress: Callable[[str, int, int, int], None] | None = None,
) -> Iterator[Report]:
    """The report of each round, one a seed, until the time ends or every law is broken.

    A law that broke is left out of later rounds: one break of each is enough to look at.
    """
    deadline = time.monotonic() + seconds
    broken: set[str] = set()

    def rest(chosen: Sequence[AnyLaw], target: Any) -> list[AnyLaw]:
        return [law for law in chosen if law.name not in broken]

    seed = first_seed
    while (left := deadline - time.monotonic()) > 0:
        effort = FIRST if seed == first_seed else profile
        report = run(laws=laws, profile=effort, seed=seed, budget=left, pick=rest, found=found, progress=progress)
        yield report
        broken |= {verdict.law for verdict in report.failures}
        if not [verdict for verdict in report.verdicts if not verdict.red]:
            return
        seed += 1
