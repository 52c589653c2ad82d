"""A small decoder, a small encoder and a small encoder-decoder, right and in steps, each of which a fault may replace."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

V, E, H, BLOCK = 11, 12, 3, 24


def split(x: Tensor, heads: int) -> Tensor:
    """(B, L, H*D) -> (B, H, L, D)"""
    return x.reshape(*x.shape[:-1], heads, -1).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """(B, H, L, D) -> (B, L, H*D)"""
    return x.transpose(1, 2).flatten(2)


def sinusoid(length: int, width: int) -> Tensor:
    """(length, width): sin and cos of the place times falling frequencies."""
    angles = torch.arange(length)[:, None] / 100.0 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]


class Layer(nn.Module):
    """The weights of one layer: attention, cross-attention perhaps, and the feed-forward part."""

    def __init__(self, width: int, heads: int, kv_heads: int, cross: bool = False) -> None:
        super().__init__()
        size = width // heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (
            nn.Linear(width, width),
            nn.Linear(width, kv_heads * size),
            nn.Linear(width, kv_heads * size),
        )
        self.o = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        if cross:
            self.ln_x = nn.LayerNorm(width)
            self.xq, self.xk, self.xv, self.xo = (nn.Linear(width, width) for _ in range(4))


class Small(nn.Module):
    """What all have in common: tables, layers, attention in steps."""

    layers, heads, kv_heads, cross = 2, H, H, False
    positions = "learned"
    tie = True
    window: int | None = None
    causal = True
    slopes: Tensor
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.wte = self.token_table()
        if self.positions == "learned":
            self.wpe = nn.Embedding(BLOCK, E)
        if self.positions == "sinusoid":
            self.register_buffer("table", sinusoid(BLOCK, E))
        if self.positions == "alibi":
            self.register_buffer("slopes", torch.tensor([0.5, 0.25, 0.125]).view(1, H, 1, 1))
        if self.positions == "relative":
            self.relative_bias = nn.Embedding(BLOCK, H)
        self.blocks = nn.ModuleList([Layer(E, self.heads, self.kv_heads, self.cross) for _ in range(self.layers)])
        self.ln_f = nn.LayerNorm(E)
        self.head = nn.Linear(E, V, bias=False)
        if self.tie:
            self.head.weight = self.wte.weight

    def token_table(self) -> nn.Embedding:
        return nn.Embedding(V, E)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        x: Tensor = self.wte(idx)
        if self.positions == "learned":
            x = x + self.wpe(places)
        return x + self.table[places] if self.positions == "sinusoid" else x

    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        """x (B, H, L, D) turned by its places (B, L): half pairing."""
        if self.positions != "rotary":
            return x
        half = x.shape[-1] // 2
        angles = places[:, None, :, None].to(x.dtype) * 0.5 ** torch.arange(half, dtype=x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def distance(self, length: int, total: int) -> Tensor:
        """(L, S): how far key j stands before query i, whose rows are the last ones."""
        start = total - length
        return torch.arange(start, total)[:, None] - torch.arange(total)[None, :]

    def hidden(self, length: int, total: int) -> Tensor:
        """(L, S), True where a key may not be seen."""
        away = self.distance(length, total)
        hidden = away < 0 if self.causal else torch.zeros_like(away, dtype=torch.bool)
        return hidden if self.window is None else hidden | (away >= self.window)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        away = self.distance(q.shape[2], k.shape[2])
        if self.positions == "alibi":
            scores = scores - self.slopes * away.abs()
        if self.positions == "relative":
            scores = scores + self.relative_bias(away.abs().clamp(max=BLOCK - 1)).permute(2, 0, 1)
        return scores

    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        """The softmax; a row that sees nothing is 0."""
        return torch.softmax(scores.masked_fill(hidden, -math.inf), -1).masked_fill(hidden.all(-1, keepdim=True), 0.0)

    def grouped(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.heads // self.kv_heads, dim=1)

    def combine(self, weights: Tensor, v: Tensor) -> Tensor:
        return merge(weights @ v)

    def wiring(self, block: Any, x: Tensor, attend: Any) -> Tensor:
        x = x + attend(block.ln_1(x))
        return x + self.feed_forward(block, block.ln_2(x))

    def feed_forward(self, block: Any, x: Tensor) -> Tensor:
        out: Tensor = block.down(F.gelu(block.up(x)))
        return out

    def logits(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.ln_f(x))
        return out


class SmallGPT(Small):
    """A decoder with a cache of (k, v) a layer, padding, position ids, a loss on targets, and generate."""

    def extend(self, past: Any, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if past is None:
            return k, v
        return torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)

    def length_of(self, past: Any) -> int:
        return 0 if past is None else int(past[0][0].shape[2])

    def places(self, idx: Tensor, start: int) -> Tensor:
        return torch.arange(start, start + idx.shape[1]).expand(idx.shape)

    def masked(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """(1 or B, 1, L, S): the triangle, and the padding."""
        hidden = hidden[None, None]
        return hidden if mask is None else hidden | (mask[:, None, None, -hidden.shape[-1] :] == 0)

    def compute(
        self, idx: Tensor, mask: Tensor | None = None, places: Tensor | None = None, past: Any = None
    ) -> tuple[Tensor, Any]:
        start = self.length_of(past)
        places = self.places(idx, start) if places is None else places
        x, present = self.embed(idx, places), []
        for n, block in enumerate(self.blocks):

            def attend(y: Tensor, block: Any = block, n: int = n) -> Tensor:
                q, k, v = self.project(block, y)
                q, k = self.rotate(q, places), self.rotate(k, places)
                k, v = self.extend(None if past is None else past[n], k, v)
                present.append(self.kept(k, v))
                k, v = self.grouped(k), self.grouped(v)
                hidden = self.masked(self.hidden(q.shape[2], k.shape[2]), mask)
                return self.output(block, self.combine(self.weights(self.scores(q, k), hidden), v))

            x = self.wiring(block, x, attend)
        return self.logits(x), tuple(present)

    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, v

    def project(self, block: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return split(block.q(x), self.heads), split(block.k(x), self.kv_heads), split(block.v(x), self.kv_heads)

    def output(self, block: Any, x: Tensor) -> Tensor:
        out: Tensor = block.o(x)
        return out

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    def forward(
        self,
        idx: Tensor,
        targets: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past: Any = None,
    ) -> Any:
        logits, present = self.compute(idx, attention_mask, position_ids, past)
        loss = None if targets is None else self.loss(logits, targets)
        return logits, loss, present

    # -- generation ----------------------------------------------------------------------------------------------------

    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        if temperature == 0:
            return logits.argmax(-1, keepdim=True)
        logits = logits / temperature
        if top_k is not None:
            least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
            logits = logits.masked_fill(logits < least, -math.inf)
        if top_p is not None:
            logits = self.nucleus(logits, top_p)
        return torch.multinomial(torch.softmax(logits, -1), 1)

    def nucleus(self, logits: Tensor, p: float) -> Tensor:
        ordered, order = logits.sort(-1, descending=True)
        shares = ordered.softmax(-1)
        before = shares.cumsum(-1) - shares
        return logits.masked_fill((before >= p).scatter(-1, order, before >= p), -math.inf)

    @torch.no_grad()
    def generate(
        self,
        idx: Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        use_cache: bool = True,
        eos_id: int | None = None,
    ) -> Tensor:
        past, done = None, torch.zeros(idx.shape[0], 1, dtype=torch.bool)
        for _ in range(max_new_tokens):
            fed = idx if past is None else idx[:, -1:]
            logits, present = self.compute(fed, past=past)
            past = present if use_cache else None
            chosen = self.next_token(logits[:, -1], temperature, top_k, top_p)
            if eos_id is not None:
                chosen, done = torch.where(done, eos_id, chosen), done | (chosen == eos_id)
            idx = torch.cat([idx, chosen], 1)
        return idx


class OneLayer(SmallGPT):
    """A decoder of one layer."""

    layers = 1


class SmallBERT(Small):
    """An encoder with segments, a key padding mask, post-norm, and the loss of masked tokens."""

    causal, tie = False, True

    def __init__(self) -> None:
        super().__init__()
        self.wse, self.ln_0 = nn.Embedding(2, E), nn.LayerNorm(E)

    def wiring(self, block: Any, x: Tensor, attend: Any) -> Tensor:
        x = block.ln_1(x + attend(x))
        out: Tensor = block.ln_2(x + self.feed_forward(block, x))
        return out

    def logits(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.ln_f(F.gelu(x)))
        return out

    def begin(self, ids: Tensor, segments: Tensor | None) -> Tensor:
        places = torch.arange(ids.shape[1]).expand(ids.shape)
        kinds = torch.zeros_like(ids) if segments is None else segments
        out: Tensor = self.ln_0(self.embed(ids, places) + self.wse(kinds))
        return out

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)

    def padding(self, ids: Tensor, mask: Tensor | None) -> Tensor | None:
        """(B, 1, 1, L), True where a key is padding."""
        return None if mask is None else (mask == 0)[:, None, None, :]

    def encode(self, ids: Tensor, mask: Tensor | None, segments: Tensor | None = None) -> Tensor:
        x, padding = self.begin(ids, segments), self.padding(ids, mask)
        hidden = self.hidden(ids.shape[1], ids.shape[1])[None, None]
        hidden = hidden if padding is None else hidden | padding
        for block in self.blocks:

            def attend(y: Tensor, block: Any = block) -> Tensor:
                q, k, v = split(block.q(y), H), split(block.k(y), H), split(block.v(y), H)
                out: Tensor = block.o(self.combine(self.weights(self.scores(q, k), hidden), v))
                return out

            x = self.wiring(block, x, attend)
        return x

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor | None]:
        logits = self.logits(self.encode(input_ids, attention_mask, token_type_ids))
        return {"loss": None if labels is None else self.loss(logits, labels), "logits": logits}


class SmallT5(Small):
    """An encoder and a decoder with relative positions and cross-attention; labels may stand for the decoder's tokens."""

    positions, cross, tie = "relative", True, False

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([Layer(E, H, H) for _ in range(1)])
        self.ln_e = nn.LayerNorm(E)

    def project(self, block: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return split(block.q(x), H), split(block.k(x), H), split(block.v(x), H)

    def padded(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return hidden[None, None] if mask is None else hidden[None, None] | (mask == 0)[:, None, None, :]

    def attended(self, block: Any, y: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = self.project(block, y)
        out: Tensor = block.o(self.combine(self.weights(self.scores(q, k), hidden), v))
        return out

    def encode(self, source: Tensor, mask: Tensor | None) -> Tensor:
        x = self.wte(source)
        hidden = self.padded(torch.zeros(source.shape[1], source.shape[1], dtype=torch.bool), mask)
        for block in self.encoder:
            x = self.wiring(block, x, lambda y, block=block: self.attended(block, y, hidden))
        out: Tensor = self.ln_e(x)
        return out

    def crossed(self, block: Any, y: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = split(block.xq(y), H), split(block.xk(memory), H), split(block.xv(memory), H)
        hidden = self.padded(torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool), mask)
        out: Tensor = block.xo(merge(self.weights(q @ k.mT / 2.0, hidden) @ v))
        return out

    def decode(self, ids: Tensor, memory: Tensor, mask: Tensor | None, source_mask: Tensor | None) -> Tensor:
        x = self.wte(ids)
        hidden = self.padded(self.hidden(ids.shape[1], ids.shape[1]), mask)
        block: Any
        for block in self.blocks:
            x = x + self.attended(block, block.ln_1(x), hidden)
            x = x + self.crossed(block, block.ln_x(x), memory, source_mask)
            x = x + self.feed_forward(block, block.ln_2(x))
        return self.logits(x)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor | None]:
        if decoder_input_ids is None:
            assert labels is not None
            decoder_input_ids = F.pad(labels[:, :-1], (1, 0)).clamp(min=0)
        memory = self.encode(input_ids, attention_mask)
        logits = self.decode(decoder_input_ids, memory, decoder_attention_mask, attention_mask)
        return {"loss": None if labels is None else self.loss(logits, labels), "logits": logits}
