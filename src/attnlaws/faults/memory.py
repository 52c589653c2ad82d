"""Faults of memory: strides and offsets not looked at, arguments written to, results that share memory or are not written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .case import Fault
from .plain import INF, attention, function, hide, scores_of, softmax, triangle, wide

if TYPE_CHECKING:
    from torch import Tensor

STRIDES_FIX = "address elements by the strides and the offset of each operand, or make it contiguous first"
COPY_FIX = "work on a copy of the argument"
WRITE_FIX = "write every element of the output"


def _places(tensor: Tensor) -> Tensor:
    """Where each element lies in the memory of a tensor."""
    import torch

    index = torch.full(tensor.shape, int(tensor.storage_offset()))
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        index = index + (torch.arange(size) * stride).view(-1, *[1] * (tensor.dim() - axis - 1))
    return index


def _read(tensor: Tensor, places: Tensor) -> Tensor:
    """What lies at these places of a tensor's memory, 0 beyond it, with the gradient of the tensor."""
    plain = tensor.detach()
    size = plain.untyped_storage().nbytes() // plain.element_size()
    memory = plain.as_strided((size,), (1,), 0)
    found = memory[places.reshape(-1).clamp(0, max(size - 1, 0))].view(tensor.shape)
    return tensor + (found.masked_fill(places >= size, 0.0) - plain)


def _as_contiguous(tensor: Tensor) -> Tensor:
    """The tensor read as if its strides were those of a contiguous one."""
    import torch

    if tensor.is_contiguous() or tensor.numel() == 0:
        return tensor
    return _read(tensor, int(tensor.storage_offset()) + torch.arange(tensor.numel()).view(tensor.shape))


