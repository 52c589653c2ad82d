"""Writing on from a prompt, one token at a time."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .cache import Cache
from .masks import check_mask
from .sampling import sample


class LanguageModel(Protocol):
    """tokens (B, L) -> logits (B, L, V), extending a cache."""

    def __call__(
        self, tokens: Tensor, *, attention_mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor: ...

    @property
    def context_length(self) -> int | None:
        """How many tokens it can read; None without end."""

    def new_cache(self) -> Cache:
        """An empty one."""


@torch.no_grad()
def generate(
    model: LanguageModel,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_id: int | None = None,
    attention_mask: Tensor | None = None,
    use_cache: bool = True,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The prompt (B, L) and what follows, (B, L + n), n = max_new_tokens, or fewer where every row has stopped.

    Temperature 0 is greedy. A row that gave `stop_id` goes on with it. Prompts of unlike length are padded on the left,
    with an attention_mask (B, L) of 1 for tokens. The model stays in its mode: call `eval()` first to be without dropout.
    Without the cache each step reads everything again, to the same result. Before anything is written, ValueError for a padded
    last column, and where the context is too short: all tokens but the last new one are read, L + n - 1.
    """
    check_count(max_new_tokens)
    if tokens.ndim != 2:
        hint = ": add a batch axis, tokens[None]" if tokens.ndim == 1 else ""
        raise ValueError(f"tokens must be (B, L), not {tuple(tokens.shape)}{hint}")
    L, N = tokens.shape[1], model.context_length
    if N is not None and max_new_tokens and L + max_new_tokens - 1 > N:
        room = N + 1 - max_new_tokens
        shorter = f"keep the last tokens of the prompt, tokens[:, -{room}:], or " if room > 0 else ""
        raise ValueError(
            f"{L} tokens and {max_new_tokens} new ones are more than context_length = {N} and the last one, which is not read: "
            f"{shorter}generate fewer"
        )
    if attention_mask is not None:
        check_mask(attention_mask, (len(tokens), L), "the attention mask of tokens", "(B, L)")
        if not bool(attention_mask[:, -1].all()):
            raise ValueError("attention_mask must end with 1 in each row: pad prompts on the left")
    cache = model.new_cache() if use_cache else None
    stopped = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    unread = tokens
    for _ in range(max_new_tokens):
        logits = model(unread, attention_mask=attention_mask, cache=cache)  # (B, L, V)
        drawn = sample(logits[:, -1], temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)  # (B,)
        if stop_id is not None:
            drawn = drawn.masked_fill(stopped, stop_id)
            stopped = stopped | (drawn == stop_id)
        tokens = torch.cat([tokens, drawn[:, None].to(tokens.dtype)], dim=1)  # (B, L) -> (B, L + 1)
        if attention_mask is not None:
            attention_mask = torch.cat([attention_mask, attention_mask[:, -1:]], dim=1)
        if stop_id is not None and bool(stopped.all()):
            break
        unread = tokens[:, -1:] if use_cache else tokens
    return tokens


def check_count(max_new_tokens: int) -> None:
    """ValueError below 0."""
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be at least 0, not {max_new_tokens}")
