"""timm: Attention with identities for projections; (B, H, L, D).

timm imports torchvision, whose wheels need CUDA's. Attention doesn't: where torchvision is not installed, an empty stand-in takes
its place, and the layers are imported without the rest of timm.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import torch
from torch import Tensor, nn


def _without_torchvision() -> None:
    found = importlib.util.find_spec("timm")
    if found is None or found.submodule_search_locations is None or importlib.util.find_spec("torchvision"):
        return
    package = ModuleType("timm")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules.setdefault("timm", package)
    for name in ("", ".ops", ".ops.misc", ".models", ".models.feature_extraction"):
        sys.modules[f"torchvision{name}"] = ModuleType(f"torchvision{name}")
    sys.modules["torchvision.ops.misc"].FrozenBatchNorm2d = nn.Module  # type: ignore[attr-defined]
    extraction = sys.modules["torchvision.models.feature_extraction"]
    extraction.create_feature_extractor = extraction.get_graph_node_names = None  # type: ignore[attr-defined]


_without_torchvision()
from timm.layers.attention import Attention  # noqa: E402


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, fused: bool, rate: float, train: bool
) -> Tensor:
    if not query.shape == key.shape == value.shape:
        raise NotImplementedError("self-attention")
    batch, heads, length, size = query.shape
    with torch.random.fork_rng():  # the layer draws weights, which are replaced
        made = Attention(heads * size, num_heads=heads, attn_drop=rate).train(train)
    made.fused_attn, made.qkv, made.proj = fused, nn.Identity(), nn.Identity()
    packed = torch.stack([x.transpose(1, 2) for x in (query, key, value)], 2).reshape(batch, length, -1)
    output: Tensor = made(packed, attn_mask=mask, is_causal=causal)
    return output.unflatten(-1, (heads, size)).transpose(1, 2)


def attend_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """Through PyTorch's fused attention, the default."""
    return _attend(query, key, value, attn_mask, is_causal, True, dropout_p, training)


def attend_unfused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    training: bool = False,
) -> Tensor:
    """softmax(q k^T) v, step by step."""
    return _attend(query, key, value, attn_mask, is_causal, False, dropout_p, training)
