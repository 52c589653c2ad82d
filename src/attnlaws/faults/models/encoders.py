"""Faults of encoders, and of encoder-decoders with their cross-attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .fault import ModelFault
from .small import SmallBERT, SmallT5


class TriangleInBERT(SmallBERT):
    causal = True


class LastTokenUnseenBERT(SmallBERT):
    def hidden(self, length: int, total: int) -> Tensor:
        hidden = torch.zeros(length, total, dtype=torch.bool)
        hidden[:-1, -1] = True
        return hidden


class SegmentsIgnored(SmallBERT):
    def begin(self, ids: Tensor, segments: Tensor | None) -> Tensor:
        return super().begin(ids, None)


class NoneIsTheSecond(SmallBERT):
    def begin(self, ids: Tensor, segments: Tensor | None) -> Tensor:
        return super().begin(ids, torch.ones_like(ids) if segments is None else segments)


class SecondLayerSeesPadding(SmallBERT):
    def encode(self, ids: Tensor, mask: Tensor | None, segments: Tensor | None = None) -> Tensor:
        x = super().encode(ids, mask, segments)
        return x if mask is None else x + 0.1 * x.mean(1, keepdim=True)


class SeesTheFuture(SmallT5):
    causal = False


class SourceCutOff(SmallT5):
    def crossed(self, block: Any, y: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return super().crossed(block, y, memory[:, :2], None if mask is None else mask[:, :2])

    def encode(self, source: Tensor, mask: Tensor | None) -> Tensor:
        out: Tensor = self.ln_e(self.wte(source))
        return out


class PaddingOfTheSourceSeen(SmallT5):
    def crossed(self, block: Any, y: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return super().crossed(block, y, memory, None)


class OwnTokensCrossed(SmallT5):
    def crossed(self, block: Any, y: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return super().crossed(block, y, y[:, :1], None)


class PaddingMovesTheSource(SmallT5):
    def encode(self, source: Tensor, mask: Tensor | None) -> Tensor:
        scale = 1.0 + 0.1 * source.shape[1]
        return super().encode(source, mask) * scale


FAULTS: tuple[ModelFault, ...] = (
    ModelFault("encoder with a triangle", "the encoder has a causal mask", "let each token see all", (), "bert.bidirectional", TriangleInBERT),
    ModelFault("last token unseen", "an encoder's last token is seen by itself alone", "let each token see all", (), "bert.bidirectional", LastTokenUnseenBERT),
    ModelFault("segments taken and ignored", "segments are taken and ignored", "add the rows of the segments", (), "bert.segments", SegmentsIgnored),
    ModelFault("no segments is the second", "where no segments are given, all tokens count as the second one", "take segment 0 by default", (), "bert.segments", NoneIsTheSecond),
    ModelFault("padding in a pooled mean", "with a mask, a mean over all tokens with the padding is added", "take the mean over the real tokens", (), "models.pad-content", SecondLayerSeesPadding),
    ModelFault("target sees its future", "the decoder of an encoder-decoder sees the tokens after", "hide key j from query i where j > i, in every layer", (), "gpt.causality", SeesTheFuture),
    ModelFault("source cut off", "cross-attention sees the first two tokens of the source alone", "let the target see the whole source", ("huggingface/transformers#46111",), "t5.cross", SourceCutOff),
    ModelFault("padding of the source seen", "cross-attention sees the padding of the source", "pass the source's mask to cross-attention", (), "models.pad-content", PaddingOfTheSourceSeen),
    ModelFault("own tokens for the source", "cross-attention reads the target's own first token", "make its keys and values of the encoder's output", (), "t5.cross", OwnTokensCrossed),
    ModelFault("source scaled by its padded length", "the encoder's output is scaled with its length, padding included", "let nothing depend on the padded length", (), "models.padding", PaddingMovesTheSource),
)  # fmt: skip
