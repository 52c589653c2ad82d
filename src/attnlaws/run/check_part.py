"""The main job on a part of a language model: the laws of its kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..laws.trial import Session
from ..targets.part import Part
from .budget import deadline_alarm
from .check import PROFILES_OF_EFFORT, Clock, Pick, Progress, folded, one_thread, select, try_all
from .found import Found
from .ledger import Report
from .watch import Watch


def run_part_checks(
    target: Part,
    *,
    laws: Sequence[str] | None = None,
    profile: str = "quick",
    budget: float | None = None,
    seed: int = 0,
    dtypes: Sequence[str] | None = None,
    progress: Progress | None = None,
    partial: Callable[[Report], None] | None = None,
    watch: Watch | None = None,
    pick: Pick | None = None,
    found: Found | None = None,
) -> Report:
    """Try the laws of parts of this kind within a budget in seconds. Raises UnknownLaw, and ValueError for a dtype."""
    if dtypes:
        raise ValueError(f"{target.name} is a {target.kind}, which has no dtype to choose")
    chosen = [law for law in select(laws, "part") if law.not_applicable(target) is None or laws]
    chosen = pick(chosen, target) if pick is not None else chosen
    watch = watch or Watch()
    session = Session(on_problem=watch.problem)
    verdicts = watch.earlier(session)
    clock = Clock.after(watch.resumed.seconds, budget if budget is not None else PROFILES_OF_EFFORT[profile][1])

    def report() -> Report:
        return Report(target, tuple(verdicts), {}, {}, profile, seed, clock.seconds, clock.out_of_time)

    with one_thread(target), deadline_alarm(clock.left, (lambda: partial(report())) if partial else None):
        try_all(
            chosen,
            target,
            session,
            verdicts,
            clock,
            profile=profile,
            seed=seed,
            asked=laws,
            progress=progress,
            watch=watch,
            found=found,
        )
        verdicts = folded(verdicts, {law.name: law for law in chosen})
    return report()
