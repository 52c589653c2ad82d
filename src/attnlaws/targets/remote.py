"""A function that another process runs (`worker.py`): here it is a function of arrays that are only held."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .frames import BadMessage, Body, array_in
from .frameworks import Array, Plain, Pull
from .signature import CannotAdapt
from .worker import Worker


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
        said = worker.use(name)
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
