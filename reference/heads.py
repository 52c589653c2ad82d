"""Causal self-attention: one head, many heads side by side, many heads as views of one projection.

    MultiHead(x) = Concat(head_1, ..., head_H) W_out      head_h = Attention(x W_q[h], x W_k[h], x W_v[h])

To read; the models have their own (fused, cached): gpt.CausalSelfAttention computes the same with c_attn = W_query, W_key,
W_value side by side.

Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2. Letters in shapes: B batch, L length, E = d_in,
H num_heads, D = d_out / H.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class CausalAttention(nn.Module):
    """One head: softmax(Q K^T / sqrt(d_out), causal) V, from (B, L, d_in) to (B, L, d_out).

    `future` (context_length, context_length) is True where a key comes after the query: what is hidden, where the masks of
    `attention` and of the models are True for what is seen. ValueError for inputs of another width, or longer.
    """

    future: Tensor

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float = 0.0, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("future", _future(context_length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        _check(x, self.W_query.in_features)
        q, k, v = self.W_query(x), self.W_key(x), self.W_value(x)  # (B, L, E) -> (B, L, D) each
        context: Tensor = _attend(q, k, v, self.future, self.dropout)  # (B, L, D)
        return context


class StackedHeads(nn.Module):
    """num_heads single heads, concatenated, then W_out if out_proj: (B, L, d_in) to (B, L, d_out)."""

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        num_heads: int,
        dropout: float = 0.0,
        qkv_bias: bool = False,
        out_proj: bool = True,
    ) -> None:
        super().__init__()
        D = _head_size(d_out, num_heads)
        self.heads = nn.ModuleList(
            CausalAttention(d_in, D, context_length, dropout, qkv_bias) for _ in range(num_heads)
        )
        self.out_proj = nn.Linear(d_out, d_out) if out_proj else None

    def forward(self, x: Tensor) -> Tensor:
        context = torch.cat([head(x) for head in self.heads], dim=-1)  # H times (B, L, D) -> (B, L, H*D)
        if self.out_proj is not None:
            context = self.out_proj(context)
        return context


class MultiHeadAttention(nn.Module):
    """The same with one projection each for queries, keys and values, split into heads by a view. `future` as in one head."""

    future: Tensor

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        num_heads: int,
        dropout: float = 0.0,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_size = _head_size(d_out, num_heads)
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("future", _future(context_length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        _check(x, self.W_query.in_features)
        q = self._split(self.W_query(x))  # (B, L, E) -> (B, L, H*D) -> (B, H, L, D)
        k = self._split(self.W_key(x))  # the same shapes
        v = self._split(self.W_value(x))
        context = _attend(q, k, v, self.future, self.dropout)  # (B, H, L, D)
        context = context.transpose(1, 2).flatten(2)  # (B, H, L, D) -> (B, L, H, D) -> (B, L, H*D)
        output: Tensor = self.out_proj(context)
        return output

    def _split(self, x: Tensor) -> Tensor:
        B, L, _ = x.shape
        heads = x.view(B, L, self.num_heads, self.head_size)  # (B, L, H*D) -> (B, L, H, D)
        return heads.transpose(1, 2)  # -> (B, H, L, D)


def split_weights(stacked: StackedHeads) -> MultiHeadAttention:
    """A MultiHeadAttention that computes what `stacked` does: head h's weights become rows h*D to (h+1)*D.

    Where `stacked` has no output projection, the new one gets the identity.
    """
    heads = [head for head in stacked.heads if isinstance(head, CausalAttention)]
    first = heads[0]
    d_in, d_out = first.W_query.in_features, len(heads) * first.W_query.out_features
    qkv_bias = first.W_query.bias is not None
    split = MultiHeadAttention(d_in, d_out, first.future.shape[-1], len(heads), first.dropout.p, qkv_bias)
    split.to(first.W_query.weight)  # its device and dtype
    split.train(stacked.training)
    with torch.no_grad():
        for name in ("W_query", "W_key", "W_value"):
            joined: nn.Linear = getattr(split, name)
            joined.weight.copy_(torch.cat([getattr(head, name).weight for head in heads]))  # H times (D, E) -> (H*D, E)
            if qkv_bias:
                joined.bias.copy_(torch.cat([getattr(head, name).bias for head in heads]))
        if stacked.out_proj is None:
            nn.init.eye_(split.out_proj.weight)
            nn.init.zeros_(split.out_proj.bias)
        else:
            split.out_proj.load_state_dict(stacked.out_proj.state_dict())
    return split


def _future(context_length: int) -> Tensor:
    """(context_length, context_length), True where key j lies after query i."""
    return torch.ones(context_length, context_length, dtype=torch.bool).triu(1)


def _attend(q: Tensor, k: Tensor, v: Tensor, future: Tensor, dropout: nn.Dropout) -> Tensor:
    """(..., L, D) each -> (..., L, D)"""
    L, D = q.shape[-2:]
    context_length = future.shape[-1]
    if context_length < L:
        raise ValueError(f"the input has {L} positions, more than the context_length of {context_length}")
    scores = q @ k.transpose(-2, -1) / math.sqrt(D)  # (..., L, L)
    weights = torch.softmax(scores.masked_fill(future[:L, :L], -math.inf), dim=-1)
    context: Tensor = dropout(weights) @ v
    return context


def _check(x: Tensor, d_in: int) -> None:
    if x.ndim != 3 or x.shape[-1] != d_in:
        hint = ": add a batch axis, x[None]" if x.ndim == 2 else ""
        raise ValueError(f"x must be (B, L, d_in) with d_in = {d_in}, not {tuple(x.shape)}{hint}")


def _head_size(d_out: int, num_heads: int) -> int:
    if num_heads < 1 or d_out % num_heads != 0:
        raise ValueError(f"d_out = {d_out} must be divisible by num_heads = {num_heads}")
    return d_out // num_heads
