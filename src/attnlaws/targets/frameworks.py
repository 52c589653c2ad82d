"""Tensors of each framework: made from NumPy arrays and read back. Knows no law.

A framework is imported only when a target that uses it is met.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import keras_backend
from .device import NoDevice, torch_device

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


class NumpyFramework(Plain):
    """Plain NumPy arrays."""

    name = "numpy"
    dtypes: tuple[str, ...] = ("float32", "float64", "float16")
    views: tuple[str, ...] = ("transposed", "columns", "sliced", "offset", "fused", "reversed")

    def tensor(self, values: Array, dtype: str, *, view: str = "plain", grad: bool = False) -> NDArray[Any]:
        return lay_out(values.astype(dtype), view)

    def boolean(self, values: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.array(values)

    def integers(self, values: NDArray[np.int64]) -> NDArray[np.int32]:
        return np.array(values, dtype=np.int32)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, np.ndarray | np.generic)

    def to_numpy(self, value: Any) -> Array:
        return np.array(value, dtype=np.float64)

    def dtype_of(self, value: Any) -> str:
        return str(value.dtype)

    def shares_memory(self, first: Any, second: Any) -> bool:
        return bool(np.may_share_memory(first, second))

    def refill(self, tensor: Any, values: Array) -> None:
        """Other values in the same memory."""
        tensor[...] = values

    def poison(self, shape: tuple[int, ...], dtype: str) -> None:
        """Leave NaN in memory that the allocator may hand out next."""
        held = [np.full(shape, np.nan, dtype=dtype) for _ in range(4)]
        del held

    def peak_memory(self, run: Callable[[], Any]) -> int:
        """The most bytes that a call holds at a time beyond its inputs: NumPy tells tracemalloc of its arrays."""
        on = tracemalloc.is_tracing()
        if not on:
            tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            run()
            return tracemalloc.get_traced_memory()[1] - before
        finally:
            if not on:
                tracemalloc.stop()


class TorchFramework(Plain):
    """PyTorch tensors on one device."""

    name = "torch"
    dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16", "float16")
    differentiable = True
    views: tuple[str, ...] = ("transposed", "columns", "sliced", "offset", "fused")
    transformations: tuple[str, ...] = ("compile", "vmap", "autocast")
    modes: tuple[str, ...] = ("no_grad", "inference_mode")

    def __init__(self, device: str = "cpu") -> None:
        import torch

        torch_device(device)
        self.torch = torch
        self.device = device

    def tensor(self, values: Array, dtype: str, *, view: str = "plain", grad: bool = False) -> Any:
        laid = lay_out(np.array(values, order="C"), view)
        if view == "plain":
            made = self.torch.from_numpy(laid).to(dtype=getattr(self.torch, dtype), device=self.device)
            return made.requires_grad_() if grad else made
        # The strides must survive the cast, so the whole buffer is cast and viewed again.
        base, offset = _buffer(laid)
        whole = self.torch.from_numpy(base).to(dtype=getattr(self.torch, dtype), device=self.device)
        strides = [step // 8 for step in laid.strides]
        whole.requires_grad_(grad)
        return whole.as_strided(laid.shape, strides, offset)

    def call(self, function: Callable[..., Any], positional: list[Any], keywords: Mapping[str, Any]) -> Any:
        """The result of a function; one that torch.compile made is compiled for each new size, however many there are.

        Left to itself it is called uncompiled after a few sizes.
        """
        if not is_compiled_by_torch(function):
            return function(*positional, **keywords)
        with self.torch._dynamo.config.patch(recompile_limit=1 << 20, accumulated_recompile_limit=1 << 20):
            return function(*positional, **keywords)

    def boolean(self, values: NDArray[np.bool_]) -> Any:
        return self.torch.from_numpy(np.array(values)).to(self.device)

    def integers(self, values: NDArray[np.int64]) -> Any:
        return self.torch.from_numpy(np.array(values, dtype=np.int32)).to(self.device)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor)

    def to_numpy(self, value: Any) -> Array:
        return np.array(value.detach().to(device="cpu", dtype=self.torch.float64).numpy())

    def dtype_of(self, value: Any) -> str:
        return str(value.dtype).removeprefix("torch.")

    def device_of(self, value: Any) -> str:
        return str(value.device.type)

    def shares_memory(self, first: Any, second: Any) -> bool:
        if first.numel() == 0 or second.numel() == 0:
            return False
        return bool(first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr())

    def recorded(
        self, function: Callable[..., Any], positional: list[Any], keywords: Mapping[str, Any], inputs: list[Any]
    ) -> tuple[Any, Pull]:
        def pull(output: Any, upstream: Any) -> list[Any | None]:
            return list(self.torch.autograd.grad(output, inputs, upstream, allow_unused=True))

        return self.call(function, positional, keywords), pull

    def refill(self, tensor: Any, values: Array) -> None:
        """Other values in the same memory."""
        with self.torch.no_grad():
            tensor.copy_(self.torch.from_numpy(np.ascontiguousarray(values)))

    def poison(self, shape: tuple[int, ...], dtype: str) -> None:
        """Leave NaN in memory that the allocator may hand out next."""
        made = getattr(self.torch, dtype)
        held = [self.torch.full(shape, float("nan"), dtype=made, device=self.device) for _ in range(4)]
        del held

    def peak_memory(self, run: Callable[[], Any]) -> int:
        """The most bytes that a call holds at a time beyond its inputs, to the byte: what torch's allocator was asked for.

        The profiler sees each request, also inside of torch's kernels; the resident set of the process, which sees memory from
        elsewhere too, neither shrinks when memory is freed nor grows when freed memory is used again. So memory that a kernel
        takes past torch's allocator is not counted.
        """
        torch = self.torch
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            run()
            torch.cuda.synchronize()
            return int(torch.cuda.max_memory_allocated(self.device) - before)
        with _silent_stderr(), torch.autograd.profiler.profile(profile_memory=True) as profile:
            run()
        events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
        events.sort(key=lambda event: event.start_ns())
        held = itertools.accumulate(event.nbytes() for event in events)
        return max(held, default=0)

    def global_state(self) -> dict[str, Any]:
        """What a call must leave as it was."""
        torch = self.torch
        return {
            "torch random state": torch.get_rng_state().numpy().tobytes(),
            "torch default dtype": str(torch.get_default_dtype()),
            "torch threads": torch.get_num_threads(),
            "torch grad mode": torch.is_grad_enabled(),
            "torch deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "torch matmul precision": torch.get_float32_matmul_precision(),
        }

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Random numbers from a seed inside; the states are put back afterwards."""
        with self.torch.random.fork_rng(enabled=True):
            self.torch.manual_seed(seed)
            yield

    def transformed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function compiled (traced, without code generation), mapped over the batch, autocast or recording nothing."""
        torch = self.torch
        if kind == "compile":
            torch.compiler.reset()
            return _quietly(torch.compile(function, backend="aot_eager"))
        if kind == "autocast":

            def cast(*positional: Any, **keywords: Any) -> Any:
                with torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16):
                    return function(*positional, **keywords)

            return cast
        if kind in ("no_grad", "inference_mode"):
            return getattr(torch, kind)()(function)  # type: ignore[no-any-return]

        def mapped(*positional: Any, **keywords: Any) -> Any:
            given = [*positional, *keywords.values()]
            axes = tuple(0 if self.is_tensor(x) and x.dim() == 4 else None for x in given)
            count = len(positional)

            def one(*parts: Any) -> Any:
                whole = [x[None] if axis == 0 else x for x, axis in zip(parts, axes, strict=True)]
                result = function(*whole[:count], **dict(zip(keywords, whole[count:], strict=True)))
                return (result[0] if isinstance(result, tuple | list) else result)[0]

            return torch.func.vmap(one, in_dims=axes)(*given)

        return mapped

    def second(
        self,
        function: Callable[..., Any],
        positional: list[Any],
        keywords: Mapping[str, Any],
        inputs: list[Any],
        upstream: Any,
        directions: list[Array],
    ) -> list[Any | None]:
        grad = self.torch.autograd.grad
        output = first_of(function(*positional, **keywords))
        first = grad(output, inputs, upstream.reshape(output.shape), create_graph=True)
        total = sum((g * self.tensor(d, self.dtype_of(g))).sum() for g, d in zip(first, directions, strict=True))
        return list(grad(total, inputs, allow_unused=True))


def is_compiled_by_torch(function: Any) -> bool:
    """Whether torch.compile made a function."""
    return hasattr(function, "_torchdynamo_orig_callable")


def first_of(result: Any) -> Any:
    """The output in a result: itself, or the first of several."""
    return result[0] if isinstance(result, tuple | list) else result


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Nothing written to standard error inside, by compiled code neither: the profiler announces itself there."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without what the compiler has to say about it."""

    def quiet(*positional: Any, **keywords: Any) -> Any:
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            return function(*positional, **keywords)
        finally:
            logging.disable(before)

    return quiet


