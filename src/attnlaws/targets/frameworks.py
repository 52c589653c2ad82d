"""Tensors of each framework: made from NumPy arrays and read back. Knows no law.

A framework is imported only when a target that uses it is met.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import keras_backend
from .device import NoDevice

Array = NDArray[np.float64]

#: from an output and its upstream gradient to the gradients by the inputs
Pull = Callable[[Any, Any], list[Any | None]]


class Framework(Protocol):
    """What attnlaws needs of an array library.

    `views` are the memory layouts that it can give a tensor, `transformations` what it can do with a function ("compile",
    "vmap", "autocast"), `modes` the ways to call one without recording gradients. `costly_sizes`: new sizes cost time, since
    a program is compiled for each. `note` stands on the card.
    """

    name: str
    dtypes: tuple[str, ...]
    differentiable: bool
    views: tuple[str, ...]
    transformations: tuple[str, ...]
    modes: tuple[str, ...]
    costly_sizes: bool

    @property
    def note(self) -> str: ...
    def call(self, function: Callable[..., Any], positional: list[Any], keywords: Mapping[str, Any]) -> Any: ...
    def recorded(
        self, function: Callable[..., Any], positional: list[Any], keywords: Mapping[str, Any], inputs: list[Any]
    ) -> tuple[Any, Pull]: ...
    def calling(self, dtype: str) -> contextlib.AbstractContextManager[None]: ...
    def tensor(self, values: Array, dtype: str, *, view: str = "plain", grad: bool = False) -> Any: ...
    def boolean(self, values: NDArray[np.bool_]) -> Any: ...
    def integers(self, values: NDArray[np.int64]) -> Any: ...
    def is_tensor(self, value: Any) -> bool: ...
    def to_numpy(self, value: Any) -> Array: ...
    def dtype_of(self, value: Any) -> str: ...
    def device_of(self, value: Any) -> str: ...
    def kind_of(self, value: Any) -> str: ...
    def shares_memory(self, first: Any, second: Any) -> bool: ...
    def refill(self, tensor: Any, values: Array) -> None: ...
    def poison(self, shape: tuple[int, ...], dtype: str) -> None: ...
    def peak_memory(self, run: Callable[[], Any]) -> int: ...
    def global_state(self) -> dict[str, Any]: ...
    def seeded(self, seed: int) -> contextlib.AbstractContextManager[None]: ...
    def transformed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]: ...
    def second(
        self,
        function: Callable[..., Any],
        positional: list[Any],
        keywords: Mapping[str, Any],
        inputs: list[Any],
        upstream: Any,
        directions: list[Array],
    ) -> list[Any | None]: ...


class Plain:
    """What most frameworks share: a function is called as it is, has no gradients, and nothing is to be set."""

    name = ""
    differentiable = False
    views: tuple[str, ...] = ()
    transformations: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    costly_sizes = False
    remark = ""

    @property
    def note(self) -> str:
        """What the card says beside the name."""
        return self.remark

    def call(self, function: Callable[..., Any], positional: list[Any], keywords: Mapping[str, Any]) -> Any:
        return function(*positional, **keywords)

    def recorded(
        self, function: Callable[..., Any], positional: list[Any], keywords: Mapping[str, Any], inputs: list[Any]
    ) -> tuple[Any, Pull]:
        """The result, and what pulls an upstream gradient back to the inputs, which are among the arguments."""
        raise NotImplementedError(f"{self.name} has no gradients")

    def second(
        self,
        function: Callable[..., Any],
        positional: list[Any],
        keywords: Mapping[str, Any],
        inputs: list[Any],
        upstream: Any,
        directions: list[Array],
    ) -> list[Any | None]:
        """The derivative of sum_n directions_n . gradient_n by each input."""
        raise NotImplementedError(f"{self.name} has no second gradients")

    def calling(self, dtype: str) -> contextlib.AbstractContextManager[None]:
        """What must be set while tensors of a dtype are used."""
        return contextlib.nullcontext()

    def transformed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function compiled, mapped over the batch, or in another mode."""
        raise NotImplementedError(f"{self.name} has no {kind}")

    def kind_of(self, value: Any) -> str:
        return f"{type(value).__module__}.{type(value).__qualname__}"

    def device_of(self, value: Any) -> str:
        return "cpu"

    def refill(self, tensor: Any, values: Array) -> None:
        """Other values in the same memory."""
        raise NotImplementedError(f"arrays of {self.name} can't be changed")

    def peak_memory(self, run: Callable[[], Any]) -> int:
        """The most bytes that a call holds at a time beyond its inputs."""
        raise NotImplementedError(f"the memory that {self.name} takes is not measured")

    def global_state(self) -> dict[str, Any]:
        """What a call must leave as it was."""
        return {"numpy error handling": str(np.geterr()), "numpy random state": str(np.random.get_state())}

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Random numbers from a seed inside; the state is put back afterwards."""
        before = np.random.get_state()
        np.random.seed(seed % (1 << 32))
        try:
            yield
        finally:
            np.random.set_state(before)


def is_compiled_by_torch(function: Any) -> bool:
    """Whether torch.compile made a function."""
    return hasattr(function, "_torchdynamo_orig_callable")


def first_of(result: Any) -> Any:
    """The output in a result: itself, or the first of several."""
    return result[0] if isinstance(result, tuple | list) else result


#: the framework whose arrays a package's functions take, by the package's name
SPOKEN = {
    "jax": "jax",
    "flax": "jax",
    "equinox": "jax",
    "haiku": "jax",
    "torch": "torch",
    "transformers": "torch",
    "keras": "keras",
    "mlx": "mlx",
    "tinygrad": "tinygrad",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "numpy": "numpy",
}
FRAMEWORKS = ("torch", "numpy", "jax", "jax, eager", "onnx", "keras", "mlx", "tinygrad")


def framework_named(name: str, device: str = "cpu") -> Framework:
    """The adapter of a framework, imported now.

    Raises ImportError where it is not installed, NoDevice where it lacks the device, ValueError for another name.
    """
    if name == "torch":
        from .torch_arrays import TorchFramework

        return TorchFramework(device)
    if name == "numpy":
        from .numpy_arrays import NumpyFramework

        return NumpyFramework()
    if name in ("jax", "jax, eager"):
        from .jax_arrays import JaxFramework

        return JaxFramework(device, eager=name == "jax, eager")
    if name == "onnx":
        from .onnx_model import OnnxFramework

        return OnnxFramework()
    if name == "mlx":
        from .mlx_arrays import MlxFramework

        return MlxFramework()
    if name == "tinygrad":
        from .tinygrad_arrays import TinygradFramework

        return TinygradFramework()
    if name == "keras":
        return _with_keras(device)
    raise ValueError(f"unknown framework {name!r}; known: {', '.join(FRAMEWORKS)}")


def _with_keras(device: str) -> Framework:
    """The framework of Keras' backend, without float64: keras.backend.result_type makes float32 of it."""
    made: Any = framework_named(keras_backend.spoken(), device)
    made.dtypes = tuple(dtype for dtype in made.dtypes if dtype != "float64")
    made.remark = "through Keras, whose results are float32 for float64"
    return made  # type: ignore[no-any-return]


