"""Faults of positions: learned, rotary, ALiBi, relative, and where they start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .fault import ModelFault
from .small import BLOCK, E, OneLayer, SmallBERT, SmallGPT, sinusoid
from .variants import AlibiGPT, RotaryGPT


class CachedPlaceZero(SmallGPT):
    def places(self, idx: Tensor, start: int) -> Tensor:
        return torch.arange(idx.shape[1]).expand(idx.shape)


class CachedPlaceOneTooFar(SmallGPT):
    def places(self, idx: Tensor, start: int) -> Tensor:
        return super().places(idx, start + (start > 0))


class UnpairedRotary(RotaryGPT):
    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        freq = (0.5 ** torch.arange(2, dtype=x.dtype)).repeat_interleave(2)
        angles = places[:, None, :, None].to(x.dtype) * freq
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()


class QueriesAloneTurned(RotaryGPT):
    turned = 0

    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        self.turned += 1
        return super().rotate(x, places) if self.turned % 2 else x


class FrequenciesApart(RotaryGPT):
    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        freq = 0.5 ** torch.arange(2, dtype=x.dtype)
        at = places[:, None, :, None].to(x.dtype)
        cos, sin = (at * freq).cos(), (at * freq * 0.5).sin()
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class PositionIdsIgnored(SmallGPT):
    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return super().embed(idx, torch.arange(idx.shape[1]).expand(idx.shape))


class PositionIdsOfTheFirst(SmallGPT):
    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return super().embed(idx, places[:1].expand(idx.shape))


class PositionsNotAdded(SmallGPT):
    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        out: Tensor = self.wte(idx)
        return out


class PositionsOverTheBatch(SmallGPT):
    def places(self, idx: Tensor, start: int) -> Tensor:
        return torch.arange(idx.shape[0])[:, None].expand(idx.shape)


class AlibiForgetsTheCache(AlibiGPT):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        away = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])[None, :]).abs()
        return q @ k.mT / 2.0 - self.slopes * away


class RelativeBiasLeftOut(SmallGPT):
    positions = "relative"

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) if q.shape[2] == k.shape[2] else q @ k.mT / 2.0


class PositionsFromTheMaskOffByOne(SmallGPT):
    def compute(self, idx: Tensor, mask: Tensor | None = None, places: Tensor | None = None, past: Any = None) -> Any:
        if mask is not None and places is None:
            places = mask.cumsum(1)[:, -idx.shape[1] :].clamp(max=BLOCK - 1)
        return super().compute(idx, mask, places, past)


class TableNeverUsed(OneLayer):
    positions = "none"

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pos_table", sinusoid(BLOCK, E))

    def forward(self, idx: Tensor) -> Tensor:  # type: ignore[override]
        return self.compute(idx)[0]


class EncoderWithoutPositions(SmallBERT):
    positions = "none"

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("position_table", sinusoid(BLOCK, E))


class BaseKeptFromLongTexts(RotaryGPT):
    longest = 6

    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        self.longest = max(self.longest, x.shape[2])
        return super().rotate(x, places * (6 / self.longest))


FAULTS: tuple[ModelFault, ...] = (
    ModelFault("positions from 0 with a cache", "with a cache positions start at 0 again", "with a cache of n tokens, number the new ones from n", (), "cache.equals-full", CachedPlaceZero),
    ModelFault("positions one too far with a cache", "with a cache positions are one too far", "with a cache of n tokens, number the new ones from n", (), "cache.equals-full", CachedPlaceOneTooFar),
    ModelFault("rotary pairs unmatched", "the frequencies are laid out for adjacent pairs, the rotation is of halves", "turn query and key by the same angles, one frequency a pair", ("raiyanyahya/how-to-train-your-gpt#6",), "models.shift", UnpairedRotary),
    ModelFault("rotary keys not turned", "rotary positions turn the queries alone", "turn query and key by the same angles, one frequency a pair", (), "models.shift", QueriesAloneTurned),
    ModelFault("rotary frequencies apart", "cos and sin of one pair have different frequencies", "turn query and key by the same angles, one frequency a pair", ("shenweichen/DeepCTR#379",), "models.shift", FrequenciesApart),
    ModelFault("position ids ignored", "position ids are taken and ignored", "look the positions up by the ids that are given", (), "models.position-ids", PositionIdsIgnored),
    ModelFault("position ids of the first sample", "the position ids of the first sample are used for all", "use each sample's own position ids", (), "models.padding", PositionIdsOfTheFirst),
    ModelFault("learned positions not added", "the table of learned positions is never added", "add the rows of the table to the tokens' rows", (), "models.gradients-reach", PositionsNotAdded),
    ModelFault("positions over the batch", "positions are counted over the batch, not over the text", "index the table by the axis of the length", ("KasperGroesLudvigsen/influenza_transformer#9",), "models.batch", PositionsOverTheBatch),
    ModelFault("ALiBi forgets the cache", "with a cache the distance of ALiBi is counted without the tokens before", "count query i of a chunk as number n + i", (), "cache.equals-full", AlibiForgetsTheCache),
    ModelFault("relative bias left out with a cache", "the bias of relative positions is left out with a cache", "add the last L rows of the bias", ("NVIDIA/TensorRT-LLM#13870",), "cache.equals-full", RelativeBiasLeftOut),
    ModelFault("positions from the mask one too far", "positions are the running sum of the mask, without the one taken off", "mask.cumsum(1) - 1", (), "models.mask-of-ones", PositionsFromTheMaskOffByOne),
    ModelFault("sinusoids never added", "a table of sinusoids is made and never added", "add the table to the tokens' rows", (), "models.order", TableNeverUsed),
    ModelFault("encoder positions never added", "an encoder's table of positions is made and never added", "add the table to the tokens' rows", (), "models.order", EncoderWithoutPositions),
    ModelFault("rotary base kept from long texts", "a long text changes the base of rotary positions for the short ones after it", "set the base anew for each text", ("huggingface/transformers#27227",), "models.repeatable", BaseKeptFromLongTexts),
)  # fmt: skip
