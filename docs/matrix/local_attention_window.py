"""local-attention: LocalAttention with a window of 16, padded to a multiple of it, and no rotary positions; (B, H, L, D)."""

from __future__ import annotations

from local_attention import LocalAttention
from torch import Tensor

WINDOW = 16


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Sequences of one window, where it is plain attention. True in the mask (B, S) keeps a key."""
    if query.shape[-2] != key.shape[-2] or query.shape[-2] > WINDOW:
        raise NotImplementedError("one window of queries and keys")
    made = LocalAttention(window_size=WINDOW, causal=causal, scale=scale, autopad=True, use_rotary_pos_emb=False)
    output: Tensor = made.eval()(query, key, value, mask=key_padding_mask)
    return output
