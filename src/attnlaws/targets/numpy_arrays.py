"""NumPy arrays, and the strides that arrays of other frameworks can have too."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .frameworks import Array, Plain


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


def buffer_under(laid: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """The one-dimensional buffer under a view, and where in it the view starts (in elements)."""
    base: Any = laid
    while isinstance(base.base, np.ndarray):
        base = base.base
    flat = base.reshape(-1)
    start = (laid.__array_interface__["data"][0] - flat.__array_interface__["data"][0]) // laid.itemsize
    return flat, start
