"""Tensors of PyTorch on one device."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .device import torch_device
from .frameworks import Array, Plain, Pull, first_of, is_compiled_by_torch
from .numpy_arrays import buffer_under, lay_out


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
        base, offset = buffer_under(laid)
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
