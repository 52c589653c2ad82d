"""The command line: bad use gets one clear sentence and the right exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import attnlaws
from attnlaws.cli import main
from attnlaws.targets.in_file import which

RIGHT = """
import torch
def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
"""

TARGETS = """
import time, sys
import numpy as np
import torch

def right(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v

def one_argument(x):
    return x

def needs_more(q, k, v, temperature):
    return right(q, k, v)

def returns_none(q, k, v):
    return None

def returns_scalar(q, k, v):
    return q.sum()

def raises(q, k, v):
    raise ValueError("I never work")

def raises_on_long(q, k, v):
    if k.shape[-2] > 30:
        raise IndexError("tile 31 is out of range")
    return right(q, k, v)

def hangs_on_three(q, k, v):
    if q.shape[-2] == 3 and k.shape[-2] == 5 and hangs_on_three.armed:
        while True:
            time.sleep(0.01)
    return right(q, k, v)
hangs_on_three.armed = False

def hangs(q, k, v):
    hangs.calls += 1
    while hangs.calls > 60:
        time.sleep(0.01)
    return right(q, k, v)
hangs.calls = 0

def prints(q, k, v):
    print("noise " * 1000)
    return right(q, k, v)

def mutates(q, k, v):
    q *= 1.5
    return right(q / 1.5, k, v)

def leaks(q, k, v, is_causal=False):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(1), -torch.inf)
    return torch.softmax(scores, -1) @ v

def declines(q, k, v):
    if q.shape[-1] % 4 == 1:
        raise NotImplementedError("head size of this kind")
    return right(q, k, v)

