"""GPT-2 and the sizes of GPT-3: a decoder that reads tokens and gives the logits of the next one at each.

    x = wte[token] + wpe[position]
    x = x + attention(LayerNorm(x))
    x = x + feed_forward(LayerNorm(x))        for each layer
    logits = LayerNorm(x) W^T                 W = wte where tied

The names of the parts are those of GPT-2's released weights: wte and wpe are the embeddings of tokens and of positions, h the
layers, c_attn the projection to queries, keys and values, c_fc and c_proj the matrices into the inner width and back (c_proj
also that of the merged heads). Their c is for convolution: there they are convolutions of width 1, here `nn.Linear`.

Sources: Radford et al. 2019, Language Models are Unsupervised Multitask Learners, section 2.3, and its released code;
Brown et al. 2020, arXiv:2005.14165, section 2.1. GPT-3's alternating sparse layers are not published, and dense here.
Letters in shapes: B batch, L new tokens, S keys, H heads, D head size, E width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from . import generation
from .attention import attention
from .cache import Cache
from .feed_forward import FeedForward
from .initialise import gpt2_
from .masks import check_positions, check_tokens, count_positions, visible


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT; GPT-2 small if nothing is said. d_ff is 4 d_model where None."""

    vocab_size: int = 50257
    context_length: int = 1024
    d_model: int = 768
    num_layers: int = 12
    num_heads: int = 12
    d_ff: int | None = None
    activation: str = "gelu_new"
    tied: bool = True
    eps: float = 1e-5
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.1
    residual_dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.num_heads < 1 or self.d_model % self.num_heads:
            raise ValueError(f"d_model = {self.d_model} must be divisible by num_heads = {self.num_heads}")

    @property
    def d_head(self) -> int:
        """D = E / H."""
        return self.d_model // self.num_heads


#: Radford et al. 2019, table 2
GPT2 = {
    "small": GPTConfig(),
    "medium": GPTConfig(d_model=1024, num_layers=24, num_heads=16),
    "large": GPTConfig(d_model=1280, num_layers=36, num_heads=20),
    "xl": GPTConfig(d_model=1600, num_layers=48, num_heads=25),
}


def _gpt3(num_layers: int, d_model: int, num_heads: int) -> GPTConfig:
    return GPTConfig(context_length=2048, d_model=d_model, num_layers=num_layers, num_heads=num_heads)


#: Brown et al. 2020, table 2.1. It prints 24 heads of 128 for XL's width of 2048, and 5140 for the width of 13B's 40 heads of
#: 128: with d_model = heads * d_head, which all other rows keep, 16 and 5120 are meant.
GPT3 = {
    "small": _gpt3(12, 768, 12),
    "medium": _gpt3(24, 1024, 16),
    "large": _gpt3(24, 1536, 16),
    "xl": _gpt3(24, 2048, 16),
    "2.7b": _gpt3(32, 2560, 32),
    "6.7b": _gpt3(32, 4096, 32),
    "13b": _gpt3(40, 5120, 40),
    "175b": _gpt3(96, 12288, 96),
}


class CausalSelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(D), causal) V for each head, (B, L, E) -> (B, L, E). c_attn holds q, k and v side by side.

    Causality comes with `seen` (1 or B, 1, L, S), True where a query sees a key: the model makes it once for all layers, by
    `masks.visible`. `is_causal` of `attention` would be wrong behind a cache: it counts queries from the first key, while the
    new tokens are the last of the keys.
    """

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.d_model, 3 * config.d_model)
        self.c_proj = nn.Linear(config.d_model, config.d_model)
        self.num_heads, self.layer = config.num_heads, layer
        self.attention_dropout = config.attention_dropout
        self.dropout = nn.Dropout(config.residual_dropout)
        self.attend: Callable[..., Tensor] = attention  # another function of the same arguments may take its place

    def forward(self, x: Tensor, seen: Tensor, cache: Cache | None) -> Tensor:
        B, L, E = x.shape
        fused = self.c_attn(x).view(B, L, 3, self.num_heads, E // self.num_heads)  # (B, L, 3E) -> (B, L, 3, H, D)
        q, k, v = fused.unbind(dim=2)  # (B, L, H, D) each
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, L, D)
        if cache is not None:
            k, v = cache.extend(self.layer, k, v)  # (B, H, S, D)
        dropout_p = self.attention_dropout if self.training else 0.0
        context = self.attend(q, k, v, attn_mask=seen, dropout_p=dropout_p)  # (B, H, L, D)
        merged = context.transpose(1, 2).reshape(B, L, E)  # (B, H, L, D) -> (B, L, H, D) -> (B, L, E)
        output: Tensor = self.dropout(self.c_proj(merged))
        return output


class Block(nn.Module):
    """A layer, the norms before its parts (pre-LayerNorm): (B, L, E) -> (B, L, E)."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.d_model, eps=config.eps)
        self.attn = CausalSelfAttention(config, layer)
        self.ln_2 = nn.LayerNorm(config.d_model, eps=config.eps)
        self.mlp = FeedForward(config.d_model, config.d_ff or 4 * config.d_model, config.activation)
        self.dropout = nn.Dropout(config.residual_dropout)

    def forward(self, x: Tensor, seen: Tensor, cache: Cache | None) -> Tensor:
        x = x + self.attn(self.ln_1(x), seen, cache)
        output: Tensor = x + self.dropout(self.mlp(self.ln_2(x)))
        return output


class GPT(nn.Module):
    """tokens (B, L) -> logits (B, L, V). Weights are GPT-2's initial ones, drawn with the generator."""

    def __init__(self, config: GPTConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.d_model)
        self.wpe = nn.Embedding(config.context_length, config.d_model)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.h = nn.ModuleList(Block(config, layer) for layer in range(config.num_layers))
        self.ln_f = nn.LayerNorm(config.d_model, eps=config.eps)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.wte.weight
        gpt2_(self, config.num_layers, generator)

    def forward(
        self,
        tokens: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The logits of the token after each.

        attention_mask (B, S) is 1 for tokens and 0 for padding, those in the cache included; padding is not seen, and
        positions count tokens alone unless position_ids (B, L), or (1, L) for all rows, says otherwise. With a cache only new
        tokens are given. ValueError where there are more tokens than the context length, and for what does not fit.
        """
        L, N, past = tokens.shape[-1], self.config.context_length, 0 if cache is None else cache.length
        check_tokens(tokens, self.config.vocab_size, past=past, attention_mask=attention_mask)
        if past + L > N:
            raise ValueError(
                f"{past + L} tokens are more than context_length = {N}: keep the last ones, tokens[:, -{N}:], "
                "or generate fewer"
            )
        if position_ids is None:
            position_ids = count_positions(L, past, attention_mask, tokens.device)
        else:
            check_positions(position_ids, tokens, N)
        if cache is not None:
            cache.check(self.config.num_layers)
        S = past + L
        seen = visible(L, S, causal=True, attention_mask=attention_mask, device=tokens.device)  # (1 or B, 1, L, S)
        x = self.dropout(self.wte(tokens) + self.wpe(position_ids))  # (B, L) -> (B, L, E)
        for block in self.h:
            x = block(x, seen, cache)
        logits: Tensor = self.lm_head(self.ln_f(x))  # (B, L, E) -> (B, L, V)
        return logits

    @property
    def context_length(self) -> int:
        """How many tokens it can read."""
        return self.config.context_length

    def new_cache(self) -> Cache:
        """An empty cache for this model."""
        return Cache(self.config.num_layers)

    generate = generation.generate
