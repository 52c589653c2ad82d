"""The main job: all laws on one target."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from threadpoolctl import threadpool_limits

from ..faults.diagnose import explain
from ..faults.hints import hints
from ..judge.precision import PROFILES
from ..laws.attempt import try_law
from ..laws.law import AnyLaw
from ..laws.load import laws_of, load_laws
from ..laws.trial import Broken, Crashed, Evidence, Refused, Session, Unsuitable
from ..targets.conventions import Abilities
from ..targets.quiet import OutOfTime
from ..targets.target import Target
from .budget import deadline_alarm
from .death import forks, given_up, guarded, verdict_of_death
from .found import Found
from .ledger import BROKEN, COULD_NOT_TELL, NOT_APPLICABLE, Report, Verdict
from .one_law import Effort, fault, run_law
from .supervise import DEATHS
from .watch import Death, Watch

PROFILES_OF_EFFORT = {
    "quick": (Effort(covering=45, drawn=19), 240.0),
    "full": (Effort(covering=350, drawn=250), 600.0),
    "soak": (Effort(covering=60, drawn=1000), 3600.0),
    "smoke": (Effort(covering=12, drawn=4), 60.0),
    "glance": (Effort(covering=1, drawn=1), 60.0),
}

Progress = Callable[[str, int, int, int], None]
#: which of the laws of a target are tried, out of those that are asked for
Pick = Callable[[Sequence[AnyLaw], Any], list[AnyLaw]]


class UnknownLaw(ValueError):
    """A law that doesn't exist; the message names the nearest that does."""


class WrongKind(UnknownLaw):
    """Laws were asked for by name, and none is about targets of this kind."""


def select(names: Sequence[str] | None, kind: str | None = "attention") -> list[AnyLaw]:
    """The laws of these names or families for one kind of target, all of its laws where none is given.

    Raises UnknownLaw for a name that no law of any kind has, WrongKind where all are laws of another kind.
    """
    laws, wanted = laws_of(), laws_of(kind)
    if not names:
        return list(wanted.values())
    chosen: dict[str, AnyLaw] = {}
    families = {name.split(".")[0] for name in laws}
    for name in names:
        if name in laws:
            chosen[name] = laws[name]
        elif name in families:
            chosen.update({n: item for n, item in laws.items() if n.split(".")[0] == name})
        else:
            near = get_close_matches(name, [*laws, *families], n=1, cutoff=0.3)
            hint = f"did you mean {near[0]!r}?" if near else "see attnlaws laws"
            raise UnknownLaw(f"unknown law {name!r}; {hint}")
    fitting = [item for name, item in chosen.items() if name in wanted]
    if not fitting:
        of = {
            "attention": "functions of query, key and value",
            "layer": "layers",
            "model": "models",
            "part": "parts of models",
        }
        raise WrongKind(f"{', '.join(names)}: no law of {of[kind or 'attention']}, which this target is one of")
    return fitting


