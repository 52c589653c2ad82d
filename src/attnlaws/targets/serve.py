"""The program that runs what is judged: it imports the file, and answers requests with bytes.

python -m attnlaws.targets.serve CONTROL, where CONTROL is an inherited socket. The process that starts imports the framework and
never the file; for each "start" on the socket it forks a process that does, and sends back its number and a socket to talk
to it. So a process that died is replaced in no time.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import os
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from .address import NoSuchTarget, existing, locate, module_at
from .device import NoDevice
from .frames import Body, array_in, receive
from .frameworks import Framework, first_of, framework_named, frameworks_to_try
from .processes import adopt_orphans, end_with_the_parent
from .signature import CannotAdapt, callable_by_name, signature_of, understand


def main(control: socket.socket) -> None:
    """Start processes until the other side hangs up."""
    adopt_orphans()
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401  forked processes have it at once
    stream = control.makefile("rb")
    while line := stream.readline():
        request = json.loads(line)
        if request["do"] == "start":
            _start(control, request)
        else:
            _, status = os.waitpid(int(request["process"]), 0)
            control.sendall(json.dumps({"status": status}).encode() + b"\n")


def _start(control: socket.socket, request: dict[str, Any]) -> None:
    ours, theirs = socket.socketpair()
    process = os.fork()
    if process == 0:
        try:
            os.close(control.fileno())  # close() would leave it open for the stream that reads it
            theirs.close()
            end_with_the_parent()
            _Server(ours, request).serve()
        finally:
            os._exit(0)
    ours.close()
    socket.send_fds(control, [json.dumps({"process": process}).encode() + b"\n"], [theirs.fileno()])
    theirs.close()


class _Server:
    """One process with the file in it."""

    def __init__(self, channel: socket.socket, request: dict[str, Any]) -> None:
        self.channel, self.request = channel, request
        self.function: Callable[..., Any] | None = None
        self.framework: Framework | None = None
        self.used: list[str] = []
        #: tensors of the last call by their number, its results, and those of some calls before it
        self.inputs: dict[int, Any] = {}
        self.results: dict[int, Any] = {}
        self.earlier: deque[dict[int, Any]] = deque(maxlen=6)
        self.pull: Any = None
        self.seeding = contextlib.ExitStack()

    def serve(self) -> None:
        """Answer until the other side hangs up."""
        while True:
            head, body = receive(self._read)
            reply = Body()
            try:
                told = getattr(self, f"do_{head['do']}")(head, body, reply)
            except BaseException as error:
                text = " ".join(str(error).split())[:200]
                declined = isinstance(error, NotImplementedError)
                told, reply = {"raised": type(error).__name__, "text": text, "declined": declined}, Body()
            self.channel.sendall(reply.message({**told, "used": self.used}, head["nonce"]))

    def _read(self, size: int) -> bytes:
        parts, left = [], size
        while left:
            part = self.channel.recv(min(left, 1 << 20))
            if not part:
                os._exit(0)
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    # -- what can be asked -----------------------------------------------------------------------------------------

    def do_load(self, head: dict[str, Any], body: bytes, reply: Body) -> dict[str, Any]:
        """Import the file: its frameworks, likeliest first, and the parameters of the function."""
        for name in self.request["forbid"]:
            _forbid(name, self.used)
        try:
            found, name = _function_in(self.request["file"], self.request["name"])
            self.function = callable_by_name(found)
            parameters = signature_of(self.function).parameters.values()
        except (NoSuchTarget, CannotAdapt) as error:
            return {"unusable": str(error)}
        try:
            speaks = [f.name for f in frameworks_to_try(self.function, self.request["device"])]
        except NoDevice as error:
            return {"no device": str(error)}
        defaults = {id(None): "None", id(False): "False", id(inspect.Parameter.empty): ""}
        said = [[p.name, int(p.kind), defaults.get(id(p.default), "another")] for p in parameters]
        return {"speaks": speaks, "parameters": said, "name": name}

    def do_use(self, head: dict[str, Any], body: bytes, reply: Body) -> dict[str, Any]:
        """Speak a framework from now on; what it offers."""
        made = self.framework = framework_named(head["framework"], self.request["device"])
        with contextlib.suppress(AttributeError):
            made.torch.set_num_threads(1)  # type: ignore[attr-defined]
        plain = made.tensor(np.zeros(1), made.dtypes[0])
        return {
            "dtypes": made.dtypes,
            "views": made.views,
            "modes": made.modes,
            "differentiable": made.differentiable,
            "costly_sizes": made.costly_sizes,
            "note": made.note,
            "kind": made.kind_of(plain),
            "device": made.device_of(plain),
        }

    def do_call(self, head: dict[str, Any], body: bytes, reply: Body) -> dict[str, Any]:
        """Call the function. What is told: its results, and which inputs and earlier results have other bits now."""
        assert self.framework is not None
        framework, given = self.framework, dict[int, Any]()
        positional = [self._made(item, body, given) for item in head["positional"]]
        keywords = {name: self._made(item, body, given) for name, item in head["keywords"].items()}
        function: Any = framework.transformed(head["mode"], self.function) if head["mode"] else self.function  # type: ignore[arg-type]
        self.earlier.append(self.results)
        watched = {**given, **{number: result for held in self.earlier for number, result in held.items()}}
        before = {number: _bits(framework, tensor) for number, tensor in watched.items()}
        self.inputs, self.pull = given, None
        with np.errstate(all="ignore"), framework.calling(head["dtype"]):
            if head["wanted"]:
                wanted = [given[number] for number in head["wanted"]]
                result, self.pull = framework.recorded(function, positional, keywords, wanted)
            else:
                result = framework.call(function, positional, keywords)
        items = list(result) if isinstance(result, tuple | list) and not framework.is_tensor(result) else [result]
        self.results = {head["number"] + place: item for place, item in enumerate(items) if framework.is_tensor(item)}
        told = [self._told(item, head["number"] + place, given, reply) for place, item in enumerate(items)]
        changed = {
            number: reply.add(framework.to_numpy(tensor))
            for number, tensor in watched.items()
            if before[number] != _bits(framework, tensor)
        }
        many = items is not result and isinstance(result, tuple | list) and not framework.is_tensor(result)
        return {"results": told, "many": many, "changed": changed}

    def do_pull(self, head: dict[str, Any], body: bytes, reply: Body) -> dict[str, Any]:
        """The gradients of the last call, for an upstream gradient of its output."""
        assert self.framework is not None
        upstream = self._made(head["upstream"], body, {})
        output = first_of(list(self.results.values()))
        with np.errstate(all="ignore"), self.framework.calling(head["dtype"]):
            found = self.pull(output, upstream)
        return {"gradients": [None if g is None else reply.add(self.framework.to_numpy(g)) for g in found]}

    def do_poison(self, head: dict[str, Any], body: bytes, reply: Body) -> dict[str, Any]:
        """Leave NaN in memory that is free."""
        assert self.framework is not None
        self.results.clear()
        self.earlier.clear()
        self.framework.poison(tuple(head["shape"]), head["dtype"])
        return {}

    def do_state(self, head: dict[str, Any], body: bytes, reply: Body) -> dict[str, Any]:
        """The global settings."""
        assert self.framework is not None
        return {"state": {name: repr(value) for name, value in self.framework.global_state().items()}}

    def do_seed(self, head: dict[str, Any], body: bytes, reply: Body) -> dict[str, Any]:
        """Random numbers from a seed, until `unseed`."""
        assert self.framework is not None
        self.seeding.enter_context(self.framework.seeded(head["seed"]))
        return {}

    def do_unseed(self, head: dict[str, Any], body: bytes, reply: Body) -> dict[str, Any]:
        """The random state as it was before `seed`."""
        self.seeding.close()
        return {}

    # -- tensors ---------------------------------------------------------------------------------------------------

    def _made(self, item: dict[str, Any], body: bytes, given: dict[int, Any]) -> Any:
        """An argument: a tensor with its strides, or a plain value. One that was refilled keeps its memory."""
        assert self.framework is not None
        if "plain" in item:
            return item["plain"]
        values = array_in(body, item)
        if item["refilled"] and item["number"] in self.inputs:
            made = self.inputs[item["number"]]
            self.framework.refill(made, values)
        elif item["dtype"] == "bool":
            made = self.framework.boolean(values.astype(bool))
        elif item["dtype"] == "int":
            made = self.framework.integers(values.astype(np.int64))
        else:
            made = self.framework.tensor(values, item["dtype"], view=item["view"], grad=item["grad"])
        given[item["number"]] = made
        return made

    def _told(self, item: Any, number: int, given: dict[int, Any], reply: Body) -> dict[str, Any]:
        """A result, turned into bytes now: nothing of it can be computed later."""
        assert self.framework is not None
        if not self.framework.is_tensor(item):
            return {"other": f"{type(item).__module__}.{type(item).__qualname__}"}
        values = self.framework.to_numpy(item)
        return {
            **reply.add(np.asarray(values, dtype=np.float64)),
            "number": number,
            "dtype": self.framework.dtype_of(item),
            "kind": self.framework.kind_of(item),
            "device": self.framework.device_of(item),
            "shares": [n for n, tensor in given.items() if self.framework.shares_memory(item, tensor)],
        }


def _bits(framework: Framework, tensor: Any) -> bytes:
    return framework.to_numpy(tensor).tobytes()


def _function_in(file: str, name: str) -> tuple[Callable[..., Any], str]:
    """The function of a name in a file; without a name the only one that takes query, key and value, or `attention`."""
    if name:
        return locate(f"{file}:{name}"), name
    module = module_at(existing(file))
    fitting = {}
    for word, found in vars(module).items():
        if inspect.isfunction(found) and not word.startswith("_") and found.__module__ == module.__name__:
            with contextlib.suppress(CannotAdapt):
                understand(found)
                fitting[word] = found
    chosen = "attention" if "attention" in fitting else next(iter(fitting), "")
    if not chosen or (len(fitting) > 1 and chosen != "attention"):
        raise NoSuchTarget(
            f"{file} has {', '.join(fitting) or 'no function of query, key and value'}; write {file}:NAME"
        )
    return fitting[chosen], chosen


def _forbid(name: str, used: list[str]) -> None:
    """From now on the function of this dotted name raises, and the call is remembered."""
    place, _, word = name.rpartition(".")
    owner: Any = None
    parts = place.split(".")
    for count in range(len(parts), 0, -1):
        with contextlib.suppress(ImportError):
            owner = importlib.import_module(".".join(parts[:count]))
            for part in parts[count:]:
                owner = getattr(owner, part)
            break
    if not word or not hasattr(owner, word):
        raise CannotAdapt(f"there is no {name} to forbid")

    def refuse(*_: Any, **__: Any) -> Any:
        used.append(name)
        raise RuntimeError(f"{name} is forbidden here")

    setattr(owner, word, refuse)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
