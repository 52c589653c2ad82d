"""diffusers: the class Attention with each of its processors, without projections; (B, L, H, D).

Masks are additive, (B H, L, S), as a model prepares them.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0, SlicedAttnProcessor
from torch import Tensor, nn


class _Given(nn.Module):
    """A projection that gives what it was made with, so that key and value may differ."""

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self.given = given

    def forward(self, _: Tensor) -> Tensor:
        return self.given


def _attend(processor: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    batch, length, heads, size = query.shape
    if key.shape != value.shape or key.shape[2] != heads:
        raise NotImplementedError("equal heads, one size")
    width = heads * size
    with torch.random.fork_rng():
        made = Attention(query_dim=width, cross_attention_dim=width, heads=heads, dim_head=size, processor=processor)
    made.to_q, made.to_k, made.to_v = nn.Identity(), _Given(key.flatten(2)), _Given(value.flatten(2))
    made.to_out = nn.ModuleList([nn.Identity(), nn.Identity()])
    if mask is not None:
        full = mask[(None,) * (4 - mask.ndim)].expand(batch, heads, length, key.shape[1])
        mask = full.reshape(batch * heads, length, key.shape[1])
    output: Tensor = made.eval()(query.flatten(2), encoder_hidden_states=key.flatten(2), attention_mask=mask)
    return output.unflatten(-1, (heads, size))


def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """AttnProcessor: step by step."""
    return _attend(AttnProcessor(), query, key, value, attn_mask)


def attend_fused(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """AttnProcessor2_0: PyTorch's fused attention."""
    return _attend(AttnProcessor2_0(), query, key, value, attn_mask)


def attend_sliced(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """SlicedAttnProcessor: two heads at a time."""
    return _attend(SlicedAttnProcessor(2), query, key, value, attn_mask)
