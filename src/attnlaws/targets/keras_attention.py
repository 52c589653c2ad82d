"""The attention inside Keras' layers as a function of heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

#: the projections are matrices of H D by H D, so that wide ones take long to make
WIDEST = 2048


def multi_head_attention() -> Callable[..., Any]:
    """The attention inside keras.layers.MultiHeadAttention: its projections are identities, heads go in and out merged."""
    layers: dict[Any, Any] = {}

    def attention(query: Any, key: Any, value: Any, attention_mask: Any = None, use_causal_mask: bool = False) -> Any:
        batch, queries, heads, size = query.shape  # (B, L, H, D)
        merged = [keras.ops.reshape(x, (batch, x.shape[1], heads * size)) for x in (query, key, value)]
        known = (heads, size, keras.backend.standardize_dtype(query.dtype))
        if known not in layers:
            layers[known] = _identity_layer(*known)
        if attention_mask is not None:
            attention_mask = keras.ops.broadcast_to(attention_mask, (batch, heads, queries, key.shape[1]))
        query, key, value = merged
        output = layers[known](query, value, key, attention_mask=attention_mask, use_causal_mask=use_causal_mask)
        return keras.ops.reshape(output, (batch, queries, heads, size))

    return attention


def _identity_layer(heads: int, size: int, dtype: str) -> Any:
    width = heads * size
    if width > WIDEST:
        raise NotImplementedError(f"identity projections of {width} channels are not made")
    layer = keras.layers.MultiHeadAttention(heads, size, use_bias=False, kernel_initializer="zeros", dtype=dtype)
    layer.build((None, None, width), (None, None, width), (None, None, width))
    one = np.eye(width)
    layer.set_weights([*(one.reshape(width, heads, size) for _ in range(3)), one.reshape(heads, size, width)])
    layer.trainable = False
    return layer
