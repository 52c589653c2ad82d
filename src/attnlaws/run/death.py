"""Laws tried in forked processes, once a process has died: those that are left, and smaller problems for the one that died."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..laws.attempt import try_law
from ..laws.named import AnyLaw
from ..laws.trial import Died, Evidence, Session
from ..targets.processes import Limits, ending, too_much_memory
from ..targets.quiet import OutOfTime, Supervision, supervised_by
from .ledger import COULD_NOT_TELL, CRASHED, Verdict
from .minimise import minimise
from .one_law import fault
from .supervise import DEATHS, Silence, sink
from .watch import Death, Recorder, sendable

#: attempts and seconds that the shrinking of one witness may take
ATTEMPTS, SECONDS = 300, 20.0
#: seconds that a call may take in an attempt, where it could be another hang
BRIEF = 2.0
_LOOK = 0.02


@dataclass(frozen=True)
class Outcome:
    """What became of a forked process: what it gave back, or how it died (`kind` is empty where it didn't) and on which problem."""

    given: bytes = b""
    kind: str = ""
    how: str = ""
    problem: bytes = b""


def forks(target: Any) -> bool:
    """Whether a process with this target can be forked: no framework with threads of its own, and no GPU."""
    framework = getattr(target, "framework", None)
    name, device = getattr(framework, "name", "torch"), getattr(framework or target, "device", "cpu")
    return name in ("torch", "numpy") and device == "cpu" and not getattr(framework, "costly_sizes", False)


def forked(job: Callable[[Recorder], bytes], limits: Limits, ends: float) -> Outcome:
    """A job in a forked process, which is killed at the time `ends` too. Raises OutOfTime then."""
    recorder = Recorder()
    hear, tell = os.pipe()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # what is raised within a fork is lost
    child = os.fork()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if child == 0:
        try:
            os.close(hear)
            supervised_by(Supervision(recorder.begins, recorder.ends, sink()))
            left = memoryview(job(recorder) + b"!")
            while left:
                left = left[os.write(tell, left) :]
        finally:
            os._exit(0)
    os.close(tell)
    try:
        given, kind, how = _awaited(child, hear, recorder, limits, ends)
    finally:
        os.close(hear)
    return Outcome(given, kind, how, recorder.read()[2])


def _awaited(child: int, hear: int, recorder: Recorder, limits: Limits, ends: float) -> tuple[bytes, str, str]:
    """What the process gave back, or how it died, and that it did."""
    silence, parts = Silence(recorder), list[bytes]()
    try:
        while True:
            ready, _, _ = select.select([hear], [], [], _LOOK)
            part = os.read(hear, 1 << 16) if ready else None
            parts += [part] if part else []
            killed = too_much_memory(child, limits) or silence.too_long(limits.patience)
            if killed is None and time.monotonic() > ends:
                raise OutOfTime
            if part == b"" or killed is not None:
                break
    except BaseException:
        _kill(child)
        raise
    status = _kill(child) if killed is not None else os.waitpid(child, 0)[1]
    given = b"".join(parts)
    return (given[:-1], "", "") if given[-1:] == b"!" else (b"", *(killed or ending(status)))


def _kill(child: int) -> int:
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def guarded(
    law: AnyLaw, run: Callable[[], Verdict], session: Session, limits: Limits, ends: float
) -> tuple[Verdict | None, Death | None]:
    """The verdict on a law out of a forked process, or how that died. The session is brought to where it is afterwards."""

    def job(recorder: Recorder) -> bytes:
        session.on_problem = recorder.problem
        try:
            return sendable(run(), session)
        except OutOfTime:
            return b""
        except Exception as error:
            return sendable(fault(law, error), session)

    outcome = forked(job, limits, ends)
    if outcome.kind:
        return None, Death(law.name, outcome.problem, outcome.kind, outcome.how)
    if not outcome.given:
        raise OutOfTime
    verdict, session.precision, session.impostors = pickle.loads(outcome.given)
    return verdict, None


@dataclass(frozen=True)
class _Again:
    """A law tried again on problems, each time in a forked process."""

    law: AnyLaw
    target: Any
    death: Death
    memory: int
    ends: float

    def dies(self, problem: Any, patience: float) -> bool:
        """Whether a process that tries the problem dies in the same way."""
        if not self.law.fits(self.target, problem):
            return False
        try:
            outcome = forked(lambda _: self._tried(problem), Limits(patience, self.memory), self.ends)
        except OutOfTime:
            return False
        return outcome.kind == self.death.kind

    def _tried(self, problem: Any) -> bytes:
        with contextlib.suppress(Exception):  # whatever else the law says of it: it survived
            try_law(self.law, self.target, problem, Session(), Evidence())
        return b""

    def failure(self, problem: Any) -> Died | None:
        """What minimise wants."""
        return Died(self.death.line) if self.dies(problem, BRIEF) else None


def verdict_of_death(
    law: AnyLaw, target: Any, death: Death, deaths: Sequence[Death], limits: Limits, deadline: float
) -> Verdict:
    """A crashed law with its witness, as small as it could be made; folded under the first of the deaths of its kind."""
    first = next((other for other in deaths if other.kind == death.kind), death)
    under = first.law if first.law != law.name else None
    problem = pickle.loads(death.problem) if death.problem else None
    line, repeats = death.line, True
    if problem is not None and forks(target) and under is None:
        now = time.monotonic()
        seconds = SECONDS + (2 * limits.patience if death.kind == "hang" else 0.0)
        again = _Again(law, target, death, limits.memory, min(now + seconds, max(deadline, now + 5.0)))
        if again.dies(problem, limits.patience):
            smaller, _ = minimise(problem, Died(line), again.failure, limit=ATTEMPTS)
            sure = death.kind != "hang" or limits.patience <= BRIEF or again.dies(smaller, limits.patience)
            problem = smaller if sure else problem
        elif time.monotonic() < again.ends:
            repeats = False
            line += "; not again on this problem alone, so it depends on what was called before"
    failure = Died(line)
    failure.again = repeats
    return Verdict(law.name, law.statement, CRASHED, line, witness=problem, failure=failure, under=under)


def given_up(law: AnyLaw) -> Verdict:
    """A law that is left where the process died too often, and can't be forked."""
    reason = f"not tried: the process of the target died {DEATHS} times"
    return Verdict(law.name, law.statement, COULD_NOT_TELL, reason)
