"""The feed-forward part of a layer: plain, or with a gate. Letters in shapes: B batch, L length, E width, F inner width."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

#: by the names that transformers uses: "gelu" is x Phi(x) (BERT), "gelu_new" its approximation by tanh (GPT-2)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def activation_function(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name. Sources: GELU arXiv:1606.08415, SiLU arXiv:1702.03118."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {name!r}")
    return ACTIVATIONS[name]


class FeedForward(nn.Module):
    """f(x W1 + b1) W2 + b2, (B, L, E) -> (B, L, E)          arXiv:1706.03762, section 3.3

    `dropout` is between the two, as T5 has it.
    """

    def __init__(self, d_model: int, d_ff: int, activation: str, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.c_fc = nn.Linear(d_model, d_ff, bias=bias)
        self.c_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = activation_function(activation)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.activation(self.c_fc(x))  # (B, L, E) -> (B, L, F)
        output: Tensor = self.c_proj(self.dropout(inner))  # (B, L, F) -> (B, L, E)
        return output


class GatedFeedForward(nn.Module):
    """(f(x W_gate) * x W_up) W_down, (B, L, E) -> (B, L, E): SwiGLU for silu, GEGLU for gelu          arXiv:2002.05202

    `dropout` is before W_down, as T5 has it.
    """

    def __init__(self, d_model: int, d_ff: int, activation: str, *, bias: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = activation_function(activation)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.activation(self.gate_proj(x)) * self.up_proj(x)  # (B, L, E) -> (B, L, F)
        output: Tensor = self.down_proj(self.dropout(inner))  # (B, L, F) -> (B, L, E)
        return output
