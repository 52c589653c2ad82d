"""A run in a process of its own, and what becomes of it: a target that ends or blocks its process leaves a verdict.

The process is forked before anything large is imported, which costs nothing. It tells what it does (`watch.py`). Where it dies,
another goes on with the laws after that, and the one that killed it is crashed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TextIO

from ..targets.processes import Limits, end_with_the_parent, ending, too_much_memory
from ..targets.quiet import Supervision, supervised_by
from .watch import END, ERR, KEEP, LAW, LAWS_BEGIN, LAWS_END, OUT, VERDICT, Death, Recorder, Resumed, Told, Watch

#: deaths after which the laws that are left are not tried any more
DEATHS = 8
#: seconds between two looks at a process that says nothing
LOOK = 0.1
#: seconds that the import may take at least, and any one call of the probe
IMPORT = 300.0
_LAST = 2000
_IN_THE_PROBE = "while the target was imported and probed"


class DiedEarly(Exception):
    """The process died before any law was tried, or over and over; `code` is the exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Ended:
    """How one process ended: with an exit code of the run's own, or by a death at some phase."""

    code: int | None
    phase: bytes
    death: Death
    verdicts: tuple[bytes, ...]
    seconds: float
    kept: tuple[bytes, ...] = ()


def can_supervise() -> bool:
    """Whether a process can be forked here: the system has it, and no framework with threads of its own is loaded."""
    return hasattr(os, "fork") and not {"torch", "jax", "tensorflow"} & set(sys.modules)


def supervised(job: Callable[[Watch], int], limits: Limits, kept: Callable[[bytes], None] = lambda _: None) -> int:
    """The exit code of a job that runs in a process of its own, in others after that where it dies.

    The job is called with a watch, to be told of the run; it writes to sys.stdout and sys.stderr as ever. What it gives to
    `watch.keep` comes to `kept` once the run has ended. Raises DiedEarly.
    """
    resumed, printed, early = Resumed(limits=limits), _Printed(), 0
    while True:
        ended = _one_process(job, resumed, limits, printed)
        if ended.code is not None:
            for parcel in ended.kept:
                kept(parcel)
            printed.say()
            return ended.code
        death = ended.death
        if ended.phase not in (LAW, LAWS_END):
            early += 1
            before = f" after {len(resumed.verdicts)} laws" if resumed.verdicts or resumed.deaths else ""
            if not before or early > 2:
                raise DiedEarly(f"{death.line}, {_IN_THE_PROBE}{before}", 1 if before else 3)
            continue
        if ended.phase == LAWS_END and resumed.last_rites:
            raise DiedEarly(f"{death.line}, while the report was written", 1)
        resumed = replace(
            resumed,
            verdicts=(*resumed.verdicts, *ended.verdicts),
            deaths=(*resumed.deaths, death) if ended.phase == LAW else resumed.deaths,
            seconds=resumed.seconds + ended.seconds,
            last_rites=resumed.last_rites or ended.phase == LAWS_END,
        )


def supervised_once(job: Callable[[Watch], int], limits: Limits) -> int | Death:
    """The exit code of a job that runs in a process of its own, or how that died after its watch was told of a law.

    Raises DiedEarly where it died before.
    """
    printed = _Printed()
    ended = _one_process(job, Resumed(limits=limits), limits, printed)
    if ended.code is not None:
        printed.say()
        return ended.code
    if ended.phase != LAW:
        raise DiedEarly(f"{ended.death.line}, {_IN_THE_PROBE}", 3)
    return ended.death


class _Printed:
    """What the target printed: how many bytes, and the last of them."""

    def __init__(self) -> None:
        self.count, self.last = 0, b""

    def add(self, data: bytes) -> None:
        self.count += len(data)
        self.last = (self.last + data)[-_LAST:]

    def words(self) -> str:
        """The end of it in one line."""
        return " ".join(self.last.decode("utf-8", "replace").split())[-200:]

    def say(self) -> None:
        if self.count:
            print(f"printed by the target or what it imports: {self.count} bytes (--in-process shows them), at last: ")
            print(f"  {self.words()}")


def _one_process(job: Callable[[Watch], int], resumed: Resumed, limits: Limits, printed: _Printed) -> Ended:
    """Fork, listen until the process ends, and say how."""
    recorder, word = Recorder(), secrets.token_bytes(16)
    (hear, tell), (noise, noisy) = os.pipe(), os.pipe()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    child = os.fork()
    if child == 0:
        os.close(hear)
        os.close(noise)
        _be_the_process(job, Told(tell, recorder, word, resumed), recorder, noisy)
    os.close(tell)
    os.close(noisy)
    printed.last = b""
    listening = _Listening(child, hear, noise, recorder, word, limits, printed)
    try:
        return listening.until_the_end()
    finally:
        listening.stop()


