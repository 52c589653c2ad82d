"""Wrong layers, one bug each, as small as in the reports; each names the law that should catch it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from layers_right import merge, soft, split
from torch import Tensor, nn


@dataclass(frozen=True)
class WrongLayer:
    """A wrong layer, the law that catches it, and what it does."""

    name: str
    make: Callable[[], nn.Module]
    law: str
    note: str


WRONG_LAYERS: list[WrongLayer] = []


def wrong(law: str, note: str) -> Callable[[Any], Any]:
    """Register a wrong layer."""

    def register(make: Any) -> Any:
        WRONG_LAYERS.append(WrongLayer(make.__name__, make, law, note))
        return make

    return register


class Base(nn.Module):
    """A right layer in parts, for the wrong ones to replace: 3 heads of 4, all tokens or causal."""

    causal = False

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 3
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projected(x)
        return self.ended(self.attended(q, k, v))

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return split(self.q_proj(x), 3), split(self.k_proj(x), 3), split(self.v_proj(x), 3)

    def hidden(self, length: int) -> Tensor | None:
        return torch.ones(length, length, dtype=torch.bool).triu(1) if self.causal else None

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return soft(q, k, v, self.hidden(q.shape[2]))

    def ended(self, heads: Tensor) -> Tensor:
        return self.o_proj(merge(heads))


class CausalBase(Base):
    causal = True


@wrong("layers.permutation", "heads merged without a transposition: tokens and heads are mixed")
class MergeWithoutTranspose(Base):
    def ended(self, heads: Tensor) -> Tensor:
        return self.o_proj(heads.reshape(heads.shape[0], heads.shape[2], -1))


@wrong("layers.causality", "the same in a causal layer")
class MergeWithoutTransposeCausal(CausalBase):
    def ended(self, heads: Tensor) -> Tensor:
        return self.o_proj(heads.reshape(heads.shape[0], heads.shape[2], -1))


@wrong("layers.permutation", "split by view(B, H, L, D): a head gets every third token")
class ViewBeforeTranspose(Base):
    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = x.shape
        q, k, v = (p(x).view(batch, 3, length, 4) for p in (self.q_proj, self.k_proj, self.v_proj))
        return q, k, v


@wrong("layers.causality", "the same in a causal layer")
class ViewBeforeTransposeCausal(CausalBase):
    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = x.shape
        q, k, v = (p(x).view(batch, 3, length, 4) for p in (self.q_proj, self.k_proj, self.v_proj))
        return q, k, v


@wrong("layers.oracle", "scores divided by the root of the width of all heads")
class ScaleOfTheWidth(Base):
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT / math.sqrt(12), -1) @ v


@wrong("layers.oracle", "the same, with the scale kept as an attribute")
class ScaleAttribute(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 12**-0.5

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT * self.scale, -1) @ v


@wrong("layers.oracle", "no scale")
class NoScale(CausalBase):
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)


@wrong("layers.causality", "a causal buffer off by one: each token sees the next")
class MaskOffByOne(Base):
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(40, 40, dtype=torch.bool).tril(1))

    def hidden(self, length: int) -> Tensor:
        return ~self.mask[:length, :length]


@wrong("layers.every-token", "a causal buffer off by one: no token sees itself")
class MaskTooStrict(Base):
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(40, 40, dtype=torch.bool).tril(-1))

    def hidden(self, length: int) -> Tensor:
        shown = self.mask[:length, :length].clone()
        shown[0, 0] = True
        return ~shown


@wrong("layers.causality", "a causal buffer of fixed length, cut at its end: short inputs see everything")
class CausalMaskCutAtTheEnd(Base):
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(40, 40, dtype=torch.bool).tril())

    def hidden(self, length: int) -> Tensor:
        return ~self.mask[-length:, :length]


@wrong("layers.causality", "a causal mask of 8 tokens; those beyond it see everything")
class CausalMaskTooShort(Base):
    def hidden(self, length: int) -> Tensor:
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        mask[8:] = False
        return mask


@wrong("layers.repeatable", "F.dropout without the training flag: it drops in eval mode as well")
class DropoutInEval(Base):
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.dropout(torch.softmax(q @ k.mT / 2.0, -1), 0.1) @ v


@wrong("layers.repeatable", "scaled_dot_product_attention with dropout_p whatever the mode")
class SdpaDropoutInEval(CausalBase):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = 0.1

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)


@wrong("layers.oracle", "softmax over the queries")
class SoftmaxOverQueries(Base):
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT / 2.0, -2) @ v


@wrong("layers.oracle", "softmax over the heads")
class SoftmaxOverHeads(Base):
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT / 2.0, 1) @ v


@wrong("layers.gradients-reach", "the query projection gives the keys too: that of the keys is never used")
class QueryForKey(Base):
    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return split(self.q_proj(x), 3), split(self.q_proj(x), 3), split(self.v_proj(x), 3)


@wrong("layers.oracle", "keys and values swapped")
class KeyAndValueSwapped(CausalBase):
    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return split(self.q_proj(x), 3), split(self.v_proj(x), 3), split(self.k_proj(x), 3)


@wrong("layers.oracle", "the weight of the output projection without its bias")
class NoOutputBias(Base):
    def ended(self, heads: Tensor) -> Tensor:
        return merge(heads) @ self.o_proj.weight.T + 0.0 * self.o_proj.bias


@wrong("layers.gradients-reach", "the output projection is not applied")
class NoOutputProjection(Base):
    def ended(self, heads: Tensor) -> Tensor:
        return merge(heads)


@wrong("layers.oracle", "the output projection applied transposed")
class OutputTransposed(Base):
    def ended(self, heads: Tensor) -> Tensor:
        return merge(heads) @ self.o_proj.weight + self.o_proj.bias


@wrong(
    "layers.oracle", "hidden keys set to 0 after the softmax: rows sum to less than 1, and the future takes its share"
)
class ZeroedAfterSoftmax(Base):
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(q @ k.mT / 2.0, -1)
        return weights.tril() @ v


@wrong("layers.oracle", "grouped key heads tiled instead of repeated")
class Tiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = 4, 2
        self.wq, self.wk, self.wv, self.wo = nn.Linear(12, 16), nn.Linear(12, 8), nn.Linear(12, 8), nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = split(self.wq(x), 4), split(self.wk(x), 2), split(self.wv(x), 2)
        return self.wo(merge(soft(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1))))


@wrong("layers.modes", "eval mode sets a rate to 0 and training doesn't set it back; eval after training scales")
class ModeNotRestored(Base):
    kept = 1.0

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.training:
            self.kept = 0.9
        return soft(q, k, v) * self.kept


@wrong("layers.buffers", "a cache of keys in a buffer that grows with each call")
class GrowingBuffer(Base):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(0, 12), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen.to(x), x.detach().flatten(0, 1)])
        return super().forward(x)


@wrong("layers.buffers", "the weights of every call kept in a list")
class GrowingList(Base):
    def __init__(self) -> None:
        super().__init__()
        self.history: list[Tensor] = []

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.history.append(q.detach())
        return soft(q, k, v)


@wrong("layers.repeatable", "a running mean that eval mode moves as well")
class MovingMean(Base):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(12))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        return super().forward(x - self.mean)


@wrong("layers.batch", "scores normalised over the batch as well")
class BatchLeak(Base):
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / 2.0
        return torch.softmax(scores - scores.mean(0, keepdim=True), -1) @ v


@wrong("layers.batch", "the padding mask of the first sample for all")
class FirstMaskForAll(Base):
    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.projected(x)
        hidden = None if key_padding_mask is None else key_padding_mask[:1, None, None, :]
        return self.ended(soft(q, k, v, hidden))


@wrong("layers.padding", "a padding mask that is taken and not used")
class PaddingIgnored(Base):
    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(x)


@wrong(
    "layers.padding-is-absence",
    "keys and values at padded tokens set to 0, their weights kept: keys still take their share",
)
class PaddedValuesZeroed(Base):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.projected(x)
        if attention_mask is not None:
            k = k.masked_fill(~attention_mask[:, None, :, None], 0.0)
            v = v.masked_fill(~attention_mask[:, None, :, None], 0.0)
        return self.ended(soft(q, k, v))


@wrong("layers.padding", "a padding mask of -10: hidden keys keep a small weight")
class WeakMask(Base):
    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.projected(x)
        scores = q @ k.mT / 2.0
        if key_padding_mask is not None:
            scores = scores + key_padding_mask[:, None, None, :] * -10.0
        return self.ended(torch.softmax(scores, -1) @ v)


@wrong("layers.state-dict", "a random table that is no buffer and not in the state dict")
class TableNotInState(Base):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(12)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.table.to(x))


@wrong("layers.state-dict", "a random table in a buffer that is not persistent")
class TableNotPersistent(Base):
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(12), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.table)


@wrong("layers.state-dict", "q and k concatenated once and kept: a loaded state doesn't reach the output")
class StaleCopy(Base):
    def __init__(self) -> None:
        super().__init__()
        self.joined = self.q_proj.weight.detach().clone()

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = x @ self.joined.to(x).T + self.q_proj.bias + 0.0 * self.q_proj.weight.sum()
        return split(q, 3), split(self.k_proj(x), 3), split(self.v_proj(x), 3)


@wrong("layers.gradients-reach", "keys computed without gradients")
class DetachedKeys(Base):
    def projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            k = self.k_proj(x)
        return split(self.q_proj(x), 3), split(k, 3), split(self.v_proj(x), 3)


@wrong("layers.gradients-match", "weights detached: q and k get a gradient by another way, and not the slope")
class DetachedWeights(Base):
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(q @ k.mT / 2.0, -1)
        return weights.detach() @ v + 0.0 * (q + k)


@wrong("layers.gradients-reach", "rows of padded queries are NaN and set to 0 afterwards: their gradients stay NaN")
class NanGradients(Base):
    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.projected(x)
        scores = q @ k.mT / 2.0
        if key_padding_mask is not None:
            hidden = key_padding_mask[:, None, None, :] | key_padding_mask[:, None, :, None]
            weights = torch.softmax(scores + torch.zeros_like(scores).masked_fill(hidden, -math.inf), -1)
            return self.ended(torch.where(hidden, torch.zeros_like(weights), weights) @ v)
        return self.ended(torch.softmax(scores, -1) @ v)


@wrong("layers.dtype-move", "a table made at the first call and kept in the dtype of that call")
class TableOfTheFirstCall(Base):
    table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(0.5, 1.0, 12).to(x)
        return super().forward(F.linear(x, torch.eye(12, dtype=x.dtype) * self.table[0], self.table))


@wrong("layers.dtype-move", "a table rounded to bfloat16 by the move to float64")
class LossyTable(Base):
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.linspace(0.1, 1.3, 12))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        moved = super()._apply(fn, recurse)
        if moved.table.dtype == torch.float64:
            moved.table = moved.table.bfloat16().double()
        return moved

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.table)


@wrong("layers.modes", "another formula without gradients: a fast path that forgets the scale")
class FastPath(Base):
    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        size = q.shape[-1] if torch.is_grad_enabled() else q.shape[-1] + 1
        return torch.softmax(q @ k.mT / math.sqrt(size), -1) @ v


@wrong("layers.modes", "asking for the weights gives an output without the output projection's bias")
class WeightsChangeTheOutput(Base):
    def forward(self, x: Tensor, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        q, k, v = self.projected(x)
        weights = torch.softmax(q @ k.mT / 2.0, -1)
        out = self.o_proj(merge(weights @ v))
        return (out - self.o_proj.bias, weights) if need_weights else (out, None)


@wrong("layers.every-token", "the last token is never a key")
class LastKeyDropped(Base):
    def hidden(self, length: int) -> Tensor:
        mask = torch.zeros(length, length, dtype=torch.bool)
        if length > 1:
            mask[:, -1] = True
        return mask


@wrong("layers.causality", "an is_causal that is taken and not used")
class CausalFlagIgnored(Base):
    def forward(self, x: Tensor, is_causal: bool = False) -> Tensor:
        return super().forward(x)


@wrong("layers.initial-weights", "a seed fixed in the constructor: every layer of a model starts with the same weights")
class FixedSeed(Base):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()


@wrong("layers.initial-independence", "keys start with the weights of the queries")
class KeysStartAsQueries(Base):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.k_proj.weight.copy_(self.q_proj.weight)


@wrong("layers.initial-weights", "one head's weights repeated for all")
class HeadsStartEqual(Base):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.v_proj.weight.copy_(self.v_proj.weight[:4].repeat(3, 1))


@wrong("layers.initial-independence", "heads that start nearly equal")
class HeadsStartAlike(Base):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.v_proj.weight.add_(2.0 * self.v_proj.weight[:4].repeat(3, 1))
