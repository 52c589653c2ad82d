"""Right models in other conventions than the small ones, for faults to change."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .small import SmallGPT


class RotaryGPT(SmallGPT):
    """Rotary positions, half pairing."""

    positions = "rotary"


class AlibiGPT(SmallGPT):
    """ALiBi, without position ids: padding on the left is as if it were not there."""

    positions = "alibi"

    def forward(self, idx: Tensor, mask: Tensor | None = None, past: Any = None) -> Any:  # type: ignore[override]
        return self.compute(idx, mask, past=past)


class EvictingCache:
    """The last w - 1 keys and values of each layer, and how many tokens there were."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.seen = 0


class EvictingGPT(SmallGPT):
    """A window of 4 whose cache evicts what is no longer seen; the cache is made beside the model."""

    window, positions, layers = 4, "rotary", 1

    def forward(self, idx: Tensor, cache: EvictingCache | None = None) -> Tensor:  # type: ignore[override]
        start = 0 if cache is None else cache.seen
        past = None if cache is None or not cache.layers else cache.layers
        logits, present = self.compute(idx, None, self.places(idx, start), past)
        if cache is not None:
            keep = 3
            cache.layers = {n: (k[:, :, -keep:], v[:, :, -keep:]) for n, (k, v) in enumerate(present)}
            cache.seen = start + idx.shape[1]
        return logits


class Cache:
    """Keys and values of each layer, changed in place."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Tensor]] = []

    def get_seq_length(self) -> int:
        return int(self.layers[0][0].shape[2]) if self.layers else 0

    def crop(self, length: int) -> None:
        self.layers = [(k[:, :, :length], v[:, :, :length]) for k, v in self.layers]

    def reorder_cache(self, order: Tensor) -> None:
        self.layers = [(k[order], v[order]) for k, v in self.layers]

    def reset(self) -> None:
        self.layers = []


class ObjectCacheForCausalLM(SmallGPT):
    """A cache object with crop, reorder, reset; transformers' names; labels shifted inside, -100 ignored."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore_index=-100)

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool = False,
    ) -> dict[str, Any]:
        cache = past_key_values if past_key_values is not None else Cache()
        logits, present = self.compute(input_ids, attention_mask, position_ids, cache.layers or None)
        cache.layers = list(present)
        found: dict[str, Any] = {"logits": logits, "past_key_values": cache if use_cache else None}
        if labels is not None:
            found["loss"] = self.loss(logits, labels)
        return found


class SampleFlagGPT(SmallGPT):
    """Generate asks whether to sample, and counts the whole length."""

    @torch.no_grad()
    def generate(self, idx: Tensor, max_length: int, do_sample: bool = False, top_k: int = 0) -> Tensor:  # type: ignore[override]
        while idx.shape[1] < max_length:
            logits = self.compute(idx)[0][:, -1]
            chosen = self.next_token(logits, 1.0, top_k or None, None) if do_sample else logits.argmax(-1, keepdim=True)
            idx = torch.cat([idx, chosen], 1)
        return idx
