"""Which keys each query sees, where tokens stand beside padding, and whether tokens can be looked up.

Letters in shapes: B batch, L new tokens, S keys, those of earlier passes included. The new tokens are the last L keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


def visible(
    queries: int,
    keys: int,
    *,
    causal: bool,
    window: int | None = None,
    attention_mask: Tensor | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """(1, 1, L, S) or (B, 1, L, S), True where a query sees a key.

    Query i stands at key position S - L + i. Causal is j <= i. A window of w is the last w keys, its own included
    (Mistral, arXiv:2310.06825). attention_mask (B, S or more) is 1 for a token and 0 for padding; its last S columns count.
    """
    i = torch.arange(keys - queries, keys, device=device)[:, None]
    j = torch.arange(keys, device=device)[None, :]
    seen = j <= i if causal else torch.ones(queries, keys, dtype=torch.bool, device=device)
    if window is not None:
        seen = seen & (j > i - window)
    seen = seen[None, None]  # (L, S) -> (1, 1, L, S)
    if attention_mask is not None:
        real = attention_mask[:, attention_mask.shape[1] - keys :].bool()
        seen = seen & real[:, None, None, :]  # (B, S) -> (B, 1, 1, S)
    return seen


def positions(length: int, past: int, attention_mask: Tensor | None, device: torch.device) -> Tensor:
    """The positions of the new tokens, (1, L) or (B, L), from 0 at the first token that is no padding."""
    if attention_mask is None:
        return torch.arange(past, past + length, device=device)[None]
    counted = attention_mask.long().cumsum(dim=1) - 1  # (B, past + L)
    return counted.clamp(min=0)[:, past:]


def check_tokens(
    tokens: Tensor, vocab_size: int, *, past: int = 0, attention_mask: Tensor | None = None, name: str = "tokens"
) -> None:
    """ValueError unless tokens are integers (B, L), L from 1, below vocab_size, and the mask is (B, past + L).

    Values are looked at on the CPU alone: elsewhere this would wait for the device.
    """
    if tokens.ndim != 2 or tokens.shape[1] == 0 or tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise ValueError(f"{name} must be integers (B, L) with L from 1, not {tokens.dtype} {tuple(tokens.shape)}")
    wanted = (tokens.shape[0], past + tokens.shape[1])
    if attention_mask is not None and attention_mask.shape != wanted:
        raise ValueError(
            f"the attention mask of {name} must be (B, tokens before and now) = {wanted}, "
            f"not {tuple(attention_mask.shape)}"
        )
    if tokens.device.type == "cpu" and tokens.numel() and not torch.compiler.is_compiling():
        lowest, highest = int(tokens.min()), int(tokens.max())
        if lowest < 0 or highest >= vocab_size:
            raise ValueError(f"{name} must lie in [0, vocab_size = {vocab_size}), not in [{lowest}, {highest}]")
