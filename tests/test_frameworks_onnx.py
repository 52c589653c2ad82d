"""ONNX: the operator, the contributed operators, and models in files; right ones green, wrong ones red."""

from __future__ import annotations

from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from attnlaws import api  # noqa: E402
from attnlaws.targets.signature import CannotAdapt  # noqa: E402
from attnlaws.targets.target import Target  # noqa: E402

#: attention (B, H, L, D) of a query, a key, a value and a boolean mask that broadcasts, in plain operators
PLAIN = """
    <ir_version: 10, opset_import: ["": 23]>
    attention (float[B, H, L, D] query, float[B, H, S, D] key, float[B, H, S, Dv] value, bool[X, Y, L, S] mask)
        => (float[B, H, L, Dv] output)
    {
        transposed = Transpose <perm = [0, 1, 3, 2]> (key)
        products = MatMul (query, transposed)
        sizes = Shape <start = 3> (query)
        wide = Cast <to = 1> (sizes)
        root = Sqrt (wide)
        scores = Div (products, root)
        hidden = Constant <value = float {-inf}> ()
        shown = Where (mask, scores, hidden)
        weights = Softmax <axis = -1> (shown)
        output = MatMul (weights, value)
    }
"""
#: what is changed in it, and a law that the result breaks
WRONG = {
    "no scale": ("Div (products, root)", "Identity (products)", "scores.default-scale"),
    "scale by D": ("Div (products, root)", "Div (products, wide)", "scores.default-scale"),
    "softmax over queries": ("<axis = -1>", "<axis = -2>", "weights.row-stochastic"),
    "finite fill": ("{-inf}", "{-1.0}", "weights.masked-are-zero"),
    "mask on the weights": ("Where (mask, scores, hidden)", "Identity (scores)", "masks.sensitivity"),
}
SOME = ("layout.result", "weights", "scores.default-scale", "masks", "heads", "conduct.repeatable", "conduct.history")


def saved(text: str, folder: Path) -> str:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text.replace("{-inf}", "{-1e38}")), path)
    return str(path)


def test_a_model_in_a_file_is_green(tmp_path: Path) -> None:
    target = api.target_of(saved(PLAIN, tmp_path))
    assert isinstance(target, Target)
    assert (target.framework.name, target.conventions.layout, target.conventions.mask_means) == (
        "onnx",
        "BHSD",
        "attend",
    )
    assert target.abilities.dtypes == ("float32",)
    report = api.run(target, laws=SOME, profile="smoke")
    assert report.exit_code == 0, str(report)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_model_is_caught(name: str, tmp_path: Path) -> None:
    before, after, law = WRONG[name]
    assert before in PLAIN
    report = api.check(saved(PLAIN.replace(before, after), tmp_path), laws=[law], profile="smoke")
    assert [v.law for v in report.failures] == [law], str(report)


def test_an_inverted_mask_is_a_convention(tmp_path: Path) -> None:
    text = PLAIN.replace("shown = Where (mask", "turned = Not (mask)\n        shown = Where (turned")
    target = api.target_of(saved(text, tmp_path))
    assert isinstance(target, Target)
    assert target.conventions.mask_means == "masked"


def test_a_model_of_fixed_lengths_is_told(tmp_path: Path) -> None:
    with pytest.raises(CannotAdapt, match="fixes the sizes of query to"):
        api.target_of(saved(PLAIN.replace("float[B, H, L, D] query", "float[B, H, 7, D] query"), tmp_path))


def test_a_file_that_is_no_model_is_told(tmp_path: Path) -> None:
    path = tmp_path / "nothing.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(CannotAdapt, match="can't be loaded"):
        api.target_of(str(path))


@pytest.mark.parametrize("preset", ["onnx.attention", "onnx.attention[24]"])
def test_the_operator_in_onnxruntime_is_green(preset: str) -> None:
    report = api.check(preset, profile="glance")
    assert not report.failures, str(report)


def test_the_reference_evaluator_breaks_one_thing() -> None:
    """With is_causal and a mask of one row for all queries, every query sees the first key only: docs/findings.md."""
    report = api.check("onnx.attention[reference]", laws=["weights", "causality", "masks.broadcast"], profile="smoke")
    found = {v.law: v.witness for v in report.failures if v.under is None}
    assert "causality.flag-and-mask" in found
    assert all(p.causal and (p.mask_shape == "B11S" or p.bias) for p in found.values()), str(report)


def test_the_contributed_operators() -> None:
    """Zero is no scale to them, and a causal flag beside more keys than queries is no triangle: docs/findings.md."""
    known = {"onnxruntime.gqa": {"scores.scale-argument"}, "onnxruntime.mha": {"scores.scale-argument", "causality.future-keys"}}  # fmt: skip
    for preset, laws in known.items():
        report = api.check(preset, profile="smoke")
        assert {v.law for v in report.failures if v.under is None} == laws, str(report)
