"""One run: laws of any kind tried on a target, within a time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from threadpoolctl import threadpool_limits

from ..laws.named import AnyLaw
from ..laws.trial import Session
from ..targets.quiet import OutOfTime
from .budget import deadline_alarm
from .death import forks, given_up, guarded, verdict_of_death
from .folding import folded
from .found import Found
from .ledger import COULD_NOT_TELL, NOT_APPLICABLE, Report, Verdict
from .one_law import Effort, fault, run_law
from .supervise import DEATHS
from .watch import Death, Watch

#: how much is tried, and the seconds that it may take
PROFILES_OF_EFFORT = {
    "quick": (Effort(covering=45, drawn=19), 240.0),
    "full": (Effort(covering=350, drawn=250), 600.0),
    "soak": (Effort(covering=60, drawn=1000), 3600.0),
    "smoke": (Effort(covering=12, drawn=4), 60.0),
    "glance": (Effort(covering=1, drawn=1), 60.0),
}

#: the share of it where each new size costs the compilation of a program: so each law is tried, on fewer problems
COSTLY = 0.25

Progress = Callable[[str, int, int, int], None]
#: which of the laws of a target are tried, out of those that are asked for
Pick = Callable[[Sequence[AnyLaw], Any], list[AnyLaw]]


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


@dataclass(frozen=True, kw_only=True)
class Wish:
    """How laws are tried. `asked` are laws that were asked for by name; `budget` is in seconds.

    `partial` gets the report as it stands if the target hangs where Python can't interrupt it. `watch` is told what is
    done, and knows what an earlier process of this run did before it died. `pick` leaves some of the laws; `found` has cases that
    are tried first, and keeps those that break a law now.
    """

    asked: Sequence[str] | None = None
    profile: str = "quick"
    budget: float | None = None
    seed: int = 0
    progress: Progress | None = None
    partial: Callable[[Report], None] | None = None
    watch: Watch | None = None
    pick: Pick | None = None
    found: Found | None = None


class Trying:
    """Some laws tried on a target: the verdicts so far, what the laws share, the time."""

    def __init__(self, chosen: Sequence[AnyLaw], target: Any, wish: Wish) -> None:
        self.chosen = wish.pick(chosen, target) if wish.pick is not None else list(chosen)
        self.target, self.wish = target, wish
        self.watch = wish.watch or Watch()
        self.session = Session(on_problem=self.watch.problem)
        self.verdicts = self.watch.earlier(self.session)
        self.effort, limit = PROFILES_OF_EFFORT[wish.profile]
        if getattr(getattr(target, "abilities", None), "costly_sizes", False):
            covering, drawn = (max(1, round(COSTLY * n)) for n in (self.effort.covering, self.effort.drawn))
            self.effort = replace(self.effort, covering=covering, drawn=drawn)
        self.clock = Clock.after(self.watch.resumed.seconds, limit if wish.budget is None else wish.budget)

    @property
    def tallies(self) -> dict[str, tuple[int, int]]:
        """How often each impostor was tried and rejected."""
        return {name: (tried, rejected) for name, (tried, rejected) in self.session.impostors.items()}

    def report(self, report: Callable[[Trying], Report], finish: Callable[[Report], Report] | None = None) -> Report:
        """Try all, and make the report; it is finished within the time budget."""
        partial_report = self.wish.partial
        give_up = (lambda: partial_report(report(self))) if partial_report is not None else None
        with one_thread(self.target), deadline_alarm(self.clock.left, give_up):
            self.all_laws()
            self.verdicts = folded(self.verdicts, {law.name: law for law in self.chosen})
            made = report(self)
            return made if finish is None else finish(made)

    def all_laws(self) -> None:
        """Try each law; the verdicts are added to the list as they come, after those that are there."""
        had = {verdict.law for verdict in self.verdicts}
        deaths = list(self.watch.resumed.deaths)
        self.watch.laws_begin()
        for number, law in enumerate(self.chosen):
            if law.name in had:
                continue
            self.watch.law(law.name)
            try:
                verdict = self._tried(law, number, deaths)
            except Exception as error:
                verdict = fault(law, error)
            except OutOfTime:
                self.clock.out_of_time = True
                verdict = Verdict(law.name, law.statement, COULD_NOT_TELL, "the time budget ended first")
            self.verdicts.append(verdict)
            self.watch.verdict(verdict, self.session)
            if self.watch.enough(verdict):
                break
        self.watch.laws_end()

    def _tried(self, law: AnyLaw, number: int, deaths: list[Death]) -> Verdict:
        wish, clock, found = self.wish, self.clock, self.wish.found
        now = time.monotonic()
        share = (clock.deadline - now) * law.share / sum(later.share for later in self.chosen[number:])
        tick = _ticker(wish.progress, law.name, number, len(self.chosen))
        tick(0)
        named = {law.name, law.name.split(".")[0]} & set(wish.asked or ())
        if law.slow and wish.profile not in ("full", "soak") and not named:
            return Verdict(law.name, law.statement, NOT_APPLICABLE, "takes seconds: tried with --full")
        run = partial(
            run_law,
            law,
            self.target,
            self.session,
            self.effort,
            seed=wish.seed,
            deadline=clock.deadline,
            share_ends=now + share,
            tick=tick,
            known=found.problems(law, self.target) if found is not None else (),
        )
        verdict = self._verdict(law, run, deaths)
        if found is not None and verdict.red and verdict.witness is not None:
            found.keep(law, self.target, verdict.witness)
        return verdict

    def _verdict(self, law: AnyLaw, run: Callable[[], Verdict], deaths: list[Death]) -> Verdict:
        """The verdict on a law: tried here, or, once a process has died, in a forked one where that can be. Raises OutOfTime."""
        limits, death, clock = self.watch.resumed.limits, self.watch.death_on(law.name), self.clock
        if death is None and clock.out_of_time:
            raise OutOfTime
        if death is None and deaths and forks(self.target):
            verdict, death = guarded(law, run, self.session, limits, clock.deadline + limits.patience)
            if verdict is not None:
                return verdict
            assert death is not None
            deaths.append(death)
        if death is not None:
            return verdict_of_death(law, self.target, death, deaths, limits, clock.deadline)
        return given_up(law) if len(deaths) >= DEATHS else run()


def _ticker(progress: Progress | None, name: str, number: int, total: int) -> Callable[[int], None]:
    """What is called with the number of problems judged so far."""
    if progress is None:
        return lambda judged: None
    return lambda judged: progress(name, number, total, judged)


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
