"""Our GPT, BERT, T5, Llama and Mistral are transformers': logits, loss, gradients, and what they write with a cache."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from attnlaws.reference import import_weights
from attnlaws.reference.objectives import token_loss
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

pytest.importorskip("transformers", reason="the models are compared with transformers', which is not installed")
from model_configs import LENGTH, Pair, allowed, gradients, pairs, their_gradients

KINDS = ("gpt", "bert", "t5", "llama", "mistral")
DOUBLE, SINGLE = 2.0**-53, 2.0**-24
few = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def apart(ours: list[Tensor], theirs: list[Tensor], limits: list[float]) -> float:
    """The largest distance, as a part of what is allowed."""
    assert len(ours) == len(theirs) == len(limits)
    ratios = []
    for mine, other, limit in zip(ours, theirs, limits, strict=True):
        assert mine.shape == other.shape
        assert bool(torch.isfinite(other).all())
        distance = float((mine - other).abs().max())
        ratios.append(0.0 if distance == 0 else distance / limit if limit else float("inf"))
    return max(ratios)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_loss_and_gradients_are_transformers(kind: str) -> None:
    """In float64, within what rounding can do: padding on either side, ignored labels, tied or not."""

    @few
    @given(pairs(kind))
    def agree(pair: Pair) -> None:
        ours, limits = allowed(pair.ours, gradients(pair), DOUBLE, LENGTH)
        assert limits[0] < 1e-8
        assert apart(ours, their_gradients(pair), limits) <= 1

    agree()


@pytest.mark.parametrize("kind", ["t5", "llama", "mistral"])
def test_transformers_as_they_are_agree_to_float32(kind: str) -> None:
    """With their norms and rotary tables in float32."""

    @few
    @given(pairs(kind, exact=False))
    def agree(pair: Pair) -> None:
        def logits(model: nn.Module) -> list[Tensor]:
            return [pair.logits(model)[pair.real].detach()]

        ours, limits = allowed(pair.ours, logits, SINGLE, LENGTH)
        assert apart(ours, [pair.answer()[0][pair.real].detach()], limits) <= 1

    agree()


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_what_transformers_reports(kind: str) -> None:
    """Their own number, which is rounded to float32 for a next token."""

    @few
    @given(pairs(kind))
    def agree(pair: Pair) -> None:
        def loss(model: nn.Module) -> list[Tensor]:
            return [pair.loss(pair.logits(model)).detach()]

        ours, limits = allowed(pair.ours, loss, SINGLE, LENGTH)
        assert apart(ours, [pair.answer()[1].detach()], limits) <= 1

    agree()


@pytest.mark.parametrize("kind", ["gpt", "bert", "t5"])
def test_dropout_falls_where_it_does_in_transformers(kind: str) -> None:
    """In training mode after the same seed both draw masks of the same shapes in the same order, so they agree as without."""

    @few
    @given(pairs(kind))
    def agree(pair: Pair) -> None:
        def logits(model: nn.Module) -> list[Tensor]:
            torch.manual_seed(3)
            return [pair.logits(model.train())[pair.real].detach()]

        ours, limits = allowed(pair.ours, logits, DOUBLE, LENGTH)
        pair.theirs.train()
        torch.manual_seed(3)
        theirs = pair.answer()[0][pair.real].detach()
        assert apart(ours, [theirs], limits) <= 1
        assert apart(ours, [pair.logits(pair.ours.eval())[pair.real].detach()], limits) > 10

    agree()


# -- with a cache, and writing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt", "llama", "mistral"])
def test_chunks_with_a_cache_are_transformers_chunks(kind: str) -> None:
    """Both read the prompt in the same two chunks and then token by token; padding on the left or none."""

    @few
    @given(pairs(kind), st.integers(1, 4))
    def agree(pair: Pair, first: int) -> None:
        mask = (
            torch.ones_like(pair.tokens) if pair.attention_mask is None else pair.attention_mask.flip(1).sort().values
        )
        L = pair.tokens.shape[1]
        cuts = sorted({0, first, *range(min(first + 2, L), L), L})

        def logits(model: Any) -> list[Tensor]:
            cache, parts = model.new_cache(), []
            for start, stop in pairwise(cuts):
                parts.append(model(pair.tokens[:, start:stop], attention_mask=mask[:, :stop], cache=cache).detach())
            return [torch.cat(parts, dim=1)[mask.bool()]]

        ours, limits = allowed(pair.ours, logits, DOUBLE, LENGTH)
        cache, theirs = None, []
        for start, stop in pairwise(cuts if pair.cached else [0, L]):
            places = (mask.cumsum(1) - 1).clamp(min=0)[:, start:stop]
            answer = pair.theirs(
                pair.tokens[:, start:stop],
                attention_mask=mask[:, :stop],
                position_ids=places,
                use_cache=pair.cached,
                cache=cache,
            )
            cache = answer.cache
            theirs.append(answer.logits.detach())
        assert apart(ours, [torch.cat(theirs, dim=1)[mask.bool()]], limits) <= 1

    agree()


@pytest.mark.parametrize("kind", ["gpt", "t5", "llama", "mistral"])
def test_greedy_writing_is_transformers(kind: str) -> None:
    """Token for token: no two logits that are drawn here are so close that rounding decides."""

    @few
    @given(pairs(kind))
    def agree(pair: Pair) -> None:
        new = 6
        left = pair.attention_mask is None or bool(pair.attention_mask[:, -1].all())
        mask = pair.attention_mask if left or kind == "t5" else None
        given: dict[str, Any] = {"attention_mask": torch.ones_like(pair.tokens) if mask is None else mask}
        theirs = pair.theirs.generate(
            pair.tokens,
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
            use_cache=pair.cached,
            **given,
        )
        ours = pair.ours.generate(pair.tokens, new, temperature=0, attention_mask=mask)
        assert ours.shape == theirs.shape
        assert torch.equal(ours, theirs)

    agree()


# -- and it can fail -------------------------------------------------------------------------------------------------------


def _change(kind: str, change: Callable[[Any], None]) -> float:
    """How far our model with one step changed is from transformers, at its most over the drawn cases."""
    found = [0.0]

    @few
    @given(pairs(kind))
    def collect(pair: Pair) -> None:
        def logits(model: nn.Module) -> list[Tensor]:
            return [pair.logits(model)[pair.real].detach()]

        _, limits = allowed(pair.ours, logits, DOUBLE, LENGTH)
        change(pair.ours)
        found[0] = max(found[0], apart(logits(pair.ours), [pair.answer()[0][pair.real].detach()], limits))

    collect()
    return found[0]


def _eps(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "eps") and not isinstance(module, type(model)):
            module.eps = module.eps * 1.001 + 1e-9


def _activation(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "activation"):
            module.activation = lambda x, f=module.activation: f(x) + 1e-6 * x


def _attention(name: str, value: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for module in model.modules():
            if hasattr(module, name):
                setattr(module, name, value)

    return change


def _swapped_heads(model: Any) -> None:
    """Key heads shared out as tiles, not groups: query heads in the order 0, G, 2G, ... ."""
    for layer in model.layers:
        H, D = model.config.num_heads, model.config.head_size
        with torch.no_grad():
            weight = layer.attention.q_proj.weight.view(model.config.kv_heads, H // model.config.kv_heads, D, -1)
            layer.attention.q_proj.weight.copy_(weight.transpose(0, 1).reshape(H * D, -1))
            weight = layer.attention.o_proj.weight.view(-1, model.config.kv_heads, H // model.config.kv_heads, D)
            layer.attention.o_proj.weight.copy_(weight.transpose(1, 2).reshape(-1, H * D))


def _config(**values: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        for name, value in values.items():
            for module in model.modules():
                if hasattr(module, "config"):
                    object.__setattr__(module.config, name, value)

    return change


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("gpt", _eps),
        ("gpt", _activation),
        ("bert", _eps),
        ("bert", _activation),
        ("t5", _eps),
        ("t5", _activation),
        ("t5", _config(max_distance=30)),
        ("t5", _config(num_buckets=6)),
        ("llama", _eps),
        ("llama", _activation),
        ("llama", _attention("rope_base", 9999.0)),
        ("llama", _attention("pairing", "interleaved")),
        ("llama", _swapped_heads),
        ("mistral", _config(window=3)),
        ("mistral", _config(window=5)),
    ],
)
def test_one_wrong_step_is_seen(kind: str, change: Callable[[Any], None]) -> None:
    """Each is beyond what is allowed by a factor of ten at least, in some case of those that the tests above try."""
    assert _change(kind, change) > 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_off_by_a_millionth_is_seen(kind: str) -> None:
    """The gradient that enters the last norm is 1 + 1e-6 of itself: all but what is after that norm is wrong."""
    found = [0.0]

    @few
    @given(pairs(kind))
    def collect(pair: Pair) -> None:
        ours, limits = allowed(pair.ours, gradients(pair), DOUBLE, LENGTH)
        last = [m for m in pair.ours.modules() if "Norm" in type(m).__name__][-1]
        last.register_full_backward_hook(lambda module, entered, left: tuple(g * (1 + 1e-6) for g in entered))
        wrong = gradients(pair)(pair.ours)
        assert torch.equal(wrong[0], ours[0])
        found[0] = max(found[0], apart(wrong, their_gradients(pair), limits))

    collect()
    assert found[0] > 10


@pytest.mark.parametrize("kind", ["gpt", "llama", "mistral"])
def test_a_loss_that_is_not_shifted_is_seen(kind: str) -> None:
    found = [0.0]

    @few
    @given(pairs(kind))
    def collect(pair: Pair) -> None:
        def loss(model: nn.Module) -> list[Tensor]:
            return [token_loss(pair.logits(model), pair.labels).detach()]

        ours, limits = allowed(pair.ours, loss, SINGLE, LENGTH)
        found[0] = max(found[0], apart(ours, [pair.answer()[1].detach()], limits))

    collect()
    assert found[0] > 10


def test_a_model_without_its_head_is_refused() -> None:
    import transformers

    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=11, **sizes))
    for kind, name in (
        ("gpt", "GPT2LMHeadModel"),
        ("bert", "BertForMaskedLM"),
        ("t5", "T5ForConditionalGeneration"),
        ("llama", "LlamaForCausalLM or MistralForCausalLM"),
    ):
        with pytest.raises(ValueError, match=f"must be a {name}.*, with its head, not BertModel"):
            getattr(import_weights, f"{kind}_from_transformers")(bert)
