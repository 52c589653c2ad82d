"""Attention functions in JAX, (B, L, H, D): right ones in several styles, wrong ones with one bug each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def plain(query: Any, key: Any, value: Any, mask: Any = None, is_causal: bool = False, scale: Any = None) -> Any:
    """The textbook, float32 inside for 16 bits."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.einsum("bihd,bjhd->bhij", query.astype(wide), key.astype(wide)) * scale
    if is_causal:
        scores = jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, -jnp.inf)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(scores, -1), value.astype(wide)).astype(query.dtype)


@jax.jit
def jitted(query: Any, key: Any, value: Any) -> Any:
    """Compiled by its author."""
    return plain(query, key, value)


def by_key(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    """One key at a time, with a running maximum: a scan."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    rows = jnp.arange(query.shape[1])[None, :, None]

    def step(carry: Any, item: Any) -> Any:
        largest, total, output = carry
        index, k, v = item
        score = jnp.einsum("bihd,bhd->bih", query.astype(wide), k.astype(wide)) * query.shape[-1] ** -0.5
        score = jnp.where(rows >= index, score, -jnp.inf) if is_causal else score
        new = jnp.maximum(largest, score)
        safe = jnp.where(jnp.isfinite(new), new, 0.0)
        old, now = jnp.exp(largest - safe), jnp.exp(score - safe)
        return (new, total * old + now, output * old[..., None] + now[..., None] * v[:, None].astype(wide)), None

    start = jnp.full(query.shape[:3], -jnp.inf, wide)
    carry = (start, jnp.zeros_like(start), jnp.zeros((*query.shape[:3], value.shape[-1]), wide))
    items = (jnp.arange(key.shape[1]), key.swapaxes(0, 1), value.swapaxes(0, 1))
    (_, total, output), _ = jax.lax.scan(step, carry, items)
    return (output / total[..., None]).astype(query.dtype)


RIGHT = (plain, jitted, by_key)


def sees_one_more(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    mask = jnp.tri(query.shape[1], key.shape[1], 1, dtype=bool) if is_causal else None
    return plain(query, key, value, mask)


def no_scale(query: Any, key: Any, value: Any) -> Any:
    return plain(query, key, value, scale=1.0)


def scale_ignored(query: Any, key: Any, value: Any, scale: Any = None) -> Any:
    return plain(query, key, value)


def mask_on_weights(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    """The mask multiplies after the softmax, and the rest is not normalised again."""
    scores = jnp.einsum("bihd,bjhd->bhij", query, key) * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores, -1)
    weights = weights if mask is None else jnp.where(mask, weights, 0.0)
    return jnp.einsum("bhij,bjhd->bihd", weights, value).astype(query.dtype)


def softmax_over_queries(query: Any, key: Any, value: Any) -> Any:
    scores = jnp.einsum("bihd,bjhd->bhij", query, key) * query.shape[-1] ** -0.5
    return jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(scores, -2), value).astype(query.dtype)


@jax.custom_vjp
def _without_max(scores: Any) -> Any:
    return jax.nn.softmax(scores, -1)


def _backward(weights: Any, above: Any) -> Any:
    return (weights * above,)  # the sum over the row is missing


_without_max.defvjp(lambda scores: (jax.nn.softmax(scores, -1),) * 2, _backward)


def wrong_gradient(query: Any, key: Any, value: Any) -> Any:
    scores = jnp.einsum("bihd,bjhd->bhij", query, key) * query.shape[-1] ** -0.5
    return jnp.einsum("bhij,bjhd->bihd", _without_max(scores), value).astype(query.dtype)


def noisy(query: Any, key: Any, value: Any) -> Any:
    """Other bits at each call: the noise comes from NumPy's global generator, while JAX traces."""
    return plain(query, key, value) * (1.0 + 1e-3 * np.random.standard_normal())


def leaks_tail(query: Any, key: Any, value: Any) -> Any:
    """Tiles of 16 keys; the last, partial tile is filled with zeros that are attended."""
    width = -key.shape[1] % 16
    pad = ((0, 0), (0, width if key.shape[1] > 16 else 0), (0, 0), (0, 0))
    return plain(query, jnp.pad(key, pad), jnp.pad(value, pad))


#: a wrong function, and a law that it breaks
WRONG = (
    (sees_one_more, "causality.future-keys"),
    (no_scale, "scores.default-scale"),
    (scale_ignored, "scores.scale-argument"),
    (mask_on_weights, "weights.row-stochastic"),
    (softmax_over_queries, "weights.row-stochastic"),
    (wrong_gradient, "gradients.oracle"),
    (leaks_tail, "weights.row-stochastic"),
)
