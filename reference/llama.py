"""Llama, and Mistral with a window: a decoder with rotary positions, root mean square norms and gated feed-forward parts.

    x = embedding[token]
    x = x + attention(RMSNorm(x))             queries and keys rotated, key heads shared by groups of query heads
    x = x + W_down (silu(W_gate y) * W_up y)  y = RMSNorm(x)        for each layer
    logits = W RMSNorm(x)

Sources: Touvron et al. 2023, arXiv:2302.13971, section 2.2; grouped heads arXiv:2305.13245 and arXiv:2307.09288;
window Jiang et al. 2023, arXiv:2310.06825. Letters in shapes: B batch, L new tokens, S keys, H query heads, Hkv key heads,
D head size, E width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from . import generation
from .attention import attention
from .cache import Cache
from .feed_forward import GatedFeedForward
from .initialise import llama_
from .masks import check_positions, check_tokens, count_positions, visible
from .norms import RMSNorm
from .positions import Pairing, rotary


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes of a Llama; Llama 7B if nothing is said.

    num_kv_heads is num_heads where None, d_head d_model / num_heads. d_ff does not follow d_model: set it. A window of w
    lets a token see the last w, itself included. The pairing of rotary components is "half" as in transformers; weights
    as Meta published them need "interleaved".
    """

    vocab_size: int = 32000
    d_model: int = 4096
    num_layers: int = 32
    num_heads: int = 32
    num_kv_heads: int | None = None
    d_head: int | None = None
    d_ff: int = 11008
    activation: str = "silu"
    rope_base: float = 10_000.0
    pairing: Pairing = "half"
    window: int | None = None
    tied: bool = False
    bias: bool = False
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.num_heads < 1 or (self.d_head is None and self.d_model % self.num_heads):
            raise ValueError(
                f"d_model = {self.d_model} must be divisible by num_heads = {self.num_heads}, or d_head given"
            )
        if self.kv_heads < 1 or self.num_heads % self.kv_heads:
            raise ValueError(f"num_heads = {self.num_heads} must be divisible by num_kv_heads = {self.kv_heads}")
        if self.head_size % 2:
            raise ValueError(f"the head size must be even to be rotated in pairs, not {self.head_size}")

    @property
    def kv_heads(self) -> int:
        """Hkv."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_size(self) -> int:
        """D."""
        return self.d_model // self.num_heads if self.d_head is None else self.d_head


class GroupedAttention(nn.Module):
    """softmax(RoPE(Q) RoPE(K)^T / sqrt(D)) V, (B, L, E) -> (B, L, E). Query head h reads key head h // (H / Hkv)."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        E, D = config.d_model, config.head_size
        self.q_proj = nn.Linear(E, config.num_heads * D, bias=config.bias)
        self.k_proj = nn.Linear(E, config.kv_heads * D, bias=config.bias)
        self.v_proj = nn.Linear(E, config.kv_heads * D, bias=config.bias)
        self.o_proj = nn.Linear(config.num_heads * D, E, bias=config.bias)
        self.head_size, self.layer = D, layer
        self.rope_base, self.pairing = config.rope_base, config.pairing

    def forward(self, x: Tensor, position_ids: Tensor, seen: Tensor, cache: Cache | None) -> Tensor:
        q, k, v = self._split(self.q_proj(x)), self._split(self.k_proj(x)), self._split(self.v_proj(x))
        q = rotary(q, position_ids, base=self.rope_base, pairing=self.pairing)  # (B, H, L, D)
        k = rotary(k, position_ids, base=self.rope_base, pairing=self.pairing)  # (B, Hkv, L, D), kept as rotated
        if cache is not None:
            k, v = cache.extend(self.layer, k, v)  # (B, Hkv, S, D)
        context = attention(q, k, v, attn_mask=seen, enable_gqa=True)  # (B, H, L, D)
        output: Tensor = self.o_proj(context.transpose(1, 2).flatten(2))  # (B, H, L, D) -> (B, L, H*D) -> (B, L, E)
        return output

    def _split(self, x: Tensor) -> Tensor:
        B, L, inner = x.shape
        heads = x.view(B, L, inner // self.head_size, self.head_size)  # (B, L, H*D) -> (B, L, H, D)
        return heads.transpose(1, 2)  # -> (B, H, L, D)


class Layer(nn.Module):
    """A layer, the norms before its parts: (B, L, E) -> (B, L, E)."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.d_model, config.eps)
        self.attention = GroupedAttention(config, layer)
        self.mlp_norm = RMSNorm(config.d_model, config.eps)
        self.mlp = GatedFeedForward(config.d_model, config.d_ff, config.activation)

    def forward(self, x: Tensor, position_ids: Tensor, seen: Tensor, cache: Cache | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), position_ids, seen, cache)
        output: Tensor = x + self.mlp(self.mlp_norm(x))
        return output


class Llama(nn.Module):
    """tokens (B, L) -> logits (B, L, V). Weights are N(0, 0.02^2), drawn with the generator."""

    def __init__(self, config: LlamaConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.d_model, config.eps)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.embedding.weight
        llama_(self, generator)

    def forward(
        self,
        tokens: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The logits of the token after each; arguments as in `gpt.GPT.forward`, without an end to the context."""
        L, past = tokens.shape[-1], 0 if cache is None else cache.length
        check_tokens(tokens, self.config.vocab_size, past=past, attention_mask=attention_mask)
        if position_ids is None:
            position_ids = count_positions(L, past, attention_mask, tokens.device)
        else:
            check_positions(position_ids, tokens)
        if cache is not None:
            cache.check(self.config.num_layers, self.config.window)
        S = L + (0 if cache is None else cache.keys_kept)
        seen = visible(
            L, S, causal=True, window=self.config.window, attention_mask=attention_mask, device=tokens.device
        )  # (1 or B, 1, L, S)
        x = self.embedding(tokens)  # (B, L) -> (B, L, E)
        for layer in self.layers:
            x = layer(x, position_ids, seen, cache)
        logits: Tensor = self.lm_head(self.norm(x))  # (B, L, E) -> (B, L, V)
        return logits

    @property
    def context_length(self) -> None:
        """How many tokens it can read: there is no end."""
        return None

    def new_cache(self) -> Cache:
        """An empty cache for this model, which keeps no more keys than the window."""
        return Cache(self.config.num_layers, window=self.config.window)

    generate = generation.generate
