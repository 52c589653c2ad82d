"""Language models of transformers, small and with random weights: all green, and found to be what they are."""

from __future__ import annotations

import pytest

from attnlaws import api
from attnlaws.targets.model import ModelTarget

pytest.importorskip("transformers")

#: kind, what padding on the left does, where tokens stand, and how labels are meant
KNOWN = {
    "transformers.gpt2-lm": ("decoder", "absent", "absolute", "inside"),
    "transformers.llama": ("decoder", "absent", "relative", "inside"),
    "transformers.mistral": ("decoder", "absent", "relative", "inside"),
    "transformers.bert": ("encoder", "absent", "absolute", "none"),
    "transformers.t5": ("encoder-decoder", "absent", "unknown", "none"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_models_of_transformers_are_green(name: str) -> None:
    target = api.target_of(name)
    assert isinstance(target, ModelTarget)
    assert target.loss is not None
    assert (target.kind, target.left_padding, target.placed, target.loss.shift) == KNOWN[name]
    assert not target.unclear
    assert not target.ignored
    assert (target.cache is not None) == (target.generate is not None) == target.decodes
    report = api.run(target, profile="glance", seed=3)
    assert report.exit_code in (0, 4), str(report)  # 4: two problems can be too few to tell every impostor


def test_a_model_of_transformers_is_built_from_its_address() -> None:
    target = api.target_of("transformers:GPT2LMHeadModel(n_layer=1, n_embd=8, n_head=2, vocab_size=13, n_positions=20)")
    assert isinstance(target, ModelTarget)
    assert (target.vocabulary, target.longest) == (13, 20)
