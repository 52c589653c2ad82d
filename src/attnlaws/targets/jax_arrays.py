"""Arrays of JAX. Functions are compiled whole, one program for each set of sizes and options, without XLA's optimisations.

Called operation by operation, JAX compiles each operation for each new size, which takes ten times as long.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from .device import jax_device
from .frameworks import Array, Plain, Pull, first_of
from .functional import Arguments, over_the_batch, places_of, replaced

#: some fusions abort the process where a reshape is left in them: jax.jit(jax.nn.dot_product_attention) does so in bfloat16
_SAFELY: dict[str, Any] = {"xla_cpu_experimental_ynn_fusion_type": ""}
#: quick compilation on the CPU: the programs run for microseconds
_QUICKLY: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
    **_SAFELY,
}


class _AsItIs:
    """A function that must be called as it is, since it is a transformation already."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *positional: Any, **keywords: Any) -> Any:
        return self.function(*positional, **keywords)


def _arguments(positional: Sequence[Any], keywords: Mapping[str, Any]) -> Arguments:
    return Arguments(positional, keywords, lambda value: isinstance(value, jax.Array))


class JaxFramework(Plain):
    """JAX arrays. Float64 needs `jax.enable_x64`, which is set for float64 calls and put back.

    A function that can't be traced is called operation by operation, and so is one that two traces show as different
    programs (it draws random numbers, or counts its calls): `eager` asks for that from the start.
    """

    name = "jax"
    dtypes: tuple[str, ...] = ("float32", "float64", "bfloat16", "float16")
    differentiable = True
    transformations: tuple[str, ...] = ("compile", "vmap")
    costly_sizes = True

    def __init__(self, device: str = "cpu", *, eager: bool = False) -> None:
        jax_device(device)
        self.device = device
        self.place = jax.devices({"cuda": "gpu"}.get(device, device))[0]
        self.eager = eager
        self._programs: dict[Any, Any] = {}
        self._options = _options_of(device)
        self._doubted = 8  # programs that are traced twice

    @property
    def note(self) -> str:
        return (
            "called operation by operation" if self.eager else "compiled whole by jax.jit, without XLA's optimisations"
        )

    # -- arrays ------------------------------------------------------------------------------------------------

    def tensor(self, values: Array, dtype: str, *, view: str = "plain", grad: bool = False) -> Any:
        with self.calling(dtype):
            return jax.device_put(np.asarray(values).astype(jnp.dtype(dtype)), self.place)

    def boolean(self, values: NDArray[np.bool_]) -> Any:
        return jax.device_put(np.asarray(values), self.place)

    def integers(self, values: NDArray[np.int64]) -> Any:
        return jax.device_put(np.asarray(values, dtype=np.int32), self.place)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, jax.Array)

    def to_numpy(self, value: Any) -> Array:
        return np.asarray(value).astype(np.float64)

    def dtype_of(self, value: Any) -> str:
        return str(value.dtype)

    def device_of(self, value: Any) -> str:
        platform = next(iter(value.devices())).platform
        return "cuda" if platform == "gpu" else str(platform)

    def shares_memory(self, first: Any, second: Any) -> bool:
        return False  # arrays never change, so sharing can't be seen

    def poison(self, shape: tuple[int, ...], dtype: str) -> None:
        """Leave NaN in memory that the allocator may hand out next."""
        held = [self.tensor(np.full(shape, np.nan), dtype) for _ in range(4)]
        del held

    def global_state(self) -> dict[str, Any]:
        """What a call must leave as it was."""
        config = {
            f"jax {name}": str(getattr(jax.config, name))
            for name in (
                "jax_enable_x64",
                "jax_default_matmul_precision",
                "jax_debug_nans",
                "jax_numpy_dtype_promotion",
            )
        }
        return {**super().global_state(), **config}

    @contextlib.contextmanager
    def calling(self, dtype: str) -> Any:
        """Float64 exists inside, where it is used."""
        if dtype != "float64":
            yield
            return
        with jax.enable_x64(True):
            yield

    # -- calls -------------------------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], positional: list[Any], keywords: Mapping[str, Any]) -> Any:
        """The result of a function, through a compiled program unless that is not possible."""
        if self.eager or isinstance(function, _AsItIs):
            return function(*positional, **keywords)
        given = _arguments(positional, keywords)
        key = (function, "call", given.key())
        if key not in self._programs:
            self._programs[key] = self._program(given.calling(function), given.arrays)
        program = self._programs[key]
        return function(*positional, **keywords) if program is None else program(*given.arrays)

    def recorded(
        self, function: Callable[..., Any], positional: list[Any], keywords: Mapping[str, Any], inputs: list[Any]
    ) -> tuple[Any, Pull]:
        given = _arguments(positional, keywords)
        result = self.call(function, positional, keywords)
        leaves = jax.tree.leaves(result)
        which = places_of(inputs, given.arrays)

        def pull(output: Any, upstream: Any) -> list[Any | None]:
            place = next(n for n, leaf in enumerate(leaves) if leaf is output)

            def gradients(above: Any, *arrays: Any) -> Any:
                def of_inputs(*changed: Any) -> Any:
                    return jax.tree.leaves(given.calling(function)(*replaced(arrays, which, changed)))[place]

                return jax.vjp(of_inputs, *(arrays[n] for n in which))[1](above)

            return list(
                self._run(gradients, (function, "gradients", which, place, given.key()), upstream, given.arrays)
            )

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
        count = len(inputs)

        def derivatives(above: Any, *both: Any) -> Any:
            towards, arrays = both[:count], both[count:]

            def slope(*changed: Any) -> Any:
                def output(*moved: Any) -> Any:
                    return first_of(given.calling(function)(*replaced(arrays, which, moved)))

                found, pull = jax.vjp(output, *changed)
                return sum((g * d).sum() for g, d in zip(pull(above.reshape(found.shape)), towards, strict=True))

            return jax.grad(slope, argnums=tuple(range(count)))(*(arrays[n] for n in which))

        key = (function, "second", which, given.key())
        return list(self._run(derivatives, key, upstream, [*along, *given.arrays]))

    def transformed(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function under jax.jit as a user writes it, or under jax.vmap over the batch."""
        if kind == "compile":

            def compiled(*positional: Any, **keywords: Any) -> Any:
                given = _arguments(positional, keywords)
                return jax.jit(given.calling(function))(*given.arrays)

            return _AsItIs(compiled)
        if kind != "vmap":
            raise NotImplementedError(f"JAX has no {kind}")

        def mapped(*positional: Any, **keywords: Any) -> Any:
            given = _arguments(positional, keywords)
            one, axes = over_the_batch(given, function)
            return jax.vmap(one, in_axes=axes)(*given.arrays)

        return mapped

    # -- programs ----------------------------------------------------------------------------------------------

    def _run(self, function: Callable[..., Any], key: Any, above: Any, arrays: list[Any]) -> Any:
        if self.eager:
            return function(above, *arrays)
        key = (*key, above.shape, str(above.dtype))
        if key not in self._programs:
            self._programs[key] = self._program(function, [above, *arrays])
        program = self._programs[key]
        return function(above, *arrays) if program is None else program(above, *arrays)

    def _program(self, function: Callable[..., Any], arrays: list[Any]) -> Any:
        """The compiled program; None where it must be called operation by operation."""
        traces = 2 if self._doubted else 1
        self._doubted = max(self._doubted - 1, 0)
        try:  # each time as another function, since JAX remembers traces
            first, *again = (jax.jit(lambda *a: function(*a)).trace(*arrays) for _ in range(traces))
        except (jax.errors.JAXTypeError, jax.errors.UnexpectedTracerError):
            self.eager = True
            return None
        if again and not _same(first.jaxpr, again[0].jaxpr):
            self.eager = True
            return None
        for options in self._options:
            try:
                return first.lower().compile(compiler_options=options)
            except (ValueError, jax.errors.JaxRuntimeError):  # a dtype that can't be compiled so
                continue
        return None


def _options_of(device: str) -> tuple[dict[str, Any] | None, ...]:
    """Ways to compile, the quickest first: those that this version of XLA knows."""
    small = jax.jit(lambda x: x + 1.0).lower(1.0)
    known: list[dict[str, Any] | None] = []
    for options in (_QUICKLY, _SAFELY) if device == "cpu" else ():
        try:
            small.compile(compiler_options=options)
            known.append(options)
        except (ValueError, jax.errors.JaxRuntimeError):
            continue
    return tuple(known) or (None,)


def _same(first: Any, second: Any) -> bool:
    """Whether two traces are the same program with the same constants."""
    pairs = zip(first.consts, second.consts, strict=False)
    return str(first) == str(second) and all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
