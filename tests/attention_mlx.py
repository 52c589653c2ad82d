"""Attention functions in MLX, (B, H, L, D): a right one, and wrong ones with one bug each."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np


def plain(query: Any, key: Any, value: Any, mask: Any = None, is_causal: bool = False, scale: Any = None) -> Any:
    """The textbook, float32 inside for 16 bits."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    wide = mx.float64 if query.dtype == mx.float64 else mx.float32
    scores = (query.astype(wide) @ key.astype(wide).swapaxes(-1, -2)) * scale
    hidden = mx.array(-float("inf"), dtype=wide)
    if is_causal:
        scores = mx.where(mx.array(np.tri(query.shape[2], key.shape[2], dtype=bool)), scores, hidden)
    if mask is not None:
        scores = mx.where(mask, scores, hidden)
    return (mx.softmax(scores, axis=-1) @ value.astype(wide)).astype(query.dtype)


def sees_one_more(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    mask = mx.array(np.tri(query.shape[2], key.shape[2], 1, dtype=bool)) if is_causal else None
    return plain(query, key, value, mask)


def no_scale(query: Any, key: Any, value: Any) -> Any:
    return plain(query, key, value, scale=1.0)


def mask_ignored(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    return plain(query, key, value)


def key_without_gradient(query: Any, key: Any, value: Any) -> Any:
    return plain(query, mx.stop_gradient(key), value)


def writes_query(query: Any, key: Any, value: Any) -> Any:
    query[...] = query * query.shape[-1] ** -0.5
    return plain(query, key, value, scale=1.0)


def draws(query: Any, key: Any, value: Any) -> Any:
    mx.random.normal((1,))
    return plain(query, key, value)


#: a wrong function, and a law that it breaks
WRONG = (
    (sees_one_more, "causality.future-keys"),
    (no_scale, "scores.default-scale"),
    (mask_ignored, "masks.sensitivity"),
    (key_without_gradient, "gradients.oracle"),
    (writes_query, "conduct.inputs-untouched"),
    (draws, "conduct.global-state"),
)
