"""Attention modules of transformers, from config with random weights: all green."""

from __future__ import annotations

from collections.abc import Callable

import layers_transformers
import pytest
from torch import nn

from attnlaws import api
from attnlaws.targets.layer import LayerTarget

pytest.importorskip("transformers")

#: how the weights lie, and how outputs depend on tokens without a mask
KNOWN = {
    "gpt2": ("fused, q | k | v", True),
    "gpt2_eager": ("fused, q | k | v", False),
    "bert_self": ("separate", False),
    "bert": (None, False),
    "t5": ("separate", False),
    "t5_relative": (None, False),
    "llama": (None, True),
    "llama_eager": (None, False),
}


@pytest.mark.parametrize("make", layers_transformers.ALL, ids=lambda make: make.__name__)
def test_modules_of_transformers_are_green(make: Callable[[], nn.Module]) -> None:
    target = api.target_of(make())
    assert isinstance(target, LayerTarget)
    style = target.projections.style if target.projections and target.recognised == "reproduced" else None
    assert (style, target.dependence.causal) == KNOWN[make.__name__]
    assert target.padding is not None
    report = api.run(target, profile="glance", seed=3)
    assert report.exit_code in (0, 4), str(report)  # 4: two problems can be too few to tell every impostor
