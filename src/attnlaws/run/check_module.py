"""The main job on a module: the laws of layers on a layer, those of models on a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..faults.layers import diagnose_layer
from ..judge.precision import PROFILES
from ..laws.trial import Session
from ..targets.layer import LayerTarget
from ..targets.model import ModelTarget
from .budget import deadline_alarm
from .check import PROFILES_OF_EFFORT, Clock, Pick, Progress, folded, one_thread, select, try_all
from .found import Found
from .ledger import Report
from .watch import Watch


def run_module_checks(
    target: LayerTarget | ModelTarget,
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
    """Try the laws of its kind on a module within a budget in seconds; everything found is in the report.

    Raises UnknownLaw, and ValueError for a dtype that the module doesn't take.
    """
    chosen = select(laws, target.LAWS)
    tried, diagnosis = ready(_only(target, dtypes))
    chosen = pick(chosen, tried) if pick is not None else chosen
    watch = watch or Watch()
    session = Session(on_problem=watch.problem)
    verdicts = watch.earlier(session)
    clock = Clock.after(watch.resumed.seconds, budget if budget is not None else PROFILES_OF_EFFORT[profile][1])

    def report() -> Report:
        precision = {d: PROFILES[d][session.precision.get(d, 0)].name for d in tried.dtypes}
        tallies = {name: (count, rejected) for name, (count, rejected) in session.impostors.items()}
        made = Report(tried, tuple(verdicts), tallies, precision, profile, seed, clock.seconds, clock.out_of_time)
        return replace(made, diagnosis=diagnosis if made.failures else None)

    with one_thread(tried), deadline_alarm(clock.left, (lambda: partial(report())) if partial else None):
        try_all(
            chosen,
            tried,
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


def _only(target: LayerTarget | ModelTarget, dtypes: Sequence[str] | None) -> LayerTarget | ModelTarget:
    """The module in these dtypes alone. Raises ValueError for one that it doesn't take."""
    missing = [d for d in dtypes or () if d not in target.dtypes]
    if missing:
        raise ValueError(f"{target.name} is tried in {', '.join(target.dtypes)}, not in {', '.join(missing)}")
    return target.but(dtypes=tuple(d for d in target.dtypes if d in dtypes)) if dtypes else target


def ready(target: LayerTarget | ModelTarget) -> tuple[LayerTarget | ModelTarget, tuple[str, str] | None]:
    """A layer whose projections were not recognised but are explained by a named fault, with what it does instead; any
    other module as it is.
    """
    if not isinstance(target, LayerTarget) or target.recognised != "no" or target.projections is None:
        return target, None
    found = diagnose_layer(target)
    if found is None:
        return target, None
    projections, fault = found
    return target.but(projections=projections, recognised="by a fault"), (fault.sentence, fault.fix)
