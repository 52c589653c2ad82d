"""Layers: every right one is green, every wrong one is caught; addresses, cards, cases, the plugin."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from layers_right import RIGHT_LAYERS, NanoGPT, RightLayer, Separate
from layers_wrong import WRONG_LAYERS, NoScale, ScaleOfTheWidth, WrongLayer

import attnlaws
from attnlaws import api
from attnlaws.cli import main
from attnlaws.faults.layers import LAYER_FAULTS
from attnlaws.laws.load import laws_of, load_laws
from attnlaws.problems.layer_problem import LayerProblem
from attnlaws.problems.problem import CorruptCase
from attnlaws.targets.layer import LayerTarget
from attnlaws.targets.layer_weights import oracle_layer

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("right", RIGHT_LAYERS, ids=lambda r: r.name)
def test_right_is_green(right: RightLayer) -> None:
    target = api.target_of(right.make)
    assert isinstance(target, LayerTarget)
    found = target.projections.style if target.projections and target.recognised == "reproduced" else None
    assert found == right.weights, attnlaws.card(target)
    for seed in (1, 2):
        report = api.run(target, profile="glance", seed=seed)
        assert report.exit_code in (0, 4), str(report)  # 4: two problems can be too few to tell every impostor


@pytest.mark.parametrize("wrong", WRONG_LAYERS, ids=lambda w: w.name)
def test_wrong_is_caught(wrong: WrongLayer) -> None:
    report = attnlaws.check(wrong.make, laws=[wrong.law])
    assert [v.law for v in report.failures] == [wrong.law], str(report)
    assert report.exit_code == 1
    assert all(v.witness is not None for v in report.failures)


def test_the_zoo_of_layers_is_large_enough() -> None:
    assert len(RIGHT_LAYERS) >= 12
    assert len(WRONG_LAYERS) >= 20


def test_each_kind_has_its_laws() -> None:
    assert not set(laws_of("layer")) & set(load_laws())
    assert set(laws_of()) == {*laws_of("layer"), *laws_of("model"), *laws_of("part"), *load_laws()}
    assert all(law.name.startswith("layers.") and len(law.formula) > 40 for law in laws_of("layer").values())


def test_a_named_fault_is_told() -> None:
    for wrong, words in ((ScaleOfTheWidth, "sqrt of the width of all heads"), (NoScale, "not scaled")):
        report = attnlaws.check(wrong, laws=["layers.oracle"], profile="smoke")
        assert report.diagnosis is not None
        assert words in report.diagnosis[0]
    assert len({fault.name for fault in LAYER_FAULTS}) == len(LAYER_FAULTS)


def test_the_oracle_layer_is_torchs() -> None:
    """The two were written apart: torch's MultiheadAttention in float64 and the NumPy layer."""
    module = torch.nn.MultiheadAttention(12, 3, batch_first=True)
    target = api.target_of(module)
    assert isinstance(target, LayerTarget)
    assert target.projections is not None
    layer = target.fresh("float64")
    x = np.random.default_rng(0).standard_normal((2, 5, 12))
    shown = np.broadcast_to(np.tri(5, dtype=bool), (2, 5, 5))
    want = oracle_layer(target.projections, layer.parameters(), x, shown).output
    assert np.abs(layer.run(x, visible=np.array(shown)) - want).max() < 1e-14


def test_a_check_leaves_the_module_as_it_was() -> None:
    module = NanoGPT().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    attnlaws.check(module, laws=["layers.modes", "layers.dtype-move"], profile="smoke")
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


MINE = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, width, heads=2, leaks=False):
        super().__init__()
        self.attention, self.leaks = nn.MultiheadAttention(width, heads, batch_first=True), leaks

    def forward(self, x):
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(2 if self.leaks else 1)
        return self.attention(x, x, x, attn_mask=hidden, need_weights=False)[0]

def factory():
    return Layer(8)

def not_a_factory():
    return 3

ready = Layer(8)

class TwoInputs(nn.Module):
    def forward(self, x, memory):
        return x + memory

class Attention(nn.Module):
    def forward(self, query, key, value):
        return nn.functional.scaled_dot_product_attention(query, key, value)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_layers.py").write_text(MINE)
    return tmp_path


