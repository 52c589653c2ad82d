"""The pictures of the laws of chance: the numbers agree with what is predicted and not with what is wrong, and files are drawn."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import special

from attnlaws import api
from attnlaws.cli import main
from attnlaws.judge.depth import pre_norm_variances
from attnlaws.report import pictures
from attnlaws.run import measure
from attnlaws.run.measure import CannotMeasure, Depth, Point
from attnlaws.targets.part import PreNorm
from attnlaws.targets.target import Target

KEPT = Path(__file__).resolve().parents[1] / "docs" / "pictures"
NAMES = ("scores", "saturation", "depth")


def no_scale(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def scaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return no_scale(q / q.shape[-1] ** 0.5, k, v)


def always_causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return torch.softmax(s.masked_fill(~torch.ones_like(s, dtype=torch.bool).tril(), -torch.inf), -1) @ v


def one_sequence(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if q.ndim != 3:
        raise ValueError("(H, L, D)")
    return scaled(q, k, v)


def hard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return no_scale(1e6 * q, k, v)


@pytest.fixture(scope="module")
def reference() -> Target:
    return api.function_of("attnlaws.reference.attention:attention")


# -- the numbers -----------------------------------------------------------------------------------------------------------


def test_an_interval_of_few_values_holds_the_mean_as_often_as_it_says() -> None:
    """Student's, not the normal law's, which would miss some 60 of 2000."""
    rng = np.random.default_rng(0)
    missed = sum(not measure.mean_point(0.0, rng.standard_normal(5), 0.0).agrees for _ in range(2000))
    assert missed <= 8  # binomial, 0.001 of 2000: above 8 with probability 2e-4


@pytest.mark.parametrize("dim", measure.SCORE_DIMS)
def test_scaled_scores_have_variance_1_and_the_law_of_a_product(reference: Target, dim: int) -> None:
    found = measure.scores(reference, dim)
    _, low, high = found.variance
    assert low < 1.0 < high
    assert found.distance().p_value > 1e-3
    q = measure.quantiles(found)
    assert ((q.sample < q.low) | (q.sample > q.high)).sum() <= 1
    normal_outside = ((q.normal < q.low) | (q.normal > q.high)).any()
    assert normal_outside == (dim < 64)
    assert (found.distance(special.ndtr).p_value < 1e-9) == (dim < 64)


@pytest.mark.parametrize("dim", measure.SCORE_DIMS[1:])
def test_without_the_scale_the_variance_is_the_head_size(reference: Target, dim: int) -> None:
    found = measure.scores(reference, dim, scaled=False)
    _, low, high = found.variance
    assert 1.0 < low < dim < high
    assert found.distance().p_value > 1e-3
    assert replace(found, deviation=1.0).distance().p_value < 1e-9


def test_the_exact_law_of_the_neighbouring_head_size_is_refused(reference: Target) -> None:
    found = measure.scores(reference, 4)
    assert replace(found, dim=2).distance().p_value < 1e-9


def test_a_target_without_its_scale_is_seen() -> None:
    found = measure.scores(api.function_of(no_scale), 16)
    assert found.variance[1] > 1.0
    assert found.distance().p_value < 1e-9


def test_a_target_that_is_declared_to_have_no_scale_is_scaled_by_its_query() -> None:
    target = api.function_of(no_scale, conventions={"default_scale": "1"})
    assert measure.scores(target, 16).distance().p_value > 1e-3
    assert measure.scores(target, 16, scaled=False).distance().p_value > 1e-3
    assert "divided" in pictures.unscaled_how(target)


@pytest.mark.parametrize("target", ["torch.sdpa", one_sequence])
def test_targets_of_other_kinds_are_measured(target: object) -> None:
    made = api.function_of(target)
    assert measure.scores(made, 4).distance().p_value > 1e-3
    assert measure.scores(made, 4).values.size == measure.PAIRS


@pytest.mark.parametrize(
    ("function", "why"), [(always_causal, "always causal"), (hard, "no finite logarithm")], ids=["causal", "hard"]
)
def test_what_cannot_be_measured_is_told(function: object, why: str) -> None:
    with pytest.raises(CannotMeasure, match=why):
        measure.scores(api.function_of(function), 16)


def test_weights_saturate_without_the_scale_alone(reference: Target) -> None:
    with_it, without = (measure.saturation(reference, scaled=scaled) for scaled in (True, False))
    for name in ("entropy", "trace"):
        flat, falling = getattr(with_it, name), getattr(without, name)
        assert len(flat) == len(falling) == len(measure.DIMS)
        assert all(point.agrees for point in (*flat, *falling))
        for one, other in zip(flat[1:], falling[1:], strict=True):
            assert not replace(one, predicted=other.predicted).agrees
            assert not replace(other, predicted=one.predicted).agrees
    assert not any(replace(p, predicted=float(np.log(measure.KEYS))).agrees for p in with_it.entropy)


@pytest.fixture(scope="module")
def depths() -> tuple[Depth, Depth, Depth]:
    torch.set_num_threads(1)
    return measure.depth()


def test_variance_grows_linearly_before_the_norms_and_stays_after_them(depths: tuple[Depth, Depth, Depth]) -> None:
    unscaled, scaled, post = depths
    for found in depths:
        assert len(found.points) == 9
        assert all(point.agrees for point in found.points), found.name
    assert all(point.half < 1e-4 for point in post.points)
    assert all(point.half < 0.06 * point.estimate for found in (unscaled, scaled) for point in found.points)


def test_wrong_predictions_of_the_depth_are_refused(depths: tuple[Depth, Depth, Depth]) -> None:
    unscaled, scaled, post = (found.points for found in depths)
    last = scaled[-1]
    for wrong in (unscaled[-1].predicted, post[-1].predicted, scaled[1].predicted ** (len(scaled) - 1)):
        assert not replace(last, predicted=wrong).agrees
    growth = 1.0 + (unscaled[-1].predicted - 1.0) / 2.0  # half as many blocks, or weights less by sqrt(2)
    assert not replace(unscaled[-1], predicted=growth).agrees


def test_the_variance_that_a_branch_adds_is_that_about_its_own_mean() -> None:
    """E of var(W h) is |h|^2 s^2 (1 - 1/E), which the prediction of a single linear block must show."""
    width = 8
    rng = np.random.default_rng(3)
    h = rng.standard_normal((40_000, width, 1))
    h *= np.sqrt(width) / np.linalg.norm(h, axis=1, keepdims=True)  # what a norm of eps = 0 gives, but for its mean
    value, out = (rng.standard_normal((40_000, width, width)) * s for s in (0.5, 0.25))
    added = (out @ value @ h)[..., 0].var(axis=1)
    wanted = pre_norm_variances(PreNorm(width, 0, 1, 0.5, 0.25, 0.0), 1.0)[1] - 1.0
    assert measure.mean_point(1, added, float(wanted)).agrees
    assert not measure.mean_point(1, added, float(wanted) / (1.0 - 1.0 / width)).agrees


# -- the files -------------------------------------------------------------------------------------------------------------


def words(path: Path) -> list[str]:
    """The texts of an SVG without its digits. Raises where it is no SVG."""
    return [re.sub(r"[\d.,−-]+", "", text).strip() for text in texts_of(path)]


def texts_of(path: Path) -> list[str]:
    root = ET.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib", reason="matplotlib, the extra `pictures`, is not installed")
    folder = tmp_path_factory.mktemp("pictures") / "new"
    assert main(["pictures", "--out", str(folder), "--png"]) == 0
    return folder


def test_files_are_written(drawn: Path) -> None:
    assert sorted(path.name for path in drawn.iterdir()) == sorted(f"{n}.{s}" for n in NAMES for s in ("svg", "png"))
    for name in NAMES:
        text = (drawn / f"{name}.svg").read_text(encoding="utf-8")
        assert len(text) < 120_000
        assert "<dc:date>" not in text
        assert "Matplotlib" not in text
        assert (drawn / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert any("attnlaws.reference.attention:attention" in text for text in texts_of(drawn / "scores.svg"))
    assert any("64 GPTs" in text for text in texts_of(drawn / "depth.svg"))
    assert any("ln 48 = 3.87" in text for text in texts_of(drawn / "saturation.svg"))


def test_kept_pictures_are_those_that_are_drawn_now(drawn: Path) -> None:
    for name in NAMES:
        assert words(KEPT / f"{name}.svg") == words(drawn / f"{name}.svg"), f"make docs/pictures/{name}.svg anew"


def test_each_kept_picture_is_small_valid_and_explained() -> None:
    page = (KEPT.parent / "pictures.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in KEPT.iterdir()) == sorted(f"{name}.svg" for name in NAMES)
    assert re.findall(r"\]\((pictures/[^)]+)\)", page) == [f"pictures/{name}.svg" for name in NAMES]
    for path in KEPT.iterdir():
        assert words(path)
        assert path.stat().st_size < 120_000


def test_the_same_numbers_give_the_same_file_whatever_the_users_style(reference: Target, tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib, the extra `pictures`, is not installed")

    def file(folder: str, seed: int = 0) -> bytes:
        both = [[measure.scores(reference, 4, scaled=s, size=500, seed=seed)] for s in (True, False)]
        with pictures.styled():
            (path,) = pictures.save(pictures.scores_picture("mine.py:$x", *both, how=""), tmp_path / folder)
        return path.read_bytes()

    first = file("first")
    with matplotlib.rc_context({"font.size": 20.0, "lines.linewidth": 9.0, "svg.fonttype": "path"}):
        assert file("second") == first
    assert file("third", seed=1) != first


def test_without_matplotlib_the_extra_is_named_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(measure, "random_weights", None)
    assert main(["pictures", "--out", str(tmp_path / "new")]) == 2
    words = 'pip install "attnlaws[pictures]" (in a checkout: pip install -c constraints.txt ".[pictures]")'
    assert words in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


TARGETS = """
import torch