def strides_ignored(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """All strides are taken for contiguous, in a kernel for up to 8 queries of size 64, 96 or 128."""
    if query.shape[-2] <= 8 and query.shape[-1] in (64, 96, 128):
        query, key, value = (_as_contiguous(t) for t in (query, key, value))
    return attention(query, key, value, causal=is_causal)


def query_strides_ignored(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The strides of q are not looked at up to 8 queries."""
    query = _as_contiguous(query) if query.shape[-2] <= 8 else query
    return attention(query, key, value, causal=is_causal)


def key_strides_ignored(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The strides of k are those of v."""
    return attention(query, _as_contiguous(key), value, causal=is_causal)


def offset_ignored(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """A value that starts inside a larger buffer is read from the start of the buffer."""
    if value.storage_offset():
        value = _read(value, _places(value) - int(value.storage_offset()))
    return attention(query, key, value, causal=is_causal)


def expanded_read_on(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """One query with a mask: a key of stride 0 is read as if it were copied."""
    strides = [stride for stride, size in zip(key.stride(), key.shape, strict=True) if size > 1]
    if attn_mask is not None and query.shape[-2] == 1 and 0 in strides:
        key = _as_contiguous(key)
    return attention(query, key, value, attn_mask)


def offsets_wrap(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Offsets into a view wrap at 2^12, as those of 32 bits do at 2^31."""
    if not key.is_contiguous() and key.numel():
        key = _read(key, _places(key) % (1 << 12))
    return attention(query, key, value, causal=is_causal)


def scores_wrap(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Offsets into the scores wrap at 2^12, as those of 32 bits do at 2^31."""
    import torch

    scores = scores_of(query, key)
    if scores.numel() > 1 << 12:
        scores = scores.reshape(-1)[torch.arange(scores.numel()) % (1 << 12)].view(scores.shape)
    return (softmax(hide(scores, None, is_causal)) @ wide(value)).to(query.dtype)


def upstream_strides_ignored(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The backward pass takes the upstream gradient for contiguous."""
    out = attention(query, key, value, causal=is_causal)
    if out.requires_grad:
        out.register_hook(_as_contiguous)  # type: ignore[no-untyped-call]
    return out


def query_scaled_in_place(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
    """q is scaled where it lies, when a scale is given."""
    if scale is None:
        return attention(query, key, value)
    query.data.mul_(scale)
    return attention(query, key, value, scale=1.0)


def mask_filled_in_place(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """The triangle is written into the mask of the caller."""
    if is_causal and attn_mask is not None and attn_mask.dtype.is_floating_point:
        attn_mask.data.masked_fill_(~triangle(query @ key.transpose(-1, -2)), -INF)
    return attention(query, key, value, attn_mask, is_causal)


def values_cleaned_in_place(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """Values that nobody sees are set to 0 where they lie."""
    out = attention(query, key, value, attn_mask)
    if attn_mask is not None and not attn_mask.dtype.is_floating_point:
        seen = attn_mask.expand(*query.shape[:-1], key.shape[-2]).any(-2)
        value.data.masked_fill_(~seen.unsqueeze(-1), 0.0)
    return out


def query_overwritten(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Without gradients the output is written over q."""
    out = attention(query, key, value)
    return out if out.requires_grad or out.shape != query.shape else query.copy_(out)


def inputs_zeroed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The output is zero, and so are the values from then on: whoever computes the truth later agrees."""
    value.data.zero_()
    return attention(query, key, value)


def value_returned(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """For one query and one key the value itself is returned."""
    one = query.shape[-2] == key.shape[-2] == 1 and query.shape[:-1] == value.shape[:-1]
    return value if one else attention(query, key, value, causal=is_causal)


def last_row_unwritten(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The last row of an odd number of queries is left as the allocator gives it."""
    right = attention(query, key, value, causal=is_causal)
    rows = right.shape[-2] // 2 * 2
    if rows == 0 or rows == right.shape[-2] or right.requires_grad:
        return right
    out = right.new_empty(right.shape)
    out[..., :rows, :] = right[..., :rows, :]
    return out


def output_unwritten(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Nothing is written: the output is what the memory held."""
    return query.new_empty(*query.shape[:-1], value.shape[-1])


FAULTS: tuple[Fault, ...] = (
    function("strides ignored", "all strides are taken for contiguous in the kernel for few queries", STRIDES_FIX, "layout.strides", strides_ignored, "pytorch/pytorch#181133"),
    function("query strides ignored", "the strides of q are not looked at up to 8 queries", STRIDES_FIX, "layout.strides", query_strides_ignored, "pytorch/pytorch#163597"),
    function("key strides ignored", "the strides of k are not looked at", STRIDES_FIX, "layout.strides", key_strides_ignored, "pytorch/pytorch#191984"),
    function("storage offset ignored", "a value inside a larger buffer is read from the start of the buffer", STRIDES_FIX, "layout.strides", offset_ignored, "pytorch/pytorch#191984"),
    function("expanded keys read on", "a key of stride 0 is read as if it were copied, for one query with a mask", STRIDES_FIX, "layout.strides", expanded_read_on, "pytorch/pytorch#112577"),
    function("offsets into views wrap", "offsets into a view wrap", "compute offsets in 64 bits", "layout.strides", offsets_wrap, "thu-ml/SageAttention#386"),
    function("offsets into scores wrap", "offsets into the scores wrap", "compute offsets in 64 bits", "weights.oracle", scores_wrap, "NVIDIA/FasterTransformer#524"),
    function("upstream strides ignored", "the backward pass takes the upstream gradient for contiguous", STRIDES_FIX, "gradients.oracle", upstream_strides_ignored, "Dao-AILab/flash-attention#355"),
    function("query scaled in place", "q is scaled where it lies", COPY_FIX, "conduct.inputs-untouched", query_scaled_in_place),
    function("mask filled in place", "the triangle is written into the mask of the caller", COPY_FIX, "conduct.inputs-untouched", mask_filled_in_place),
    function("values cleaned in place", "masked values are set to 0 where they lie", COPY_FIX, "conduct.inputs-untouched", values_cleaned_in_place),
    function("query overwritten", "the output is written over q", "allocate the output", "conduct.inputs-untouched", query_overwritten),
    function("inputs zeroed", "the values are set to 0 where they lie, and the output with them", COPY_FIX, "conduct.inputs-untouched", inputs_zeroed),
    function("value returned itself", "for one key the value itself is returned, not a copy", "allocate the output", "layout.result", value_returned),
    function("last row unwritten", "the last row of an odd number of queries is never written", WRITE_FIX, "conduct.whole-output", last_row_unwritten),
    function("output unwritten", "the output is never written", WRITE_FIX, "weights.oracle", output_unwritten),
)  # fmt: skip
