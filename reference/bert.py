"""BERT: an encoder that sees both sides, and gives the logits of the token that belongs at each position.

    x = LayerNorm(embedding[token] + position + segment)
    x = LayerNorm(x + attention(x))
    x = LayerNorm(x + feed_forward(x))                                 for each layer
    logits = LayerNorm(gelu(W x + b)) embedding^T + bias               the masked language model's head

To train it, tokens (B, L) being any numbers below vocab_size:

    >>> import torch
    >>> from attnlaws.reference import bert, objectives
    >>> tokens = torch.randint(99, (2, 16))
    >>> model = bert.Bert(bert.BertConfig(vocab_size=100, d_model=24, num_heads=3, num_layers=2, d_ff=96))
    >>> inputs, labels = objectives.mask_tokens(tokens, mask_id=99, vocab_size=100, special=tokens == 0)
    >>> objectives.token_loss(model(inputs), labels).backward()

Source: Devlin et al. 2018, arXiv:1810.04805, section 3, and its released code. The head for the next sentence is left out.
Letters in shapes: B batch, L length, H heads, D head size, E width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .attention import attention
from .feed_forward import FeedForward, activation_function
from .initialise import bert_
from .masks import check_positions, check_tokens, visible


@dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT; BERT base, uncased, if nothing is said. d_ff does not follow d_model: set it."""

    vocab_size: int = 30522
    context_length: int = 512
    num_segments: int = 2
    d_model: int = 768
    num_layers: int = 12
    num_heads: int = 12
    d_ff: int = 3072
    activation: str = "gelu"
    eps: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.num_heads < 1 or self.d_model % self.num_heads:
            raise ValueError(f"d_model = {self.d_model} must be divisible by num_heads = {self.num_heads}")


class SelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(D)) V for each head over all tokens that are no padding: (B, L, E) -> (B, L, E)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        E = config.d_model
        self.query, self.key, self.value = nn.Linear(E, E), nn.Linear(E, E), nn.Linear(E, E)
        self.output = nn.Linear(E, E)
        self.num_heads, self.attention_dropout = config.num_heads, config.attention_dropout

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = self._split(self.query(x)), self._split(self.key(x)), self._split(self.value(x))
        dropout_p = self.attention_dropout if self.training else 0.0
        context = attention(q, k, v, attn_mask=seen, dropout_p=dropout_p)  # (B, H, L, D)
        output: Tensor = self.output(context.transpose(1, 2).flatten(2))  # (B, H, L, D) -> (B, L, H, D) -> (B, L, E)
        return output

    def _split(self, x: Tensor) -> Tensor:
        B, L, E = x.shape
        heads = x.view(B, L, self.num_heads, E // self.num_heads)  # (B, L, E) -> (B, L, H, D)
        return heads.transpose(1, 2)  # -> (B, H, L, D)


class Layer(nn.Module):
    """A layer, the norms after its parts (post-LayerNorm): (B, L, E) -> (B, L, E)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.d_model, eps=config.eps)
        self.mlp = FeedForward(config.d_model, config.d_ff, config.activation)
        self.mlp_norm = nn.LayerNorm(config.d_model, eps=config.eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, seen)))
        normed: Tensor = self.mlp_norm(x + self.dropout(self.mlp(x)))
        return normed


class Bert(nn.Module):
    """tokens (B, L) -> logits (B, L, V). Weights are BERT's initial ones, drawn with the generator."""

    def __init__(self, config: BertConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        E = config.d_model
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, E)
        self.position = nn.Embedding(config.context_length, E)
        self.segment = nn.Embedding(config.num_segments, E)
        self.embedding_norm = nn.LayerNorm(E, eps=config.eps)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.transform = nn.Linear(E, E)
        self.transform_norm = nn.LayerNorm(E, eps=config.eps)
        self.lm_head = nn.Linear(E, config.vocab_size)
        self.lm_head.weight = self.embedding.weight
        self.activation = activation_function(config.activation)
        bert_(self, generator)

    def forward(
        self,
        tokens: Tensor,
        *,
        attention_mask: Tensor | None = None,
        segments: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """The logits of the token at each position.

        attention_mask (B, L) is 1 for tokens and 0 for padding, which is not seen. segments (B, L) are 0 for sentence A
        and 1 for B; all 0 where None. Positions are 0 to L - 1 unless position_ids (B, L) says otherwise.
        """
        B, L = tokens.shape[0], tokens.shape[-1]
        check_tokens(tokens, self.config.vocab_size, attention_mask=attention_mask)
        if segments is None:
            segments = torch.zeros_like(tokens)
        elif segments.shape != tokens.shape:
            raise ValueError(f"segments must be (B, L) = {(B, L)}, not {tuple(segments.shape)}")
        check_tokens(segments, self.config.num_segments, name="segments")
        if self.config.context_length < L:
            raise ValueError(f"tokens have {L} positions, more than context_length = {self.config.context_length}")
        if position_ids is None:
            position_ids = torch.arange(L, device=tokens.device)[None]
        else:
            check_positions(position_ids, tokens, self.config.context_length)
        seen = visible(L, L, causal=False, attention_mask=attention_mask, device=tokens.device)  # (1 or B, 1, L, L)
        x = self.embedding(tokens) + self.position(position_ids) + self.segment(segments)  # (B, L) -> (B, L, E)
        x = self.dropout(self.embedding_norm(x))
        for layer in self.layers:
            x = layer(x, seen)
        x = self.transform_norm(self.activation(self.transform(x)))
        logits: Tensor = self.lm_head(x)  # (B, L, E) -> (B, L, V)
        return logits
