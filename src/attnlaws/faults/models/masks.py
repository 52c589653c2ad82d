"""Faults of masks: the triangle and the padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .fault import ModelFault
from .small import BLOCK, OneLayer, SmallGPT
from .variants import AlibiGPT, RotaryGPT


class NoMaskGPT(SmallGPT):
    causal = False


class NextTokenSeen(SmallGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        return self.distance(length, total) < -1


class LastLayerWithoutMask(SmallGPT):
    calls = 0

    def hidden(self, length: int, total: int) -> Tensor:
        self.calls += 1
        return super().hidden(length, total) & (self.calls % 2 == 1)


class PaddingInPlaceOfCausal(SmallGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return super().masked(hidden if mask is None else torch.zeros_like(hidden), mask)


class AlibiWithoutMask(AlibiGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return super().masked(torch.zeros_like(hidden) if mask is None else hidden, mask)


class BufferCutAtTheEnd(SmallGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        return torch.ones(BLOCK, BLOCK, dtype=torch.bool).triu(1)[-length:, :total]


class WeakMask(SmallGPT):
    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return torch.softmax(torch.where(hidden, scores - 2.0, scores), -1)


class DiagonalHidden(OneLayer):
    def hidden(self, length: int, total: int) -> Tensor:
        away = self.distance(length, total)
        return (away < 0) | ((away == 0) & (torch.arange(total) > 0))

    def wiring(self, block: Any, x: Tensor, attend: Any) -> Tensor:
        return self.feed_forward(block, block.ln_2(attend(block.ln_1(x))))


class FirstTokenHidden(SmallGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        hidden = super().hidden(length, total)
        hidden[1:, 0] = True
        return hidden


class PaddingIgnored(SmallGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return hidden[None, None]


class WeakPadding(SmallGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        self.soft = None if mask is None else (mask == 0)[:, None, None, :]
        return hidden[None, None]

    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return super().weights(scores if self.soft is None else torch.where(self.soft, scores - 3.0, scores), hidden)


class PaddingHidesQueries(SmallGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return hidden[None, None] if mask is None else hidden[None, None] | (mask == 0)[:, None, :, None]


class PaddingOfTheFirst(SmallGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return super().masked(hidden, None if mask is None else mask[:1])


class LowestNumberOfAnother(SmallGPT):
    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        lowest = torch.finfo(scores.dtype).min
        return torch.softmax(scores.masked_fill(hidden, lowest), -1, dtype=torch.float32).to(scores.dtype)


class PaddingInTheFirstLayer(SmallGPT):
    calls = 0

    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        self.calls += 1
        return super().masked(hidden, mask if self.calls % 2 else None)


class MaskEnds(RotaryGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        hidden = super().hidden(length, total)
        hidden[:, 64:] = False
        return hidden


class NextBlockSeen(RotaryGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        hidden = super().hidden(length, total)
        if length == total > 64:
            hidden[63, 64] = False
        return hidden


FAULTS: tuple[ModelFault, ...] = (
    ModelFault("decoder without mask", "there is no causal mask", "hide key j from query i where j > i, in every layer", (), "gpt.causality", NoMaskGPT),
    ModelFault("decoder sees next", "each token sees the next", "hide key j from query i where j > i, in every layer", (), "gpt.causality", NextTokenSeen),
    ModelFault("last layer without mask", "the last layer alone has no mask", "hide key j from query i where j > i, in every layer", (), "gpt.causality", LastLayerWithoutMask),
    ModelFault("padding in place of causal", "where a padding mask is given, the causal one is dropped", "hide what either mask hides", (), "gpt.causality", PaddingInPlaceOfCausal),
    ModelFault("ALiBi without mask", "where no mask is given, the bias of ALiBi stands in its place, which hides nothing", "put the triangle into the bias", ("huggingface/transformers#30123",), "gpt.causality", AlibiWithoutMask),
    ModelFault("mask buffer cut at the end", "the last rows of the mask's buffer are taken: short texts see everything", "take the rows from S - L to S", (), "gpt.causality", BufferCutAtTheEnd),
    ModelFault("mask ends at key 64", "the triangle was made for 64 tokens: all see the keys after them", "make the triangle as long as the text", (), "gpt.causality", MaskEnds),
    ModelFault("next block seen", "token 63 sees token 64: off by one where a block ends", "hide key j from query i where j > i, at block ends too", (), "gpt.causality", NextBlockSeen),
    ModelFault("weak causal mask", "hidden scores are lowered by 2, not to minus infinity", "set hidden scores to minus infinity", (), "gpt.causality", WeakMask),
    ModelFault("own token hidden", "no token sees itself, and there is no residual", "hide key j where j > i, not where j = i", (), "gpt.all-past-matters", DiagonalHidden),
    ModelFault("first token hidden", "the first token is never seen by the others", "hide key j where j > i alone", (), "gpt.all-past-matters", FirstTokenHidden),
    ModelFault("padding mask ignored", "the padding mask is taken and ignored", "give the scores of padding minus infinity, in every layer", (), "models.pad-content", PaddingIgnored),
    ModelFault("weak padding mask", "the scores of padding are lowered by 3, not to minus infinity", "give the scores of padding minus infinity, in every layer", (), "models.pad-content", WeakPadding),
    ModelFault("padding hides queries", "the padding mask hides queries, not keys", "let the mask (B, S) run along the keys", (), "models.pad-content", PaddingHidesQueries),
    ModelFault("padding of the first sample", "the padding mask of the first sample hides for all", "use each sample's own mask", (), "models.batch", PaddingOfTheFirst),
    ModelFault("lowest number of another dtype", "hidden scores are the lowest number of the input's dtype, the softmax is in float32: rows become NaN in float64", "take the lowest number of the dtype that the softmax runs in", (), "models.finite", LowestNumberOfAnother),
    ModelFault("padding hidden in the first layer only", "the first layer alone hides padding", "give the scores of padding minus infinity, in every layer", (), "models.pad-content", PaddingInTheFirstLayer),
)  # fmt: skip
