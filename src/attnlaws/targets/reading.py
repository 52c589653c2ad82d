"""What a target gave back, read: its output, and weights and log-sum-exp beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .call import Answer, Array, Call, WrongResult

if TYPE_CHECKING:
    from .target import Target


def read_result(target: Target, result: Any, call: Call, operands: dict[str, Any]) -> tuple[Answer, Any]:
    """The output in a raw result, and what it looked like."""
    raw = result
    if isinstance(result, tuple | list) and result and not target.framework.is_tensor(result):
        raw = result[0]  # where the output stands in every library seen
    if not target.framework.is_tensor(raw):
        raise WrongResult(f"returned {_describe(result)}, not a {target.framework.name} array")
    batch, heads, _, queries, keys, _, value_dim = call.sizes
    expected = _expected_shape(target, batch, heads, queries, value_dim)
    values = target.framework.to_numpy(raw)
    merged = (*expected[:2], expected[2] * expected[3]) if target.heads_merged else expected
    shape_ok = values.shape == merged
    if values.size != int(np.prod(expected)):
        raise WrongResult(f"returned shape {values.shape}, expected {merged}")
    values = values.reshape(expected)
    lse, lse_dtype = _lse(target, result, (batch, heads, queries))
    answer = Answer(
        output=target.from_layout(values, batch, output=True),
        dtype=target.framework.dtype_of(raw),
        kind=target.framework.kind_of(raw),
        device=target.framework.device_of(raw),
        raw_shape=tuple(raw.shape),
        shape_as_expected=shape_ok,
        weights=_weights(target, result, (batch, heads, queries, keys)),
        lse=lse,
        lse_dtype=lse_dtype,
        aliases=tuple(r for r, tensor in operands.items() if target.framework.shares_memory(raw, tensor)),
    )
    return answer, raw


def _expected_shape(target: Target, batch: int, heads: int, queries: int, width: int) -> tuple[int, ...]:
    return {
        "BHSD": (batch, heads, queries, width),
        "BSHD": (batch, queries, heads, width),
        "SBHD": (queries, batch, heads, width),
        "packed": (batch * queries, heads, width),
        "SHD": (queries, heads, width),
        "HSD": (heads, queries, width),
        "BSD": (batch, queries, width),
        "SD": (queries, width),
    }[target.output_axes]


def _weights(target: Target, result: Any, shape: tuple[int, int, int, int]) -> Array | None:
    """Weights returned beside the output: the first further tensor of shape (B, H, L, S)."""
    if not isinstance(result, tuple | list):
        return None
    for item in result[1:]:
        if target.framework.is_tensor(item) and [n for n in item.shape if n != 1] == [n for n in shape if n != 1]:
            return target.framework.to_numpy(item).reshape(shape)
    return None


def _lse(target: Target, result: Any, shape: tuple[int, int, int]) -> tuple[Array | None, str]:
    """The log-sum-exp beside the output, (B, H, L): the first further tensor of its size."""
    if not isinstance(result, tuple | list):
        return None, ""
    batch, heads, queries = shape
    own = {"BHL": (batch, heads, queries), "BLH": (batch, queries, heads)}[target.abilities.lse_axes]
    if target.conventions.layout == "packed":
        own = (heads, batch * queries) if target.abilities.lse_axes == "BHL" else (batch * queries, heads)  # type: ignore[assignment]
    for item in result[1:]:
        if target.framework.is_tensor(item) and [n for n in item.shape if n != 1] == [n for n in own if n != 1]:
            values = target.framework.to_numpy(item).reshape(own)
            if target.conventions.layout == "packed":
                rows = values if target.abilities.lse_axes == "BHL" else values.swapaxes(0, 1)
                values = rows.reshape(heads, batch, queries).swapaxes(0, 1)
            elif target.abilities.lse_axes == "BLH":
                values = values.swapaxes(1, 2)
            return values, target.framework.dtype_of(item)
    return None, ""


def _describe(result: Any) -> str:
    if isinstance(result, tuple | list):
        return f"a {type(result).__name__} of {', '.join(type(item).__name__ for item in result) or 'nothing'}"
    return f"{result!r}" if result is None or isinstance(result, int | float | str) else type(result).__name__
