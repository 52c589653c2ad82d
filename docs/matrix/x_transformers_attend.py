"""x-transformers: the module Attend, built for each call as a model builds it once; (B, H, L, D)."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from x_transformers.attend import Attend


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    attn_bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Any:
    """`causal` is given to the constructor. The weights are returned."""
    output, found = Attend(causal=causal, scale=scale).eval()(query, key, value, mask=mask, attn_bias=attn_bias)
    return output, found.post_softmax_attn


def attend_flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    attn_bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The same through PyTorch's fused attention."""
    made = Attend(flash=True, causal=causal, scale=scale).eval()
    output: Tensor = made(query, key, value, mask=mask, attn_bias=attn_bias)[0]
    return output


def attend_flash_by_call(
    query: Tensor, key: Tensor, value: Tensor, causal: bool = False, scale: float | None = None
) -> Tensor:
    """`causal` is given to forward(), which takes it too. Equal heads alone."""
    if query.shape[1] != key.shape[1]:
        raise NotImplementedError("equal heads")
    output: Tensor = Attend(flash=True, scale=scale).eval()(query, key, value, causal=causal)[0]
    return output
