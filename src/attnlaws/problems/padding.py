"""Which tokens of a layer's or a model's problem are real."""

from __future__ import annotations

import numpy as np

from ..targets.call import BoolArray

PADDINGS = ("none", "right", "left", "random")


def real_tokens(rng: np.random.Generator, padding: str, batch: int, length: int) -> BoolArray:
    """Which tokens are real (B, L): the first, the last or some, another number in each sample, and at least one."""
    counts = rng.integers(1, length + 1, batch)
    if length > 1:
        counts[0] = min(counts[0], length - 1)
    place = np.arange(length)
    if padding == "right":
        return np.asarray(place < counts[:, None])
    if padding == "left":
        return np.asarray(place >= length - counts[:, None])
    return np.asarray(rng.permuted(np.broadcast_to(place, (batch, length)), axis=1) < counts[:, None])
