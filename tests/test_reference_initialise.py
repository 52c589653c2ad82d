"""Initial weights: each rule's values have the deviation and the law that it says, and none of another rule's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attnlaws.reference import initialise
from attnlaws.reference.bert import Bert, BertConfig
from attnlaws.reference.gpt import GPT, GPTConfig
from attnlaws.reference.initialise import Normal, Rule, TruncatedNormal, Uniform, Xavier, he
from attnlaws.reference.llama import Llama, LlamaConfig
from attnlaws.reference.t5 import T5, T5Config
from scipy import stats
from torch import Tensor, nn

ALPHA = 1e-9  # two-sided, for each matrix
RULES: list[tuple[Rule, str]] = [
    (Normal(0.02), "normal"),
    (Uniform(0.3), "uniform"),
    (TruncatedNormal(0.5), "truncated"),
    (TruncatedNormal(0.5, cut=1.5, corrected=True), "truncated"),
    (Xavier(), "normal"),
    (Xavier(gain=2.0, uniform=True), "uniform"),
    (he(), "normal"),
    (he(uniform=True), "uniform"),
    (initialise.fan_in_normal(), "normal"),
    (initialise.torch_linear(), "uniform"),
]


def p_of(values: Tensor, deviation: float, law: str, cut: float = 2.0) -> float:
    """Kolmogorov and Smirnov's p for the law with this deviation, nothing estimated."""
    laws: dict[str, Any] = {
        "normal": stats.norm(scale=deviation),
        "uniform": stats.uniform(-deviation * math.sqrt(3), 2 * deviation * math.sqrt(3)),
    }
    if law == "truncated":
        unit = stats.truncnorm(-cut, cut)
        laws[law] = stats.truncnorm(-cut, cut, scale=deviation / unit.std())
    return float(stats.kstest(values.detach().double().flatten().numpy(), laws[law].cdf).pvalue)


@pytest.mark.parametrize(
    ("rule", "law"), RULES, ids=lambda value: value if isinstance(value, str) else type(value).__name__
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_have_the_rules_law(rule: Rule, law: str, dtype: torch.dtype) -> None:
    """A matrix of 80 by 500, so that fan-in and fan-out differ. A deviation 10 % off would be seen."""
    weight = torch.empty(80, 500, dtype=dtype)
    assert initialise.fans(weight) == (500, 80)
    assert rule.fill_(weight, torch.Generator().manual_seed(3)) is weight
    deviation, cut = rule.std(500, 80), getattr(rule, "cut", 2.0)
    assert p_of(weight, deviation, law, cut) > ALPHA
    assert p_of(weight, 1.1 * deviation, law, cut) < ALPHA


def test_the_deviations_are_the_formulas() -> None:
    assert Xavier().std(12, 36) == math.sqrt(2 / 48)
    assert he().std(50, 7) == pytest.approx(0.2)
    assert initialise.fan_in_normal().std(64, 7) == 1 / 8
    assert initialise.torch_linear().std(64, 7) == pytest.approx(1 / (8 * math.sqrt(3)))
    assert TruncatedNormal(1.0).std(1, 1) == pytest.approx(0.8796, abs=5e-5)  # JAX divides by this number
    assert TruncatedNormal(1.0).narrowing == pytest.approx(stats.truncnorm(-2, 2).std())
    assert TruncatedNormal(0.7, corrected=True).std(1, 1) == 0.7


@pytest.mark.parametrize(
    ("rule", "theirs"),
    [
        (Xavier(), nn.init.xavier_normal_),
        (Xavier(uniform=True), nn.init.xavier_uniform_),
        (he(), nn.init.kaiming_normal_),
        (he(uniform=True), nn.init.kaiming_uniform_),
        (initialise.torch_linear(), lambda weight: weight.copy_(nn.Linear(weight.shape[1], len(weight)).weight)),
    ],
)
def test_the_rules_are_torchs(rule: Rule, theirs: Any) -> None:
    """torch's own functions give values of the same law."""
    torch.manual_seed(0)
    with torch.no_grad():
        weight = theirs(torch.empty(300, 100))
    law = "uniform" if getattr(rule, "uniform", False) else "normal"
    assert p_of(weight, rule.std(100, 300), law) > ALPHA
    assert p_of(weight, rule.std(300, 100), law) < ALPHA or isinstance(rule, Xavier)


def test_bounds_are_kept() -> None:
    generator = torch.Generator().manual_seed(0)
    assert float(Uniform(0.3).fill_(torch.empty(900, 100), generator).abs().max()) <= 0.3
    assert float(TruncatedNormal(0.02).fill_(torch.empty(900, 100), generator).abs().max()) <= 0.04


def test_16_bits_are_drawn_in_32() -> None:
    """So that they are the rounded values of float32."""
    wide, narrow = torch.empty(30, 40), torch.empty(30, 40, dtype=torch.bfloat16)
    for weight in (wide, narrow):
        Normal(0.02).fill_(weight, torch.Generator().manual_seed(1))
    assert torch.equal(wide.bfloat16(), narrow)


def test_a_vector_has_no_fans() -> None:
    with pytest.raises(ValueError, match="matrix"):
        Xavier().fill_(torch.empty(5))
    with pytest.raises(ValueError, match="num_layers"):
        initialise.gpt2_(nn.Linear(2, 2), 0)


def check(model: nn.Module, deviation: Any, law: str = "normal") -> None:
    """Each parameter of the model: matrices by name, norms 1, biases 0; no two matrices alike."""
    first_values: list[float] = []
    for name, p in model.named_parameters():
        if p.ndim == 1:
            assert bool((p == (0 if name.endswith("bias") else 1)).all()), name
        else:
            assert p_of(p, deviation(name), law) > ALPHA, name
            first_values.append(float(p.flatten()[0]))
    assert len(set(first_values)) == len(first_values)


def test_gpt2s_weights() -> None:
    """0.02, and 0.02 / sqrt(2 layers) for what ends a residual branch: 0.02 / sqrt(layers) would be seen."""
    model = GPT(GPTConfig(vocab_size=200, d_model=64, num_layers=3, num_heads=2), torch.Generator().manual_seed(0))
    check(model, lambda name: 0.02 / math.sqrt(6) if name.endswith("c_proj.weight") else 0.02)
    assert p_of(model.h[0].mlp.c_proj.weight, 0.02 / math.sqrt(3), "normal") < ALPHA
    assert model.lm_head.weight is model.wte.weight


def test_the_other_models_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    bert = Bert(BertConfig(vocab_size=200, d_model=64, num_layers=2, num_heads=2, d_ff=96), generator)
    check(bert, lambda name: TruncatedNormal(0.02).std(1, 1), "truncated")
    llama = Llama(LlamaConfig(vocab_size=200, d_model=64, num_layers=2, num_heads=2, d_ff=96), generator)
    check(llama, lambda name: 0.02)

    def t5s(name: str) -> float:
        if "embedding" in name or "lm_head" in name:
            return 1.0
        inner = {"q": 64 * 32, "o": 4 * 32, "c_proj": 96}
        return 1 / math.sqrt(inner.get(name.split(".")[-2], 64))

    t5 = T5(T5Config(vocab_size=200, d_model=64, d_head=32, num_heads=4, d_ff=96, num_layers=2, tied=False), generator)
    check(t5, t5s)
