"""Faults of caches of keys and values: what is kept, and what cropping, reordering, copying and resetting do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .fault import ModelFault
from .small import SmallGPT
from .variants import Cache, EvictingCache, EvictingGPT, ObjectCacheForCausalLM, RotaryGPT


class KeysForValues(SmallGPT):
    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, k


class TriangleAtTheFirstKey(SmallGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        return torch.arange(length)[:, None] < torch.arange(total)[None, :]


class ChunkWithoutMask(SmallGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        return super().hidden(length, total) & (length == total)


class CacheHidden(SmallGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        hidden = super().hidden(length, total)
        hidden[:, : total - length] = True
        return hidden


class RolledTooEarly(EvictingGPT):
    def forward(self, idx: Tensor, cache: EvictingCache | None = None) -> Tensor:  # type: ignore[override]
        logits = super().forward(idx, cache)
        if cache is not None and cache.layers[0][0].shape[2] == 3:
            cache.layers = {n: (k[:, :, 1:], v[:, :, 1:]) for n, (k, v) in cache.layers.items()}
        return logits


class WindowForgotten(SmallGPT):
    window, positions = 4, "rotary"

    def hidden(self, length: int, total: int) -> Tensor:
        return super().hidden(length, total) if length == total else self.distance(length, total) < 0


class CacheOfOneBlock(RotaryGPT):
    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k[:, :, -64:], v[:, :, -64:]


class TurnedAgain(RotaryGPT):
    def extend(self, past: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if past is None:
            return k, v
        ones = torch.ones(past[0].shape[0], past[0].shape[2], dtype=torch.long)
        return torch.cat([self.rotate(past[0], ones), k], 2), torch.cat([past[1], v], 2)


class CacheOfTheFirstSample(SmallGPT):
    def extend(self, past: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return super().extend(past and tuple(t[:1].expand(k.shape[0], -1, -1, -1) for t in past), k, v)


class LastTokenOverwritten(SmallGPT):
    def extend(self, past: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if past is None or past[0].shape[2] < 2:
            return super().extend(past, k, v)
        k, v = super().extend(past, k, v)
        n = past[0].shape[2] - 1
        keep = [i for i in range(k.shape[2]) if i != n]
        pad = k[:, :, :1], v[:, :, :1]
        return torch.cat([pad[0], k[:, :, keep]], 2), torch.cat([pad[1], v[:, :, keep]], 2)


class CacheWithoutMask(SmallGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None or hidden.shape[0] == hidden.shape[1]:
            return super().masked(hidden, mask)
        return hidden[None, None]


class WrongCrop(Cache):
    """Keeps one token too many."""

    def crop(self, length: int) -> None:
        super().crop(length + 1)


class CropToNothing(Cache):
    """Starts anew."""

    def crop(self, length: int) -> None:
        self.layers = []


class KeysReordered(Cache):
    """Values stay where they were."""

    def reorder_cache(self, order: Tensor) -> None:
        self.layers = [(k[order], v) for k, v in self.layers]


class FirstLayerReordered(Cache):
    """The other layers stay."""

    def reorder_cache(self, order: Tensor) -> None:
        self.layers[0] = tuple(t[order] for t in self.layers[0])  # type: ignore[assignment]


class NeverReset(Cache):
    """Stays as it is."""

    def reset(self) -> None:
        return


class LengthOneTooMany(Cache):
    """Counts the next token."""

    def get_seq_length(self) -> int:
        return super().get_seq_length() + 1


class SharedCache(Cache):
    """All copies share one list."""

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def with_cache(kind: type[Cache]) -> Callable[[], nn.Module]:
    """A model with an object of this kind as its cache."""

    class WithCache(ObjectCacheForCausalLM):
        def forward(self, input_ids: Tensor, past_key_values: Any = None, use_cache: bool = False) -> dict[str, Any]:  # type: ignore[override]
            cache = kind() if past_key_values is None else past_key_values
            logits, present = self.compute(input_ids, past=cache.layers or None)
            cache.layers = list(present)
            return {"logits": logits, "past_key_values": cache if use_cache else None}

    return WithCache


class CacheThatAllShare(SmallGPT):
    def forward(self, idx: Tensor, use_cache: bool = False, past: list[Any] = []) -> Any:  # type: ignore[override] # noqa: B006  # type: ignore[override]
        logits, present = self.compute(idx, past=past or None)
        if use_cache:
            past[:] = present
            return logits, past
        return logits


FAULTS: tuple[ModelFault, ...] = (
    ModelFault("cached keys for values", "the cache keeps the keys as values too", "append the new keys and values to their own caches along the length", ("awslabs/sockeye#731",), "cache.equals-full", KeysForValues),
    ModelFault("chunk triangle at the first key", "the triangle of a chunk begins at the first key, not after the cache", "hide key j from query i where j > i + S - L", (), "cache.equals-full", TriangleAtTheFirstKey),
    ModelFault("chunk without mask", "with a cache there is no mask: tokens of one chunk see those after them", "hide key j from query i where j > i + S - L", (), "cache.equals-full", ChunkWithoutMask),
    ModelFault("cache of one block", "the cache keeps the last 64 tokens of a text", "append to the cache, and evict what a window no longer sees alone", (), "cache.equals-full", CacheOfOneBlock),
    ModelFault("cache hidden", "the tokens in the cache are hidden from those after it", "show the cache to all new tokens", ("huggingface/candle#3299",), "cache.equals-full", CacheHidden),
    ModelFault("window cache rolled too early", "the window's cache is rolled when it is full, one step too early", "evict where a key is w tokens away", ("huggingface/transformers#37574",), "cache.equals-full", RolledTooEarly),
    ModelFault("window forgotten with a cache", "with a cache the window is not applied", "evict or hide keys from w tokens away on", ("rajveer43/VeloxQuant-MLX#274",), "cache.equals-full", WindowForgotten),
    ModelFault("cached keys turned again", "with each chunk the keys in the cache are turned once more", "turn a key once, before it is cached", (), "cache.equals-full", TurnedAgain),
    ModelFault("cache of the first sample", "the first sample's cache is used for all", "keep a cache for each sample", (), "cache.equals-full", CacheOfTheFirstSample),
    ModelFault("last cached token overwritten", "the next chunk is written over the last token in the cache", "write from the length of the cache on", (), "cache.equals-full", LastTokenOverwritten),
    ModelFault("padding in the cache seen", "the mask covers the new tokens alone, and the padding in the cache is seen", "extend the mask over the cache", (), "cache.batch", CacheWithoutMask),
    ModelFault("crop keeps one more", "a crop keeps one token too many", "cut at the length that is given", (), "cache.script", with_cache(WrongCrop)),
    ModelFault("crop starts anew", "a crop empties the cache", "cut at the length that is given", ("paiml/aprender#2014",), "cache.script", with_cache(CropToNothing)),
    ModelFault("values not reordered", "the keys of the cache are reordered, the values are not", "do it to keys and values of all layers", (), "cache.script", with_cache(KeysReordered)),
    ModelFault("only the first layer reordered", "only the first layer's cache is reordered", "do it to keys and values of all layers", ("awslabs/sockeye#731",), "cache.script", with_cache(FirstLayerReordered)),
    ModelFault("reset does nothing", "a reset leaves everything in the cache", "empty the cache of all layers", (), "cache.script", with_cache(NeverReset)),
    ModelFault("cache length one more", "the cache says that it holds one token too many", "give the length of the keys in it", (), "cache.script", with_cache(LengthOneTooMany)),
    ModelFault("cache copy shared", "a copy of a cache is the cache itself", "copy the tensors and the list", (), "cache.script", with_cache(SharedCache)),
    ModelFault("cache shared by all calls", "the empty cache is a default argument, one list that all calls share", "make a new cache where none is given", (), "cache.equals-full", CacheThatAllShare),
)  # fmt: skip
