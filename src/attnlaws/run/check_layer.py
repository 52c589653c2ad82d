"""The main job on a layer: the laws of layers on one module."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..faults.layers import diagnose_layer
from ..judge.precision import PROFILES
from ..laws.trial import Session
from ..targets.layer import LayerTarget
from .budget import deadline_alarm
from .check import PROFILES_OF_EFFORT, Clock, Progress, folded, one_thread, select, try_all
from .ledger import Report, Verdict


def run_layer_checks(
    target: LayerTarget,
    *,
    laws: Sequence[str] | None = None,
    profile: str = "quick",
    budget: float | None = None,
    seed: int = 0,
    dtypes: Sequence[str] | None = None,
    progress: Progress | None = None,
    partial: Callable[[Report], None] | None = None,
) -> Report:
    """Try the laws of layers on a module within a budget in seconds; everything found is in the report.

    Raises UnknownLaw, and ValueError for a dtype that the layer doesn't take.
    """
    chosen = select(laws, "layer")
    target, diagnosis = explained(_only(target, dtypes))
    session = Session()
    verdicts: list[Verdict] = []
    started = time.monotonic()
    clock = Clock(started, started + (budget if budget is not None else PROFILES_OF_EFFORT[profile][1]))

    def report() -> Report:
        precision = {d: PROFILES[d][session.precision.get(d, 0)].name for d in target.dtypes}
        seconds = time.monotonic() - started
        tallies = {name: (tried, rejected) for name, (tried, rejected) in session.impostors.items()}
        made = Report(target, tuple(verdicts), tallies, precision, profile, seed, seconds, clock.out_of_time)
        return replace(made, diagnosis=diagnosis if made.failures else None)

    with one_thread(target), deadline_alarm(clock.deadline - started, (lambda: partial(report())) if partial else None):
        try_all(chosen, target, session, verdicts, clock, profile=profile, seed=seed, asked=laws, progress=progress)
        verdicts = folded(verdicts, {law.name: law for law in chosen})
    return report()


def _only(target: LayerTarget, dtypes: Sequence[str] | None) -> LayerTarget:
    """The layer in these dtypes alone. Raises ValueError for one that it doesn't take."""
    missing = [d for d in dtypes or () if d not in target.dtypes]
    if missing:
        raise ValueError(f"{target.name} is tried in {', '.join(target.dtypes)}, not in {', '.join(missing)}")
    return target.but(dtypes=tuple(d for d in target.dtypes if d in dtypes)) if dtypes else target


def explained(target: LayerTarget) -> tuple[LayerTarget, tuple[str, str] | None]:
    """The layer, and what it does instead, where its projections were not recognised and a named fault explains it."""
    if target.recognised != "no" or target.projections is None:
        return target, None
    found = diagnose_layer(target)
    if found is None:
        return target, None
    projections, fault = found
    return target.but(projections=projections, recognised="by a fault"), (fault.sentence, fault.fix)
