"""Which keys each query sees, where tokens stand beside padding, and whether tokens, masks and positions fit.

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
    ValueError where it has fewer.
    """
    if attention_mask is not None and (attention_mask.ndim != 2 or attention_mask.shape[1] < keys):
        raise ValueError(f"attention_mask must be (B, {keys} or more), not {tuple(attention_mask.shape)}")
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


def count_positions(length: int, past: int, attention_mask: Tensor | None, device: torch.device) -> Tensor:
    """The positions of the new tokens, (1, L) or (B, L), from 0 at the first token that is no padding."""
    if attention_mask is None:
        return torch.arange(past, past + length, device=device)[None]
    counted = attention_mask.long().cumsum(dim=1) - 1  # (B, past + L)
    return counted.clamp(min=0)[:, past:]


def check_tokens(
    tokens: Tensor, vocab_size: int, *, past: int = 0, attention_mask: Tensor | None = None, name: str = "tokens"
) -> None:
    """ValueError unless tokens are integers (B, L), L at least 1, below vocab_size, and the mask is (B, past + L).

    Values are looked at on the CPU alone: elsewhere this would wait for the device.
    """
    if tokens.ndim != 2 or tokens.shape[1] == 0 or not _integers(tokens):
        hint = f": add a batch axis, {name}[None]" if tokens.ndim == 1 else ""
        raise ValueError(
            f"{name} must be integers (B, L) with L at least 1, not {tokens.dtype} {tuple(tokens.shape)}{hint}"
        )
    if attention_mask is not None:
        wanted = (tokens.shape[0], past + tokens.shape[1])
        check_mask(attention_mask, wanted, f"the attention mask of {name}", "(B, tokens before and now)")
    _check_range(tokens, f"{name} must lie in [0, vocab_size = {vocab_size})", vocab_size)


def check_mask(attention_mask: Tensor, wanted: tuple[int, int], name: str, axes: str) -> None:
    """ValueError unless it is bool or integers, 0 and 1, of the wanted shape.

    An additive mask has 0 for a token and -inf, or a number far below 0, for padding: the opposite.
    """
    if attention_mask.dtype != torch.bool and not _integers(attention_mask):
        raise ValueError(
            "attention_mask must be bool or integers, 1 for tokens and 0 for padding, "
            f"not an additive mask of {attention_mask.dtype}"
        )
    if attention_mask.shape != wanted:
        raise ValueError(f"{name} must be {axes} = {wanted}, not {tuple(attention_mask.shape)}")
    if attention_mask.dtype != torch.bool:
        _check_range(attention_mask, f"{name} must be 1 for tokens and 0 for padding", 2)


def check_positions(position_ids: Tensor, tokens: Tensor, context_length: int | None = None) -> None:
    """ValueError unless position_ids are (B, L), or (L,) or (1, L) for all rows; with a context_length integers below it."""
    B, L = tokens.shape
    if position_ids.shape not in ((L,), (1, L), (B, L)):
        raise ValueError(
            f"position_ids must be (B, L) = {(B, L)}, as tokens, or (1, L) = {(1, L)}, not {tuple(position_ids.shape)}"
        )
    if context_length is not None:
        if not _integers(position_ids):
            raise ValueError(f"position_ids must be integers, not {position_ids.dtype}")
        words = f"position_ids must lie in [0, context_length = {context_length})"
        _check_range(position_ids, words, context_length)


def _integers(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _check_range(x: Tensor, words: str, end: int) -> None:
    if x.device.type == "cpu" and x.numel() and not torch.compiler.is_compiling():
        lowest, highest = int(x.min()), int(x.max())
        if lowest < 0 or highest >= end:
            raise ValueError(f"{words}, not in [{lowest}, {highest}]")