def _be_the_process(job: Callable[[Watch], int], told: Told, recorder: Recorder, noisy: int) -> None:
    """Never returns. The job's own words go through the watch; file descriptors 1 and 2 are the target's to print to."""
    code = 5
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
        end_with_the_parent()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, onto in ((nothing, 0), (noisy, 1), (noisy, 2)):
            os.dup2(descriptor, onto)
        sys.stdout, sys.stderr = told.stream(OUT, sys.stdout), told.stream(ERR, sys.stderr)
        supervised_by(Supervision(recorder.begins, recorder.ends, sink()))
        code = job(told)
        told.leave(code)
    finally:  # neither exit handlers nor threads that the target left keep the process
        os._exit(code)


def sink() -> TextIO:
    """Where in such a process goes what the target prints."""
    return open(1, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


class _Listening:
    """The parent's side: messages, noise, memory and silence of one process."""

    def __init__(
        self, child: int, hear: int, noise: int, recorder: Recorder, word: bytes, limits: Limits, printed: _Printed
    ) -> None:
        self.child, self.hear, self.noise, self.recorder, self.word = child, hear, noise, recorder, word
        self.limits, self.printed = limits, printed
        self.status: int | None = None
        self.code: int | None = None
        self.phase, self.law, self.verdicts = b"", "", list[bytes]()
        self.kept: list[bytes] = []
        self.unread = b""
        self.laws_began = time.monotonic()
        self.silence = Silence(recorder)
        for pipe in (hear, noise):
            os.set_blocking(pipe, False)

    def until_the_end(self) -> Ended:
        """Listen until the process is gone; it is killed where it takes too much of anything."""
        killed = None
        with selectors.DefaultSelector() as selector:
            for pipe in (self.hear, self.noise):
                selector.register(pipe, selectors.EVENT_READ)
            while self.code is None and not self._gone():
                for key, _ in selector.select(LOOK):
                    if not self._read(key.fd):
                        selector.unregister(key.fd)
                killed = self._too_much()
                if killed is not None:
                    os.kill(self.child, signal.SIGKILL)
                    self._gone(wait=True)
        while self._read(self.hear) or self._read(self.noise):
            pass
        kind, how = killed or ending(self.status or 0)
        death = Death(self.law, self.recorder.read()[2], kind, how, self.printed.words())
        spent = time.monotonic() - self.laws_began if self.phase in (LAW, LAWS_END, LAWS_BEGIN) else 0.0
        return Ended(self.code, self.phase, death, tuple(self.verdicts), spent, tuple(self.kept))

    def stop(self) -> None:
        """End the process where it still runs, and close what was open."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGKILL)
            self._gone(wait=True)
        os.close(self.hear)
        os.close(self.noise)

    def _gone(self, *, wait: bool = False) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.child, 0 if wait else os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def _too_much(self) -> tuple[str, str] | None:
        """Whether the process holds too much memory, or one call of the target gives no answer."""
        patience = self.limits.patience if self.phase else max(IMPORT, self.limits.patience)
        return too_much_memory(self.child, self.limits) or self.silence.too_long(patience)

    def _read(self, pipe: int) -> bool:
        """What is there to read; False at the end, or where nothing is there."""
        try:
            data = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return False
        if pipe == self.noise:
            self.printed.add(data)
            return bool(data)
        self.unread += data
        while len(self.unread) >= 5:
            size = int.from_bytes(self.unread[1:5], "little")
            if len(self.unread) < 5 + size:
                break
            kind, content = self.unread[:1], self.unread[5 : 5 + size]
            self.unread = self.unread[5 + size :]
            self._hear(kind, content)
        return bool(data)

    def _hear(self, kind: bytes, content: bytes) -> None:
        if kind in (OUT, ERR):
            stream = sys.stdout if kind == OUT else sys.stderr
            stream.write(content.decode("utf-8", "replace"))
            stream.flush()
        elif kind == VERDICT:
            self.verdicts.append(content)
        elif kind == KEEP:
            self.kept.append(content)
        elif kind == END and content[:16] == self.word:
            self.code = int.from_bytes(content[16:], "little", signed=True)
        elif kind in (LAWS_BEGIN, LAW, LAWS_END):
            self.phase, self.law = kind, content.decode()
            self.laws_began = time.monotonic() if kind == LAWS_BEGIN else self.laws_began


class Silence:
    """How long the target of a process has been in one and the same call."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._beats, self._heard = recorder, -1, time.monotonic()

    def too_long(self, patience: float) -> tuple[str, str] | None:
        """The death by that, where it is longer than so many seconds."""
        depth, beats, _ = self._recorder.read()
        now = time.monotonic()
        if beats != self._beats or depth == 0:
            self._beats, self._heard = beats, now
        return ("hang", f"gave no answer for {patience:g} s") if now - self._heard > patience else None
