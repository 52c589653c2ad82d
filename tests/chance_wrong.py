"""Wrong by chance: functions, layers and parts whose randomness is off, each with the law that it must break."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from attnlaws.reference import objectives
from attnlaws.reference.bert import Bert
from attnlaws.reference.gpt import GPT
from attnlaws.reference.sampling import probabilities
from torch import Tensor, nn

from attnlaws.targets import part as parts
from attnlaws.targets import shipped_parts
from attnlaws.targets.initial import NORMAL, TRUNCATED, UNIFORM


@dataclass(frozen=True)
class Wrong:
    """A wrong target, the law meant, and what is declared of it (layers)."""

    name: str
    law: str
    make: Callable[[], Any]
    layer: Mapping[str, Any] = field(default_factory=dict)


WRONG: list[Wrong] = []


def _add(law: str, name: str, make: Callable[[], Any], **layer: Any) -> None:
    WRONG.append(Wrong(name, law, make, layer))


# -- functions: the scale ----------------------------------------------------------------------------------------------


def attends(scale: Callable[[int], float], drop: Callable[[Tensor, Tensor, float], Tensor] | None = None) -> Any:
    """softmax(s(D) q k^T) v, with a dropout of its own: drop(scores, weights, p)."""

    def attention(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0) -> Tensor:
        scores = query @ key.transpose(-1, -2) * scale(query.shape[-1])
        weights = torch.softmax(scores, -1)
        if dropout_p and drop is not None:
            weights = drop(scores, weights, dropout_p)
        return weights @ value

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value)

    return plain if drop is None else attention


_add("statistics.score-variance", "scale 1/d", lambda: attends(lambda d: 1 / d))
_add("statistics.score-variance", "scale 2 % too large", lambda: attends(lambda d: 1.02 * d**-0.5))
_add("statistics.score-variance", "scale 2 % too small", lambda: attends(lambda d: 0.98 * d**-0.5))
_add("statistics.score-variance", "scale of four heads together", lambda: attends(lambda d: (4 * d) ** -0.5))
_add("statistics.saturation", "scale frozen at 1/8", lambda: attends(lambda d: 0.125))
_add("scores.default-scale", "scale 1/sqrt(d + 1)", lambda: attends(lambda d: (d + 1) ** -0.5))
_add("scores.default-scale", "no scale from 32 on", lambda: attends(lambda d: d**-0.5 if d < 32 else 1.0))


# -- functions: dropout ------------------------------------------------------------------------------------------------


def bernoulli(p: float, *shape: int) -> Tensor:
    """1 where a value is kept."""
    return (torch.rand(*shape) >= p).float()


def _drops(law: str, name: str, drop: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    _add(law, f"dropout: {name}", lambda: attends(lambda d: d**-0.5, drop))


def _kept(keep: Callable[[Tensor, float], Tensor]) -> Callable[[Tensor, Tensor, float], Tensor]:
    return lambda scores, w, p: w * keep(w, p).to(w.dtype) / (1 - p)


def _fixed(w: Tensor, p: float) -> Tensor:
    generator = torch.Generator().manual_seed(1234)
    return (torch.rand(w.shape, generator=generator) >= p).float()


def _renormalised(scores: Tensor, w: Tensor, p: float) -> Tensor:
    kept = w * bernoulli(p, *w.shape).to(w.dtype)
    return kept / kept.sum(-1, keepdim=True).clamp(min=1e-9)


_drops("dropout.chance", "2 % too much", _kept(lambda w, p: bernoulli(1.02 * p, *w.shape)))
_drops("dropout.chance", "2 % too little", _kept(lambda w, p: bernoulli(0.98 * p, *w.shape)))
_drops("dropout.chance", "one mask for all heads", _kept(lambda w, p: bernoulli(p, w.shape[0], 1, *w.shape[2:])))
_drops("dropout.chance", "one mask for all samples", _kept(lambda w, p: bernoulli(p, 1, *w.shape[1:])))
_drops("dropout.chance", "one mask for all rows", _kept(lambda w, p: bernoulli(p, *w.shape[:2], 1, w.shape[3])))
_drops("dropout.chance", "one mask for all columns", _kept(lambda w, p: bernoulli(p, *w.shape[:3], 1)))
_drops("dropout.chance", "the same mask in each call", _kept(_fixed))
_drops("dropout.weights", "not divided by 1 - p", lambda s, w, p: w * bernoulli(p, *w.shape).to(w.dtype))
_drops("dropout.unbiased", "not divided by 1 - p, in the mean", lambda s, w, p: w * bernoulli(p, *w.shape).to(w.dtype))
_drops("dropout.unbiased", "divided twice", lambda s, w, p: w * bernoulli(p, *w.shape).to(w.dtype) / (1 - p) ** 2)
_drops("dropout.weights", "rows renormalised", _renormalised)
_drops("dropout.weights", "of the scores", lambda s, w, p: torch.softmax(
    s.masked_fill(bernoulli(p, *s.shape) == 0, -1e4), -1))  # fmt: skip


# -- layers: initial weights -------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """A right layer of four heads with c_attn or separate projections, its weights filled by `fill(weights by name)`."""

    def __init__(
        self, fill: Callable[[dict[str, Tensor]], None], drop: Any = None, width: int = 32, inner: int = 32
    ) -> None:
        super().__init__()
        self.num_heads, self.drop, self.dropout = 4, drop, 0.1 if drop else 0
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, inner, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(inner, width, bias=False)
        with torch.no_grad():
            fill({"q": self.q_proj.weight, "k": self.k_proj.weight, "v": self.v_proj.weight, "o": self.o_proj.weight})

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (4, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        w = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)
        if self.training and self.dropout and self.drop is not None:
            w = self.drop(w, self.dropout)
        return self.o_proj((w @ v).transpose(1, 2).flatten(2))


def _normal(**deviations: float) -> Callable[[dict[str, Tensor]], None]:
    def fill(weights: dict[str, Tensor]) -> None:
        for name, w in weights.items():
            w.normal_(0, deviations.get(name, deviations.get("all", 0.02)))

    return fill


def _then(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[dict[str, Tensor]], None]:
    def fill(weights: dict[str, Tensor]) -> None:
        _normal()(weights)
        change(weights)

    return fill


def _layer(law: str, name: str, fill: Callable[[dict[str, Tensor]], None], rule: str = "", **sizes: int) -> None:
    def make() -> Any:
        class Layer(Attention):
            def __init__(self) -> None:
                super().__init__(fill, **sizes)

        return Layer

    _add(law, f"layer: {name}", make, **({"initialisation": rule} if rule else {}))


def _fixed_seed(weights: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    _normal()(weights)


def _one_head_for_all(weights: dict[str, Tensor]) -> None:
    weights["v"][:] = weights["v"][:8].repeat(4, 1)


def _common_part(weights: dict[str, Tensor]) -> None:
    weights["k"][:] = (weights["k"] + weights["q"] / 4) / math.sqrt(1 + 1 / 16)


def _uneven(weights: dict[str, Tensor]) -> None:
    weights["q"].mul_(torch.tensor([1.1, 0.9, 1.1, 0.9]).repeat_interleave(8)[:, None])


_layer("layers.projection-variance", "q 2 % too wide", _normal(q=0.0204), "normal(0.02)")
_layer("layers.projection-variance", "v 2 % too narrow", _normal(v=0.0196), "normal(0.02)")
_layer("layers.projection-variance", "residual not scaled", _normal(), "normal(0.02), o normal(0.0040825)")
_layer("layers.projection-variance", "residual scaled by 1/sqrt(L), not 1/sqrt(2L)", _normal(o=0.02 / math.sqrt(12)),
       "normal(0.02), o normal(0.0040825)")  # fmt: skip
_layer("layers.projection-variance", "fan-out taken for fan-in", _normal(all=64**-0.5), "lecun_normal", inner=64)
_layer(
    "layers.projection-variance", "fused Xavier where separate is said", _normal(all=(2 / 128) ** 0.5), "xavier_normal"
)
_layer("layers.projection-variance", "He where Xavier is said", _normal(all=(2 / 32) ** 0.5), "xavier_normal")
_layer("layers.projection-variance", "cut without correction", lambda ws: [nn.init.trunc_normal_(w, 0, 0.02, -0.04, 0.04)
       for w in ws.values()] and None, "normal(0.02)")  # fmt: skip
_layer("layers.projection-variance", "deviation taken for a bound", lambda ws: [w.uniform_(-0.02, 0.02)
       for w in ws.values()] and None, "normal(0.02)")  # fmt: skip
_layer("layers.initial-distribution", "uniform where normal is said", lambda ws: [
       w.uniform_(-0.02 * 3**0.5, 0.02 * 3**0.5) for w in ws.values()] and None, "normal(0.02)")  # fmt: skip
_layer("layers.initial-weights", "one head for all", _then(_one_head_for_all))
_layer("layers.initial-weights", "a row twice", _then(lambda ws: ws["k"][5].copy_(ws["k"][4])))
_layer("layers.initial-weights", "a seed inside", _fixed_seed)
_layer("layers.initial-independence", "keys start as queries", _then(lambda ws: ws["k"].copy_(ws["q"])))
_layer("layers.initial-independence", "keys start as queries turned over", _then(lambda ws: ws["k"].copy_(-ws["q"])))
_layer("layers.initial-independence", "keys and queries have a part in common", _then(_common_part))
_layer("layers.initial-heads", "head scales 1.1 and 0.9 in turn", _then(_uneven))
_layer("layers.initial-heads", "one head starts at zero", _then(lambda ws: ws["v"][8:16].zero_()))
_layer(
    "layers.score-variance",
    "keys start as queries, by the scores",
    _then(lambda ws: ws["k"].copy_(ws["q"])),
    "normal(0.02)",
)
_layer("layers.score-variance", "keys too wide, by the scores", _normal(k=0.03), "normal(0.02)")


# -- layers: dropout ---------------------------------------------------------------------------------------------------


def _layer_drop(law: str, name: str, drop: Callable[[Tensor, float], Tensor]) -> None:
    def make() -> Any:
        class Layer(Attention):
            def __init__(self) -> None:
                super().__init__(_normal(), drop)

        return Layer

    _add(law, f"layer dropout: {name}", make)


_layer_drop("layers.dropout", "2 % too much", lambda w, p: w * bernoulli(1.02 * p, *w.shape).to(w.dtype) / (1 - p))
_layer_drop("layers.dropout", "heads share a mask", lambda w, p: w * bernoulli(
    p, w.shape[0], 1, *w.shape[2:]).to(w.dtype) / (1 - p))  # fmt: skip
_layer_drop(
    "layers.dropout", "samples share a mask", lambda w, p: w * bernoulli(p, 1, *w.shape[1:]).to(w.dtype) / (1 - p)
)
_layer_drop("layers.dropout", "whole rows", lambda w, p: w * bernoulli(p, *w.shape[:3], 1).to(w.dtype) / (1 - p))
_layer_drop("layers.dropout", "not divided by 1 - p", lambda w, p: w * bernoulli(p, *w.shape).to(w.dtype))
_layer_drop("layers.dropout-unbiased", "divided by 1 - p twice", lambda w, p: w * bernoulli(
    p, *w.shape).to(w.dtype) / (1 - p) ** 2 * 1.0000001)  # fmt: skip


# -- samplers ----------------------------------------------------------------------------------------------------------


def _sampler(law: str, name: str, chances: Callable[..., Tensor]) -> None:
    def draw(logits: Tensor, **options: Any) -> Tensor:
        return torch.multinomial(chances(logits, **options), 1)

    _add(law, f"sampler: {name}", lambda: parts.torch_sampler(name, draw))


def _unit_row(logits: Tensor, temperature: float = 1.0, **options: Any) -> Tensor:
    return probabilities(logits, temperature=temperature, **options)


def _one_number_for_all(logits: Tensor, **options: Any) -> Tensor:
    edges = probabilities(logits, **options).cumsum(-1)
    return torch.searchsorted(edges, torch.rand(1, dtype=edges.dtype).expand(len(logits), 1).contiguous()).clamp(
        max=logits.shape[1] - 1
    )


def _short_of_p(logits: Tensor, top_p: float | None = None, **options: Any) -> Tensor:
    chances = probabilities(logits, **options)
    if top_p is None:
        return chances
    ranked, order = chances.sort(-1, descending=True)
    kept = (ranked.cumsum(-1) <= top_p).index_fill(1, torch.tensor([0]), True)
    return torch.zeros_like(chances).scatter(1, order, ranked * kept)


def _late_temperature(logits: Tensor, temperature: float = 1.0, **options: Any) -> Tensor:
    chances = probabilities(logits, **options) ** (1 / temperature)
    return chances / chances.sum(-1, keepdim=True)


_sampler(
    "sampling.temperature", "temperature multiplied", lambda z, temperature=1.0, **o: _unit_row(z * temperature, **o)
)
_sampler("sampling.temperature", "temperature ignored", lambda z, temperature=1.0, **o: _unit_row(z, **o))
_sampler(
    "sampling.temperature",
    "temperature 5 % too high",
    lambda z, temperature=1.0, **o: _unit_row(z, temperature * 1.05, **o),
)
_sampler(
    "sampling.temperature",
    "temperature 3 % too low",
    lambda z, temperature=1.0, **o: _unit_row(z, temperature * 0.97, **o),
)
_sampler("sampling.temperature", "softmax twice", lambda z, **o: torch.softmax(probabilities(z, **o), -1))
_sampler("sampling.temperature", "two tokens swapped", lambda z, **o: probabilities(z.roll(1, -1), **o))
_sampler("sampling.top-k", "one token too many", lambda z, top_k=None, **o: probabilities(
    z, top_k=None if top_k is None else min(top_k + 1, z.shape[1]), **o))  # fmt: skip
_sampler("sampling.top-k", "one token too few", lambda z, top_k=None, **o: probabilities(
    z, top_k=None if top_k is None else max(1, top_k - 1), **o))  # fmt: skip
_sampler("sampling.top-k", "k ignored", lambda z, top_k=None, **o: probabilities(z, **o))
_sampler("sampling.top-p", "the token that reaches p left out", _short_of_p)
_sampler("sampling.top-p", "temperature after the choice", _late_temperature)
_add("sampling.rows", "sampler: one random number for all rows",
     lambda: parts.torch_sampler("one number", _one_number_for_all))  # fmt: skip


# -- corruption --------------------------------------------------------------------------------------------------------


def _masking(law: str, name: str, function: Callable[..., Any]) -> None:
    _add(law, f"masking: {name}", lambda: parts.torch_masking(name, function))


def _mixed(masked: float, random: float) -> Callable[..., Any]:
    def corrupt(tokens: Tensor, *, mask_id: int, vocab_size: int, special: Tensor) -> tuple[Tensor, Tensor]:
        chosen = (torch.rand(tokens.shape) < 0.15) & ~special
        fate = torch.rand(tokens.shape)
        inputs = torch.where(chosen & (fate < masked), mask_id, tokens)
        drawn = torch.randint(vocab_size, tokens.shape)
        return torch.where(chosen & (fate >= 1 - random), drawn, inputs), tokens.masked_fill(~chosen, -100)

    return corrupt


def _labels_of_inputs(tokens: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    inputs, labels = objectives.mask_tokens(tokens, **options)
    return inputs, torch.where(labels == -100, labels, inputs)


_masking("corruption.mask-rate", "16 %", lambda t, **o: objectives.mask_tokens(t, probability=0.16, **o))
_masking("corruption.mask-rate", "2 % too few", lambda t, **o: objectives.mask_tokens(t, probability=0.147, **o))
_masking("corruption.mask-rate", "an exact number, one too many", lambda t, **o: objectives.mask_tokens_exactly(
    t, probability=0.165, **o))  # fmt: skip
_masking("corruption.mask-split", "all masked", _mixed(1.0, 0.0))
_masking("corruption.mask-split", "none random", _mixed(0.8, 0.0))
_masking("corruption.mask-split", "none left", _mixed(0.8, 0.2))
_masking("corruption.mask-split", "78, 11, 11", _mixed(0.78, 0.11))
_masking("corruption.labels", "special tokens chosen", lambda t, special, **o: objectives.mask_tokens(
    t, special=torch.zeros_like(special), **o))  # fmt: skip
_masking("corruption.labels", "labels after corruption", _labels_of_inputs)


def _span(law: str, name: str, function: Callable[..., Any]) -> None:
    _add(law, f"spans: {name}", lambda: parts.torch_spans(name, function))


def _uneven_mask(length: int, noise: int, spans: int) -> Tensor:
    runs = [noise - spans + 1] + [1] * (spans - 1)
    gaps = objectives._composition(length - noise, spans, None).tolist()
    return torch.tensor([flag for g, r in zip(gaps, runs, strict=True) for flag in [False] * g + [True] * r])


def _with(mask: Callable[[int], Tensor], last: bool = False) -> Callable[..., Any]:
    return lambda t, first_sentinel: objectives.corrupt_spans(
        t, mask(len(t)), first_sentinel=first_sentinel, final_sentinel=last
    )


def _upwards(t: Tensor, first_sentinel: int) -> tuple[Tensor, Tensor]:
    inputs, labels = shipped_parts.spans(t, first_sentinel=first_sentinel)
    return tuple(torch.where(x > 20_000, 2 * first_sentinel - x, x) for x in (inputs, labels))  # type: ignore[return-value]


def _rounded_down(length: int) -> Tensor:
    return objectives.span_mask(length, density=(math.floor(0.15 * length) - 0.4) / length)


_span("corruption.spans", "sentinels upwards", _upwards)
_span("corruption.spans", "one token short", _with(_rounded_down))
_span("corruption.spans", "each token by itself", _with(lambda n: objectives.span_mask(n, mean_span=1.0)))
_span("corruption.spans", "tokens lost", lambda t, first_sentinel: (
    shipped_parts.spans(t, first_sentinel=first_sentinel)[0],
    shipped_parts.spans(t, first_sentinel=first_sentinel)[1][:-1]))  # fmt: skip
_span("corruption.span-lengths", "a long span first", _with(
    lambda n: _uneven_mask(n, max(1, round(0.15 * n)), max(1, round(round(0.15 * n) / 3)))))  # fmt: skip


# -- initialisers, dropout, models, depth ----------------------------------------------------------------------------------


def _rule(law: str, name: str, fill: Callable[[Tensor], Any], family: Any, size: Callable[[int, int], float]) -> None:
    _add(law, f"rule: {name}", lambda: parts.torch_initialiser(name, fill, (family, size)))


def _clipped(w: Tensor) -> None:
    w.normal_(0, 0.02).clamp_(-0.04, 0.04)


_rule("initial.rule", "2 % too wide", lambda w: w.normal_(0, 0.0204), NORMAL, lambda i, o: 0.02)
_rule("initial.rule", "2 % too narrow", lambda w: w.normal_(0, 0.0196), NORMAL, lambda i, o: 0.02)
_rule("initial.rule", "the root of 3 missing", lambda w: w.uniform_(-(w.shape[1] ** -0.5), w.shape[1] ** -0.5), UNIFORM,
      lambda i, o: i**-0.5)  # fmt: skip
_rule("initial.rule", "fan-out for fan-in", lambda w: w.normal_(0, w.shape[0] ** -0.5), NORMAL, lambda i, o: i**-0.5)
_rule(
    "initial.rule", "He without its 2", lambda w: w.normal_(0, w.shape[1] ** -0.5), NORMAL, lambda i, o: (2 / i) ** 0.5
)
_rule("initial.rule", "clipped, not cut", _clipped, TRUNCATED, lambda i, o: 0.02 * 0.87962566)
_rule(
    "initial.rule", "the mean is 2 % of a deviation off", lambda w: w.normal_(0.0006, 0.02), NORMAL, lambda i, o: 0.02
)
_rule("initial.rule", "variance taken for a deviation", lambda w: w.normal_(0, 0.02**2), NORMAL, lambda i, o: 0.02)


def _dropout(law: str, name: str, function: Callable[[Tensor, float], Tensor]) -> None:
    _add(law, f"dropout part: {name}", lambda: parts.torch_dropout(name, function))


_dropout("dropping.chance", "2 % too much", lambda x, p: x * bernoulli(1.02 * p, *x.shape) / (1 - p))
_dropout("dropping.chance", "2 % too little", lambda x, p: x * bernoulli(0.98 * p, *x.shape) / (1 - p))
_dropout("dropping.chance", "whole columns", lambda x, p: x * bernoulli(p, *x.shape[:2], 1, x.shape[3]) / (1 - p))
_dropout("dropping.chance", "samples share a mask", lambda x, p: x * bernoulli(p, 1, *x.shape[1:]) / (1 - p))
_dropout("dropping.scale", "not divided", lambda x, p: x * bernoulli(p, *x.shape))


def _model(name: str, change: Callable[[GPT], Any]) -> None:
    def build() -> GPT:
        model = GPT(shipped_parts.SMALL)
        with torch.no_grad():
            change(model)
        return model

    _add("initial.model", f"model: {name}", lambda: parts.torch_weights(name, build, shipped_parts.gpt2_deviation))


_model("residual not scaled", lambda m: [b.mlp.c_proj.weight.normal_(0, 0.02) for b in m.h])
_model("residual scaled by 1/sqrt(L)", lambda m: [b.attn.c_proj.weight.mul_(2**0.5) for b in m.h])
_model("embeddings of deviation 1", lambda m: m.wte.weight.normal_(0, 1))
_model("biases random", lambda m: [b.attn.c_attn.bias.normal_(0, 0.02) for b in m.h])
_model("gains at zero", lambda m: [b.ln_1.weight.zero_() for b in m.h])
_model("all 2 % too wide", lambda m: [p.mul_(1.02) for p in m.parameters() if p.ndim == 2])


def _depth(name: str, change: Callable[[GPT], Any]) -> None:
    predicted = shipped_parts.shipped_parts()["reference.gpt.GPT by depth"].predicted

    def build() -> GPT:
        model = GPT(shipped_parts.DEEP)
        with torch.no_grad():
            change(model)
        return model

    _add(
        "depth.pre-norm", f"depth: {name}", lambda: parts.torch_stack(name, build, shipped_parts.gpt_stream, predicted)
    )


def _rezero(model: GPT) -> None:
    for block in model.h[1::2]:
        block.mlp.c_proj.weight.zero_()


_depth("residual not scaled", lambda m: [p.mul_(4) for n, p in m.named_parameters() if n.endswith("c_proj.weight")])
_depth(
    "residual scaled by 1/sqrt(L)",
    lambda m: [p.mul_(2**0.5) for n, p in m.named_parameters() if n.endswith("c_proj.weight")],
)
_depth("every other block silent", _rezero)


def _unnormed() -> Bert:
    model = Bert(shipped_parts.NORMED)
    for layer in model.layers:
        layer.mlp_norm = nn.Identity()
    return model


_add("depth.post-norm", "depth: a norm left out",
     lambda: parts.torch_stack("a norm left out", _unnormed, shipped_parts.bert_stream))  # fmt: skip
