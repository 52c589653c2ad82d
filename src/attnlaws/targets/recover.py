"""Weights recovered from outputs alone: with V = one-hot rows the output is the weight matrix."""

from __future__ import annotations

import numpy as np

from .call import Array, Call
from .target import Target


def _width(target: Target, keys: int) -> int:
    """A width of V for this many keys: as many, or the next that a target with few head sizes takes."""
    taken = target.abilities.head_dims
    return next((n for n in taken if n >= keys), taken[-1]) if taken else max(keys, 1)


def recover_weights(target: Target, call: Call) -> Array:
    """The weights (B, H, L, S) that the target used, through as many calls as the width of V demands.

    o_ic = sum_j w_ij V_jc = w_ic where V_jc = [j = c]. Exact but for the rounding of the output (and of P, where
    the target rounds it).
    """
    batch, heads, kv_heads, queries, keys, head_dim, _ = call.sizes
    width = _width(target, keys) if target.abilities.value_width else head_dim
    weights = np.empty((batch, heads, queries, keys))
    for start in range(0, keys, width):
        block = np.eye(keys)[:, start : start + width]
        value = np.zeros((batch, kv_heads, keys, width))
        value[..., : block.shape[1]] = block
        answer = target(call.but(value=value))
        weights[..., start : start + width] = answer.output[..., : block.shape[1]]
    return weights
