"""T5: an encoder reads a text, and a decoder writes another, seeing the encoder's output at each layer.

    x = x + attention(RMSNorm(x))                  scores Q K^T + bias[bucket of the distance], without 1/sqrt(D)
    x = x + attention(RMSNorm(x), memory)          in the decoder: keys and values from the encoder's output
    x = x + feed_forward(RMSNorm(x))               for each layer
    logits = embedding RMSNorm(x) / sqrt(E)        where tied; lm_head RMSNorm(x) where not

The bias is one table a stack, which all of its layers share; attention over the memory has none.

To train it on one text of numbers below 90, the ids above being sentinels:

    >>> import torch
    >>> from attnlaws.reference import objectives, t5
    >>> model = t5.T5(t5.T5Config(vocab_size=100, d_model=24, num_heads=3, d_head=8, num_layers=2, d_ff=96))
    >>> example = objectives.corrupt_spans(torch.arange(60), objectives.span_mask(60), first_sentinel=99)
    >>> inputs, labels, mask = objectives.stack_examples([example])
    >>> read = objectives.shift_right(labels, model.config.start_id)
    >>> objectives.token_loss(model(inputs, read, attention_mask=mask), labels).backward()

Source: Raffel et al. 2019, arXiv:1910.10683, section 2.1, and its code; gated feed-forward parts arXiv:2002.05202 (T5 1.1).
Letters in shapes: B batch, L queries, S keys, T source tokens, H heads, D head size, E width, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .attention import attention
from .cache import Cache
from .feed_forward import FeedForward, GatedFeedForward
from .generation import check_count
from .initialise import t5_
from .masks import check_mask, check_tokens, visible
from .norms import RMSNorm
from .positions import relative_buckets
from .sampling import sample


@dataclass(frozen=True)
class T5Config:
    """The sizes of a T5; T5 small if nothing is said. T5 1.1 is gated, with gelu_new, and not tied.

    d_ff does not follow d_model: set it. start_id is the token that the decoder reads first, which is T5's padding.
    """

    vocab_size: int = 32128
    d_model: int = 512
    d_head: int = 64
    num_heads: int = 8
    d_ff: int = 2048
    num_layers: int = 6
    num_decoder_layers: int | None = None
    num_buckets: int = 32
    max_distance: int = 128
    activation: str = "relu"
    gated: bool = False
    tied: bool = True
    eps: float = 1e-6
    dropout: float = 0.1
    start_id: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.start_id < self.vocab_size:
            raise ValueError(f"start_id must lie in [0, vocab_size = {self.vocab_size}), not {self.start_id}")

    @property
    def decoder_layers(self) -> int:
        """As many as the encoder's where nothing is said."""
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers


class Attention(nn.Module):
    """softmax(Q K^T + bias) V for each head, (B, L, E) -> (B, L, E): over the input, or over the memory."""

    def __init__(self, config: T5Config, layer: int) -> None:
        super().__init__()
        inner = config.num_heads * config.d_head
        self.q = nn.Linear(config.d_model, inner, bias=False)
        self.k = nn.Linear(config.d_model, inner, bias=False)
        self.v = nn.Linear(config.d_model, inner, bias=False)
        self.o = nn.Linear(inner, config.d_model, bias=False)
        self.d_head, self.layer, self.dropout = config.d_head, layer, config.dropout

    def forward(self, x: Tensor, bias: Tensor, cache: Cache | None) -> Tensor:
        k, v = self._split(self.k(x)), self._split(self.v(x))  # (B, H, L, D)
        if cache is not None:
            k, v = cache.extend(self.layer, k, v)  # (B, H, S, D)
        return self._attend(x, k, v, bias)

    def over(self, x: Tensor, memory: Tensor, seen: Tensor, cache: Cache | None) -> Tensor:
        """Cross-attention: keys and values of memory (B, T, E), computed once where there is a cache, and used for good."""
        kept = None if cache is None else cache.memory[self.layer]
        if kept is None:
            kept = self._split(self.k(memory)), self._split(self.v(memory))  # (B, H, T, D)
            if cache is not None:
                cache.memory[self.layer] = kept
        return self._attend(x, *kept, seen)

    def _attend(self, x: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        q = self._split(self.q(x))  # (B, H, L, D)
        if mask.is_floating_point():
            mask = mask.to(q.dtype)  # under autocast q is narrower than x
        dropout_p = self.dropout if self.training else 0.0
        context = attention(q, k, v, attn_mask=mask, scale=1.0, dropout_p=dropout_p)  # (B, H, L, D)
        output: Tensor = self.o(context.transpose(1, 2).flatten(2))  # (B, H, L, D) -> (B, L, H*D) -> (B, L, E)
        return output

    def _split(self, x: Tensor) -> Tensor:
        B, L, inner = x.shape
        heads = x.view(B, L, inner // self.d_head, self.d_head)  # (B, L, H*D) -> (B, L, H, D)
        return heads.transpose(1, 2)  # -> (B, H, L, D)


class Layer(nn.Module):
    """A layer of the encoder, or of the decoder with its cross-attention; the norms before the parts."""

    def __init__(self, config: T5Config, layer: int, *, decoder: bool) -> None:
        super().__init__()
        E, gated = config.d_model, config.gated
        self.attention_norm, self.attention = RMSNorm(E, config.eps), Attention(config, layer)
        if decoder:
            self.cross_norm, self.cross = RMSNorm(E, config.eps), Attention(config, layer)
        kind = GatedFeedForward if gated else FeedForward
        self.mlp_norm = RMSNorm(E, config.eps)
        self.mlp = kind(E, config.d_ff, config.activation, bias=False, dropout=config.dropout)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        bias: Tensor,
        memory: Tensor | None = None,
        memory_seen: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), bias, cache))
        if memory is not None and memory_seen is not None:
            x = x + self.dropout(self.cross.over(self.cross_norm(x), memory, memory_seen, cache))
        output: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return output


