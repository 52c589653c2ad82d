"""A function in a Python file that is run by another process (`serve.py`): here it is a function of arrays that are only held.

This process never imports the file. Inputs go as bytes, results come as bytes, and the process that computes them knows neither
what is expected nor what comes next.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .device import NoDevice
from .frames import BadMessage, Body, array_in, receive
from .frameworks import Array, Plain, Pull
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


class Held:
    """An array of another process: its values, and what they are there."""

    _numbers = itertools.count(1)

    def __init__(self, values: Array, dtype: str, *, view: str = "plain", grad: bool = False, kind: str = "") -> None:
        self.number = next(Held._numbers) * 64  # results are numbered from their call's on
        self.values, self.dtype, self.view, self.grad, self.kind = values, dtype, view, grad, kind
        self.device, self.shares, self.refilled = "cpu", frozenset[int](), False

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return self.values.ndim

    def reshape(self, *shape: Any) -> Held:
        """The same values in another shape."""
        made = Held(self.values.reshape(*shape), self.dtype, view=self.view, grad=self.grad, kind=self.kind)
        made.device = self.device
        return made


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
            self._exchange({"do": "use", "framework": self.framework}, Body(), max(self.limits.patience, _IMPORT))
        return said

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


class RemoteFunction:
    """The function of a worker, called with held arrays."""

    def __init__(self, worker: Worker, parameters: list[list[Any]], mode: str = "") -> None:
        self.worker, self.parameters, self.mode = worker, parameters, mode
        self.__name__ = "function"
        self.__signature__ = inspect.Signature([_parameter(*said) for said in parameters])
        self._results: weakref.WeakValueDictionary[int, Held] = weakref.WeakValueDictionary()

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        return self.call(list(positional), keywords, ())

    def call(self, positional: list[Any], keywords: Mapping[str, Any], wanted: tuple[int, ...]) -> Any:
        """The result, as a held array or a tuple of them. Raises as `Worker.ask`."""
        body, given = Body(), dict[int, Held]()
        number = Held(np.zeros(0), "float32").number
        arrays = [x for x in (*positional, *keywords.values()) if isinstance(x, Held)]
        head = {
            "do": "call",
            "number": number,
            "mode": self.mode,
            "dtype": next((x.dtype for x in arrays if x.dtype not in ("bool", "int")), "float32"),
            "positional": [_said(x, body, given) for x in positional],
            "keywords": {name: _said(x, body, given) for name, x in keywords.items()},
            "wanted": list(wanted),
        }
        notes = self.worker.notes
        notes.calls += 1
        said, data = self.worker.ask(head, body)
        try:
            for name, item in said["changed"].items():
                held = given.get(int(name)) or self._results.get(int(name))
                notes.mutated += int(name) in given
                if held is not None:
                    held.values = array_in(data, item)
            results = [self._result(item, data) for item in said["results"]]
            return tuple(results) if said["many"] else results[0]
        except (BadMessage, KeyError, TypeError, ValueError, AttributeError, IndexError):
            raise self.worker.died("channel", "answers what is no result of the program that serves it") from None

    def _result(self, item: dict[str, Any], data: bytes) -> Any:
        if "other" in item:
            return Other(str(item["other"]))
        made = Held(np.asarray(array_in(data, item), dtype=np.float64), str(item["dtype"]), kind=str(item["kind"]))
        made.device, made.shares, made.number = str(item["device"]), frozenset(item["shares"]), int(item["number"])
        self._results[made.number] = made
        self.worker.notes.kinds.add(made.kind)
        return made


@dataclass(frozen=True)
class Other:
    """A result that is no array."""

    kind: str


def _said(value: Any, body: Body, given: dict[int, Held]) -> dict[str, Any]:
    """What the head says of an argument. Raises CannotAdapt for one that can't be sent."""
    if isinstance(value, Held):
        given[value.number] = value
        about = {"number": value.number, "dtype": value.dtype, "view": value.view, "grad": value.grad}
        return {**body.add(value.values), **about, "refilled": value.refilled}
    if value is None or isinstance(value, bool | int | float | str):
        return {"plain": value}
    if isinstance(value, tuple | list) and all(isinstance(x, int | float) for x in value):
        return {"plain": list(value)}
    raise CannotAdapt(f"the judge can't send {type(value).__name__} to another process")


