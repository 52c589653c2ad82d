"""A process that runs the function of a Python file (`serve.py`), and what is seen of it.

This process never imports the file. Inputs go as bytes, results come as bytes, and the process that computes them knows neither
what is expected nor what comes next.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from dataclasses import dataclass, field
from typing import Any

from .device import NoDevice
from .frames import BadMessage, Body, receive
from .processes import Limits, end_descendants, ending, too_much_memory
from .signature import CannotAdapt

#: seconds that the import of the file may take at least
_IMPORT = 120.0
_LOOK = 0.05


class Ended(Exception):
    """The process that runs the function ended, hung, or broke its channel, in the midst of a call."""

    def __init__(self, kind: str, how: str) -> None:
        super().__init__(f"the process {how}")
        self.kind, self.how = kind, how


class Raised(Exception):
    """The function raised; the message is its exception."""


@dataclass
class Notes:
    """What was seen of the function beside its results."""

    calls: int = 0
    deaths: list[Ended] = field(default_factory=list)
    mutated: int = 0
    kinds: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    slowest: float = 0.0

    @property
    def attack(self) -> Ended | None:
        """A death that no honest function dies: then it is not called any more."""
        return next((death for death in self.deaths if death.kind in ("channel", "starter")), None)


class Starter:
    """The program that starts processes (`serve.py`), with the framework imported already. One serves any number of workers."""

    def __init__(self) -> None:
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def start(self, request: dict[str, Any]) -> tuple[int, socket.socket]:
        """A new process with a file in it: its number, and the socket to talk to it."""
        try:
            return self._started(request)
        except (OSError, ValueError, IndexError):  # the program was killed, by the last process perhaps: another one
            self.close()
            return self._started(request)

    def _started(self, request: dict[str, Any]) -> tuple[int, socket.socket]:
        if self._running is None:
            self._running = self._begun()
        control = self._running[1]
        control.sendall(json.dumps(request).encode() + b"\n")
        said, descriptors, _, _ = socket.recv_fds(control, 1 << 12, 1)
        return int(json.loads(said)["process"]), socket.socket(fileno=descriptors[0])

    def _begun(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        program = subprocess.Popen(
            [sys.executable, "-m", "attnlaws.targets.serve", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process, which ends the other
        )
        theirs.close()
        weakref.finalize(self, _hang_up, program, ours)
        return program, ours

    def ending(self, process: int) -> tuple[str, str]:
        """How a process ended that is gone or was killed, as a kind and in words."""
        gone = "starter", "ended the program that started it"
        if self._running is None:
            return gone
        program, control = self._running
        try:
            control.sendall(json.dumps({"do": "wait", "process": process}).encode() + b"\n")
            return ending(int(json.loads(control.recv(1 << 12))["status"]))
        except (OSError, ValueError):  # it was killed from inside of the process
            program.kill()
            return gone

    def close(self) -> None:
        """End the program."""
        if self._running is not None:
            _hang_up(*self._running)
            self._running = None


def _hang_up(program: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    if program.poll() is None:
        end_descendants(program.pid)
        program.kill()
    program.wait()


class Worker:
    """A process with the file in it; another one after each death. `file`, `name`, `device` and `forbid` as `serve.py` takes them."""

    def __init__(
        self,
        file: str,
        name: str,
        limits: Limits,
        *,
        device: str = "cpu",
        forbid: tuple[str, ...] = (),
        starter: Starter | None = None,
    ) -> None:
        self.request = {"do": "start", "file": file, "name": name, "device": device, "forbid": list(forbid)}
        self.limits, self.notes = limits, Notes()
        self.framework = ""
        self._starter, self._own = starter or Starter(), starter is None
        self._process: int | None = None
        self._channel: socket.socket | None = None

    # -- the process -----------------------------------------------------------------------------------------------

    def load(self) -> dict[str, Any]:
        """A process with the file imported: what it says of the function. Raises CannotAdapt, NoDevice, Raised or Ended."""
        self.stop()
        self._process, self._channel = self._starter.start(self.request)
        said, _ = self._exchange({"do": "load"}, Body(), max(self.limits.patience, _IMPORT))
        if "unusable" in said:
            raise CannotAdapt(said["unusable"])
        if "no device" in said and self.request["device"] != "cpu":
            raise NoDevice(said["no device"])
        if self.framework:
            self._speak()
        return said

    def use(self, framework: str) -> dict[str, Any]:
        """A process that speaks a framework, as all that come after it do; what that offers."""
        self.framework = ""
        self.load()
        self.framework = framework
        return self._speak()

    def _speak(self) -> dict[str, Any]:
        head = {"do": "use", "framework": self.framework}
        return self._exchange(head, Body(), max(self.limits.patience, _IMPORT))[0]

    def stop(self) -> None:
        """End the process; the next request starts another."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
            self._starter.ending(self._process)
        if self._channel is not None:
            self._channel.close()
        self._process = self._channel = None

    def close(self) -> None:
        """End everything."""
        self.stop()
        if self._own:
            self._starter.close()

    # -- requests --------------------------------------------------------------------------------------------------

    def ask(self, head: dict[str, Any], body: Body) -> tuple[dict[str, Any], bytes]:
        """The answer to a request. Raises Raised, NotImplementedError where the function declines, and Ended."""
        if self.notes.attack is not None:
            raise self.notes.attack
        if self._process is None:
            self.load()
        patience = self.limits.patience
        if any(death.kind == "hang" for death in self.notes.deaths):  # once is enough to wait for so long
            patience = min(patience, max(0.25, 20 * self.notes.slowest))
        began = time.monotonic()
        said, data = self._exchange(head, body, patience)
        self.notes.slowest = max(self.notes.slowest, time.monotonic() - began)
        if "raised" in said:
            line = f"{said['raised']}: {said['text']}" if said["text"] else str(said["raised"])
            raise NotImplementedError(said["text"]) if said["declined"] else Raised(line)
        return said, data

    def _exchange(self, head: dict[str, Any], body: Body, patience: float) -> tuple[dict[str, Any], bytes]:
        assert self._channel is not None
        nonce = secrets.token_hex(8)
        deadline = time.monotonic() + patience
        try:
            self._write(body.message(head, nonce), deadline, patience)
            said, data = receive(lambda size: self._read(size, deadline, patience), nonce)
        except (OSError, EOFError):
            kind, how = self._starter.ending(self._process or 0)
            self._process = None
            raise self.died(kind, how) from None
        except BadMessage as error:
            raise self.died("channel", f"wrote to the channel of the judge: {error}") from error
        except Ended as death:
            raise self.died(death.kind, death.how) from None
        except BaseException:  # the budget's alarm, Ctrl-C: what comes through the channel next is not for us
            self.stop()
            raise
        self.notes.used |= set(map(str, said.get("used", ())))
        return said, data

    def died(self, kind: str, how: str) -> Ended:
        """End the process, and note the death that it died, or that its answer is worth."""
        death = Ended(kind, how)
        self.notes.deaths.append(death)
        self.stop()
        return death

    def _write(self, data: bytes, deadline: float, patience: float) -> None:
        assert self._channel is not None
        left = memoryview(data)
        while left:
            self._wait(deadline, patience, write=True)
            left = left[self._channel.send(left[: 1 << 20], socket.MSG_DONTWAIT) :]

    def _read(self, size: int, deadline: float, patience: float) -> bytes:
        assert self._channel is not None
        parts, left = list[bytes](), size
        while left:
            self._wait(deadline, patience)
            part = self._channel.recv(min(left, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _wait(self, deadline: float, patience: float, *, write: bool = False) -> None:
        """Until the channel is ready. Raises Ended where that takes too long, or the process too much memory."""
        assert self._process is not None
        assert self._channel is not None
        while True:
            waiting = [self._channel.fileno()]
            if any(select.select(() if write else waiting, waiting if write else (), (), _LOOK)):
                return
            if time.monotonic() > deadline:
                raise Ended("hang", f"gave no answer for {patience:g} s")
            much = too_much_memory(self._process, self.limits)
            if much is not None:
                raise Ended(*much)
