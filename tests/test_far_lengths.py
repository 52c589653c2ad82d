"""What goes wrong from token 64 on is found; windows and fading influences there are no fault."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import attnlaws
from attnlaws import api
from attnlaws.faults.models.caches import CacheOfOneBlock
from attnlaws.faults.models.masks import MaskEnds, NextBlockSeen
from attnlaws.faults.models.small import SmallGPT
from attnlaws.faults.models.variants import RotaryGPT
from attnlaws.problems.layer_problem import LayerWants
from attnlaws.problems.layer_problem import covering as layer_covering
from attnlaws.targets.layer import LayerTarget
from attnlaws.targets.model import ModelTarget


def model(module: nn.Module) -> ModelTarget:
    found = api.target_of(module)
    assert isinstance(found, ModelTarget)
    return found


class FirstHalfLost(RotaryGPT):
    """Beyond 64 tokens every second key is hidden."""

    layers = 1

    def hidden(self, length: int, total: int) -> Tensor:
        hidden = super().hidden(length, total)
        hidden[64:, 1:32:2] = True
        return hidden


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (MaskEnds, "gpt.causality"),
        (NextBlockSeen, "gpt.causality"),
        (CacheOfOneBlock, "cache.equals-full"),
    ],
)
def test_a_fault_behind_a_block_is_found(wrong: type[SmallGPT], law: str) -> None:
    report = attnlaws.check(model(wrong()), laws=[law])
    assert [v.law for v in report.failures] == [law], str(report)
    assert report.failures[0].witness.length > 33


class Windowed(RotaryGPT):
    """Windows of 40 tokens: two layers see 78 before their own."""

    window = 40


class Alibi(SmallGPT):
    """Slopes so steep that what is far fades below rounding."""

    positions = "alibi"


@pytest.mark.parametrize("right", [RotaryGPT, Windowed, Alibi])
def test_right_models_are_green_there(right: type[SmallGPT]) -> None:
    target = model(right())
    names = ["gpt.causality", "gpt.cutoff", "gpt.all-past-matters", "cache.equals-full"]
    report = attnlaws.check(target, laws=names)
    assert not report.failures, str(report)
    assert [v.status for v in report.verdicts] == ["held"] * 4


def test_what_is_found_of_far_lengths() -> None:
    assert (model(RotaryGPT()).far, model(RotaryGPT()).dependence.left) == (129, None)
    assert (model(Windowed()).far, model(Windowed()).dependence.left) == (129, 78)
    assert model(Alibi()).far == 0
    assert model(FirstHalfLost()).far == 0  # no pattern that is known: the card can't say what it must see
    assert model(SmallGPT()).far <= 40  # its table of positions ends


class Chunked(RotaryGPT):
    """Each chunk of 50 tokens sees itself alone, as in Llama 4: no window."""

    def hidden(self, length: int, total: int) -> Tensor:
        chunks = torch.arange(total) // 50
        return super().hidden(length, total) | (chunks[total - length :, None] != chunks[None, :])


class Scaled(RotaryGPT):
    """Rotations that change with the length beyond the longest that is declared, as dynamic scaling has it."""

    max_position_embeddings = 48

    def rotate(self, x: Tensor, places: Tensor) -> Tensor:
        return super().rotate(x, places / max(1.0, places.shape[-1] / 48))


@pytest.mark.parametrize("right", [Chunked, Scaled])
def test_what_has_no_law_there_is_left_alone(right: type[SmallGPT]) -> None:
    target = model(right())
    assert target.far <= 48
    report = attnlaws.check(target, laws=["gpt.causality", "gpt.cutoff", "gpt.all-past-matters"])
    assert not report.failures, str(report)


class Encoder(nn.Module):
    """One layer without positions; tokens of some places may be hidden from all."""

    def __init__(self, hidden: slice = slice(0)) -> None:
        super().__init__()
        self.hidden = hidden
        self.tokens, self.qkv, self.head = nn.Embedding(11, 12), nn.Linear(12, 36), nn.Linear(12, 11)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / math.sqrt(12)
        scores[..., self.hidden] = -torch.inf
        return self.head(x + torch.softmax(scores, -1) @ v)


def test_encoders_are_tried_there_too() -> None:
    assert not attnlaws.check(model(Encoder()), laws=["bert.bidirectional"]).failures
    report = attnlaws.check(model(Encoder(slice(90, 95))), laws=["bert.bidirectional"])
    assert [v.law for v in report.failures] == ["bert.bidirectional"], str(report)


class Causal(nn.Module):
    """A layer whose triangle may end."""

    def __init__(self, ends: int | None = None) -> None:
        super().__init__()
        self.ends = ends
        self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, 3, 4).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        if self.ends is not None:
            hidden[:, self.ends :] = False
        scores = (q @ k.mT / math.sqrt(4)).masked_fill(hidden, -torch.inf)
        return self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, length, width))


def test_layers_are_tried_there_too() -> None:
    assert not attnlaws.check(Causal()).failures
    report = attnlaws.check(Causal(64), laws=["layers.causality"])
    assert [v.law for v in report.failures] == ["layers.causality"], str(report)
    target = api.target_of(Causal())
    assert isinstance(target, LayerTarget)
    assert target.far == 129
    lengths = {p.length for p, _ in zip(layer_covering(LayerWants(far=True), target, 0), range(60), strict=False)}
    assert {65, 129} <= lengths
    near = {p.length for p, _ in zip(layer_covering(LayerWants(), target, 0), range(60), strict=False)}
    assert max(near) == 33
