"""torchtune: MultiHeadAttention without projections; (B, L, H, D). Its mask has the axes (B, L, S)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchtune.modules import MultiHeadAttention


class _Part(nn.Module):
    """A projection that takes columns: key and value come side by side."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__()
        self.start, self.end = start, end

    def forward(self, x: Tensor) -> Tensor:
        return x[..., self.start : self.end]


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """A mask replaces the causal rule, as its documentation says."""
    batch, length, heads, size = query.shape
    if value.shape[3] != size:
        raise NotImplementedError("one head size")
    width = key.shape[2] * size
    made = MultiHeadAttention(
        embed_dim=heads * size,
        num_heads=heads,
        num_kv_heads=key.shape[2],
        head_dim=size,
        q_proj=nn.Identity(),
        k_proj=_Part(0, width),
        v_proj=_Part(width, 2 * width),
        output_proj=nn.Identity(),
        is_causal=is_causal,
    ).eval()
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]
        if mask.shape[1] != 1:
            raise NotImplementedError("one mask for all heads")
        mask = mask[:, 0].expand(batch, length, key.shape[1])
    output: Tensor = made(query.flatten(2), torch.cat([key.flatten(2), value.flatten(2)], -1), mask=mask)
    return output.unflatten(-1, (heads, size))