class Stack(nn.Module):
    """The encoder or the decoder: embedded tokens (B, L, E) -> (B, L, E)."""

    def __init__(self, config: T5Config, *, decoder: bool) -> None:
        super().__init__()
        self.config, self.decoder = config, decoder
        layers = config.decoder_layers if decoder else config.num_layers
        self.relative_bias = nn.Embedding(config.num_buckets, config.num_heads)
        self.layers = nn.ModuleList(Layer(config, layer, decoder=decoder) for layer in range(layers))
        self.norm = RMSNorm(config.d_model, config.eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        memory: Tensor | None = None,
        memory_seen: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        L = x.shape[1]
        S = L + (0 if cache is None else cache.length)
        seen = visible(L, S, causal=self.decoder, attention_mask=attention_mask, device=x.device)  # (1 or B, 1, L, S)
        bias = self._bias(L, S).to(x.dtype).masked_fill(~seen, -math.inf)  # (1 or B, H, L, S)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, bias, memory, memory_seen, cache)
        normed: Tensor = self.dropout(self.norm(x))
        return normed

    def _bias(self, L: int, S: int) -> Tensor:
        i = torch.arange(S - L, S, device=self.relative_bias.weight.device)[:, None]
        j = torch.arange(S, device=i.device)[None, :]
        buckets = relative_buckets(
            j - i,
            bidirectional=not self.decoder,
            num_buckets=self.config.num_buckets,
            max_distance=self.config.max_distance,
        )
        table: Tensor = self.relative_bias(buckets)
        return table.permute(2, 0, 1)[None]  # (L, S, H) -> (1, H, L, S)


class T5(nn.Module):
    """source (B, T) and target so far (B, L) -> logits (B, L, V). Weights are T5's initial ones, drawn with the generator."""

    def __init__(self, config: T5Config, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = Stack(config, decoder=False)
        self.decoder = Stack(config, decoder=True)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.embedding.weight
        t5_(self, config.d_head, generator)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        attention_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """The logits of the token after each of target, which begins with the start token: `objectives.shift_right`.

        attention_mask (B, T) and target_mask (B, L) are 1 for tokens and 0 for padding, which is not seen.
        """
        memory = self.encode(source, attention_mask=attention_mask)
        return self.decode(target, memory, attention_mask=attention_mask, target_mask=target_mask)

    def encode(self, source: Tensor, *, attention_mask: Tensor | None = None) -> Tensor:
        """(B, T) -> the memory (B, T, E)."""
        check_tokens(source, self.config.vocab_size, attention_mask=attention_mask, name="source")
        memory: Tensor = self.encoder(self.embedding(source), attention_mask)
        return memory

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        *,
        attention_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """(B, L) and memory (B, T, E) -> logits (B, L, V). attention_mask (B, T) is the memory's, target_mask (B, S) that
        of all tokens of the target, those in the cache included. With a cache only new tokens are given, and the memory of the
        first call is used for good, whatever is given later: for another source take a new cache. attention_mask is not kept,
        and is to be given each time. ValueError for a memory or a mask of another shape.
        """
        past = 0 if cache is None else cache.length
        check_tokens(target, self.config.vocab_size, past=past, attention_mask=target_mask, name="target")
        if memory.ndim != 3 or len(memory) != len(target):
            raise ValueError(f"memory must be (B, T, E) with B = {len(target)} as target's, not {tuple(memory.shape)}")
        if attention_mask is not None:
            check_mask(attention_mask, (len(memory), memory.shape[1]), "the attention mask of memory", "(B, T)")
        if cache is not None:
            cache.check(self.config.decoder_layers)
            kept = cache.memory[0]
            if kept is not None and (kept[0].shape[0], kept[0].shape[2]) != memory.shape[:2]:
                read = (kept[0].shape[0], kept[0].shape[2])
                raise ValueError(
                    f"memory has (B, T) = {tuple(memory.shape[:2])}, but the cache has read one of {read}: "
                    "take a new_cache() for another source"
                )
        memory_seen = visible(
            target.shape[1], memory.shape[1], causal=False, attention_mask=attention_mask, device=target.device
        )  # (1 or B, 1, L, T)
        x = self.decoder(self.embedding(target), target_mask, memory, memory_seen, cache)
        if self.config.tied:
            x = x / math.sqrt(self.config.d_model)
        logits: Tensor = self.lm_head(x)  # (B, L, E) -> (B, L, V)
        return logits

    def new_cache(self) -> Cache:
        """An empty cache for the decoder."""
        return Cache(self.config.decoder_layers)

    @torch.no_grad()
    def generate(
        self,
        source: Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        stop_id: int | None = None,
        attention_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """What the decoder writes, after the start token: (B, 1 + n), so that the text is [:, 1:].

        Options as in `generation.generate`, but for use_cache: the decoder always has a cache. attention_mask is the source's.
        """
        check_count(max_new_tokens)
        memory, cache = self.encode(source, attention_mask=attention_mask), self.new_cache()
        written = torch.full_like(source[:, :1], self.config.start_id)
        stopped = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        for _ in range(max_new_tokens):
            logits = self.decode(written[:, -1:], memory, attention_mask=attention_mask, cache=cache)
            drawn = sample(logits[:, -1], temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
            if stop_id is not None:
                drawn = drawn.masked_fill(stopped, stop_id)
                stopped = stopped | (drawn == stop_id)
            written = torch.cat([written, drawn[:, None].to(written.dtype)], dim=1)  # (B, 1 + n) -> (B, 2 + n)
            if stop_id is not None and bool(stopped.all()):
                break
        return written
