"""The main job on a part of a language model: the laws of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..targets.part import Part
from .ledger import Report
from .selection import select
from .trying import Trying, Wish


def run_part_checks(
    target: Part, *, laws: Sequence[str] | None = None, dtypes: Sequence[str] | None = None, **how: Any
) -> Report:
    """Try the laws of parts of this kind within a budget in seconds; `how` are the fields of `Wish`.

    Raises UnknownLaw, and ValueError for a dtype.
    """
    if dtypes:
        raise ValueError(f"{target.name} is a {target.kind}, which has no dtype to choose")
    chosen = [law for law in select(laws, "part") if law.not_applicable(target) is None or laws]
    return Trying(chosen, target, Wish(asked=laws, **how)).report(_report)


def _report(run: Trying) -> Report:
    wish, clock = run.wish, run.clock
    return Report(run.target, tuple(run.verdicts), {}, {}, wish.profile, wish.seed, clock.seconds, clock.out_of_time)
