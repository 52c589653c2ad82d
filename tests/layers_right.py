"""Right layers, each in its own style: no law may fail for one of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class RightLayer:
    """A right layer, how its weights lie (None where they can't be told from outside), and what is special about it."""

    name: str
    make: Callable[[], nn.Module]
    weights: str | None
    note: str


RIGHT_LAYERS: list[RightLayer] = []


def right(weights: str | None, note: str) -> Callable[[Any], Any]:
    """Register a right layer: a class without arguments or a function that gives a module."""

    def register(make: Any) -> Any:
        RIGHT_LAYERS.append(RightLayer(make.__name__, make, weights, note))
        return make

    return register


def split(x: Tensor, heads: int) -> Tensor:
    """(B, L, H*D) -> (B, H, L, D)"""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """(B, H, L, D) -> (B, L, H*D)"""
    return x.transpose(1, 2).flatten(2)


def soft(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(D)) v, hidden = True is not seen."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1) @ v


class Conv1D(nn.Module):
    """x W + b with W (in, out), as in GPT-2."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


@right("separate", "q_proj, k_proj, v_proj, o_proj without biases; all tokens; a key padding mask, True = attend")
class Separate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 3
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(12, 12, bias=False) for _ in range(4))

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        hidden = None if padding_mask is None else ~padding_mask[:, None, None, :]
        q, k, v = (split(p(x), self.num_heads) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(merge(soft(q, k, v, hidden)))


@right(
    "separate",
    "W_query, W_key, W_value as bare parameters (in, out), no number of heads anywhere, no output projection",
)
class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W_query, self.W_key, self.W_value = (nn.Parameter(torch.rand(10, 6)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = x @ self.W_query, x @ self.W_key, x @ self.W_value
        return soft(q, k, v)


@right("fused, q | k | v", "nanoGPT: fused c_attn, chunked q | k | v, a causal buffer of fixed length, dropout twice")
class NanoGPT(nn.Module):
    bias: Tensor

    def __init__(self, block_size: int = 24) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.2), nn.Dropout(0.2)
        self.n_head = 4
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        q, k, v = (split(t, self.n_head) for t in self.c_attn(x).split(16, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        weights = self.attn_dropout(F.softmax(scores, dim=-1))
        return self.resid_dropout(self.c_proj(merge(weights @ v)))


@right("fused, q | k | v", "GPT-2: Conv1D weights (in, out), sdpa with its causal flag, a tuple with None")
class ConvGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = Conv1D(36, 12), Conv1D(12, 12)
        self.num_heads = 2

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        q, k, v = (split(t, self.num_heads) for t in self.c_attn(hidden_states).chunk(3, dim=-1))
        return self.c_proj(merge(F.scaled_dot_product_attention(q, k, v, is_causal=True))), None


@right("fused, interleaved (H, 3, D)", "GPT-NeoX: query_key_value as (H, 3, D), dense; causal or not by a flag")
class Interleaved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query_key_value, self.dense = nn.Linear(12, 36), nn.Linear(12, 12)
        self.num_attention_heads = 3

    def forward(self, hidden_states: Tensor, is_causal: bool = False) -> Tensor:
        fused = self.query_key_value(hidden_states).unflatten(-1, (self.num_attention_heads, 3, -1))
        q, k, v = fused.permute(3, 0, 2, 1, 4)
        return self.dense(merge(F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)))


@right("fused, q | v | k", "CodeGen: the order q | v | k")
class AnotherOrder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj, self.out_proj, self.heads = nn.Linear(8, 24, bias=False), nn.Linear(8, 8), 2

    def forward(self, x: Tensor) -> Tensor:
        q, v, k = (split(t, self.heads) for t in self.qkv_proj(x).chunk(3, dim=-1))
        return self.out_proj(merge(soft(q, k, v)))


@right("in_proj_weight, q | k | v", "torch: MultiheadAttention, (B, L, E)")
def torch_batch_first() -> nn.Module:
    return nn.MultiheadAttention(12, 3, batch_first=True)


@right("in_proj_weight, q | k | v", "torch: MultiheadAttention, (L, B, E), dropout, no bias")
def torch_length_first() -> nn.Module:
    return nn.MultiheadAttention(8, 2, dropout=0.3, bias=False)


@right(None, "torch: MultiheadAttention with a learned key and a key of zeros beside those of the tokens")
def torch_extra_keys() -> nn.Module:
    return nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True)


@right(None, "torch: TransformerEncoderLayer, norms after")
def torch_encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)


@right(None, "torch: TransformerEncoderLayer, norms before, (L, B, E), gelu")
def torch_pre_norm() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", norm_first=True)


@right("separate", "grouped heads: 4 on 2, repeated; (out, in) of different sizes")
class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = 4, 2
        self.wq, self.wk, self.wv, self.wo = nn.Linear(12, 20), nn.Linear(12, 10), nn.Linear(12, 10), nn.Linear(20, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split(self.wq(x), 4), split(self.wk(x), 2), split(self.wv(x), 2)
        k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        return self.wo(merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


@right("separate", "one key head for all queries, an output narrower than the input")
class MultiQuery(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = 4, 1
        self.to_q, self.to_k, self.to_v, self.to_out = (
            nn.Linear(12, 16, False),
            nn.Linear(12, 4, False),
            nn.Linear(12, 4, False),
            nn.Linear(16, 6),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split(self.to_q(x), 4), split(self.to_k(x), 1), split(self.to_v(x), 1)
        return self.to_out(merge(soft(q, k, v)))


@right(None, "a pre-norm block: attention and a feed-forward part, each added to its input; LayerScale from 0")
class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2, self.attn = nn.LayerNorm(16), nn.LayerNorm(16), NanoGPT()
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Dropout(0.1))
        self.gamma = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma * self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


@right(None, "rotary positions computed in forward, grown with the longest input, kept in a buffer that is no state")
class Rotary(nn.Module):
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(8, 8) for _ in range(4))
        self.register_buffer("table", torch.zeros(0, 4), persistent=False)

    def _rotated(self, x: Tensor) -> Tensor:
        length = x.shape[2]
        if self.table.shape[0] < length or self.table.dtype != x.dtype:
            angles = torch.arange(length, dtype=torch.float64)[:, None] / 100.0 ** (torch.arange(2) / 2)
            self.table = torch.cat([angles.cos(), angles.sin()], -1).to(x)
        cos, sin = self.table[:length].chunk(2, -1)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(p(x), 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(merge(soft(self._rotated(q), self._rotated(k), v)))


@right(None, "ALiBi, causal, slopes as a buffer")
class Alibi(nn.Module):
    slopes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.num_heads = nn.Linear(8, 24), nn.Linear(8, 8), 2
        self.register_buffer("slopes", torch.tensor([0.5, 0.25]).view(2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(t, 2) for t in self.qkv(x).chunk(3, -1))
        place = torch.arange(x.shape[1])
        away = (place[None, :] - place[:, None]).to(x.dtype)
        scores = q @ k.mT / 2.0 + self.slopes * away
        return self.proj(merge(torch.softmax(scores.masked_fill(away > 0, -math.inf), -1) @ v))


@right("separate", "a mask (B, 1, L, L) of 0 and -inf, or none; a scale of 1 that is said")
class Additive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.n_heads, self.scaling = 2, 1.0

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = (split(p(hidden_states), 2) for p in (self.q, self.k, self.v))
        scores = self.scaling * (q @ k.mT)
        if mask is not None:
            scores = scores + mask[:, :, :, : k.shape[2]]
        weights = torch.softmax(scores, -1)
        return self.o(merge(weights @ v)), weights


@right("fused, q | k | v", "a causal window of 4, by a mask in forward")
class Window(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.window = nn.Linear(8, 24), nn.Linear(8, 8), 4

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split(t, 2) for t in self.qkv(x).chunk(3, -1))
        place = torch.arange(x.shape[1])
        away = place[:, None] - place[None, :]
        return self.proj(merge(soft(q, k, v, (away < 0) | (away >= self.window))))


@right("separate", "the softmax always in float32, weights kept as an attribute, and given back where asked for")
class Float32Inside(nn.Module):
    attn: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(12, 12) for _ in range(4))
        self.h = 2

    def forward(self, x: Tensor, need_weights: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        q, k, v = (split(p(x), self.h) for p in (self.query, self.key, self.value))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        self.attn = torch.softmax(scores.float(), -1).to(v.dtype).detach()
        out = self.out(merge(torch.softmax(scores.float(), -1).to(v.dtype) @ v))
        return (out, self.attn) if need_weights else out


@right("separate", "query, key and value given apart, a mask with 0 where a key is hidden and -1e9 for it")
class Annotated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleDict({n: nn.Linear(8, 8) for n in ("query", "key", "value", "out")})
        self.h = 2

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (split(self.linears[n](t), 2) for n, t in (("query", query), ("key", key), ("value", value)))
        scores = q @ k.mT / 2.0
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        return self.linears["out"](merge(torch.softmax(scores, -1) @ v))


@right(None, "batch norm after attention: its statistics change in training, as they should")
class BatchNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        out = self.attn(x, x, x, need_weights=False)[0]
        return self.norm((x + out).transpose(1, 2)).transpose(1, 2)