def _parameter(name: str, kind: int, default: str) -> inspect.Parameter:
    known: dict[str, Any] = {"": inspect.Parameter.empty, "None": None, "False": False}
    return inspect.Parameter(name, inspect._ParameterKind(kind), default=known.get(default, "its own"))


class RemoteFramework(Plain):
    """The framework that a worker's function speaks, as far as a judge needs it."""

    def __init__(self, worker: Worker, name: str) -> None:
        worker.framework = name
        said = (
            worker.load()
            and worker._exchange({"do": "use", "framework": name}, Body(), max(worker.limits.patience, _IMPORT))[0]
        )
        if "raised" in said:
            raise CannotAdapt(f"{name} can't be used: {said['raised']}: {said['text']}")
        self.worker, self.name = worker, name
        self.dtypes: tuple[str, ...] = tuple(said["dtypes"])
        self.views, self.modes = tuple(said["views"]), tuple(said["modes"])
        self.differentiable, self.costly_sizes = bool(said["differentiable"]), bool(said["costly_sizes"])
        self.remark = ", ".join(filter(None, (str(said["note"]), "in another process")))
        self.kind, self.device = str(said["kind"]), str(said["device"])

    def recorded(
        self, function: Callable[..., Any], positional: list[Any], keywords: Mapping[str, Any], inputs: list[Any]
    ) -> tuple[Any, Pull]:
        """The result, and what asks the process for the gradients."""
        assert isinstance(function, RemoteFunction)

        def pull(output: Any, upstream: Any) -> list[Any | None]:
            body = Body()
            head = {"do": "pull", "dtype": upstream.dtype, "upstream": _said(upstream, body, {})}
            said, data = self.worker.ask(head, body)
            found = [None if item is None else array_in(data, item) for item in said["gradients"]]
            return [None if g is None else Held(g, x.dtype) for g, x in zip(found, inputs, strict=True)]

        return function.call(positional, keywords, tuple(x.number for x in inputs)), pull

    def transformed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function in another mode."""
        assert isinstance(function, RemoteFunction)
        if kind not in self.modes:
            raise NotImplementedError(f"the judge has no {kind}")
        return RemoteFunction(function.worker, function.parameters, kind)

    def tensor(self, values: Array, dtype: str, *, view: str = "plain", grad: bool = False) -> Held:
        return Held(np.array(values, dtype=np.float64), dtype, view=view, grad=grad, kind=self.kind)

    def boolean(self, values: NDArray[np.bool_]) -> Held:
        return Held(np.array(values, dtype=np.float64), "bool", kind=self.kind)

    def integers(self, values: NDArray[np.int64]) -> Held:
        return Held(np.array(values, dtype=np.float64), "int", kind=self.kind)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, Held)

    def to_numpy(self, value: Any) -> Array:
        return np.array(value.values, dtype=np.float64)

    def dtype_of(self, value: Any) -> str:
        return str(value.dtype)

    def device_of(self, value: Any) -> str:
        return str(value.device)

    def kind_of(self, value: Any) -> str:
        return str(value.kind)

    def shares_memory(self, first: Any, second: Any) -> bool:
        return second.number in first.shares

    def refill(self, tensor: Any, values: Array) -> None:
        """Other values in the same memory of the other process."""
        tensor.values, tensor.refilled = np.array(values, dtype=np.float64), True

    def poison(self, shape: tuple[int, ...], dtype: str) -> None:
        """Leave NaN in memory of the other process that its allocator may hand out next."""
        self.worker.ask({"do": "poison", "shape": list(shape), "dtype": dtype}, Body())

    def global_state(self) -> dict[str, Any]:
        """The settings of the other process."""
        return dict(self.worker.ask({"do": "state"}, Body())[0]["state"])

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Random numbers of the other process from a seed inside."""
        self.worker.ask({"do": "seed", "seed": seed}, Body())
        try:
            yield
        finally:
            self.worker.ask({"do": "unseed"}, Body())
