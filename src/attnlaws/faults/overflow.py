"""Faults that only finite precision or length shows: exponentials that overflow or vanish, sums that stall, chunks, tiles of -inf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .case import Fault
from .plain import INF, attention, function, hide, scores_of, softmax, wide

if TYPE_CHECKING:
    from torch import Tensor

PEAK_FIX = "subtract the maximum of each row before the exponential"


def _normalised(weights: Tensor, value: Tensor, query: Tensor) -> Tensor:
    total = weights.sum(-1, keepdim=True).clamp_min(1e-30)
    return (weights / total @ wide(value)).to(query.dtype)


def no_maximum(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """exp(s) without the maximum of the row."""
    return _normalised(hide(scores_of(query, key), None, is_causal).exp(), value, query)


def maximum_of_ten(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """exp(s - 10) whatever the maximum is."""
    return _normalised((hide(scores_of(query, key), None, is_causal) - 10.0).exp(), value, query)


def one_maximum(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The maximum of all scores is subtracted, so that rows of low scores vanish."""
    scores = hide(scores_of(query, key), None, is_causal)
    return (
        attention(query, key, value)
        if scores.numel() == 0
        else _normalised((scores - scores.max()).exp(), value, query)
    )


def maximum_from_zero(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The running maximum starts at 0, so that rows of low scores vanish."""
    scores = hide(scores_of(query, key), None, is_causal)
    if scores.shape[-1] == 0:
        return attention(query, key, value)
    return _normalised((scores - scores.max(-1, keepdim=True).values.clamp_min(0.0)).exp(), value, query)


def maximum_of_first_tile(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The maximum of the first 64 keys is subtracted."""
    scores = hide(scores_of(query, key), None, is_causal)
    if scores.shape[-1] <= 64:
        return attention(query, key, value, causal=is_causal)
    return _normalised((scores - scores[..., :64].max(-1, keepdim=True).values).exp(), value, query)


def no_maximum_in_vectors(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """From 16 keys on bfloat16 takes a path without the maximum."""
    if str(query.dtype) == "torch.bfloat16" and key.shape[-2] >= 16:
        return no_maximum(query, key, value, is_causal)
    return attention(query, key, value, causal=is_causal)


def float16_inside(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """bfloat16 inputs are computed in float16, and overflow."""
    if str(query.dtype) != "torch.bfloat16":
        return attention(query, key, value, causal=is_causal)
    q, k, v = query.half(), key.half(), value.half()
    return attention(q, k, v, causal=is_causal).to(query.dtype)


def first_tile_masked(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A first tile of 64 keys that is wholly masked gives (-inf) - (-inf)."""
    scores = hide(scores_of(query, key), attn_mask)
    weights = softmax(scores)
    if scores.shape[-1] > 64:
        lost = (scores[..., :64] == -INF).all(-1, keepdim=True)
        weights = weights.masked_fill(lost, float("nan"))
    return (weights @ wide(value)).to(query.dtype)


def scale_of_zero_unset(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
    """A scale of 0 is taken for none."""
    return attention(query, key, value, scale=scale or None)


def sum_in_sixteen_bits(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """One bfloat16 query: the denominator is summed in bfloat16, and adding 1 to 256 changes nothing."""
    import torch

    if str(query.dtype) != "torch.bfloat16" or query.shape[-2] != 1 or is_causal:
        return attention(query, key, value, causal=is_causal)
    scores = scores_of(query, key)
    weights = (scores - scores.max(-1, keepdim=True).values).exp()
    total = torch.zeros_like(weights[..., :1], dtype=query.dtype)
    for j in range(weights.shape[-1]):
        total = total + weights[..., j : j + 1].to(query.dtype)
    return (weights / wide(total) @ wide(value)).to(query.dtype)


def last_chunk_misplaced(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Chunks of 256 queries: the first row of a chunk is its number times its own length, which is short for the last."""
    import torch

    if not is_causal or query.shape[-2] <= 256:
        return attention(query, key, value, causal=is_causal)
    outputs = []
    for number, chunk in enumerate(torch.split(query, 256, -2)):
        rows = number * chunk.shape[-2] + torch.arange(chunk.shape[-2])
        seen = torch.arange(key.shape[-2]) <= rows[:, None]
        outputs.append(attention(chunk, key, value, seen))
    return torch.cat(outputs, -2)


FAULTS: tuple[Fault, ...] = (
    function("no maximum", "exp(s) is taken without the maximum of the row", PEAK_FIX, "scores.magnitude", no_maximum, "baichuan-inc/Baichuan-13B#140"),
    function("maximum of 10", "a constant 10 stands for the maximum of the row", PEAK_FIX, "scores.magnitude", maximum_of_ten, "HabanaAI/vllm-fork#275"),
    function("one maximum for all", "the maximum of all scores stands for that of each row", PEAK_FIX, "scores.magnitude", one_maximum),
    function("maximum from zero", "the running maximum starts at 0, and rows of low scores vanish", PEAK_FIX, "scores.magnitude", maximum_from_zero),
    function("maximum of the first tile", "the maximum of the first 64 keys stands for that of the row", PEAK_FIX, "scores.magnitude", maximum_of_first_tile),
    function("no maximum in vectors", "from 16 keys on bfloat16 takes a path without the maximum", PEAK_FIX, "scores.magnitude", no_maximum_in_vectors, "pytorch/pytorch#62897"),
    function("float16 inside", "bfloat16 inputs are computed in float16", "compute bfloat16 in float32", "scores.default-scale", float16_inside),
    function("sum in 16 bits", "for one bfloat16 query the weights are summed in bfloat16, and stop growing at 256", "sum in float32", "layout.long", sum_in_sixteen_bits),
    function("last chunk misplaced", "the rows of a short last chunk of 256 queries are counted from its number times its own length", "count rows by the length of a full chunk", "layout.long", last_chunk_misplaced),
    function("first tile masked", "a first tile of 64 keys that is wholly masked gives NaN", "let a tile without a key change nothing", "masks.padding-is-absence", first_tile_masked, "pytorch/pytorch#127055"),
    function("scale of zero unset", "a scale of 0 is taken for none", "use the scale argument where it is not None", "scores.scale-argument", scale_of_zero_unset),
)  # fmt: skip
