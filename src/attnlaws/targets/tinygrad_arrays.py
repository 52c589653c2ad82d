"""Tensors of tinygrad, on its default device, or on its interpreter in Python where that device can't compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tinygrad import Device, Tensor, dtypes
from tinygrad.helpers import DEV, TRAINING

from .frameworks import Array, Plain, Pull
from .functional import leaves_of


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


class TinygradFramework(Plain):
    """tinygrad's tensors: lazy, so a call is realised before its result is read. A kernel is made for each new size."""

    name = "tinygrad"
    dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16", "float16")
    differentiable = True
    costly_sizes = True

    def __init__(self) -> None:
        try:
            Tensor([1.0]).add(1.0).realize()
        except Exception:  # no compiler, such as clang
            DEV.value = "PYTHON"
        self.remark = f"on its device {Device.DEFAULT}"

    def tensor(self, values: Array, dtype: str, *, view: str = "plain", grad: bool = False) -> Any:
        made = Tensor(np.ascontiguousarray(values)).cast(getattr(dtypes, dtype)).contiguous()
        return made.realize() if made.numel() else made

    def boolean(self, values: NDArray[np.bool_]) -> Any:
        return Tensor(np.ascontiguousarray(values))

    def integers(self, values: NDArray[np.int64]) -> Any:
        return Tensor(np.asarray(values, dtype=np.int32))

    def is_tensor(self, value: Any) -> bool:
        return _is_tensor(value)

    def to_numpy(self, value: Any) -> Array:
        return np.asarray(value.cast(dtypes.float64).numpy(), dtype=np.float64)

    def dtype_of(self, value: Any) -> str:
        names = {"half": "float16", "float": "float32", "double": "float64"}
        name = str(value.dtype).removeprefix("dtypes.")
        return names.get(name, name)

    def shares_memory(self, first: Any, second: Any) -> bool:
        return first is second

    def poison(self, shape: tuple[int, ...], dtype: str) -> None:
        """Leave NaN in memory that the allocator may hand out next."""
        held = [self.tensor(np.full(shape, np.nan), dtype) for _ in range(4)]
        del held

    def global_state(self) -> dict[str, Any]:
        """What a call must leave as it was."""
        return {**super().global_state(), "tinygrad training mode": TRAINING.value}

    def call(self, function: Callable[..., Any], positional: list[Any], keywords: Mapping[str, Any]) -> Any:
        result = function(*positional, **keywords)
        for leaf in leaves_of(result, _is_tensor):
            if leaf.numel():
                leaf.realize()
        return result

    def recorded(
        self, function: Callable[..., Any], positional: list[Any], keywords: Mapping[str, Any], inputs: list[Any]
    ) -> tuple[Any, Pull]:
        result = function(*positional, **keywords)  # not realised: the graph is needed

        def pull(output: Any, upstream: Any) -> list[Any | None]:
            return list(output.gradient(*inputs, gradient=upstream))

        return result, pull
