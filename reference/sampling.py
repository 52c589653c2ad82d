"""From logits to the next token: temperature, the k most likely, the smallest set that holds p."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def probabilities(
    logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """softmax(logits / temperature), of the k most likely tokens, of the fewest of these that hold p together.

    logits (..., V), -inf for a token that can't be; the result has their shape, in float32 at least, and each row
    sums to 1. Temperature 0 is the limit: 1 for the largest logit. Tokens are ranked by logit, and among equal ones
    the lower index comes first: so exactly k are kept, and temperature 0 gives one. top_p is applied to what top_k
    left, normalised again, and keeps a token while those ranked before it hold less than p.

    Sources: top-k arXiv:1805.04833; top-p (nucleus) arXiv:1904.09751. ValueError for options out of range and
    for logits that are NaN, +inf, or -inf in a whole row.
    """
    _check(logits, temperature, top_k, top_p)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    ranked, order = torch.sort(wide, dim=-1, descending=True, stable=True)
    shifted = ranked - ranked[..., :1]  # the largest is 0: no overflow for a small temperature
    if temperature == 0:
        chances = torch.zeros_like(shifted)
        chances[..., 0] = 1
    else:
        scaled = torch.where(shifted == 0, 0.0, shifted / temperature)
        if top_k is not None:
            scaled[..., top_k:] = -math.inf
        chances = torch.softmax(scaled, dim=-1)
        if top_p is not None and top_p < 1:
            before = torch.cat([torch.zeros_like(chances[..., :1]), chances.cumsum(dim=-1)[..., :-1]], dim=-1)
            chances = chances.masked_fill(before >= top_p, 0.0)
            chances = chances / chances.sum(dim=-1, keepdim=True)
    return torch.zeros_like(chances).scatter(-1, order, chances)


def sample(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One token a row, drawn from `probabilities`: (..., V) -> (...). The generator lives on the logits' device."""
    chances = probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    drawn = torch.multinomial(chances.reshape(-1, chances.shape[-1]), 1, generator=generator)  # (..., V) -> (N, V)
    return drawn.reshape(chances.shape[:-1])


def _check(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if logits.ndim < 1 or logits.shape[-1] == 0 or not logits.is_floating_point():
        raise ValueError(f"logits must be floats (..., V) with V at least 1, not {logits.dtype} {tuple(logits.shape)}")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature must be finite and at least 0 (the most likely token), not {temperature}")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise ValueError(f"top_k must be a count, at least 1, or None for all, not {top_k!r}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1], or be None for all, not {top_p}")
    if not logits.is_meta and not bool(logits.amax(dim=-1).isfinite().all()):  # amax of a NaN is NaN
        raise ValueError("logits must have a finite largest value in each row, and be neither NaN nor +inf")
