"""Attention functions in keras.ops, (B, L, H, D): a right one, and wrong ones with one bug each."""

from __future__ import annotations

from typing import Any

from keras import ops


def plain(query: Any, key: Any, value: Any, mask: Any = None, is_causal: bool = False, scale: Any = None) -> Any:
    """The textbook, float32 inside for 16 bits."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (ops.cast(x, "float32") for x in (query, key, value))
    scores = ops.einsum("bihd,bjhd->bhij", q, k) * scale
    if is_causal:
        scores = ops.where(ops.tri(query.shape[1], key.shape[1], dtype="bool"), scores, -float("inf"))
    if mask is not None:
        scores = ops.where(mask, scores, -float("inf"))
    return ops.cast(ops.einsum("bhij,bjhd->bihd", ops.softmax(scores, axis=-1), v), query.dtype)


def sees_one_more(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    mask = ops.tri(query.shape[1], key.shape[1], 1, dtype="bool") if is_causal else None
    return plain(query, key, value, mask)


def scale_by_the_width(query: Any, key: Any, value: Any) -> Any:
    return plain(query, key, value, scale=1.0 / query.shape[-1])


def mask_ignored(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    return plain(query, key, value)


def no_gradient_by_key(query: Any, key: Any, value: Any) -> Any:
    return plain(query, ops.stop_gradient(key), value)


#: a wrong function, and a law that it breaks
WRONG = (
    (sees_one_more, "causality.future-keys"),
    (scale_by_the_width, "scores.default-scale"),
    (mask_ignored, "masks.sensitivity"),
    (no_gradient_by_key, "gradients.oracle"),
)
