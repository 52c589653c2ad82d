"""Models: every right one is green, every wrong one is caught; addresses, cards, cases, the plugin."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from models_right import RIGHT_MODELS, LastOnlyGPT, RightModel

import attnlaws
from attnlaws import api
from attnlaws.cli import main
from attnlaws.faults.models.masks import NoMaskGPT
from attnlaws.faults.models.small import SmallGPT
from attnlaws.faults.models.wiring import AttentionUnused
from attnlaws.laws.load import laws_of, load_laws
from attnlaws.laws.model_law import MODEL_LAWS, ModelLaw
from attnlaws.problems.model_problem import ModelProblem
from attnlaws.problems.problem import CorruptCase
from attnlaws.targets.model import LossWay, ModelTarget
from attnlaws.targets.probe_model_options import cross_entropy

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("right", RIGHT_MODELS, ids=lambda r: r.name)
def test_right_is_green(right: RightModel) -> None:
    target = api.target_of(right.make)
    assert isinstance(target, ModelTarget)
    assert target.kind == right.kind, attnlaws.card(target)
    report = api.run(target, profile="glance", seed=1)
    assert report.exit_code in (0, 4), str(report)  # 4: two problems can be too few to tell every impostor


def test_the_zoo_of_models_is_large_enough() -> None:
    assert len(RIGHT_MODELS) >= 40


def test_each_kind_has_its_laws() -> None:
    laws = laws_of("model")
    assert not set(laws) & {*load_laws(), *laws_of("layer")}
    assert all(isinstance(law, ModelLaw) and len(law.formula) > 40 for law in laws.values())
    assert all(basis in laws for law in laws.values() for basis in law.basis)
    assert {name.split(".")[0] for name in laws} == {"models", "gpt", "bert", "t5", "cache", "generation"}


def test_a_run_rejects_impostors_and_says_so() -> None:
    report = attnlaws.check(SmallGPT, laws=["gpt", "cache.equals-full", "models.loss"], profile="smoke")
    assert report.exit_code == 0, str(report)
    wanted = {
        f"{name} by {law.name}" for law in MODEL_LAWS.values() for name in law.rejects if law.name.startswith("gpt.")
    }
    assert wanted <= set(report.impostors)
    assert all(rejected for _, rejected in report.impostors.values())
    assert "the cache forgotten by cache.equals-full" in str(report)


def test_an_impostor_that_is_never_rejected_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnlaws.faults import model_impostors

    honest = model_impostors.Impostor(run=lambda instance, inputs: instance.run(inputs, grad=False))
    monkeypatch.setitem(model_impostors.IMPOSTORS, "the next token seen", honest)
    report = attnlaws.check(SmallGPT, laws=["gpt.causality"], profile="smoke")
    assert report.exit_code == 4
    assert report.undetected == ("the next token seen by gpt.causality",)


def test_what_the_probe_finds_of_a_gpt() -> None:
    target = api.target_of(SmallGPT)
    assert isinstance(target, ModelTarget)
    assert (target.vocabulary, target.longest, target.reads, target.placed) == (11, 24, "all", "absolute")
    assert target.loss == LossWay("none", (-1,))
    assert target.cache is not None
    assert (target.cache.form, target.cache.batch_axis, target.cache.length_axis) == ("passed", 0, 2)
    assert target.generate is not None
    assert target.generate.greedy == {"top_k": 1}
    assert target.tied == (("wte.weight", "head.weight"),)
    card = attnlaws.card(target)
    for words in (
        "a decoder, torch",
        "each output sees the tokens up to its own",
        "given back and passed as past",
        "tied weights",
    ):
        assert words in card
    last = api.target_of(LastOnlyGPT)
    assert isinstance(last, ModelTarget)
    assert last.reads == "with labels"


def test_the_loss_by_the_book_is_torchs() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((2, 5, 7)), rng.integers(0, 7, (2, 5))
    labels[0, 3] = -100
    given = torch.from_numpy(logits), torch.from_numpy(labels)
    plain = torch.nn.functional.cross_entropy(given[0].flatten(0, 1), given[1].flatten())
    shifted = torch.nn.functional.cross_entropy(
        given[0][:, :-1].flatten(0, 1), given[1][:, 1:].flatten(), reduction="sum"
    )
    assert abs(cross_entropy(logits, labels, LossWay("none", (-100,))) - float(plain)) < 1e-12
    assert abs(cross_entropy(logits, labels, LossWay("inside", (-100,), "sum")) - float(shifted)) < 1e-12


def test_a_check_leaves_the_model_as_it_was() -> None:
    model = LastOnlyGPT().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attnlaws.check(model, laws=["models.modes", "models.dtype-move", "generation.greedy"], profile="smoke")
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_break_names_tokens_and_positions() -> None:
    report = attnlaws.check(NoMaskGPT, laws=["gpt.causality"], profile="smoke")
    text = str(report)
    assert "smallest witness   B=1 L=2 float32" in text
    assert "\n    tokens             " in text
    assert "the logits move when a token that they may not see changes (token 1)" in text
    assert "worst element      logits[0, 0, " in text


def test_shadows_are_folded_under_the_root() -> None:
    report = attnlaws.check(NoMaskGPT, laws=["gpt.causality", "gpt.cutoff", "cache.equals-full"], profile="smoke")
    under = {v.law: v.under for v in report.verdicts}
    assert under == {"gpt.causality": None, "gpt.cutoff": "gpt.causality", "cache.equals-full": "gpt.causality"}


MINE = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class GPTConfig:
    vocab_size: int = 9
    n_embd: int = 8
    leaks: bool = False

class GPT(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(config.vocab_size, config.n_embd), nn.Embedding(20, config.n_embd)
        self.attention = nn.MultiheadAttention(config.n_embd, 2, batch_first=True)
        self.head, self.leaks = nn.Linear(config.n_embd, config.vocab_size), config.leaks

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        hidden = torch.ones(idx.shape[1], idx.shape[1], dtype=torch.bool).triu(2 if self.leaks else 1)
        return self.head(x + self.attention(x, x, x, attn_mask=hidden, need_weights=False)[0])

def factory():
    return GPT(GPTConfig())

ready = GPT(GPTConfig())

class Bare(GPT):
    def __init__(self, vocab, width=8):
        super().__init__(GPTConfig(vocab, width))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_models.py").write_text(MINE)
    return tmp_path


@pytest.mark.parametrize(
    "target",
    [
        "mine_models.py:GPT",
        "mine_models.py:GPT(n_embd=4)",
        "mine_models.py:GPT(GPTConfig(n_embd=4, vocab_size=7))",
        "mine_models.py:Bare(vocab=7)",
        "mine_models.py:factory",
        "mine_models.py:ready",
    ],
)
def test_addresses_of_models(place: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    assert main(["check", target, "--laws", "gpt.causality", "--profile", "smoke"]) == 0
    out = capsys.readouterr().out
    assert f"{target}   (a decoder, torch)" in out
    assert "✓ gpt.causality" in out


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("mine_models.py:Bare", "give its arguments"),
        ("mine_models.py:GPT(tall=1)", "unexpected keyword argument 'tall'"),
        ("mine_models.py:GPT(GPTConf(n_embd=4))", "there is no class GPTConf"),
        ("mine_models.py:GPT(n_embd=open)", "must be literals"),
    ],
)
def test_models_that_cannot_be_built(
    place: Path, capsys: pytest.CaptureFixture[str], target: str, sentence: str
) -> None:
    assert main(["check", target, "--profile", "smoke"]) == 3
    assert sentence in capsys.readouterr().err


def test_a_leak_of_a_model_is_shrunk_and_replayed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = "mine_models.py:GPT(leaks=True)"
    assert main(["check", target, "--laws", "gpt.causality"]) == 1
    assert "smallest witness   B=1 L=2 float32" in capsys.readouterr().out
    case = place / ".attnlaws" / "gpt.causality.json"
    assert json.loads(case.read_text())["target"] == target
    assert main(["replay", str(case)]) == 1
    assert main(["replay", str(case), "--target", "mine_models.py:GPT"]) == 0
    assert main(["replay", str(case), "--target", "torch.sdpa"]) == 2


def test_a_law_of_another_kind_than_a_models_is_wrong_usage(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mine_models.py:GPT", "--laws", "layers.batch"]) == 2
    assert main(["check", "torch.sdpa", "--laws", "gpt.cutoff"]) == 2
    assert "no law of functions" in capsys.readouterr().err
    assert main(["diff", "torch.sdpa", "mine_models.py:GPT"]) == 3


def test_what_is_declared_of_a_model(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = '[tool.attnlaws.targets.mine]\ntarget = "mine_models.py:GPT"\nmodel = { %s }\n'
    (place / "pyproject.toml").write_text(text % 'kind = "encoder"')
    assert main(["check", "mine", "--laws", "bert.bidirectional", "--profile", "smoke"]) == 1
    (place / "pyproject.toml").write_text(text % "window = 2")
    assert main(["check", "mine", "--laws", "gpt.causality", "--profile", "smoke"]) == 1
    (place / "pyproject.toml").write_text(text % 'kind = "decoder", vocabulary = 8')
    assert main(["check", "mine", "--laws", "gpt.causality", "--profile", "smoke"]) == 0
    for wrong, sentence in (
        ('kind = "both"', "model kind = 'both' is not one of"),
        ('wide = "yes"', "model has 'wide'"),
    ):
        (place / "pyproject.toml").write_text(text % wrong)
        assert main(["check", "mine"]) == 2
        assert sentence in capsys.readouterr().err


def test_problems_of_models_go_to_json_and_back() -> None:
    problem = ModelProblem(2, 5, 3, "float64", padding="left", seed=7)
    assert ModelProblem.from_json(json.loads(json.dumps(problem.to_json()))) == problem
    for data in ({"length": "two"}, {"lenght": 2}, {"length": 0}, {"padding": "top"}, {"text": "prose"}, []):
        with pytest.raises(CorruptCase):
            ModelProblem.from_json(data)


@attnlaws.parametrize(SmallGPT, laws=["models.batch", "gpt.cutoff"], profile="smoke")
def test_parametrize_takes_a_class_of_models(law) -> None:  # type: ignore[no-untyped-def]
    law()


def test_the_plugin_takes_each_law_to_models(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(mine_models=textwrap.dedent(MINE))
    done = pytester.runpytest_subprocess(
        "--pyargs", "attnlaws", "--attn-target=mine_models.py:GPT(leaks=True)", "--attn-profile=smoke", "-q",
        "-p", "no:cacheprovider",
    )  # fmt: skip
    counts = done.parseoutcomes()
    assert counts["failed"] >= 1
    assert counts.get("passed", 0) + counts["failed"] + counts.get("skipped", 0) == len(laws_of("model"))
    assert "gpt.causality" in done.stdout.str()


def test_unused_attention_breaks_what_it_should() -> None:
    report = attnlaws.check(AttentionUnused, profile="glance")
    assert {v.law for v in report.failures} >= {"gpt.all-past-matters", "models.gradients-reach"}
    assert report.exit_code == 1
