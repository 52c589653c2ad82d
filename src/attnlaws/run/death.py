"""The verdict on a law on which a process died: the problem again, and smaller ones, each in a process of its own."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..laws.attempt import try_law
from ..laws.law import AnyLaw
from ..laws.trial import Broken, Crashed, Died, Evidence, Refused, Session, Unsuitable
from ..targets.quiet import OutOfTime, supervised_by
from .ledger import COULD_NOT_TELL, CRASHED, Verdict
from .minimise import minimise
from .supervise import DEATHS, ending, resident
from .watch import Death, Resumed

#: attempts and seconds that the shrinking of one witness may take
ATTEMPTS, SECONDS = 300, 20.0
#: seconds that an attempt waits for an answer while a hang is shrunk
BRIEF = 2.0


@dataclass(frozen=True)
class _Again:
    """A law tried again on problems, each time in a forked process."""

    law: AnyLaw
    target: Any
    death: Death
    memory: int
    ends: float

    def kind(self, problem: Any, patience: float) -> str:
        """How a process ends that tries the problem: the kind of its death, empty where it survives or can't be tried."""
        if time.monotonic() > self.ends or not self.law.fits(self.target, problem):
            return ""
        return forked(lambda: self._try(problem), patience, self.memory)

    def _try(self, problem: Any) -> None:
        try:
            try_law(self.law, self.target, problem, Session(), Evidence())
        except (Unsuitable, Refused, Broken, Crashed):
            return

    def failure(self, problem: Any) -> Died | None:
        """What minimise wants: the failure where it is the same death."""
        patience = BRIEF if self.death.kind == "hang" else max(BRIEF, 5.0)
        return Died(self.death.line, None) if self.kind(problem, patience) == self.death.kind else None


def verdict_of_death(law: AnyLaw, target: Any, death: Death, resumed: Resumed, deadline: float) -> Verdict:
    """A crashed law with its witness, as small as it could be made; folded under the first that died in the same way."""
    first = next(other for other in resumed.deaths if other.kind == death.kind)
    under = first.law if first.law != law.name else None
    problem = pickle.loads(death.problem) if death.problem else None
    line = death.line
    if problem is not None and forks(target) and under is None:
        now = time.monotonic()
        again = _Again(
            law, target, death, resumed.memory, min(now + SECONDS + resumed.patience, max(deadline, now + 5.0))
        )
        if again.kind(problem, resumed.patience) == death.kind:
            smaller, _ = minimise(problem, Died(line, None), again.failure, limit=ATTEMPTS)
            sure = death.kind != "hang" or again.kind(smaller, resumed.patience) == "hang"
            problem = smaller if sure else problem
        elif time.monotonic() < again.ends:
            line += "; not again on this problem alone, so it depends on what was called before"
    return Verdict(law.name, law.statement, CRASHED, line, witness=problem, failure=Died(line, None), under=under)


def given_up(law: AnyLaw) -> Verdict:
    """A law that is left where the process died too often."""
    reason = f"not tried: the process of the target died {DEATHS} times"
    return Verdict(law.name, law.statement, COULD_NOT_TELL, reason)


def forks(target: Any) -> bool:
    """Whether a process with this target can be forked: no framework with threads of its own, and no GPU."""
    framework = getattr(target, "framework", None)
    name, device = getattr(framework, "name", "torch"), getattr(framework or target, "device", "cpu")
    return name in ("torch", "numpy") and device == "cpu" and not getattr(framework, "costly_sizes", False)


def forked(job: Callable[[], None], patience: float, memory: int) -> str:
    """The kind of death of a forked process that does a job; empty where it came to its end."""
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        code = 0
        try:
            os.close(hear)
            supervised_by(None)
            job()
            os.write(tell, b"!")
        except (Exception, OutOfTime):
            os.write(tell, b"!")
        finally:
            os._exit(code)
    os.close(tell)
    try:
        return _awaited(child, hear, time.monotonic() + patience, memory)
    finally:
        os.close(hear)


def _awaited(child: int, hear: int, deadline: float, memory: int) -> str:
    while True:
        ready, _, _ = select.select([hear], [], [], 0.02)
        survived = bool(ready) and os.read(hear, 1) == b"!"
        killed = "" if time.monotonic() < deadline else "hang"
        if memory and resident(child) > memory:
            killed = "memory"
        if killed:
            os.kill(child, signal.SIGKILL)
        if ready or killed:
            _, status = os.waitpid(child, 0)
            return "" if survived else killed or ending(status)[0]
