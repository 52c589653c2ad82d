"""labml-nn: MultiHeadAttention with identities for projections; (B, H, L, D)."""

from __future__ import annotations

import torch
from labml import tracker
from torch import Tensor, nn

if not hasattr(tracker, "debug"):  # labml 0.5.3 has lost what labml-nn 0.5.1 calls
    tracker.debug = lambda *_: None
from labml_nn.transformers.mha import MultiHeadAttention


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """The module has axes (L, B, E), and a mask (L, S, B) for all heads."""
    _, heads, _, size = query.shape
    with torch.random.fork_rng():
        made = MultiHeadAttention(heads=heads, d_model=heads * size, dropout_prob=0.0).eval()
    for projection in (made.query, made.key, made.value):
        projection.linear = nn.Identity()
    made.output = nn.Identity()
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]
        if mask.shape[1] != 1:
            raise NotImplementedError("one mask for all heads")
        mask = mask[:, 0].permute(1, 2, 0)
    merged = [x.permute(2, 0, 1, 3).flatten(2) for x in (query, key, value)]
    output: Tensor = made(query=merged[0], key=merged[1], value=merged[2], mask=mask)
    return output.unflatten(-1, (heads, size)).permute(1, 2, 0, 3)