not_callable = 3
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(TARGETS)
    (tmp_path / "broken_import.py").write_text("raise RuntimeError('no licence found')\n")
    (tmp_path / "empty.py").write_text("limit = 3\n")
    (tmp_path / "nonsense.py").write_text("def (:\n")
    (tmp_path / "leaves.py").write_text("import sys; sys.exit(0)\n")
    return tmp_path


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["check", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nowhere:attention", "there is no module 'nowhere'"),
        ("torch.sdpaa", "did you mean 'torch.sdpa'?"),
        ("no_such_file.py:attention", "there is no file no_such_file.py"),
        ("mine.py:rigth", "did you mean 'right'?"),
        ("mine.py", "mine.py: which function? attnlaws check mine.py:right; it also has needs_more, returns_none, "),
        ("empty.py", "empty.py has no public function or class"),
        ("nonsense.py", "nonsense.py is no Python: "),
        ("nowhere.py", "there is no file nowhere.py"),
        ("broken_import.py:attention", "raises RuntimeError: no licence found"),
        ("leaves.py:attention", "calls sys.exit(0)"),
        ("mine.py:one_argument", "a target is a function of query, key and value"),
        ("mine.py:needs_more", "requires temperature"),
        ("mine.py:returns_none", "returned None"),
        ("mine.py:returns_scalar", "returned shape ()"),
        ("mine.py:raises", "ValueError: I never work"),
        ("mine.py:not_callable", "is int, not a function"),
    ],
)
def test_a_target_that_cannot_be_tried(
    place: Path, capsys: pytest.CaptureFixture[str], target: str, sentence: str
) -> None:
    code, _, err = check(capsys, target, "--profile", "smoke")
    last = err.strip().splitlines()[-1]
    assert code == 3
    assert last.startswith("attnlaws: ")
    assert sentence in last


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("mine.py:right", "--laws", "causality.future-kays"), "did you mean 'causality.future-keys'?"),
        (("mine.py:right", "--dtype", "float8"), "doesn't take float8"),
    ],
)
def test_wrong_usage(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    code, _, err = check(capsys, *arguments)
    assert code == 2
    assert sentence in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize(
    "words",
    [
        ("check", "mine.py:right"),
        ("check", "torch.sdpa"),
        ("check", "attnlaws.targets.shipped_models:gpt"),
        ("check", "torch.nn:TransformerEncoderLayer(d_model=8, nhead=2)"),
        ("probe", "mine.py:right"),
        ("diff", "mine.py:right", "torch.sdpa"),
        ("bench", "mine.py:right"),
        ("judge", "mine.py:right"),
        ("replay", "case.json"),
    ],
    ids=" ".join,
)
def test_a_device_that_is_not_there(place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    (place / "case.json").write_text(
        '{"attnlaws": 1, "law": "weights.oracle", "target": "mine.py:right", "problem": {}}'
    )
    assert main([*words, "--device", "cuda"]) == 2
    _, err = capsys.readouterr()
    last = err.strip().splitlines()[-1]
    assert last in (
        "attnlaws: --device cuda: this torch has no CUDA",
        "attnlaws: --device cuda: this torch sees no CUDA device",
    )
    assert "Traceback" not in err


def test_a_device_that_does_not_exist(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "mine.py:right", "--device", "cdua"]) == 2
    assert "--device cdua: torch can't use it" in capsys.readouterr().err


def test_usage_that_argparse_sees(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["check"]) == 2
    assert main(["check", "torch.sdpa", "--budget", "soon"]) == 2
    assert "'soon' is no time" in capsys.readouterr().err


def test_a_right_function_without_options_is_green_and_says_what_was_compared(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = check(capsys, "mine.py:right", "--profile", "smoke")
    assert code == 0, out
    assert "zeros" in out
    assert "takes no mask" in out
    assert "elements compared" in out


def test_printing_targets_stay_silent(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(capsys, "mine.py:prints", "--profile", "smoke", "--laws", "weights.oracle")
    assert code == 0
    assert "noise" not in out + err


def test_a_crash_on_legal_input_is_shrunk_and_nothing_is_lost(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, "mine.py:raises_on_long", "--laws", "weights.oracle", "--laws", "weights.hull")
    assert code == 1
    assert "IndexError: tile 31 is out of range" in out
    assert "Lk=31" in out


def test_an_input_that_is_declined_is_not_a_break(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, "mine.py:declines", "--profile", "smoke", "--laws", "weights.oracle")
    assert code == 0, out


def test_a_hang_ends_with_the_budget_and_what_was_found_is_reported(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = check(capsys, "mine.py:hangs", "--budget", "3s")
    assert code == 124
    assert "TIME BUDGET ENDED FIRST" in out
    assert "layout.result" in out


def test_mutation_is_seen(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = check(capsys, "mine.py:mutates", "--profile", "smoke", "--laws", "conduct")
    assert code == 1
    assert "the call changes query in place" in out


def test_a_failure_is_shrunk_pictured_replayed_and_shown_without_us(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = check(capsys, "mine.py:leaks", "--laws", "causality.future-keys")
    assert code == 1
    assert "smallest witness   B=1 H=1 Lq=2 Lk=2 D=1 float32, causal" in out or "Lq=1 Lk=2 D=1 float32, causal" in out
    assert "effective mask" in out
    case = place / ".attnlaws" / "causality.future-keys.json"
    assert json.loads(case.read_text())["law"] == "causality.future-keys"
    assert main(["replay", str(case)]) == 1
    assert "broken" in capsys.readouterr().out
    assert main(["replay", str(case), "--target", "torch.sdpa"]) == 0
    script = (place / ".attnlaws" / "causality.future-keys.py").read_text()
    assert "attnlaws" not in script.split('"""', 2)[2]
    with pytest.raises(SystemExit) as leaving:
        exec(compile(script, "script", "exec"), {})
    assert leaving.value.code == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is no JSON"),
        ("[]", "not a case"),
        ('{"attnlaws": 99}', "has format 99"),
        ('{"attnlaws": 1, "law": "weights.oracle"}', "lacks 'problem'"),
        ('{"attnlaws": 1, "law": "weights.oracle", "problem": {"heads": "two"}}', "heads = 'two' has the wrong type"),
        ('{"attnlaws": 1, "law": "weights.oracle", "problem": {"haeds": 2}}', "unknown field 'haeds'"),
        ('{"attnlaws": 1, "law": "weights.oracle", "problem": {"heads": 3, "kv_heads": 2}}', "no multiple"),
        ('{"attnlaws": 1, "law": "weights.orcale", "problem": {}}', "doesn't exist here"),
        ('{"attnlaws": 1, "law": "weights.oracle", "problem": {}}', "pass --target"),
    ],
)
def test_a_corrupt_case(place: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str) -> None:
    (place / "case.json").write_text(text)
    assert main(["replay", "case.json"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_missing_case(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "none.json"]) == 2
    assert "can't be read" in capsys.readouterr().err


def test_laws_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["laws"]) == 0
    assert "causality.future-keys" in capsys.readouterr().out
    assert main(["laws", "weights.shift"]) == 0
    assert "q.(k + u) = q.k + q.u" in capsys.readouterr().out


def test_configuration(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "pyproject.toml").write_text(
        '[tool.attnlaws.targets.mine]\ntarget = "mine.py:right"\nconventions = { layout = "BHSD" }\n'
        '[tool.attnlaws.targets.warm]\ntarget = "mine.py:needs_more"\narguments = { temperature = 1.0 }\n'
    )
    assert check(capsys, "mine", "--profile", "smoke", "--laws", "weights.oracle")[0] == 0
    assert check(capsys, "warm", "--profile", "smoke", "--laws", "weights.oracle")[0] == 0
    (place / "pyproject.toml").write_text('[tool.attnlaws.targets.mine]\ntarget = "mine.py:right"\nconvention = 1\n')
    code, _, err = check(capsys, "mine")
    assert code == 2
    assert "did you mean 'conventions'?" in err
    (place / "pyproject.toml").write_text(
        '[tool.attnlaws.targets.mine]\ntarget = "mine.py:right"\nconventions = { layout = "HBSD" }\n'
    )
    code, _, err = check(capsys, "mine")
    assert code == 2
    assert "layout = 'HBSD' is not one of: BHSD, BSHD" in err


def test_the_same_run_prints_the_same_report(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def text() -> str:
        code, out, _ = check(capsys, "torch.sdpa", "--profile", "smoke")
        assert code == 0, out
        return out.rpartition(" in ")[0]

    assert text() == text()


LATE = '''
import torch

def attention(q, k, v, is_causal=False, attn_mask=None):
    """Right but for the row at position 3, which sees the key after it, and for rows that are all masked."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    shown = torch.ones_like(scores, dtype=torch.bool)
    if is_causal:
        shown = shown.tril()
        shown[..., 3:4, 4:5] = True
    if attn_mask is not None:
        shown = shown & attn_mask
    empty = ~shown.any(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(~shown & ~empty, -torch.inf), -1)
    return (weights * ~empty) @ v + 0.25 * empty
'''


@pytest.mark.parametrize(("law", "row"), [("causality.future-keys", 3), ("masks.empty-row", None)])
def test_the_element_that_is_named_is_the_wrong_one(
    place: Path, capsys: pytest.CaptureFixture[str], law: str, row: int | None
) -> None:
    (place / "late.py").write_text(LATE)
    code, out, _ = check(capsys, "late.py:attention", "--laws", law, "--dtype", "float32")
    assert code == 1
    line = next(line for line in out.splitlines() if "worst element" in line)
    index = [int(n) for n in line.split("out[")[1].split("]")[0].split(",")]
    assert len(index) == 4
    assert row is None or index[2] == row
    script = (place / ".attnlaws" / f"{law}.py").read_text()
    with pytest.raises(SystemExit) as leaving:
        exec(compile(script, "script", "exec"), {})
    assert leaving.value.code == 1


def test_a_file_is_asked_for_its_functions_and_not_run() -> None:
    text = "import os\nos._exit(3)\nclass Layer: ...\ndef _hidden(q, k, v): ...\ntry:\n    def helper(x): ...\nexcept E: ...\n"
    assert which("a.py", text) == "a.py: which function? attnlaws check a.py:Layer; it also has helper"
    assert which("a.py", f"{text}flash = _Flash.apply\n").startswith(
        "a.py: which function? attnlaws check a.py:flash; "
    )
    assert which("a.py", f"{STEPS}").startswith("a.py: which function? attnlaws check a.py:attention; it also has ")


STEPS = """
import torch
from torch.autograd.function import once_differentiable

class Step(torch.autograd.Function):
    @classmethod
    def weights(cls, q, k, causal, sm_scale):
        scores = q @ k.transpose(-1, -2) * sm_scale
        if causal:
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
        return torch.softmax(scores, -1)

    @staticmethod
    def forward(ctx, q, k, v, causal=False, sm_scale=None):
        ctx.scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
        weights = Step.weights(q, k, causal, ctx.scale)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        q, k, v, p = ctx.saved_tensors
        dp = upstream @ v.transpose(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * ctx.scale
        return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ upstream, None, None

class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(q, k, v, causal=False, sm_scale=None):
        return Step.weights(q, k, causal, q.shape[-1] ** -0.5 if sm_scale is None else sm_scale) @ v

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, causal, sm_scale = inputs
        ctx.scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
        ctx.save_for_backward(q, k, v, Step.weights(q, k, causal, ctx.scale))

    backward = Step.backward

class Ignores(Step):
    @staticmethod
    def forward(ctx, q, k, v, causal=False, sm_scale=None):
        return Step.forward(ctx, q, k, v, causal, None)

attention = Step.apply
with_setup = WithSetup.apply
ignores = Ignores.apply
"""
OF_STEPS = ("--laws", "weights.oracle", "--laws", "gradients", "--laws", "scores.scale-argument", "--profile", "smoke")


@pytest.mark.parametrize("name", ["attention", "Step.apply", "with_setup"])
def test_the_apply_of_an_autograd_function_is_called_by_position(
    place: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (place / "steps.py").write_text(STEPS)
    code, out, _ = check(capsys, f"steps.py:{name}", *OF_STEPS)
    assert code == 0, out
    assert "scale, Dv != D" in out
    assert "✓ scores.scale-argument" in out
    assert "✓ gradients" in out


def test_a_wrong_autograd_function_is_red_and_its_script_shows_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "steps.py").write_text(STEPS)
    code, out, _ = check(capsys, "steps.py:ignores", *OF_STEPS)
    assert code == 1, out
    assert "✗ scores.scale-argument" in out
    script = (place / ".attnlaws" / "weights.oracle.py").read_text()
    assert "result = target(q, k, v, False, " in script
    with pytest.raises(SystemExit) as leaving:
        exec(compile(script, "script", "exec"), {})
    assert leaving.value.code == 1


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"attnlaws {attnlaws.__version__}\n"