def run_checks(
    target: Target,
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
    """Try the laws on a target within a budget in seconds; everything found is in the report, whatever happens.

    `partial` gets the report as it stands if the target hangs where Python can't interrupt it. `watch` is told what is
    done, and knows what an earlier process of this run did before it died. `pick` leaves some of the laws; `found` has cases that
    are tried first, and keeps those that break a law now.
    Raises UnknownLaw, and ValueError for a dtype that the target doesn't take.
    """
    chosen = select(laws)
    _known_precisions(target)
    target = only_dtypes(target, dtypes)
    chosen = pick(chosen, target) if pick is not None else chosen
    limit = budget if budget is not None else PROFILES_OF_EFFORT[profile][1]
    watch = watch or Watch()
    session = Session(on_problem=watch.problem)
    verdicts = watch.earlier(session)
    clock = Clock.after(watch.resumed.seconds, limit)

    def report() -> Report:
        return _report(target, verdicts, session, profile, seed, clock.seconds, clock.out_of_time)

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
        made = report()
        if watch.resumed.last_rites:
            return replace(made, target=target.but(function=_not_called))
        if made.failures and not clock.out_of_time and time.monotonic() < clock.deadline:
            diagnosis, seen = _diagnosis(target, verdicts, seed)
            made = replace(made, diagnosis=diagnosis, hints=seen)
    return made


@dataclass
class Clock:
    """When a run started, when it must end, and whether it did before its laws were tried."""

    started: float
    deadline: float
    out_of_time: bool = False

    @classmethod
    def after(cls, seconds: float, limit: float) -> Clock:
        """A run of so many seconds at most, of which some were spent."""
        started = time.monotonic() - seconds
        return cls(started, started + limit)

    @property
    def seconds(self) -> float:
        """Seconds of the run until now."""
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds until its end, more than none."""
        return max(self.deadline - time.monotonic(), 0.01)


def _not_called(*_: Any, **__: Any) -> None:
    """What stands for a target that may not be called any more."""
    raise NotImplementedError("the target ended its process when it was called last")


def try_all(
    chosen: Sequence[AnyLaw],
    target: Any,
    session: Session,
    verdicts: list[Verdict],
    clock: Clock,
    *,
    profile: str,
    seed: int,
    asked: Sequence[str] | None,
    progress: Progress | None,
    watch: Watch,
    found: Found | None = None,
) -> None:
    """Try each law on a target of its kind; the verdicts are added to the list as they come, after those that are there."""
    effort = PROFILES_OF_EFFORT[profile][0]
    had = {verdict.law for verdict in verdicts}
    deaths = list(watch.resumed.deaths)
    watch.laws_begin()
    for number, law in enumerate(chosen):
        if law.name in had:
            continue
        watch.law(law.name)
        now = time.monotonic()
        share = (clock.deadline - now) * law.share / sum(later.share for later in chosen[number:])
        tick = _ticker(progress, law.name, number, len(chosen))
        tick(0)
        run = partial(
            run_law,
            law,
            target,
            session,
            effort,
            seed=seed,
            deadline=clock.deadline,
            share_ends=now + share,
            tick=tick,
            known=found.problems(law, target) if found is not None else (),
        )
        named = {law.name, law.name.split(".")[0]} & set(asked or ())
        try:
            if law.slow and profile not in ("full", "soak") and not named:
                verdicts.append(Verdict(law.name, law.statement, NOT_APPLICABLE, "takes seconds: tried with --full"))
            else:
                verdict = _verdict(law, run, target, session, clock, watch, deaths)
                verdicts.append(verdict)
                if found is not None and verdict.red and verdict.witness is not None:
                    found.keep(law, target, verdict.witness)
        except Exception as error:
            verdicts.append(fault(law, error))
        except OutOfTime:
            clock.out_of_time = True
            verdicts.append(Verdict(law.name, law.statement, COULD_NOT_TELL, "the time budget ended first"))
        watch.verdict(verdicts[-1], session)
        if watch.enough(verdicts[-1]):
            break
    watch.laws_end()


def _verdict(
    law: AnyLaw,
    run: Callable[[], Verdict],
    target: Any,
    session: Session,
    clock: Clock,
    watch: Watch,
    deaths: list[Death],
) -> Verdict:
    """The verdict on a law: tried here, or, once a process has died, in a forked one where that can be. Raises OutOfTime."""
    limits, death = watch.resumed.limits, watch.death_on(law.name)
    if death is None and clock.out_of_time:
        raise OutOfTime
    if death is None and deaths and forks(target):
        verdict, death = guarded(law, run, session, limits, clock.deadline + limits.patience)
        if verdict is not None:
            return verdict
        assert death is not None
        deaths.append(death)
    if death is not None:
        return verdict_of_death(law, target, death, deaths, limits, clock.deadline)
    return given_up(law) if len(deaths) >= DEATHS else run()


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


def _ticker(progress: Progress | None, name: str, number: int, total: int) -> Callable[[int], None]:
    """What is called with the number of problems judged so far."""
    if progress is None:
        return lambda judged: None
    return lambda judged: progress(name, number, total, judged)


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


def _report(
    target: Target, verdicts: list[Verdict], session: Session, profile: str, seed: int, seconds: float, out: bool
) -> Report:
    names = {}
    for dtype in target.abilities.dtypes:
        ladder = PROFILES[dtype]
        names[dtype] = target.declared_precision.get(dtype) or ladder[session.precision.get(dtype, 0)].name
    tallies = {name: (tried, rejected) for name, (tried, rejected) in session.impostors.items()}
    return Report(target, tuple(verdicts), tallies, names, profile, seed, seconds, out)


#: what a smallest witness still asks for, and the law that is about it: others that need it too are its shadows
_ABOUT: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("heads.grouped", lambda p: p.heads != p.kv_heads),
    ("causality.future-keys", lambda p: p.causal),
    ("causality.past-matters", lambda p: p.causal),
    ("masks.sensitivity", lambda p: p.mask != "none" or p.bias or p.scale is not None),
    ("scores.scale-argument", lambda p: p.scale is not None),
    ("masks.window", lambda p: p.window),
    ("masks.alibi", lambda p: p.alibi),
    ("masks.sinks", lambda p: p.sinks),
    ("scores.softcap", lambda p: bool(p.softcap)),
)


def shadow(verdict: Verdict, broken: set[str]) -> str | None:
    """The broken law about something that this verdict's smallest witness could not do without."""
    names = [name for name, _ in _ABOUT]
    witness = verdict.witness
    if witness is None or verdict.law in names:
        return None
    return next((name for name, needs in _ABOUT if name in broken and needs(witness)), None)


def folded(verdicts: list[Verdict], laws: Mapping[str, AnyLaw]) -> list[Verdict]:
    """Root causes first: a break of a law whose basis is broken too, or a shadow of another, is folded under it."""
    broken = {v.law for v in verdicts if v.status == BROKEN}
    shadows = {v.law: shadow(v, broken) for v in verdicts if v.law in broken}

    def root(name: str, passed: tuple[str, ...] = ()) -> str:
        above = [*laws[name].basis, shadows.get(name)]
        basis = next((b for b in above if b in broken and b not in passed), None)
        return name if basis is None else root(basis, (*passed, name))

    under = {name: root(name) for name in broken}
    if broken and all(name != top for name, top in under.items()):  # shadows of each other: the first is the root
        first = next(v.law for v in verdicts if v.law in broken)
        under = dict.fromkeys(broken, first)
    return [
        replace(v, under=under[v.law] if under[v.law] != v.law else None) if v.law in broken else v for v in verdicts
    ]


def replay(law: AnyLaw, target: Any, problem: Any) -> Broken | Crashed | None:
    """A recorded problem, again; the failure, or None where the law holds on it now."""
    with one_thread(target):
        try:
            return try_law(law, target, problem, Session(), Evidence())
        except (Unsuitable, Refused):
            return None


@contextlib.contextmanager
def one_thread(target: Any) -> Iterator[None]:
    """One thread is faster than several on tiny tensors, in torch and in NumPy; the settings are put back afterwards."""
    torch: Any = getattr(target, "torch", None) or getattr(getattr(target, "framework", None), "torch", None)
    with threadpool_limits(1, user_api="blas"):
        if torch is None:
            yield
            return
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
