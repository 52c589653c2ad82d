"""Arrays of MLX on the CPU. They are lazy: a call is evaluated before its result is read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .frameworks import Array, Plain, Pull, first_of
from .functional import Arguments, leaves_of, over_the_batch, places_of, replaced


def _is_array(value: Any) -> bool:
    return isinstance(value, mx.array)


def _arguments(positional: Sequence[Any], keywords: Mapping[str, Any]) -> Arguments:
    return Arguments(positional, keywords, _is_array)


def _random_state() -> int:
    """The key of the global generator as the seed that sets it."""
    high, low = (int(part) for part in np.array(mx.random.state[0]))
    return (high << 32) | low


class MlxFramework(Plain):
    """MLX arrays on the CPU, which has float64; a GPU of Apple doesn't."""

    name = "mlx"
    dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16", "float16")
    differentiable = True
    transformations: tuple[str, ...] = ("compile", "vmap")

    # -- arrays ------------------------------------------------------------------------------------------------

    def tensor(self, values: Array, dtype: str, *, view: str = "plain", grad: bool = False) -> Any:
        return mx.array(np.ascontiguousarray(values), dtype=mx.float64).astype(getattr(mx, dtype))

    def boolean(self, values: NDArray[np.bool_]) -> Any:
        return mx.array(np.ascontiguousarray(values))

    def integers(self, values: NDArray[np.int64]) -> Any:
        return mx.array(np.asarray(values, dtype=np.int32))

    def is_tensor(self, value: Any) -> bool:
        return _is_array(value)

    def to_numpy(self, value: Any) -> Array:
        return np.array(value.astype(mx.float64), dtype=np.float64)

    def dtype_of(self, value: Any) -> str:
        return str(value.dtype).removeprefix("mlx.core.")

    def shares_memory(self, first: Any, second: Any) -> bool:
        return False  # arrays are values: an assignment to one never shows in another

    def refill(self, tensor: Any, values: Array) -> None:
        """Other values in the same array."""
        tensor[...] = self.tensor(values, self.dtype_of(tensor))

    def poison(self, shape: tuple[int, ...], dtype: str) -> None:
        """Leave NaN in memory that the allocator may hand out next."""
        held = [mx.full(shape, float("nan"), dtype=getattr(mx, dtype)) for _ in range(4)]
        mx.eval(held)
        del held

    def global_state(self) -> dict[str, Any]:
        """What a call must leave as it was."""
        device = str(mx.default_device())
        return {**super().global_state(), "mlx random state": _random_state(), "mlx default device": device}

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Random numbers from a seed inside; the states are put back afterwards."""
        before = _random_state()
        with super().seeded(seed):
            mx.random.seed(seed)
            try:
                yield
            finally:
                mx.random.seed(before)

    @contextlib.contextmanager
    def calling(self, dtype: str) -> Iterator[None]:
        """On the CPU, whatever the default device is."""
        with mx.stream(mx.cpu):
            yield

    # -- calls -------------------------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], positional: list[Any], keywords: Mapping[str, Any]) -> Any:
        result = function(*positional, **keywords)
        mx.eval(leaves_of(result, _is_array))
        return result

    def recorded(
        self, function: Callable[..., Any], positional: list[Any], keywords: Mapping[str, Any], inputs: list[Any]
    ) -> tuple[Any, Pull]:
        given = _arguments(positional, keywords)
        result = self.call(function, positional, keywords)
        leaves = leaves_of(result, _is_array)
        which = places_of(inputs, given.arrays)

        def pull(output: Any, upstream: Any) -> list[Any | None]:
            place = next(n for n, leaf in enumerate(leaves) if leaf is output)

            def of_inputs(*changed: Any) -> Any:
                found = given.calling(function)(*replaced(given.arrays, which, changed))
                return [leaves_of(found, _is_array)[place]]

            _, gradients = mx.vjp(of_inputs, inputs, [upstream])
            mx.eval(gradients)
            return list(gradients)

        return result, pull

    def second(
        self,
        function: Callable[..., Any],
        positional: list[Any],
        keywords: Mapping[str, Any],
        inputs: list[Any],
        upstream: Any,
        directions: list[Array],
    ) -> list[Any | None]:
        given = _arguments(positional, keywords)
        which = places_of(inputs, given.arrays)
        along = [self.tensor(d, self.dtype_of(x)) for d, x in zip(directions, inputs, strict=True)]

        def slope(*changed: Any) -> Any:
            def output(*moved: Any) -> Any:
                return [first_of(given.calling(function)(*replaced(given.arrays, which, moved)))]

            shape = output(*changed)[0].shape
            _, found = mx.vjp(output, list(changed), [upstream.reshape(shape)])
            return sum((g * d).sum() for g, d in zip(found, along, strict=True))

        found = mx.grad(slope, argnums=list(range(len(inputs))))(*inputs)
        mx.eval(found)
        return list(found)

    def transformed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function under mx.compile, or under mx.vmap over the batch."""
        if kind not in self.transformations:
            raise NotImplementedError(f"MLX has no {kind}")

        def of_all(*positional: Any, **keywords: Any) -> Any:
            given = _arguments(positional, keywords)
            if kind == "compile":
                return mx.compile(given.calling(function))(*given.arrays)
            one, axes = over_the_batch(given, function)
            return mx.vmap(one, in_axes=axes)(*given.arrays)

        return of_all


def scaled_dot_product_attention() -> Callable[..., Any]:
    """mlx.core.fast.scaled_dot_product_attention with its mask "causal" as a flag."""

    def attention(
        query: Any, key: Any, value: Any, *, scale: float, mask: Any = None, is_causal: bool = False, sinks: Any = None
    ) -> Any:
        if is_causal and mask is not None:
            raise NotImplementedError("the mask is either an array or causal")
        given = "causal" if is_causal else mask
        return mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask=given, sinks=sinks)

    return attention
