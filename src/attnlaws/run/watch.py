"""What a run tells of itself as it goes, and what it is told of an earlier process that died on the way."""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from ..laws.trial import Session
from ..targets.processes import Limits
from .ledger import Verdict


@dataclass(frozen=True)
class Death:
    """How a process ended on a law: `kind` tells deaths apart ("signal 11"), `how` is for people, `words` the last it printed.

    `problem` is the pickled problem, empty where the law had none yet.
    """

    law: str
    problem: bytes
    kind: str
    how: str
    words: str = ""

    @property
    def line(self) -> str:
        """The death in one line."""
        return f"the process {self.how}" + (f"; it printed last: {self.words}" if self.words else "")


@dataclass(frozen=True)
class Resumed:
    """What earlier processes of this run left: pickled verdicts, deaths, the seconds they took, whether the target may
    still be called once all laws were tried, and the limits.
    """

    verdicts: tuple[bytes, ...] = ()
    deaths: tuple[Death, ...] = ()
    seconds: float = 0.0
    last_rites: bool = False
    limits: Limits = field(default_factory=Limits)


class Watch:
    """Told by a run what it does; this one keeps nothing, and knows of no earlier process."""

    resumed = Resumed()

    def laws_begin(self) -> None:
        """The target was imported and probed."""

    def laws_end(self) -> None:
        """All laws were tried; what is left is the diagnosis and the report."""

    def law(self, name: str) -> None:
        """A law begins."""

    def problem(self, problem: Any) -> None:
        """A problem begins."""

    def verdict(self, verdict: Verdict, session: Session) -> None:
        """A law has its verdict."""

    def leave(self, code: int) -> None:
        """The run is over, and this is its exit code."""

    def keep(self, parcel: bytes) -> None:
        """What the process that watches is to keep of this run."""

    def enough(self, verdict: Verdict) -> bool:
        """Whether the laws after this one need not be tried."""
        return False

    def earlier(self, session: Session) -> list[Verdict]:
        """The verdicts of earlier processes; the session is brought to where it was after them."""
        verdicts = []
        for blob in self.resumed.verdicts:
            verdict, session.precision, session.impostors = pickle.loads(blob)
            verdicts.append(verdict)
        return verdicts

    def death_on(self, law: str) -> Death | None:
        """The death of an earlier process on a law."""
        return next((death for death in self.resumed.deaths if death.law == law), None)


class Recorder:
    """Memory that a process shares with the one that watches it: how deep in the target's code it is, how many calls began
    or ended, and the problem at hand. A store in it costs a microsecond, and outlives any death.
    """

    _HEAD = struct.Struct("qqq")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1 << 16)
        self.begin_anew()

    def begin_anew(self) -> None:
        """As if nothing had been told."""
        self._depth = self._beats = 0
        self._HEAD.pack_into(self._memory, 0, 0, 0, 0)

    def begins(self) -> None:
        """A call of the target begins."""
        self._depth += 1
        self._beat()

    def ends(self) -> None:
        """A call of the target ends, in whatever way."""
        self._depth -= 1
        self._beat()

    def _beat(self) -> None:
        self._beats += 1
        struct.pack_into("qq", self._memory, 0, self._depth, self._beats)

    def problem(self, problem: Any) -> None:
        """A problem begins."""
        blob = pickle.dumps(problem)
        if len(blob) <= len(self._memory) - self._HEAD.size:
            self._memory[self._HEAD.size : self._HEAD.size + len(blob)] = blob
            struct.pack_into("q", self._memory, 16, len(blob))

    def law(self) -> None:
        """A law begins, as yet without a problem."""
        struct.pack_into("q", self._memory, 16, 0)

    def read(self) -> tuple[int, int, bytes]:
        """Depth, beats, and the pickled problem."""
        depth, beats, size = self._HEAD.unpack_from(self._memory, 0)
        return depth, beats, bytes(self._memory[self._HEAD.size : self._HEAD.size + size])


#: kinds of messages from the process of a run
LAWS_BEGIN, LAWS_END, LAW, VERDICT, OUT, ERR, KEEP, END = b"B", b"A", b"L", b"V", b"O", b"E", b"K", b"X"


def message(kind: bytes, data: bytes = b"") -> bytes:
    """A message: its kind, the length of what follows in 4 bytes, and that."""
    return kind + len(data).to_bytes(4, "little") + data


class Told(Watch):
    """A watch that tells another process, through a pipe and a recorder. `word` proves that an end is the run's own."""

    def __init__(self, pipe: int, recorder: Recorder, word: bytes, resumed: Resumed) -> None:
        self.resumed = resumed
        self._pipe, self._recorder, self._word = pipe, recorder, word

    def send(self, kind: bytes, data: bytes = b"") -> None:
        """All of a message into the pipe."""
        left = memoryview(message(kind, data))
        while left:
            left = left[os.write(self._pipe, left) :]

    def stream(self, kind: bytes, stands_for: TextIO) -> TextIO:
        """A stream whose text goes to the other process, as OUT or ERR."""
        return Relay(lambda data: self.send(kind, data), stands_for)  # type: ignore[return-value]

    def laws_begin(self) -> None:
        self.send(LAWS_BEGIN)

    def laws_end(self) -> None:
        self._recorder.law()
        self.send(LAWS_END)

    def law(self, name: str) -> None:
        self._recorder.law()
        self.send(LAW, name.encode())

    def problem(self, problem: Any) -> None:
        self._recorder.problem(problem)

    def verdict(self, verdict: Verdict, session: Session) -> None:
        self.send(VERDICT, sendable(verdict, session))

    def keep(self, parcel: bytes) -> None:
        self.send(KEEP, parcel)

    def leave(self, code: int) -> None:
        self.send(END, self._word + code.to_bytes(4, "little", signed=True))


def sendable(verdict: Verdict, session: Session) -> bytes:
    """A verdict, pickled with what the session has found so far."""
    state = (session.precision, session.impostors)
    try:
        blob = pickle.dumps((verdict, *state))
        pickle.loads(blob)
    except Exception:  # the call that failed holds what can't be pickled: it is told without
        blob = pickle.dumps((replace(verdict, failure=_without_call(verdict.failure)), *state))
    return blob


def _without_call(failure: Any) -> Any:
    if failure is not None:
        failure.call = None
    return failure


class Relay(io.TextIOBase):
    """A text stream whose text another process writes to the stream that this one stands for."""

    def __init__(self, send: Callable[[bytes], None], stands_for: TextIO) -> None:
        self._send, self._terminal = send, stands_for.isatty()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        self._send(text.encode("utf-8", "backslashreplace"))
        return len(text)
