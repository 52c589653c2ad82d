"""The main job on a function of query, key and value: all laws."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..faults.diagnose import explain
from ..faults.hints import hints
from ..judge.precision import PROFILES
from ..laws.attempt import try_law
from ..laws.load import load_laws
from ..laws.named import AnyLaw
from ..laws.trial import Broken, Crashed, Evidence, Refused, Session, Unsuitable
from ..targets.conventions import Abilities
from ..targets.quiet import OutOfTime
from ..targets.target import Target
from .ledger import BROKEN, Report, Verdict
from .selection import select
from .trying import Trying, Wish, one_thread


def run_checks(
    target: Target, *, laws: Sequence[str] | None = None, dtypes: Sequence[str] | None = None, **how: Any
) -> Report:
    """Try the laws on a target within a budget in seconds; everything found is in the report, whatever happens.

    `how` are the fields of `Wish`. Raises UnknownLaw, and ValueError for a dtype that the target doesn't take.
    """
    chosen = select(laws)
    _known_precisions(target)
    target = only_dtypes(target, dtypes)
    run = Trying(chosen, target, Wish(asked=laws, **how))

    def finish(made: Report) -> Report:
        if run.watch.resumed.last_rites:
            return replace(made, target=target.but(function=_not_called))
        if made.failures and not run.clock.out_of_time and time.monotonic() < run.clock.deadline:
            diagnosis, seen = _diagnosis(target, run.verdicts, run.wish.seed)
            return replace(made, diagnosis=diagnosis, hints=seen)
        return made

    return run.report(_report, finish)


def _not_called(*_: Any, **__: Any) -> None:
    """What stands for a target that may not be called any more."""
    raise NotImplementedError("the target ended its process when it was called last")


def _diagnosis(target: Target, verdicts: list[Verdict], seed: int) -> tuple[tuple[str, str] | None, tuple[str, ...]]:
    """What the target does instead, where its broken laws are about values; else what its breaks show."""
    laws = load_laws()
    red = sorted(
        (v for v in verdicts if v.status == BROKEN and v.witness is not None), key=lambda v: v.under is not None
    )
    roots = tuple(v.witness for v in red if v.witness is not None and v.under is None)
    if not red:
        return None, ()
    try:
        found = explain(target, [(laws[v.law], v.witness) for v in red if v.witness is not None], seed=seed)
        if found is not None:
            return (str(found), found.fault.fix), ()
        return None, hints(target, roots, seed)
    except OutOfTime:
        return None, ()


def _known_precisions(target: Target) -> None:
    """Raise ValueError where a declared precision is not in the closed list of its dtype."""
    for dtype, name in target.declared_precision.items():
        known = [p.name for p in PROFILES[dtype]]
        if name not in known:
            raise ValueError(f"precision of {dtype} = {name!r} is not one of: {', '.join(known)}")


def only_dtypes(target: Target, dtypes: Sequence[str] | None) -> Target:
    """The target with these dtypes alone. Raises ValueError for one that it doesn't take."""
    if not dtypes:
        return target
    missing = [d for d in dtypes if d not in target.abilities.dtypes]
    if missing:
        taken = ", ".join(target.abilities.dtypes)
        raise ValueError(f"{target.name} doesn't take {', '.join(missing)}; it takes {taken}")
    abilities: Abilities = replace(target.abilities, dtypes=tuple(dtypes))
    return target.but(abilities=abilities)


def _report(run: Trying) -> Report:
    target, wish = run.target, run.wish
    names = {}
    for dtype in target.abilities.dtypes:
        ladder = PROFILES[dtype]
        names[dtype] = target.declared_precision.get(dtype) or ladder[run.session.precision.get(dtype, 0)].name
    verdicts, clock = tuple(run.verdicts), run.clock
    return Report(target, verdicts, run.tallies, names, wish.profile, wish.seed, clock.seconds, clock.out_of_time)


def replay(law: AnyLaw, target: Any, problem: Any) -> Broken | Crashed | None:
    """A recorded problem, again; the failure, or None where the law holds on it now."""
    with one_thread(target):
        try:
            return try_law(law, target, problem, Session(), Evidence())
        except (Unsuitable, Refused):
            return None
