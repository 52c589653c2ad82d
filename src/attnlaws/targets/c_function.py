"""Functions in shared libraries, called through ctypes with one documented signature.

    int attention(const T *query, const T *key, const T *value, const T *mask, T *output,
                  const int64_t sizes[7], double scale, int flags);

Arrays are contiguous, in C order: query (B, H, L, D), key (B, Hkv, S, D), value (B, Hkv, S, Dv), output (B, H, L, Dv). `mask`
(B, H, L, S) is added to the scores, or NULL. `sizes` are B, H, Hkv, L, S, D, Dv. Bit 0 of `flags` asks for causality.
The result is 0, or any other number where the function declines. T is float; `attention_double`, where the library has it,
is the same with double.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .signature import CannotAdapt

CAUSAL = 1


def c_function(path: Path, name: str) -> Callable[..., Any]:
    """The function of this name in a shared library, for NumPy arrays (B, H, L, D).

    Raises CannotAdapt where the library can't be loaded or lacks the function.
    """
    try:
        library = ctypes.CDLL(str(path.resolve()))
    except OSError as error:
        raise CannotAdapt(f"{path} can't be loaded: {error}") from error
    functions: dict[str, Any] = {}
    for dtype, symbol in (("float32", name), ("float64", f"{name}_double")):
        try:
            functions[dtype] = getattr(library, symbol)
        except AttributeError:
            continue
        functions[dtype].restype = ctypes.c_int
    if "float32" not in functions:
        raise CannotAdapt(f'{path} has no function {name!r}; is it compiled as C (extern "C") and exported?')

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None
    ) -> Any:
        dtype = str(query.dtype)
        if dtype not in functions:
            raise NotImplementedError(f"there is no {name} for {dtype}")
        return _called(functions[dtype], query, key, value, attn_mask, is_causal, scale)

    return attention


def _called(function: Any, query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float | None) -> Any:
    """Raises NotImplementedError where the function declines, ValueError for sizes that don't fit each other."""
    (batch, heads, queries, width), (kv_heads, keys) = query.shape, key.shape[1:3]
    if key.shape != (batch, kv_heads, keys, width) or value.shape[:3] != key.shape[:3] or heads % max(kv_heads, 1):
        raise ValueError(f"the sizes {query.shape}, {key.shape}, {value.shape} don't fit each other")
    arrays = [np.ascontiguousarray(x) for x in (query, key, value)]
    if mask is not None:
        if mask.dtype != query.dtype:
            raise TypeError("the mask must have the dtype of the query")
        arrays.append(np.ascontiguousarray(np.broadcast_to(mask, (batch, heads, queries, keys))))
    output = np.full((batch, heads, queries, value.shape[3]), np.nan, dtype=query.dtype)
    sizes = (ctypes.c_int64 * 7)(batch, heads, kv_heads, queries, keys, width, value.shape[3])
    pointers = [_pointer(x) for x in arrays] + [None] * (mask is None)
    factor = float(max(width, 1)) ** -0.5 if scale is None else float(scale)
    code = function(*pointers, _pointer(output), sizes, ctypes.c_double(factor), ctypes.c_int(CAUSAL * bool(causal)))
    if code:
        raise NotImplementedError(f"the function declines with {code}")
    return output


def _pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
