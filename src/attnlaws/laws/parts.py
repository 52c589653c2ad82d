"""Parts of a call: some of its samples, some of its heads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..targets.call import Call


def take(call: Call, *, batch: slice = slice(None), heads: NDArray[np.intp] | None = None) -> Call:
    """The call of some samples and some query heads, with the key heads that they read (H = Hkv or whole groups)."""
    group = call.query.shape[1] // call.key.shape[1]
    chosen = np.arange(call.query.shape[1]) if heads is None else heads
    kv = chosen[::group] // group

    def cut(mask: NDArray[Any] | None) -> NDArray[Any] | None:
        if mask is None or mask.ndim < 4:
            return mask
        mask = mask if mask.shape[0] == 1 else mask[batch]
        return mask if mask.shape[1] == 1 else mask[:, chosen]

    return call.but(
        query=call.query[batch][:, chosen],
        key=call.key[batch][:, kv],
        value=call.value[batch][:, kv],
        visible=cut(call.visible),
        bias=cut(call.bias),
        slopes=None if call.slopes is None else call.slopes[chosen],
        sinks=None if call.sinks is None else call.sinks[chosen],
        padding=None if call.padding is None else call.padding[batch],
    )
