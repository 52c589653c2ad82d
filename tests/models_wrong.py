"""Wrong models, one step replaced each, as in the reports; each names the law that should catch it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from models_right import AlibiGPT, Cache, EvictingCache, EvictingGPT, ObjectCacheForCausalLM, RotaryGPT, SampleFlagGPT
from models_small import BLOCK, E, H, SmallBERT, SmallGPT, SmallT5, V, sinusoid, split
from torch import Tensor, nn


@dataclass(frozen=True)
class WrongModel:
    """A wrong model, the law that catches it, and what it does."""

    name: str
    make: Callable[[], nn.Module]
    law: str
    note: str


WRONG_MODELS: list[WrongModel] = []


def wrong(law: str, note: str) -> Callable[[Any], Any]:
    """Register a wrong model."""

    def register(make: Any) -> Any:
        WRONG_MODELS.append(WrongModel(make.__name__, make, law, note))
        return make

    return register


class OneLayer(SmallGPT):
    layers = 1


# -- positions -------------------------------------------------------------------------------------------------------------


@wrong("cache.equals-full", "with a cache positions start at 0 again")
class CachedPlaceZero(SmallGPT):
    def places(self, idx: Tensor, start: int) -> Tensor:
        return torch.arange(idx.shape[1]).expand(idx.shape)


@wrong("cache.equals-full", "with a cache positions are one too far")
class CachedPlaceOneTooFar(SmallGPT):
    def places(self, idx: Tensor, start: int) -> Tensor:
        return super().places(idx, start + (start > 0))


@wrong("models.shift", "rotary: frequencies for adjacent pairs, rotation of halves (how-to-train-your-gpt#6)")
class UnpairedRotary(RotaryGPT):
    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        freq = (0.5 ** torch.arange(2, dtype=x.dtype)).repeat_interleave(2)
        angles = places[:, None, :, None].to(x.dtype) * freq
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()


@wrong("models.shift", "rotary: queries are turned, keys are not")
class QueriesAloneTurned(RotaryGPT):
    turned = 0

    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        self.turned += 1
        return super().rotate(x, places) if self.turned % 2 else x


@wrong("models.shift", "rotary: cos and sin of different frequencies (DeepCTR#379)")
class FrequenciesApart(RotaryGPT):
    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        freq = 0.5 ** torch.arange(2, dtype=x.dtype)
        at = places[:, None, :, None].to(x.dtype)
        cos, sin = (at * freq).cos(), (at * freq * 0.5).sin()
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@wrong("models.position-ids", "position ids are taken and ignored")
class PositionIdsIgnored(SmallGPT):
    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return super().embed(idx, torch.arange(idx.shape[1]).expand(idx.shape))


@wrong("models.padding", "the position ids of the first sample are used for all")
class PositionIdsOfTheFirst(SmallGPT):
    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return super().embed(idx, places[:1].expand(idx.shape))


@wrong("models.gradients-reach", "learned positions are not added")
class PositionsNotAdded(SmallGPT):
    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return self.wte(idx)


@wrong("models.batch", "positions are counted over the batch (influenza_transformer#9)")
class PositionsOverTheBatch(SmallGPT):
    def places(self, idx: Tensor, start: int) -> Tensor:
        return torch.arange(idx.shape[0])[:, None].expand(idx.shape)


@wrong("cache.equals-full", "ALiBi: with a cache the distance forgets the tokens before (TensorRT-LLM#1611)")
class AlibiForgetsTheCache(AlibiGPT):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        away = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])[None, :]).abs()
        return q @ k.mT / 2.0 - self.slopes * away


@wrong("cache.equals-full", "the bias of relative positions is left out with a cache (TensorRT-LLM#13870)")
class RelativeBiasLeftOut(SmallGPT):
    positions = "relative"

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return super().scores(q, k) if q.shape[2] == k.shape[2] else q @ k.mT / 2.0


@wrong("models.mask-of-ones", "positions from the mask: its running sum, without the one taken off")
class PositionsFromTheMaskOffByOne(SmallGPT):
    def compute(self, idx: Tensor, mask: Tensor | None = None, places: Tensor | None = None, past: Any = None) -> Any:
        if mask is not None and places is None:
            places = mask.cumsum(1)[:, -idx.shape[1] :].clamp(max=BLOCK - 1)
        return super().compute(idx, mask, places, past)


@wrong("models.order", "a table of sinusoids that is never used, in one layer")
class TableNeverUsed(OneLayer):
    positions = "none"

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("pos_table", sinusoid(BLOCK, E))

    def forward(self, idx: Tensor) -> Tensor:
        return self.compute(idx)[0]


@wrong("models.order", "an encoder whose positions are added after the last layer's mean, to nothing")
class EncoderWithoutPositions(SmallBERT):
    positions = "none"

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("position_table", sinusoid(BLOCK, E))


@wrong(
    "models.repeatable",
    "dynamic scaling: a long text changes the base for the short ones after it (transformers#27227)",
)
class BaseKeptFromLongTexts(RotaryGPT):
    longest = 6

    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        self.longest = max(self.longest, x.shape[2])
        return super().rotate(x, places * (6 / self.longest))


# -- caches ------------------------------------------------------------------------------------------------------------------


@wrong("cache.equals-full", "keys are kept as values too (sockeye#731)")
class KeysForValues(SmallGPT):
    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, k


@wrong("cache.equals-full", "the triangle of a chunk begins at the first key, not after the cache")
class TriangleAtTheFirstKey(SmallGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        return torch.arange(length)[:, None] < torch.arange(total)[None, :]


@wrong("cache.equals-full", "no mask where there is a cache: tokens of one chunk see each other")
class ChunkWithoutMask(SmallGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        return super().hidden(length, total) & (length == total)


@wrong("cache.equals-full", "the cache is hidden from the tokens after it (candle#3299)")
class CacheHidden(SmallGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        hidden = super().hidden(length, total)
        hidden[:, : total - length] = True
        return hidden


@wrong("cache.equals-full", "the window's cache is rolled one step too early (transformers#37574)")
class RolledTooEarly(EvictingGPT):
    def forward(self, idx: Tensor, cache: EvictingCache | None = None) -> Tensor:
        logits = super().forward(idx, cache)
        if cache is not None and cache.layers[0][0].shape[2] == 3:
            cache.layers = {n: (k[:, :, 1:], v[:, :, 1:]) for n, (k, v) in cache.layers.items()}
        return logits


@wrong("cache.equals-full", "with a cache the window is forgotten (VeloxQuant-MLX#274)")
class WindowForgotten(SmallGPT):
    window, positions = 4, "rotary"

    def hidden(self, length: int, total: int) -> Tensor:
        return super().hidden(length, total) if length == total else self.distance(length, total) < 0


@wrong("cache.equals-full", "keys in the cache are turned again with each chunk")
class TurnedAgain(RotaryGPT):
    def extend(self, past: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if past is None:
            return k, v
        ones = torch.ones(past[0].shape[0], past[0].shape[2], dtype=torch.long)
        return torch.cat([self.rotate(past[0], ones), k], 2), torch.cat([past[1], v], 2)


@wrong("cache.equals-full", "the first sample's cache is used for all")
class CacheOfTheFirstSample(SmallGPT):
    def extend(self, past: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return super().extend(past and tuple(t[:1].expand(k.shape[0], -1, -1, -1) for t in past), k, v)


@wrong("cache.equals-full", "the last token in the cache is written over by the next chunk")
class LastTokenOverwritten(SmallGPT):
    def extend(self, past: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if past is None or past[0].shape[2] < 2:
            return super().extend(past, k, v)
        k, v = super().extend(past, k, v)
        n = past[0].shape[2] - 1
        keep = [i for i in range(k.shape[2]) if i != n]
        pad = k[:, :, :1], v[:, :, :1]
        return torch.cat([pad[0], k[:, :, keep]], 2), torch.cat([pad[1], v[:, :, keep]], 2)


@wrong("cache.batch", "the padding in the cache is seen: the mask covers the new tokens alone")
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
    """A model with an object as its cache."""

    class WithCache(ObjectCacheForCausalLM):
        def forward(self, input_ids: Tensor, past_key_values: Any = None, use_cache: bool = False) -> dict[str, Any]:  # type: ignore[override]
            cache = kind() if past_key_values is None else past_key_values
            logits, present = self.compute(input_ids, past=cache.layers or None)
            cache.layers = list(present)
            return {"logits": logits, "past_key_values": cache if use_cache else None}

    def make() -> nn.Module:
        return WithCache()

    make.__name__ = kind.__name__
    return make


for _kind, _note in (
    (WrongCrop, "a crop keeps one token too many"),
    (CropToNothing, "a crop starts anew (aprender#2014)"),
    (KeysReordered, "keys are reordered, values not"),
    (FirstLayerReordered, "only the first layer's cache is reordered (sockeye#731)"),
    (NeverReset, "a reset leaves everything"),
    (LengthOneTooMany, "the cache says it holds one token too many"),
    (SharedCache, "a copy of a cache is the cache itself"),
):
    wrong("cache.script", _note)(with_cache(_kind))


@wrong("cache.equals-full", "the empty cache is a list that all calls share")
class CacheThatAllShare(SmallGPT):
    def forward(self, idx: Tensor, use_cache: bool = False, past: list[Any] = []) -> Any:  # noqa: B006
        logits, present = self.compute(idx, past=past or None)
        if use_cache:
            past[:] = present
            return logits, past
        return logits


# -- masks ------------------------------------------------------------------------------------------------------------------


@wrong("gpt.causality", "no causal mask")
class NoMaskGPT(SmallGPT):
    causal = False


@wrong("gpt.causality", "each token sees the next")
class NextTokenSeen(SmallGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        return self.distance(length, total) < -1


@wrong("gpt.causality", "the last layer alone has no mask")
class LastLayerWithoutMask(SmallGPT):
    calls = 0

    def hidden(self, length: int, total: int) -> Tensor:
        self.calls += 1
        return super().hidden(length, total) & (self.calls % 2 == 1)


@wrong("gpt.causality", "where a padding mask is given, the causal one is dropped")
class PaddingInPlaceOfCausal(SmallGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return super().masked(hidden if mask is None else torch.zeros_like(hidden), mask)


@wrong("gpt.causality", "ALiBi: where no mask is given, there is none at all (transformers#30123)")
class AlibiWithoutMask(AlibiGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return super().masked(torch.zeros_like(hidden) if mask is None else hidden, mask)


@wrong("gpt.causality", "a buffer of the mask is cut at its end: short texts see everything")
class BufferCutAtTheEnd(SmallGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        return torch.ones(BLOCK, BLOCK, dtype=torch.bool).triu(1)[-length:, :total]


@wrong("gpt.causality", "hidden scores are -2, not minus infinity")
class WeakMask(SmallGPT):
    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return torch.softmax(torch.where(hidden, scores - 2.0, scores), -1)


@wrong(
    "gpt.all-past-matters", "no token sees itself, nor what it says: the diagonal is hidden and there is no residual"
)
class DiagonalHidden(OneLayer):
    def hidden(self, length: int, total: int) -> Tensor:
        away = self.distance(length, total)
        return (away < 0) | ((away == 0) & (torch.arange(total) > 0))

    def wiring(self, block: Any, x: Tensor, attend: Any) -> Tensor:
        return self.feed_forward(block, block.ln_2(attend(block.ln_1(x))))


@wrong("gpt.all-past-matters", "the first token is never seen by the others")
class FirstTokenHidden(SmallGPT):
    def hidden(self, length: int, total: int) -> Tensor:
        hidden = super().hidden(length, total)
        hidden[1:, 0] = True
        return hidden


@wrong("models.pad-content", "the padding mask is taken and ignored")
class PaddingIgnored(SmallGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return hidden[None, None]


@wrong("models.pad-content", "padding has a score of -3 less, not minus infinity")
class WeakPadding(SmallGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        self.soft = None if mask is None else (mask == 0)[:, None, None, :]
        return hidden[None, None]

    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return super().weights(scores if self.soft is None else torch.where(self.soft, scores - 3.0, scores), hidden)


@wrong("models.pad-content", "the padding mask hides queries, not keys")
class PaddingHidesQueries(SmallGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return hidden[None, None] if mask is None else hidden[None, None] | (mask == 0)[:, None, :, None]


@wrong("models.batch", "the padding mask of the first sample hides for all")
class PaddingOfTheFirst(SmallGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return super().masked(hidden, None if mask is None else mask[:1])


@wrong("models.finite", "rows that see nothing are NaN, in float64 alone: the lowest number of float64 in float32")
class LowestNumberOfAnother(SmallGPT):
    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        lowest = torch.finfo(scores.dtype).min
        return torch.softmax(scores.masked_fill(hidden, lowest), -1, dtype=torch.float32).to(scores.dtype)


@wrong("models.pad-content", "the first layer alone hides padding")
class PaddingInTheFirstLayer(SmallGPT):
    calls = 0

    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        self.calls += 1
        return super().masked(hidden, mask if self.calls % 2 else None)


# -- norms and wiring -----------------------------------------------------------------------------------------------------


@wrong("gpt.all-past-matters", "the output of attention is never used (audiolm-pytorch#265)")
class AttentionUnused(SmallGPT):
    def wiring(self, block: Any, x: Tensor, attend: Any) -> Tensor:
        attend(block.ln_1(x))
        return x + self.feed_forward(block, block.ln_2(x))


@wrong("models.gradients-reach", "the last layer is left out")
class LastLayerLeftOut(SmallGPT):
    def __init__(self) -> None:
        super().__init__()
        self.all_blocks, self.blocks = self.blocks, nn.ModuleList(list(self.blocks)[:-1])


@wrong("models.gradients-reach", "the keys are made by the queries' weights")
class QueriesForKeys(SmallGPT):
    def project(self, block: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return split(block.q(x), H), split(block.q(x), H), split(block.v(x), H)


@wrong("models.gradients-match", "the weights of attention are detached: no gradient goes through the softmax")
class WeightsDetached(SmallGPT):
    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return super().weights(scores + 0.0 * scores.detach(), hidden).detach() + 0.5 * (
            super().weights(scores, hidden) - super().weights(scores, hidden).detach()
        )


@wrong("models.batch", "a norm over the batch")
class NormOverTheBatch(SmallGPT):
    def logits(self, x: Tensor) -> Tensor:
        return self.head(self.ln_f(x - x.mean(0, keepdim=True) * 0.5))


@wrong("gpt.causality", "a norm over the whole text")
class NormOverTheText(SmallGPT):
    def logits(self, x: Tensor) -> Tensor:
        return self.head(self.ln_f(x / (1.0 + x.pow(2).mean(1, keepdim=True).sqrt())))


@wrong("gpt.causality", "heads are merged without a transposition: tokens and heads are mixed")
class MergedWithoutTranspose(SmallGPT):
    def combine(self, weights: Tensor, v: Tensor) -> Tensor:
        out = weights @ v
        return out.reshape(out.shape[0], out.shape[2], -1)


@wrong("models.repeatable", "dropout in eval mode (nanoGPT#240)")
class DropoutInEval(SmallGPT):
    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return F.dropout(super().weights(scores, hidden), 0.1)


@wrong("models.repeatable", "a dropout in a plain list, which eval() doesn't reach")
class DropoutInAList(SmallGPT):
    def __init__(self) -> None:
        super().__init__()
        self.drops = [nn.Dropout(0.2)]

    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return self.drops[0](super().embed(idx, places))


@wrong("models.state-dict", "a table of random numbers that is no state")
class TableNotInState(SmallGPT):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("features", torch.randn(V, E), persistent=False)

    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return super().embed(idx, places) + self.features[idx]


@wrong("models.buffers", "a buffer that is moved by each call")
class BufferMoved(SmallGPT):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(E))

    def logits(self, x: Tensor) -> Tensor:
        self.mean += 0.1 * x.detach().mean((0, 1))
        return super().logits(x)


@wrong("models.dtype-move", "weights fused at the first call are a plain attribute, and don't move with the model")
class FusedWeightsStayBehind(SmallGPT):
    fused: Tensor | None = None

    def logits(self, x: Tensor) -> Tensor:
        if self.training or torch.is_grad_enabled():
            return super().logits(x)
        if self.fused is None:
            self.fused = self.head.weight * self.ln_f.weight
        return F.linear(F.layer_norm(x, (E,)), self.fused) + self.head(self.ln_f.bias)


# -- tables and ties --------------------------------------------------------------------------------------------------------


@wrong("models.tied", "the configuration says that weights are tied, and they are not (transformers#43429)")
class SaysTied(SmallGPT):
    tie = False

    def __init__(self) -> None:
        super().__init__()
        self.tie_word_embeddings = True


@wrong("models.tied", "the head is given a copy of the table, once")
class TiedByACopy(SmallGPT):
    tie = False

    def __init__(self) -> None:
        super().__init__()
        self.weight_tying = True
        self.head.weight.data = self.wte.weight.data.clone()


@wrong("models.every-id", "the last token is clipped to the one before")
class LastTokenClipped(SmallGPT):
    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return super().embed(idx.clamp(max=V - 2), places)


@wrong("models.every-id", "the token 0 counts as padding, and is the token 1")
class TokenZeroLost(SmallGPT):
    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return super().embed(idx.clamp(min=1), places)


# -- losses ------------------------------------------------------------------------------------------------------------------


@wrong("models.loss", "the mean is over all tokens, the ignored ones too (Fast-LLM#426)")
class MeanOverAll(SmallGPT):
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
        return each.mean()


@wrong("models.loss", "labels > 0 count: the token 0 is never learnt (mosaicml/examples#457)")
class LabelZeroLost(SmallBERT):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        chosen = labels.flatten() > 0
        return F.cross_entropy(logits.flatten(0, 1)[chosen], labels.flatten()[chosen])


@wrong("models.loss", "shifted the wrong way: position i + 1 is to say label i")
class ShiftedTheWrongWay(SmallGPT):
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, 1:].flatten(0, 1), targets[:, :-1].flatten())


@wrong("models.loss", "an encoder-decoder whose labels are shifted again (transformers#46898)")
class ShiftedTwice(SmallT5):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


@wrong("models.loss", "the softmax is taken twice")
class SoftmaxTwice(SmallGPT):
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(torch.softmax(logits, -1).flatten(0, 1), targets.flatten(), ignore_index=-1)


@wrong("models.loss", "the mean of the samples' means (transformers#34191)")
class MeanOfMeans(SmallGPT):
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none")
        count = (targets != -100).sum(1).clamp(min=1)
        return (each.sum(1) / count).mean()


# -- generation ------------------------------------------------------------------------------------------------------------------


@wrong("generation.top-k", "top-k keeps one less")
class OneLess(SmallGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        return super().next_token(logits, temperature, top_k and max(top_k - 1, 1), top_p)


@wrong("generation.top-k", "top-k keeps one more")
class OneMore(SmallGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        return super().next_token(logits, temperature, top_k and (1 if top_k == 1 else top_k + 1), top_p)


@wrong("generation.top-k", "top-k keeps the least likely")
class LeastLikely(SampleFlagGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        if top_k:
            most = (-logits).topk(min(top_k, V)).values[:, -1:]
            logits = logits.masked_fill(-logits < most, -math.inf)
        return torch.multinomial(torch.softmax(logits, -1), 1)


@wrong("generation.top-p", "top-p drops the token that reaches p")
class ReachingTokenDropped(SmallGPT):
    def nucleus(self, logits: Tensor, p: float) -> Tensor:
        ordered, order = logits.sort(-1, descending=True)
        out = ordered.softmax(-1).cumsum(-1) > p
        out[:, 0] = False
        return logits.masked_fill(out.scatter(-1, order, out), -math.inf)


@wrong("generation.top-p", "top-p keeps one token more than reach p")
class OneTokenMore(SmallGPT):
    def nucleus(self, logits: Tensor, p: float) -> Tensor:
        ordered, order = logits.sort(-1, descending=True)
        shares = ordered.softmax(-1)
        out = F.pad((shares.cumsum(-1) - shares >= p)[:, :-1], (1, 0))
        return logits.masked_fill(out.scatter(-1, order, out), -math.inf)


@wrong("generation.top-p", "top-p = 1 takes the most likely token (ChatRWKV#170)")
class TopPOneIsGreedy(SmallGPT):
    def nucleus(self, logits: Tensor, p: float) -> Tensor:
        if p < 1:
            return super().nucleus(logits, p)
        return logits.masked_fill(logits < logits.max(-1, keepdim=True).values, -math.inf)


@wrong("generation.top-p", "the mask of the sorted tokens is put on the unsorted ones")
class MaskNotUnsorted(SmallGPT):
    def nucleus(self, logits: Tensor, p: float) -> Tensor:
        shares = logits.sort(-1, descending=True).values.softmax(-1)
        return logits.masked_fill(shares.cumsum(-1) - shares >= p, -math.inf)


@wrong("generation.cold", "logits times the temperature")
class TimesTemperature(SmallGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        return super().next_token(logits, 1.0 / temperature if temperature else 0.0, top_k, top_p)


@wrong("generation.temperature", "probabilities are divided by the temperature, not logits")
class ProbabilitiesDivided(SmallGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        return super().next_token((torch.softmax(logits, -1) / max(temperature, 1e-6)), 1.0, top_k, top_p)


@wrong("generation.cold", "the temperature is ignored")
class TemperatureIgnored(SmallGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        return super().next_token(logits, 1.0, top_k, top_p)


@wrong("generation.temperature", "asked to sample, it takes the most likely token")
class NeverSamples(SmallGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        return logits.argmax(-1, keepdim=True)


@wrong("generation.greedy", "the next token is chosen by the first position's logits")
class FirstPositionChooses(SmallGPT):
    def generate(self, idx: Tensor, max_new_tokens: int) -> Tensor:  # type: ignore[override]
        for _ in range(max_new_tokens):
            idx = torch.cat([idx, self.compute(idx)[0][:, 0].argmax(-1, keepdim=True)], 1)
        return idx


@wrong("generation.greedy", "with a cache, generate feeds the token before the last")
class FeedsTheTokenBefore(SmallGPT):
    def generate(self, idx: Tensor, max_new_tokens: int, use_cache: bool = True) -> Tensor:  # type: ignore[override]
        past = None
        for _ in range(max_new_tokens):
            logits, present = self.compute(idx if past is None else idx[:, -2:-1], past=past)
            past = present if use_cache else None
            idx = torch.cat([idx, logits[:, -1].argmax(-1, keepdim=True)], 1)
        return idx


@wrong("generation.greedy", "one token less than asked for comes")
class OneTokenLess(SmallGPT):
    def generate(self, idx: Tensor, max_new_tokens: int) -> Tensor:  # type: ignore[override]
        for _ in range(max_new_tokens - 1):
            idx = torch.cat([idx, self.compute(idx)[0][:, -1].argmax(-1, keepdim=True)], 1)
        return idx


@wrong("generation.greedy", "the cache of the last call is used for the next prompt (litgpt#1678)")
class CacheOfTheLastCall(SmallGPT):
    left: Any = None

    def generate(self, idx: Tensor, max_new_tokens: int) -> Tensor:  # type: ignore[override]
        for n in range(max_new_tokens):
            stale = self.left is not None and self.left[0][0].shape[0] == idx.shape[0] and n > 0
            logits, self.left = self.compute(idx[:, -1:] if stale else idx[:, -4:], past=self.left if stale else None)
            idx = torch.cat([idx, logits[:, -1].argmax(-1, keepdim=True)], 1)
        return idx


@wrong("generation.end", "all samples end where one does")
class AllEnd(SmallGPT):
    def generate(self, idx: Tensor, max_new_tokens: int, eos_id: int | None = None) -> Tensor:  # type: ignore[override]
        for _ in range(max_new_tokens):
            chosen = self.compute(idx)[0][:, -1].argmax(-1, keepdim=True)
            idx = torch.cat([idx, chosen], 1)
            if eos_id is not None and (chosen == eos_id).any():
                break
        return idx


@wrong("generation.end", "samples go on after their end")
class GoesOn(SmallGPT):
    def generate(self, idx: Tensor, max_new_tokens: int, eos_id: int | None = None) -> Tensor:  # type: ignore[override]
        for _ in range(max_new_tokens):
            chosen = self.compute(idx)[0][:, -1].argmax(-1, keepdim=True)
            idx = torch.cat([idx, chosen], 1)
            if eos_id is not None and (chosen == eos_id).all():
                break
        return idx


# -- encoders and encoder-decoders ------------------------------------------------------------------------------------------


@wrong("bert.bidirectional", "an encoder with a causal mask")
class TriangleInBERT(SmallBERT):
    causal = True


@wrong("bert.bidirectional", "the last token is seen by none")
class LastTokenUnseenBERT(SmallBERT):
    def hidden(self, length: int, total: int) -> Tensor:
        hidden = torch.zeros(length, total, dtype=torch.bool)
        hidden[:-1, -1] = True
        return hidden


@wrong("bert.segments", "segments are taken and ignored")
class SegmentsIgnored(SmallBERT):
    def begin(self, ids: Tensor, segments: Tensor | None) -> Tensor:
        return super().begin(ids, None)


@wrong("bert.segments", "no segments given counts as the second one")
class NoneIsTheSecond(SmallBERT):
    def begin(self, ids: Tensor, segments: Tensor | None) -> Tensor:
        return super().begin(ids, torch.ones_like(ids) if segments is None else segments)


@wrong("models.pad-content", "an encoder whose padding mask is taken the other way in its second layer")
class SecondLayerSeesPadding(SmallBERT):
    def encode(self, ids: Tensor, mask: Tensor | None, segments: Tensor | None = None) -> Tensor:
        x = super().encode(ids, mask, segments)
        return x if mask is None else x + 0.1 * x.mean(1, keepdim=True)


@wrong("gpt.causality", "the decoder of an encoder-decoder sees the tokens after")
class SeesTheFuture(SmallT5):
    causal = False


@wrong("t5.cross", "cross-attention sees the first tokens of the source alone (transformers#46111)")
class SourceCutOff(SmallT5):
    def crossed(self, block: Any, y: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return super().crossed(block, y, memory[:, :2], None if mask is None else mask[:, :2])

    def encode(self, source: Tensor, mask: Tensor | None) -> Tensor:
        return self.ln_e(self.wte(source))


@wrong("models.pad-content", "cross-attention sees the padding of the source")
class PaddingOfTheSourceSeen(SmallT5):
    def crossed(self, block: Any, y: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return super().crossed(block, y, memory, None)


@wrong("t5.cross", "the decoder looks at its own tokens in the place of the source")
class OwnTokensCrossed(SmallT5):
    def crossed(self, block: Any, y: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return super().crossed(block, y, y[:, :1], None)


@wrong("models.padding", "relative positions count from the padded end: padding moves the source")
class PaddingMovesTheSource(SmallT5):
    def encode(self, source: Tensor, mask: Tensor | None) -> Tensor:
        scale = 1.0 + 0.1 * source.shape[1]
        return super().encode(source, mask) * scale
