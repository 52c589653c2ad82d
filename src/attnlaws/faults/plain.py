"""Attention in torch, in small steps: what the faults of memory, state, results and numbers change.

torch is imported where a function is called, not with this module.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .case import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from torch import Tensor

INF = math.inf


def function(
    name: str, sentence: str, fix: str, law: str, made: Callable[..., Any], *sources: str, same_as: str = ""
) -> Fault:
    """A fault that is no step: a function of torch tensors, and the law whose break says what is wrong."""
    return Fault(name, sentence, fix, sources, function=made, law=law, same_as=same_as)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in the dtype of the computation: float32, or float64 as it is."""
    return tensor if tensor.dtype.itemsize == 8 else tensor.float()


def triangle(scores: Tensor) -> Tensor:
    """The causal triangle of the top left, for scores (..., L, S)."""
    return scores.new_ones(scores.shape[-2:]).bool().tril()


def scores_of(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """scale q k^T."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return wide(query) @ wide(key).transpose(-1, -2) * factor


def hide(scores: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """-inf where a boolean mask is False and after the diagonal; a mask of numbers is added."""
    if mask is not None:
        boolean = not mask.dtype.is_floating_point
        scores = scores.masked_fill(~mask, -INF) if boolean else scores + mask.to(scores.dtype)
    return scores.masked_fill(~triangle(scores), -INF) if causal else scores


def softmax(scores: Tensor) -> Tensor:
    """The softmax over the keys; a row without one is zero."""
    empty = (scores == -INF).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False, scale: float | None = None
) -> Tensor:  # fmt: skip
    """softmax(scale q k^T + mask) v, in the dtype of q."""
    weights = softmax(hide(scores_of(query, key, scale), mask, causal))
    return (weights @ wide(value)).to(query.dtype)
