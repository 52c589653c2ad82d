"""A small flash attention kernel in Triton, in tiles with a running maximum: Dao et al. 2022, arXiv:2205.14135, algorithm 1.

On a machine without a GPU it runs through Triton's interpreter:

    TRITON_INTERPRET=1 attnlaws check docs/examples/flash_triton.py:attention --profile smoke
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE = 16


@triton.jit
def _kernel(
    query, key, value, output, heads, groups, queries, keys, width, value_width, scale,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head: all arrays contiguous, (B H, L, D), (B Hkv, S, D), (B Hkv, S, Dv)."""
    head = tl.program_id(1)
    shared = (head // heads) * (heads // groups) + (head % heads) // groups
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside, outside = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    here = (rows[:, None] < queries) & (inside[None, :] < width)
    q = tl.load(query + (head * queries + rows[:, None]) * width + inside[None, :], mask=here, other=0.0)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
    for start in range(0, keys, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        there = (columns[:, None] < keys) & (inside[None, :] < width)
        k = tl.load(key + (shared * keys + columns[:, None]) * width + inside[None, :], mask=there, other=0.0)
        scores = tl.dot(q.to(tl.float32), tl.trans(k.to(tl.float32)), input_precision="ieee") * scale
        seen = columns[None, :] < keys
        if CAUSAL:
            seen = seen & (rows[:, None] >= columns[None, :])
        scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)  # a row that has seen no key yet
        weights = tl.exp(scores - safe[:, None])
        shrink = tl.exp(largest - safe)
        there = (columns[:, None] < keys) & (outside[None, :] < value_width)
        v = tl.load(value + (shared * keys + columns[:, None]) * value_width + outside[None, :], mask=there, other=0.0)
        total = total * shrink + tl.sum(weights, 1)
        result = result * shrink[:, None] + tl.dot(weights, v.to(tl.float32), input_precision="ieee")
        largest = new
    result = tl.where(total[:, None] > 0, result / total[:, None], 0.0)
    here = (rows[:, None] < queries) & (outside[None, :] < value_width)
    place = output + (head * queries + rows[:, None]) * value_width + outside[None, :]
    tl.store(place, result.to(output.dtype.element_ty), mask=here)


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """(B, H, L, D), (B, Hkv, S, D), (B, Hkv, S, Dv) -> (B, H, L, Dv), float32 inside. Raises ValueError for sizes that don't fit."""
    (batch, heads, queries, width), (kv_heads, keys) = query.shape, key.shape[1:3]
    if key.shape != (batch, kv_heads, keys, width) or value.shape[:3] != key.shape[:3] or heads % max(kv_heads, 1):
        raise ValueError(f"the sizes {query.shape}, {key.shape}, {value.shape} don't fit each other")
    if query.dtype == torch.float64:
        raise NotImplementedError("float64 is not computed: the kernel accumulates in float32")
    value_width = value.shape[3]
    output = query.new_empty(batch, heads, queries, value_width)
    if output.numel() == 0 or keys == 0 or width == 0:
        return output.zero_()
    query, key, value = (x.contiguous() for x in (query, key, value))
    _kernel[(triton.cdiv(queries, TILE), batch * heads)](
        query, key, value, output, heads, heads // kv_heads, queries, keys, width, value_width,
        float(width) ** -0.5 if scale is None else float(scale),
        CAUSAL=is_causal, ROWS=TILE, COLUMNS=TILE,
        WIDTH=max(16, triton.next_power_of_2(width)), VALUE_WIDTH=max(16, triton.next_power_of_2(value_width)),
    )  # fmt: skip
    return output
