"""The keys and values of the tokens that a model has read, so that it need not read them again.

Letters in shapes: B batch, H key heads, L new tokens, S keys kept, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Cache:
    """Keys and values (B, H, S, D) of each layer. A model extends it as it reads.

    Its tensors are never written to: extend replaces them by longer ones, so that forks can share them. With a window only the
    last `window` keys are kept: a query sees no others. `memory` is T5's: the keys and values of the encoder's output, which
    the decoder computes once; elsewhere it stays empty.
    """

    def __init__(self, num_layers: int, *, window: int | None = None) -> None:
        if num_layers < 1 or (window is not None and window < 1):
            raise ValueError(f"num_layers and window must be at least 1, not {num_layers} and {window}")
        self.window = window
        self.kept: list[tuple[Tensor, Tensor] | None] = [None] * num_layers
        self.memory: list[tuple[Tensor, Tensor] | None] = [None] * num_layers
        self.read = [0] * num_layers  # tokens so far, those no longer kept included

    @property
    def length(self) -> int:
        """How many tokens were read."""
        return self.read[0]

    @property
    def keys_kept(self) -> int:
        """How many of them have keys here."""
        first = self.kept[0]
        return 0 if first is None else first[0].shape[2]

    def check(self, num_layers: int, window: int | None = None) -> None:
        """ValueError unless it fits a model of so many layers, each with this window: another model's cache does not."""
        if len(self.kept) != num_layers:
            raise ValueError(
                f"the cache has {len(self.kept)} layers and the model {num_layers}: make it with the model's new_cache()"
            )
        if self.window is not None and (window is None or self.window < window):
            raise ValueError(
                f"the cache keeps {self.window} keys, but the model sees {window or 'all'}: "
                "make it with the model's new_cache()"
            )

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, H, L, D) to a layer, and give all that the new queries may need: (B, H, S, D) each."""
        if layer >= len(self.kept):
            raise ValueError(f"the cache has {len(self.kept)} layers, but the model more: make it with new_cache()")
        before, L = self.kept[layer], key.shape[2]
        if before is not None:
            for name, new, old in (("key", key, before[0]), ("value", value, before[1])):
                if (*new.shape[:2], new.shape[3]) != (*old.shape[:2], old.shape[3]):
                    raise ValueError(
                        f"{name} is (B, H, L, D) = {tuple(new.shape)}, but the cache holds {tuple(old.shape)}: "
                        "batch, heads and head size must be the same"
                    )
            key = torch.cat([before[0], key], dim=2)
            value = torch.cat([before[1], value], dim=2)
        self.read[layer] += L
        first = 0 if self.window is None else max(0, key.shape[2] - self.window)
        self.kept[layer] = (key[:, :, first:], value[:, :, first:])
        return key, value

    def crop(self, length: int) -> None:
        """Forget all but the first `length` tokens. ValueError where the window has dropped keys that would be needed."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length must lie in [0, {self.length}], the tokens read, not {length}")
        dropped = self.length - self.keys_kept
        needed = 0 if self.window is None or length == 0 else max(0, length + 1 - self.window)
        if length and dropped > needed:
            raise ValueError(
                f"length must be 0 or at least {dropped + (self.window or 1) - 1}: the window dropped keys before"
            )
        stop = max(0, length - dropped)
        self.kept = [None if not stop or kv is None else (kv[0][:, :, :stop], kv[1][:, :, :stop]) for kv in self.kept]
        self.read = [length] * len(self.read)

    def reorder(self, rows: Tensor) -> None:
        """Make batch row b what row rows[b] was, as beam search does; rows (B',) of integers."""
        self.kept = [None if kv is None else (kv[0][rows], kv[1][rows]) for kv in self.kept]
        self.memory = [None if kv is None else (kv[0][rows], kv[1][rows]) for kv in self.memory]

    def fork(self) -> Cache:
        """Another cache that has read the same; the two go on apart."""
        other = Cache(len(self.kept), window=self.window)
        other.kept, other.memory, other.read = list(self.kept), list(self.memory), list(self.read)
        return other

    def reset(self) -> None:
        """As new."""
        self.crop(0)
        self.memory = [None] * len(self.memory)