def lay_out(values: NDArray[Any], view: str) -> NDArray[Any]:
    """The same values with other strides; what lies between them is NaN (or the largest value), never zero.

    plain: contiguous. transposed: axes 1 and 2 (of 4) or 0 and 1 swapped in memory. columns: the last two axes
    swapped in memory. sliced: every second element of the last axis. offset: starts one element into its buffer. fused: the
    middle third of a buffer three times as wide. reversed: a negative step along the next to last axis. expandedN: stride 0
    along axis N, whose entries must be equal.
    """
    if view == "plain":
        return np.ascontiguousarray(values)
    if view == "transposed":
        first, second = (1, 2) if values.ndim == 4 else (0, 1)
        return np.ascontiguousarray(values.swapaxes(first, second)).swapaxes(first, second)
    if view == "columns":
        return np.ascontiguousarray(values.swapaxes(-1, -2)).swapaxes(-1, -2)
    width = values.shape[-1]
    if view == "offset":
        flat = np.full(values.size + 1, np.nan, dtype=values.dtype)
        flat[1:] = values.reshape(-1)
        return flat[1:].reshape(values.shape)
    if view == "reversed":
        return np.ascontiguousarray(values[..., ::-1, :])[..., ::-1, :]
    if view == "sliced":
        wide = np.full((*values.shape[:-1], 2 * width), np.nan, dtype=values.dtype)
        wide[..., ::2] = values
        return wide[..., ::2]
    if view == "fused":
        wide = np.full((*values.shape[:-1], 3 * width), np.nan, dtype=values.dtype)
        wide[..., width : 2 * width] = values
        return wide[..., width : 2 * width]
    if view.startswith("expanded"):
        axis = int(view.removeprefix("expanded"))
        return np.broadcast_to(np.ascontiguousarray(values.take([0], axis)), values.shape)
    raise ValueError(f"unknown view {view!r}")


def _buffer(laid: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """The one-dimensional buffer under a view, and where in it the view starts (in elements)."""
    base: Any = laid
    while isinstance(base.base, np.ndarray):
        base = base.base
    flat = base.reshape(-1)
    start = (laid.__array_interface__["data"][0] - flat.__array_interface__["data"][0]) // laid.itemsize
    return flat, start


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
        return TorchFramework(device)
    if name == "numpy":
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
        compiled = TorchFramework(device)
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
