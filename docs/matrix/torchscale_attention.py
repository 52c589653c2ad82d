"""torchscale: MultiheadAttention without projections; (B, L, H, D). Its attn_mask is additive; True in the padding hides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torchscale.component.multihead_attention import MultiheadAttention


class _Copy(nn.Module):
    """A projection that changes nothing. The module scales the projected query in place, which must not be the caller's."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = False,
) -> Any:
    """The heads are merged on the way in, and split on the way out."""
    heads, size = query.shape[2:]
    options = SimpleNamespace(multiway=False, xpos_rel_pos=False, layernorm_eps=1e-5)
    with torch.random.fork_rng():
        made = MultiheadAttention(options, heads * size, heads, self_attention=True).eval()
    made.q_proj, made.k_proj, made.v_proj, made.out_proj = _Copy(), _Copy(), _Copy(), _Copy()
    merged = [x.flatten(2) for x in (query, key, value)]
    output, weights = made(*merged, attn_mask=attn_mask, key_padding_mask=key_padding_mask)
    output = output.unflatten(-1, (heads, size))
    return (output, weights.transpose(0, 1)) if need_weights else output
