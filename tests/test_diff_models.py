"""Two models compared: no difference where they hold the same, the first part that differs otherwise."""

from __future__ import annotations

import torch
from attnlaws.reference.gpt import GPT, GPTConfig
from torch import Tensor, nn

import attnlaws
from attnlaws.cli import main
from attnlaws.faults.models.small import SmallGPT
from attnlaws.run.diff_models import ModelDifference


def diff(first: object, second: object) -> ModelDifference:
    found = attnlaws.diff(first, second)
    assert isinstance(found, ModelDifference)
    return found


class OtherEpsilon(SmallGPT):
    def __init__(self) -> None:
        super().__init__()
        for part in self.modules():
            if isinstance(part, nn.LayerNorm):
                part.eps = 1e-6


class WiderFeedForward(SmallGPT):
    """The second layer's feed-forward part is 1 % too large, by its weights' own values."""

    def forward(self, *arguments: Tensor, **options: Tensor) -> Tensor:
        with torch.no_grad():
            up = self.blocks[1].up.weight
            up.mul_(1.01)
            try:
                return super().forward(*arguments, **options)
            finally:
                up.div_(1.01)


def renamed() -> nn.Module:
    """The same model, under other names and with other parts between."""

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, input_ids: Tensor) -> Tensor:
            return self.inner(input_ids)

    return Wrapped()


def small() -> SmallGPT:
    torch.manual_seed(0)
    return SmallGPT()


def test_the_same_model_has_no_difference() -> None:
    found = diff(SmallGPT, SmallGPT)
    assert found.exit_code == 0
    assert found.same_weights
    assert found.compared >= 4
    assert found.matched[0] == found.matched[1] >= 12
    assert "no difference" in str(found)


def test_other_names_with_the_same_weights_have_no_difference() -> None:
    found = diff(small, renamed)
    assert found.exit_code == 0, str(found)
    assert not found.same_weights
    assert found.matched[0] >= 12


def test_an_epsilon_is_found_at_the_first_norm_and_told_as_small() -> None:
    found = diff(SmallGPT, OtherEpsilon)
    assert found.exit_code == 1
    assert {p.first for p in found.partings} == {("blocks.0.ln_1", "blocks.0.ln_1")}
    assert all(p.small for p in found.partings)
    assert "an epsilon" in str(found)


def test_the_first_part_that_differs_is_named() -> None:
    found = diff(SmallGPT, WiderFeedForward)
    assert found.exit_code == 1
    assert {p.first for p in found.partings} == {("blocks.1.up", "blocks.1.up")}
    assert not any(p.small for p in found.partings)
    assert f"{len(found.partings)} of {found.compared} texts" in str(found)


def test_two_models_with_their_own_weights_part_at_the_first_part() -> None:
    def gpt() -> GPT:
        return GPT(GPTConfig(11, 24, 12, 2, 3), torch.Generator().manual_seed(0))

    found = diff(small, gpt)
    assert found.exit_code == 1
    assert {p.equal for p in found.partings} == {("", "")}
    assert "each has its own" in str(found)


def test_models_of_unlike_vocabularies_have_nothing_in_common() -> None:
    found = diff(SmallGPT, lambda: GPT(GPTConfig(13, 24, 12, 2, 3), torch.Generator().manual_seed(0)))
    assert found.exit_code == 4
    assert "A has 11 ids, B has 13" in str(found)


def test_the_command_line(capsys) -> None:  # type: ignore[no-untyped-def]
    assert main(["diff", "attnlaws.faults.models.small:SmallGPT", "attnlaws.faults.models.small:SmallGPT"]) == 0
    assert "no difference" in capsys.readouterr().out
