"""Right models, each in its own style: no law may fail for one of them."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlaws.faults.models.small import BLOCK, E, H, Small, SmallBERT, SmallGPT, SmallT5, V, merge, split
from attnlaws.faults.models.variants import AlibiGPT, EvictingGPT, ObjectCacheForCausalLM, RotaryGPT, SampleFlagGPT


@dataclass(frozen=True)
class RightModel:
    """A right model, what the probe must find it to be, and what is special about it."""

    name: str
    make: Callable[[], nn.Module]
    kind: str
    note: str


RIGHT_MODELS: list[RightModel] = []


def right(kind: str, note: str) -> Callable[[Any], Any]:
    """Register a right model: a class without arguments or a function that gives a module."""

    def register(make: Any) -> Any:
        RIGHT_MODELS.append(RightModel(make.__name__, make, kind, note))
        return make

    return register


right("decoder", "GPT-2: tied, learned positions, norms before, a cache of tuples (B, H, L, D), mask, position ids")(
    SmallGPT
)
right("encoder", "BERT: segments, norms after, a dictionary with the loss of masked tokens")(SmallBERT)
right("encoder-decoder", "T5: relative positions, no cache, labels")(SmallT5)


@right("decoder", "the head has weights of its own")
class Untied(SmallGPT):
    tie = False


@right("decoder", "no head at all: the table of tokens is used twice")
class HeadByTable(SmallGPT):
    def __init__(self) -> None:
        super().__init__()
        del self.head

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(self.ln_f(x), self.wte.weight)


@right("decoder", "norms after each part, as in GPT-1")
class PostNormGPT(SmallGPT):
    def wiring(self, block: Any, x: Tensor, attend: Any) -> Tensor:
        x = block.ln_1(x + attend(x))
        return block.ln_2(x + self.feed_forward(block, x))


@right("decoder", "attention and feed-forward side by side, as in GPT-J")
class ParallelGPT(SmallGPT):
    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            del block.ln_2

    def wiring(self, block: Any, x: Tensor, attend: Any) -> Tensor:
        y = block.ln_1(x)
        return x + attend(y) + self.feed_forward(block, y)


@right(
    "decoder",
    "sinusoids, the table scaled by the root of the width; padding takes places, as there are no position ids",
)
class SinusoidGPT(SmallGPT):
    positions = "sinusoid"

    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return math.sqrt(E) * self.wte(idx) + self.table[places]

    def forward(self, idx: Tensor, targets: Tensor | None = None, attention_mask: Tensor | None = None) -> Any:
        logits, _ = self.compute(idx, attention_mask)
        return logits, None if targets is None else self.loss(logits, targets)


right("decoder", "rotary positions, half pairing")(RotaryGPT)


@right("decoder", "rotary positions, interleaved pairing, a base of its own")
class InterleavedGPT(SmallGPT):
    positions = "rotary"

    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        angles = places[:, None, :, None].to(x.dtype) * 0.25 ** torch.arange(x.shape[-1] // 2, dtype=x.dtype)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1).flatten(-2)


@right("decoder", "rotary positions from a table that grows with the longest input and is no state")
class RotaryTableGPT(SmallGPT):
    positions = "rotary"
    grown: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grown", torch.zeros(0, 2), persistent=False)

    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        if self.grown.shape[0] <= int(places.max()) or self.grown.dtype != x.dtype:
            length = int(places.max()) + 1
            self.grown = torch.arange(length, dtype=x.dtype)[:, None] * 0.5 ** torch.arange(2, dtype=x.dtype)
        angles = self.grown[places][:, None]
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


right("decoder", "ALiBi, without position ids: padding on the left is as if it were not there")(AlibiGPT)


@right("decoder", "a learned bias of the distance")
class RelativeGPT(SmallGPT):
    positions = "relative"

    def forward(self, idx: Tensor, mask: Tensor | None = None, past: Any = None) -> Any:
        return self.compute(idx, mask, past=past)


@right("decoder", "no positions at all: the mask alone tells the order")
class NoPositionsGPT(SmallGPT):
    positions = "none"

    def forward(self, idx: Tensor, attention_mask: Tensor | None = None, past: Any = None) -> Any:
        return self.compute(idx, attention_mask, past=past)


@right("decoder", "one key head for all queries, one layer")
class MultiQueryGPT(SmallGPT):
    kv_heads, layers = 1, 1


@right("decoder", "grouped heads: 4 on 2")
class GroupedGPT(SmallGPT):
    heads, kv_heads = 4, 2


@right("decoder", "a window of 4, rotary; the cache keeps everything")
class WindowGPT(SmallGPT):
    window, positions = 4, "rotary"


@right("decoder", "a window of one: no token sees another; learned positions")
class WindowOfOneGPT(SmallGPT):
    window = 1


@right("decoder", "a window of one, rotary: mask and position ids change nothing, and queries and keys get no gradient")
class RotaryWindowOfOneGPT(SmallGPT):
    window, positions, layers = 1, "rotary", 1


@right("decoder", "a window of two in two layers: nobody sees a token past a hidden one")
class WindowOfTwoGPT(SmallGPT):
    window, positions = 2, "rotary"


@right("decoder", "a window of two in one layer")
class ShallowWindowOfTwoGPT(SmallGPT):
    window, positions, layers = 2, "rotary", 1


@right("decoder", "a window of two, NaN for rows that see nothing, in two layers: which mask hides what can't be told")
class NanRowsWindowGPT(SmallGPT):
    window, positions = 2, "none"

    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return torch.softmax(scores.masked_fill(hidden, -math.inf), -1)

    def forward(self, idx: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.compute(idx, attention_mask)[0]


class FourDimensionalMaskGPT(SmallGPT):
    """A mask of four axes is the whole mask, one of two is the padding, as transformers takes them."""

    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return mask == 0 if mask is not None and mask.ndim == 4 else super().masked(hidden, mask)


@right("decoder", "a window of one; a mask of four axes is the whole mask")
class WholeMaskWindowOfOneGPT(FourDimensionalMaskGPT):
    window, positions = 1, "rotary"


@right("decoder", "a window of two; a mask of four axes is the whole mask")
class WholeMaskWindowOfTwoGPT(FourDimensionalMaskGPT):
    window, positions = 2, "rotary"


@right("decoder", "a mask of four axes alone, which is the whole mask: 1 where a query sees a key")
class WholeMaskGPT(SmallGPT):
    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None and mask.ndim != 4:
            raise ValueError("the mask has the axes (batch, head, query, key)")
        return hidden[None, None] if mask is None else mask == 0


right("decoder", "a window of 4 whose cache evicts what is no longer seen; the cache is made beside the model")(
    EvictingGPT
)


right("decoder", "a cache object with crop, reorder, reset; transformers' names; labels shifted inside, -100 ignored")(
    ObjectCacheForCausalLM
)


@right("decoder", "a cache in (B, L, H, D)")
class LengthSecondGPT(SmallGPT):
    def extend(self, past: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if past is None:
            return k, v
        return torch.cat([past[0].transpose(1, 2), k], 2), torch.cat([past[1].transpose(1, 2), v], 2)

    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k.transpose(1, 2), v.transpose(1, 2)

    def length_of(self, past: Any) -> int:
        return 0 if past is None else int(past[0][0].shape[1])


@right("decoder", "one layer, NaN for a row that sees nothing; the mask is True where padding is")
class NanRowsGPT(SmallGPT):
    layers = 1

    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return torch.softmax(scores.masked_fill(hidden, -math.inf), -1)

    def forward(self, idx: Tensor, pad_mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        return self.compute(idx, None if pad_mask is None else ~pad_mask, position_ids)[0]


@right("decoder", "two layers, NaN for rows that see nothing: made for padding on the right")
class NanRowsDeepGPT(SmallGPT):
    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return torch.softmax(scores.masked_fill(hidden, -math.inf), -1)

    def forward(self, idx: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.compute(idx, attention_mask)[0]


@right(
    "decoder", "nanoGPT: without targets the last position alone; dropout; a configuration; crops what generate feeds"
)
class LastOnlyGPT(SmallGPT):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.block_size = BLOCK

    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return self.drop(super().embed(idx, places))

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        if idx.shape[1] > self.block_size:
            raise ValueError(f"a text of {idx.shape[1]} tokens, the block is {self.block_size}")
        logits, _ = self.compute(idx)
        if targets is None:
            return logits[:, [-1]], None
        return logits, self.loss(logits, targets)

    @torch.no_grad()
    def generate(self, idx: Tensor, max_new_tokens: int, temperature: float = 1.0, top_k: int | None = None) -> Tensor:
        for _ in range(max_new_tokens):
            logits, _ = self(idx[:, -self.block_size :])
            logits = logits[:, -1, :] / temperature
            if top_k is not None:
                least, _ = torch.topk(logits, min(top_k, logits.shape[-1]))
                logits[logits < least[:, [-1]]] = -math.inf
            idx = torch.cat([idx, torch.multinomial(torch.softmax(logits, -1), 1)], 1)
        return idx


@right("decoder", "the last position alone, (B, V), whatever is given")
class LastRowGPT(SmallGPT):
    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x)[0][:, -1]


@right("decoder", "tokens (L, B) to logits (L, B, V), as in torch's tutorials")
class LengthFirstGPT(SmallGPT):
    generate = None  # type: ignore[assignment]

    def forward(self, src: Tensor) -> Tensor:
        return self.compute(src.T)[0].transpose(0, 1)


@right("decoder", "with targets the logits are flat, (B L, V), and the loss is a sum")
class FlatGPT(SmallGPT):
    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        logits, _ = self.compute(idx)
        if targets is None:
            return logits, None
        flat = logits.view(-1, V)
        return flat, F.cross_entropy(flat, targets.reshape(-1), reduction="sum")


Output = namedtuple("Output", ["logits", "loss"])


@right("decoder", "log-probabilities in a named tuple")
class NamedTupleGPT(SmallGPT):
    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> Output:
        logits = torch.log_softmax(self.compute(tokens)[0], -1)
        return Output(logits, None if labels is None else F.nll_loss(logits.flatten(0, 1), labels.flatten()))


@right("decoder", "logits capped by tanh, untied, no norm at the end")
class CappedGPT(SmallGPT):
    tie = False

    def __init__(self) -> None:
        super().__init__()
        del self.ln_f

    def logits(self, x: Tensor) -> Tensor:
        return 5.0 * torch.tanh(self.head(x) / 5.0)


@right("decoder", "torch's encoder layers with a causal mask made inside")
class TorchDecoderLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.pos_embedding = nn.Embedding(V, E), nn.Embedding(BLOCK, E)
        layer = nn.TransformerEncoderLayer(E, H, 20, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(E, V)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        h = self.embedding(x) + self.pos_embedding(torch.arange(length))
        return self.out(self.layers(h, mask=mask, is_causal=True))


@right("decoder", "a cache of fixed size inside the module, and the place where the tokens go: Llama's first code")
class StartPosGPT(SmallGPT):
    positions = "rotary"

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[int, tuple[Tensor, Tensor]] = {}

    def forward(self, tokens: Tensor, start_pos: int) -> Tensor:
        past = None
        if start_pos:
            past = [tuple(t[:, :, :start_pos] for t in self.store[n]) for n in range(self.layers)]
        logits, present = self.compute(tokens, None, self.places(tokens, start_pos), past)
        self.store = {n: (k.detach(), v.detach()) for n, (k, v) in enumerate(present)}
        return logits


@right("decoder", "a cache inside the module, used where it is asked for, emptied by a method")
class InsideCacheGPT(SmallGPT):
    def __init__(self) -> None:
        super().__init__()
        self.store: Any = None

    def forward(self, in_idx: Tensor, use_cache: bool = False) -> Tensor:
        logits, present = self.compute(in_idx, past=self.store if use_cache else None)
        if use_cache:
            self.store = present
        return logits

    def reset_kv_cache(self) -> None:
        self.store = None


@right("decoder", "a cache of fixed size that the model makes for a batch and a length, filled in place")
class StaticCacheGPT(SmallGPT):
    def make_cache(self, batch: int, length: int) -> dict[str, Any]:
        shape = (self.layers, 2, batch, H, length, E // H)
        return {"store": torch.zeros(shape), "count": 0}

    def forward(self, idx: Tensor, cache: dict[str, Any] | None = None) -> Tensor:
        if cache is None:
            return self.compute(idx)[0]
        n = cache["count"]
        cache["store"] = cache["store"].to(self.wte.weight.dtype)
        past = [tuple(cache["store"][m, :, :, :, :n]) for m in range(self.layers)] if n else None
        logits, present = self.compute(idx, None, self.places(idx, n), past)
        for m, (k, v) in enumerate(present):
            cache["store"][m, 0, :, :, : k.shape[2]], cache["store"][m, 1, :, :, : v.shape[2]] = k, v
        cache["count"] = n + idx.shape[1]
        return logits


@right("decoder", "generate gives the new tokens alone, the most likely one at temperature 0, the default")
class NewTokensGPT(SmallGPT):
    @torch.no_grad()
    def generate(self, prompt: Tensor, max_tokens: int, temperature: float = 0.0, top_p: float = 1.0) -> Tensor:
        for _ in range(max_tokens):
            prompt = torch.cat([prompt, self.next_token(self.compute(prompt)[0][:, -1], temperature, None, top_p)], 1)
        return prompt[:, -max_tokens:]


right("decoder", "generate asks whether to sample, and counts the whole length")(SampleFlagGPT)


@right("decoder", "generate takes the most likely token, one text at a time")
class OneTextGPT(SmallGPT):
    @torch.no_grad()
    def generate(self, idx: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            best = int(self.compute(idx)[0][0, -1].argmax())
            idx = torch.cat([idx, torch.tensor([[best]])], 1)
        return idx


@right("decoder", "the pad token has a row of zeros that is not learnt")
class PaddingIdxGPT(SmallGPT):
    tie = False

    def token_table(self) -> nn.Embedding:
        return nn.Embedding(V, E, padding_idx=0)


@right("decoder", "the softmax in float32 whatever the dtype")
class Float32SoftmaxGPT(SmallGPT):
    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return super().weights(scores.float(), hidden).to(scores.dtype)


@right("decoder", "hidden scores are the lowest number, not minus infinity")
class LowestNumberGPT(SmallGPT):
    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return torch.softmax(scores.masked_fill(hidden, torch.finfo(scores.dtype).min), -1)


@dataclass
class Config:
    """The sizes of a model that is built from a configuration."""

    n_layer: int = 1
    dropout: float = 0.1


class ConfigGPT(SmallGPT):
    """Built from a configuration alone."""

    def __init__(self, config: Config) -> None:
        self.layers = config.n_layer
        super().__init__()
        self.config, self.drop = config, nn.Dropout(config.dropout)

    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return self.drop(super().embed(idx, places))


@right("decoder", "built by a factory from a configuration")
def from_config() -> nn.Module:
    return ConfigGPT(Config(n_layer=2))


# -- encoders ------------------------------------------------------------------------------------------------------------


@right("encoder", "torch's encoder, src_key_padding_mask True where padding is")
class TorchEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.pos = nn.Embedding(V, E), nn.Parameter(0.02 * torch.randn(BLOCK, E))
        layer = nn.TransformerEncoderLayer(E, H, 20, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(E, V)

    def forward(self, src: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        h = self.embedding(src) + self.pos[: src.shape[1]]
        return self.out(self.layers(h, src_key_padding_mask=src_key_padding_mask))


@right("encoder", "what holds the pad id is hidden, no mask is taken")
class PadIdEncoder(SmallBERT):
    def __init__(self) -> None:
        super().__init__()
        self.pad_id = 0

    def padding(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        return (ids == self.pad_id)[:, None, None, :]

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.logits(self.encode(input_ids, None))


@right("encoder", "RoBERTa: positions count what is not the pad id, from one after it")
class Roberta(SmallBERT):
    def token_table(self) -> nn.Embedding:
        return nn.Embedding(V, E, padding_idx=1)

    def begin(self, ids: Tensor, segments: Tensor | None) -> Tensor:
        real = (ids != 1).long()
        places = real.cumsum(1) * real + 1
        return self.ln_0(self.wte(ids) + self.wpe(places.clamp(max=BLOCK - 1)) + self.wse(torch.zeros_like(ids)))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.logits(self.encode(input_ids, attention_mask))


@right("encoder", "no positions: a set of tokens")
class SetEncoder(SmallBERT):
    positions = "none"


@right("encoder", "a window of one token: nobody sees another")
class WindowOfOneEncoder(SmallBERT):
    window = 1

    def hidden(self, length: int, total: int) -> Tensor:
        return self.distance(length, total) != 0


@right("encoder", "a window of one token to each side")
class NeighboursEncoder(SmallBERT):
    window = 2

    def hidden(self, length: int, total: int) -> Tensor:
        return self.distance(length, total).abs() >= 2


# -- encoder-decoders ------------------------------------------------------------------------------------------------------


@right("encoder-decoder", "torch's Transformer with masks made of the pad id, as in tutorials")
class TorchSeq2Seq(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src_pad_idx = 0
        self.src_table, self.tgt_table, self.pos = nn.Embedding(V + 2, E), nn.Embedding(V, E), nn.Embedding(BLOCK, E)
        self.body = nn.Transformer(E, H, 1, 1, 20, dropout=0.1, batch_first=True)
        self.body.encoder.enable_nested_tensor = False
        self.out = nn.Linear(E, V)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        padding = src == self.src_pad_idx
        length = tgt.shape[1]
        out = self.body(
            self.src_table(src) + self.pos(torch.arange(src.shape[1])),
            self.tgt_table(tgt) + self.pos(torch.arange(length)),
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.out(out)


@right("encoder-decoder", "source and target by other names, learned positions, masks True where real")
class SourceTarget(SmallT5):
    def __init__(self) -> None:
        super().__init__()
        self.wpe = nn.Embedding(BLOCK, E)
        del self.relative_bias

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / 2.0

    def encode(self, source: Tensor, mask: Tensor | None) -> Tensor:
        x = self.wte(source) + self.wpe(torch.arange(source.shape[1]))
        hidden = self.padded(torch.zeros(source.shape[1], source.shape[1], dtype=torch.bool), mask)
        for block in self.encoder:
            x = self.wiring(block, x, lambda y, block=block: self.attended(block, y, hidden))
        return self.ln_e(x)

    def forward(self, src: Tensor, trg: Tensor, src_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        memory = self.encode(src, src_mask)
        return self.decode(trg, memory, None, src_mask)


__all__ = ["RIGHT_MODELS", "RightModel", "Small", "merge", "split"]