@pytest.mark.parametrize(
    "target",
    [
        "mine_layers.py:Layer(8)",
        "mine_layers.py:Layer(width=8, heads=4)",
        "mine_layers.py:factory",
        "mine_layers.py:ready",
        "torch.nn:MultiheadAttention(8, 2, batch_first=True)",
    ],
)
def test_addresses_of_layers(place: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    assert main(["check", target, "--laws", "layers.batch", "--profile", "smoke"]) == 0
    out = capsys.readouterr().out
    assert f"{target}   (a layer, torch)" in out
    assert "layers.batch" in out


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("mine_layers.py:Layer", "give its arguments"),
        ("mine_layers.py:Layer(width=8, tall=1)", "unexpected keyword argument 'tall'"),
        ("mine_layers.py:Layer(width=open('x'))", "must be literals"),
        ("mine_layers.py:Layer(width=", "did you mean 'Layer'?"),
        ("mine_layers.py:Leyer(8)", "did you mean 'Layer'?"),
        ("mine_layers.py:ready(8)", "is a module already"),
        ("mine_layers.py:not_a_factory", "no query, key, value"),
        ("mine_layers.py:TwoInputs", "requires x, memory"),
    ],
)
def test_layers_that_cannot_be_tried(
    place: Path, capsys: pytest.CaptureFixture[str], target: str, sentence: str
) -> None:
    assert main(["check", target, "--profile", "smoke"]) == 3
    assert sentence in capsys.readouterr().err


def test_a_module_of_query_key_and_value_with_heads_is_a_function(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "mine_layers.py:Attention()", "--laws", "weights.hull", "--profile", "smoke"]) == 0
    assert "weights.hull" in capsys.readouterr().out


def test_a_leak_is_shrunk_and_replayed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = "mine_layers.py:Layer(8, leaks=True)"
    assert main(["check", target, "--laws", "layers.causality"]) == 1
    out = capsys.readouterr().out
    assert "smallest witness   B=1 L=2 float32" in out
    assert "the output moves when a token that it may not see changes (token 1)" in out
    case = place / ".attnlaws" / "layers.causality.json"
    assert json.loads(case.read_text())["target"] == target
    assert main(["replay", str(case)]) == 1
    assert main(["replay", str(case), "--target", "mine_layers.py:Layer(8)"]) == 0
    assert main(["replay", str(case), "--target", "torch.sdpa"]) == 2


def test_a_law_of_another_kind_is_wrong_usage(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mine_layers.py:factory", "--laws", "weights.oracle"]) == 2
    assert main(["check", "torch.sdpa", "--laws", "layers.batch"]) == 2
    assert "no law of functions" in capsys.readouterr().err


def test_what_is_declared_of_a_layer(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = '[tool.attnlaws.targets.mine]\ntarget = "mine_layers.py:factory"\nlayer = { %s }\n'
    (place / "pyproject.toml").write_text(text % 'causal = "no"')
    assert main(["check", "mine", "--laws", "layers.every-token", "--profile", "smoke"]) == 1
    (place / "pyproject.toml").write_text(text % 'causal = "always", width = 8')
    assert main(["check", "mine", "--laws", "layers.every-token", "--profile", "smoke"]) == 0
    (place / "pyproject.toml").write_text(text % 'causal = "perhaps"')
    assert main(["check", "mine"]) == 2
    assert "causal = 'perhaps' is not one of: always, no" in capsys.readouterr().err


def test_problems_of_layers_go_to_json_and_back() -> None:
    problem = LayerProblem(2, 5, "float64", padding="left", seed=7)
    assert LayerProblem.from_json(json.loads(json.dumps(problem.to_json()))) == problem
    for data in ({"length": "two"}, {"lenght": 2}, {"length": 0}, {"padding": "top"}, []):
        with pytest.raises(CorruptCase):
            LayerProblem.from_json(data)


@attnlaws.parametrize(Separate, laws=["layers.batch", "layers.padding"], profile="smoke")
def test_parametrize_takes_a_class_of_layers(law) -> None:  # type: ignore[no-untyped-def]
    law()


def test_the_plugin_takes_each_law_to_the_targets_of_its_kind(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(mine_layers=textwrap.dedent(MINE))
    done = pytester.runpytest_subprocess(
        "--pyargs", "attnlaws", "--attn-target=mine_layers.py:Layer(8, leaks=True)", "--attn-profile=smoke", "-q",
        "-p", "no:cacheprovider",
    )  # fmt: skip
    counts = done.parseoutcomes()
    assert counts["failed"] >= 1
    assert counts.get("passed", 0) + counts["failed"] + counts.get("skipped", 0) == len(laws_of("layer"))
    assert "layers.causality" in done.stdout.str()