def frameworks_to_try(function: Any, device: str = "cpu", wanted: str | None = None) -> list[Framework]:
    """The frameworks that a function may speak, likeliest first: the wanted one, or judged by where it comes from, what it
    names, and what its module imports. NumPy comes last where another is seen, since all kinds of files import it.

    Raises NoDevice where the likeliest that is installed lacks the device; others that lack it are left out.
    """
    seen = list(dict.fromkeys(_spoken(function)))
    ranked = sorted(seen, key=lambda name: name == "numpy") if wanted is None else [wanted]
    names = dict.fromkeys([*ranked, "torch", "numpy"]) if wanted is None else ranked
    if is_compiled_by_torch(function):
        compiled: Any = framework_named("torch", device)
        compiled.costly_sizes, compiled.remark = True, "compiled by torch.compile, anew for each size"
        return [compiled]
    made: list[Framework] = []
    for name in names:
        try:
            made.append(framework_named(name, device))
        except ImportError:
            continue
        except NoDevice:
            if not made:
                raise
    return made


def _spoken(function: Any) -> Iterator[str]:
    """The frameworks of the packages that a function shows, in the order of how telling that is."""
    inner = _plain_function(function)
    around = getattr(inner, "__globals__", {})
    named = _names_in(getattr(inner, "__code__", None))
    packages = [str(getattr(inner, "__module__", "") or "")]
    for values in ([around[name] for name in named if name in around], list(around.values())):
        packages += [v.__name__ if isinstance(v, ModuleType) else str(getattr(v, "__module__", "")) for v in values]
    for package in packages:
        name = package.split(".")[0]
        if name in SPOKEN:
            yield SPOKEN[name]


def _names_in(code: CodeType | None) -> list[str]:
    """The global names that a function's code uses, those of functions inside it too."""
    if code is None:
        return []
    inside = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names_in(part)]
    return [*code.co_names, *inside]


def _plain_function(function: Any) -> Any:
    """The function inside partials, decorators and callable instances."""
    inner = function
    while hasattr(inner, "func") or hasattr(inner, "__wrapped__"):
        inner = getattr(inner, "func", None) or inner.__wrapped__
    own = vars(type(inner)).get("__call__")
    return own if not hasattr(inner, "__globals__") and hasattr(own, "__globals__") else inner
