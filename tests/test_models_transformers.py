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


@pytest.mark.parametrize(("window", "wrong"), [(1, {"cache.equals-full", "cache.script"}), (2, set())])
def test_a_mistral_with_a_narrow_window_breaks_by_its_cache_alone(window: int, wrong: set[str]) -> None:
    """With a window of 1 the cache keeps all keys; the 4-D mask of transformers is not taken for padding."""
    name = (
        "transformers:MistralForCausalLM(vocab_size=11, hidden_size=16, intermediate_size=20, num_attention_heads=4, "
        "num_key_value_heads=2, num_hidden_layers=1, max_position_embeddings=40, bos_token_id=None, eos_token_id=None, "
        f"sliding_window={window})"
    )
    target = api.target_of(name)
    assert isinstance(target, ModelTarget)
    assert target.dependence.alone is (window == 1)
    assert (str(target.pad), target.ignored) == ("None" if window == 1 else "attention_mask BL, 1 = real", ())
    report = api.run(target, laws=["models", "gpt", "cache"], profile="glance", seed=3)
    assert {v.law for v in report.failures} == wrong, str(report)


def test_what_generate_raised_is_told() -> None:
    """The cache that transformers' generate makes for T5 has as many layers as the encoder; the decoder has more."""
    name = (
        "transformers:T5ForConditionalGeneration(vocab_size=11, d_model=12, d_kv=4, d_ff=20, num_heads=3, num_layers=1, "
        "num_decoder_layers=2, decoder_start_token_id=0)"
    )
    report = api.run(api.target_of(name), laws=["generation.greedy", "models.finite"], profile="smoke")
    told = "generate raised IndexError: list index out of range"
    assert report.exit_code == 0
    assert [v.reason for v in report.verdicts if v.law == "generation.greedy"] == [told]
    assert "no meaning was found for generate" not in str(report)
    assert told in str(report)


def test_a_model_of_transformers_is_built_from_its_address() -> None:
    target = api.target_of("transformers:GPT2LMHeadModel(n_layer=1, n_embd=8, n_head=2, vocab_size=13, n_positions=20)")
    assert isinstance(target, ModelTarget)
    assert (target.vocabulary, target.longest) == (13, 20)