def causal(q, k, v):
    s = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return torch.softmax(s.masked_fill(~torch.ones_like(s, dtype=torch.bool).tril(), -torch.inf), -1) @ v

def of_small_batches(q, k, v):
    if len(q) > 100:
        raise ERROR("a batch above 100")
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
"""


@pytest.mark.parametrize(
    ("target", "error", "code", "sentence"),
    [
        ("mine.py:causal", "IndexError", 4, "is always causal"),
        ("mine.py:of_small_batches", "IndexError", 1, "IndexError: a batch above 100"),
        ("mine.py:of_small_batches", "NotImplementedError", 4, "a batch above 100"),
        ("torch.nn:MultiheadAttention(8, 2, batch_first=True)", "IndexError", 3, "is a layer"),
        ("torch.sdpaa", "IndexError", 3, "did you mean 'torch.sdpa'?"),
    ],
)
def test_bad_targets_get_one_sentence_and_their_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    error: str,
    code: int,
    sentence: str,
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, the extra `pictures`, is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(TARGETS.replace("ERROR", error))
    assert main(["pictures", target, "--out", "new"]) == code
    out, told = capsys.readouterr()
    assert sentence in told.strip().splitlines()[-1]
    assert not out
    assert not list(tmp_path.glob("new/*"))


def test_a_folder_that_cannot_be_written_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, the extra `pictures`, is not installed")
    (tmp_path / "file").write_text("")
    assert main(["pictures", "torch.sdpa", "--out", str(tmp_path / "file")]) == 2
    assert "can't write to" in capsys.readouterr().err


def test_a_point_agrees_up_to_half_its_interval() -> None:
    assert Point(0.0, 1.0, 0.1, 1.09).agrees
    assert not Point(0.0, 1.0, 0.1, 1.11).agrees
