"""Faults of generation: top-k, top-p, the temperature, the loop and its end."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .fault import ModelFault
from .small import SmallGPT, V
from .variants import SampleFlagGPT


class OneLess(SmallGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        return super().next_token(logits, temperature, top_k and max(top_k - 1, 1), top_p)


class OneMore(SmallGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        return super().next_token(logits, temperature, top_k and (1 if top_k == 1 else top_k + 1), top_p)


class LeastLikely(SampleFlagGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        if top_k:
            most = (-logits).topk(min(top_k, V)).values[:, -1:]
            logits = logits.masked_fill(-logits < most, -math.inf)
        return torch.multinomial(torch.softmax(logits, -1), 1)


class ReachingTokenDropped(SmallGPT):
    def nucleus(self, logits: Tensor, p: float) -> Tensor:
        ordered, order = logits.sort(-1, descending=True)
        out = ordered.softmax(-1).cumsum(-1) > p
        out[:, 0] = False
        return logits.masked_fill(out.scatter(-1, order, out), -math.inf)


class OneTokenMore(SmallGPT):
    def nucleus(self, logits: Tensor, p: float) -> Tensor:
        ordered, order = logits.sort(-1, descending=True)
        shares = ordered.softmax(-1)
        out = F.pad((shares.cumsum(-1) - shares >= p)[:, :-1], (1, 0))
        return logits.masked_fill(out.scatter(-1, order, out), -math.inf)


class TopPOneIsGreedy(SmallGPT):
    def nucleus(self, logits: Tensor, p: float) -> Tensor:
        if p < 1:
            return super().nucleus(logits, p)
        return logits.masked_fill(logits < logits.max(-1, keepdim=True).values, -math.inf)


class MaskNotUnsorted(SmallGPT):
    def nucleus(self, logits: Tensor, p: float) -> Tensor:
        shares = logits.sort(-1, descending=True).values.softmax(-1)
        return logits.masked_fill(shares.cumsum(-1) - shares >= p, -math.inf)


class TimesTemperature(SmallGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        return super().next_token(logits, 1.0 / temperature if temperature else 0.0, top_k, top_p)


class ProbabilitiesDivided(SmallGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        return super().next_token((torch.softmax(logits, -1) / max(temperature, 1e-6)), 1.0, top_k, top_p)


class TemperatureIgnored(SmallGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        return super().next_token(logits, 1.0, top_k, top_p)


class NeverSamples(SmallGPT):
    def next_token(self, logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
        return logits.argmax(-1, keepdim=True)


class FirstPositionChooses(SmallGPT):
    def generate(self, idx: Tensor, max_new_tokens: int) -> Tensor:  # type: ignore[override]
        for _ in range(max_new_tokens):
            idx = torch.cat([idx, self.compute(idx)[0][:, 0].argmax(-1, keepdim=True)], 1)
        return idx


class FeedsTheTokenBefore(SmallGPT):
    def generate(self, idx: Tensor, max_new_tokens: int, use_cache: bool = True) -> Tensor:  # type: ignore[override]
        past = None
        for _ in range(max_new_tokens):
            logits, present = self.compute(idx if past is None else idx[:, -2:-1], past=past)
            past = present if use_cache else None
            idx = torch.cat([idx, logits[:, -1].argmax(-1, keepdim=True)], 1)
        return idx


class OneTokenLess(SmallGPT):
    def generate(self, idx: Tensor, max_new_tokens: int) -> Tensor:  # type: ignore[override]
        for _ in range(max_new_tokens - 1):
            idx = torch.cat([idx, self.compute(idx)[0][:, -1].argmax(-1, keepdim=True)], 1)
        return idx


class CacheOfTheLastCall(SmallGPT):
    left: Any = None

    def generate(self, idx: Tensor, max_new_tokens: int) -> Tensor:  # type: ignore[override]
        for n in range(max_new_tokens):
            stale = self.left is not None and self.left[0][0].shape[0] == idx.shape[0] and n > 0
            logits, self.left = self.compute(idx[:, -1:] if stale else idx[:, -4:], past=self.left if stale else None)
            idx = torch.cat([idx, logits[:, -1].argmax(-1, keepdim=True)], 1)
        return idx


class AllEnd(SmallGPT):
    def generate(self, idx: Tensor, max_new_tokens: int, eos_id: int | None = None) -> Tensor:  # type: ignore[override]
        for _ in range(max_new_tokens):
            chosen = self.compute(idx)[0][:, -1].argmax(-1, keepdim=True)
            idx = torch.cat([idx, chosen], 1)
            if eos_id is not None and (chosen == eos_id).any():
                break
        return idx


class GoesOn(SmallGPT):
    def generate(self, idx: Tensor, max_new_tokens: int, eos_id: int | None = None) -> Tensor:  # type: ignore[override]
        for _ in range(max_new_tokens):
            chosen = self.compute(idx)[0][:, -1].argmax(-1, keepdim=True)
            idx = torch.cat([idx, chosen], 1)
            if eos_id is not None and (chosen == eos_id).all():
                break
        return idx


FAULTS: tuple[ModelFault, ...] = (
    ModelFault("top-k keeps one less", "top-k keeps k - 1 tokens", "keep the k largest logits", (), "generation.top-k", OneLess),
    ModelFault("top-k keeps one more", "top-k keeps k + 1 tokens", "keep the k largest logits", (), "generation.top-k", OneMore),
    ModelFault("top-k keeps the least likely", "top-k keeps the k least likely tokens", "keep the k largest logits", (), "generation.top-k", LeastLikely),
    ModelFault("top-p drops the reaching token", "top-p drops the token that reaches p", "keep the fewest of the most likely tokens that reach p together", (), "generation.top-p", ReachingTokenDropped),
    ModelFault("top-p keeps one more", "top-p keeps one token more than reach p", "keep the fewest of the most likely tokens that reach p together", (), "generation.top-p", OneTokenMore),
    ModelFault("top-p 1 is greedy", "top-p = 1 takes the most likely token", "let p = 1 keep all tokens", ("BlinkDL/ChatRWKV#170",), "generation.top-p", TopPOneIsGreedy),
    ModelFault("top-p mask not unsorted", "the mask of the sorted tokens is put on the unsorted ones", "scatter the mask back to the tokens' places", (), "generation.top-p", MaskNotUnsorted),
    ModelFault("temperature multiplies", "the logits are multiplied by the temperature", "divide the logits by the temperature before the softmax", (), "generation.cold", TimesTemperature),
    ModelFault("temperature divides probabilities", "the probabilities are divided by the temperature, not the logits", "divide the logits by the temperature before the softmax", (), "generation.temperature", ProbabilitiesDivided),
    ModelFault("temperature ignored", "the temperature is taken and ignored", "divide the logits by the temperature before the softmax", (), "generation.cold", TemperatureIgnored),
    ModelFault("never samples", "asked to sample, it takes the most likely token", "draw from the softmax of the logits", (), "generation.temperature", NeverSamples),
    ModelFault("first position chooses", "the next token is chosen by the first position's logits", "read the logits of the last position", (), "generation.greedy", FirstPositionChooses),
    ModelFault("feeds the token before", "with a cache, generate feeds the token before the last", "feed the tokens that are not in the cache", (), "generation.greedy", FeedsTheTokenBefore),
    ModelFault("one token less", "one token less than asked for comes", "run max_new_tokens steps", (), "generation.greedy", OneTokenLess),
    ModelFault("cut prompt", "the prompt is cut to its last four tokens when the cache is filled", "feed the whole prompt", (), "generation.greedy", CacheOfTheLastCall),
    ModelFault("all samples end with one", "all samples end where one does", "fill a sample with the end token after its own end, and stop when all have ended", (), "generation.end", AllEnd),
    ModelFault("samples go on after their end", "samples go on after their end until all end in one step", "fill a sample with the end token after its own end, and stop when all have ended", (), "generation.end", GoesOn),
)  # fmt: skip
