"""The main job on a module: the laws of layers on a layer, those of models on a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..faults.layers import diagnose_layer
from ..judge.precision import PROFILES
from ..targets.layer import LayerTarget
from ..targets.model import ModelTarget
from .ledger import Report
from .selection import select
from .trying import Trying, Wish


def run_module_checks(
    target: LayerTarget | ModelTarget,
    *,
    laws: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    **how: Any,
) -> Report:
    """Try the laws of its kind on a module within a budget in seconds; everything found is in the report.

    `how` are the fields of `Wish`. Raises UnknownLaw, and ValueError for a dtype that the module doesn't take.
    """
    chosen = select(laws, target.LAWS)
    tried, diagnosis = ready(_only(target, dtypes))

    def report(run: Trying) -> Report:
        precision = {d: PROFILES[d][run.session.precision.get(d, 0)].name for d in tried.dtypes}
        verdicts, wish, clock = tuple(run.verdicts), run.wish, run.clock
        made = Report(
            tried, verdicts, run.tallies, precision, wish.profile, wish.seed, clock.seconds, clock.out_of_time
        )
        return replace(made, diagnosis=diagnosis if made.failures else None)

    return Trying(chosen, tried, Wish(asked=laws, **how)).report(report)


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
