"""Two targets compared: no difference where both are right in the same conventions, the cause named otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import right_attention as right
import torch

import attnlaws
from attnlaws import api
from attnlaws.cli import main
from attnlaws.faults.as_target import function_of
from attnlaws.faults.catalogue import FAULTS
from attnlaws.problems.common import meet
from attnlaws.run.diff import Cause, Difference
from attnlaws.run.sides import Share, share_of
from attnlaws.targets.target import Target

FEW = 60
SDPA = "torch.sdpa"
REFERENCE = "attnlaws.reference.attention:attention"


@pytest.fixture(scope="module")
def sdpa() -> Target:
    return api.target_of(SDPA)


def one(report: Difference) -> Cause:
    """The only cause of a report."""
    assert report.exit_code == 1, str(report)
    assert len(report.causes) == 1, str(report)
    return report.causes[0]


def by_fault(name: str) -> object:
    return function_of(next(f for f in FAULTS if f.name == name))


def test_two_right_functions_do_not_differ(sdpa: Target) -> None:
    report = attnlaws.diff(sdpa, REFERENCE)
    assert report.exit_code == 0, str(report)
    assert report.compared >= 130
    assert "no difference" in str(report).splitlines()[-1]


def test_the_alignment_is_named_with_both_choices_and_explains_everything() -> None:
    report = attnlaws.diff(right.causal_bottom_right, right.einsum_bshd, problems=FEW)
    cause = one(report)
    assert cause.reason.conventions == (("alignment", "bottom-right", "top-left"),)
    assert cause.problems == report.differing
    assert cause.share == pytest.approx(1.0, abs=5e-4)
    assert {cause.witness.queries, cause.witness.keys} == {1, 2}
    assert cause.witness.but(queries=1, keys=1).describe() == "B=1 H=1 Lq=1 Lk=1 D=1 float32, causal, seed 0"
    assert cause.seen is not None
    text = str(report)
    assert "visible keys       A " in text
    assert "≠ the causal triangle when the lengths differ: A bottom-right, B top-left" in text
    assert f"{cause.problems} of {cause.problems} differing problems, 100 % of the difference" in text
    assert "each gets its own" in text  # the axes differ too, and are no cause


def test_what_true_means_is_translated() -> None:
    report = attnlaws.diff(right.fill_minus_infinity, right.true_is_masked, problems=FEW)
    assert report.exit_code == 0, str(report)
    row = next(line for line in str(report).splitlines() if "True in a boolean mask" in line)
    assert row.split()[-6:] == ["attend", "masked", "each", "gets", "its", "own"]


@pytest.mark.parametrize(
    ("first", "second", "choices"),
    [
        (right.where_after_exponential, right.fill_minus_infinity, ("zeros", "nan")),
        (right.where_after_exponential, right.fill_finfo_min, ("zeros", "uniform")),
        (right.fill_finfo_min, right.fill_minus_infinity, ("uniform", "nan")),
    ],
)
def test_rows_without_a_key_are_named(first: object, second: object, choices: tuple[str, str]) -> None:
    cause = one(attnlaws.diff(first, second, problems=FEW))
    assert cause.reason.conventions == (("empty_bool", *choices),)
    assert cause.witness.mask.startswith("empty")
    assert cause.share == pytest.approx(1.0, abs=5e-4)


def test_masks_of_two_kinds_carry_the_same_pairs() -> None:
    cause = one(attnlaws.diff(right.where_after_exponential, right.additive_only, problems=FEW))
    assert cause.reason.conventions == (("empty_bool", "zeros", "nan"),)


def test_a_default_scale_of_1_and_a_function_that_is_always_causal(sdpa: Target) -> None:
    def unscaled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.mT, -1) @ v

    target = api.target_of(unscaled, conventions={"default_scale": "1"})
    cause = one(attnlaws.diff(sdpa, target, problems=FEW, dtypes=["float32", "float64"]))
    assert cause.reason.conventions == (("default_scale", "1/sqrt(D)", "1"),)

    def always(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    assert attnlaws.diff(sdpa, always, problems=FEW).exit_code == 0  # asked with the flag
    cause = one(attnlaws.diff(always, right.flattened_heads, problems=FEW))
    assert cause.reason.conventions == (("causal", "always", "not offered"),)


def test_two_conventions_at_once_are_both_named() -> None:
    def other(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
        scores = q @ k.mT
        if causal:
            extra = k.shape[-2] - q.shape[-2]
            scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(extra), -torch.inf)
        return torch.softmax(scores, -1).nan_to_num(0.0) @ v

    second = api.target_of(other, conventions={"default_scale": "1"})
    report = attnlaws.diff(right.einsum_bshd, second, problems=FEW, dtypes=["float32"])
    named = {tuple(name for name, _, _ in cause.reason.conventions) for cause in report.causes}
    assert named == {("default_scale",), ("alignment",), ("alignment", "default_scale")}, str(report)


def test_a_declared_convention_that_is_not_kept_explains_nothing() -> None:
    target = api.target_of(right.einsum_bshd, conventions={"alignment": "bottom-right"})
    assert attnlaws.diff(target, right.einsum_bshd, problems=FEW).exit_code == 0  # the outputs are the same
    report = attnlaws.diff(target, right.causal_bottom_right, problems=FEW)
    assert report.exit_code == 1
    assert all(not c.reason.conventions and (c.reason.faults or c.reason.breaks) for c in report.causes), str(report)


@pytest.mark.parametrize("name", ["scale 1/D", "causal sees next", "last key dropped unless causal"])
def test_a_fault_is_named_with_its_side_and_its_fix(sdpa: Target, name: str) -> None:
    fault = next(f for f in FAULTS if f.name == name)
    report = attnlaws.diff(by_fault(name), sdpa, problems=FEW)
    cause = one(report)
    ((side, words, fix),) = cause.reason.faults
    assert side == "A"
    assert words.startswith(fault.sentence)
    assert fix == fault.fix
    assert cause.share == pytest.approx(1.0, abs=5e-3)
    assert f"≠ a fault of A: {fault.sentence}" in str(report)
    assert f"fix in A           {fault.fix}" in str(report)


def test_what_nothing_explains_is_told_with_the_side_that_breaks_a_law(sdpa: Target) -> None:
    def odd(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
        return out + 0.01 * query.mean() if query.shape[-2] == 3 else out

    report = attnlaws.diff(sdpa, odd, problems=FEW)
    cause = one(report)
    assert cause.reason.breaks == (("B", "weights.oracle"),)
    assert cause.share is None
    assert cause.witness.queries == 3
    assert "≠ not explained: B breaks weights.oracle" in str(report)
    assert "attnlaws.check(...) of" in str(report)


def test_a_target_that_raises_on_some_problems(sdpa: Target) -> None:
    def short(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if key.shape[-2] == 4:
            raise IndexError("tile 4 is out of range")
        if key.shape[-2] == 2:
            raise NotImplementedError("not two keys")
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    report = attnlaws.diff(sdpa, short, problems=FEW)
    cause = one(report)
    assert cause.reason.raises == "B"
    assert cause.line == "IndexError: tile 4 is out of range"
    assert "≠ B raises where the other answers" in str(report)
    assert "B declined: NotImplementedError: not two keys" in str(report)


def test_nothing_in_common(sdpa: Target) -> None:
    def wide(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if q.dtype != torch.float64:
            raise TypeError("float64 only")
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    report = attnlaws.diff(right.restricted_kernel, wide)
    assert report.exit_code == 4
    assert "nothing could be compared: no dtype is taken by both" in str(report)
    assert "restricted_kernel takes float32" in str(report)
    with pytest.raises(ValueError, match="doesn't take float64; it takes float32"):
        attnlaws.diff(sdpa, right.restricted_kernel, dtypes=["float64"])


def test_the_same_seed_gives_the_same_report() -> None:
    def told(seed: int) -> list[str]:
        return str(attnlaws.diff(right.causal_bottom_right, SDPA, problems=30, seed=seed)).splitlines()[:-1]

    assert told(3) == told(3)


def test_windows_of_one_number_are_given_as_the_same_number() -> None:
    def window(more: int):  # type: ignore[no-untyped-def]
        def attention(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sliding_window: int | None = None
        ) -> torch.Tensor:
            scores = query @ key.mT * query.shape[-1] ** -0.5
            if sliding_window is not None:
                away = torch.arange(scores.shape[-1]) - torch.arange(scores.shape[-2])[:, None]
                scores = scores.masked_fill((away.abs() >= sliding_window + more), -torch.inf)
            return torch.softmax(scores, -1) @ value

        return attention

    cause = one(attnlaws.diff(window(0), window(1), problems=FEW, dtypes=["float32"]))
    assert cause.reason.conventions == (("window", "n - 1 each side", "n each side"),)
    assert attnlaws.diff(window(0), window(0), problems=FEW, dtypes=["float32"]).exit_code == 0


def test_problems_fit_both_and_are_drawn_where_conventions_show(sdpa: Target) -> None:
    from attnlaws.problems.common import drawn

    ground = meet(sdpa, api.target_of(right.fill_finfo_min))
    problems = drawn(ground, 0, 150)
    assert len(set(problems)) == len(problems)
    assert all(p.scale is None and not p.bias and p.heads == p.kv_heads for p in problems)
    assert not [p for p in problems if p.mask != "none" and (p.causal or p.route != "bool")]
    assert sum(p.mask.startswith("empty") for p in problems) >= 10
    assert sum(p.causal and p.queries > p.keys for p in problems) >= 5
    assert sum(p.causal and p.queries == 1 < p.keys for p in problems) >= 5


def test_the_share_of_a_difference() -> None:
    a, b = np.array([1.0, 2.0, np.nan]), np.array([0.0, 0.0, 0.0])
    zero = np.zeros(3)
    assert share_of((a, b), (a, b), zero) == Share(5.0, 0.0, 1, 1)
    assert share_of((a, b), (a, b), zero).explained == 1.0
    half = share_of((a[:2], b[:2]), (0.5 * a[:2], b[:2]), zero[:2])
    assert half.explained == pytest.approx(0.5)
    assert share_of((a, b), (np.array([1.0, 2.0, 3.0]), b), zero).explained == 0.0
    assert (half + half).explained == pytest.approx(0.5)


MINE = """
import torch

def attention(q, k, v, is_causal=False):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if is_causal:
        seen = torch.ones_like(scores, dtype=torch.bool).tril(k.shape[-2] - q.shape[-2])
        scores = scores.masked_fill(~seen, -torch.inf)
    return torch.softmax(scores, -1) @ v
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def test_the_command(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", SDPA, "mine.py:attention", "--problems", "40"]) == 1
    out = capsys.readouterr().out
    assert "the causal triangle when the lengths differ: A top-left, B bottom-right" in out
    assert main(["diff", SDPA, SDPA, "--problems", "20", "--dtype", "float32"]) == 0
    assert "no difference" in capsys.readouterr().out
    assert not [p for p in place.iterdir() if p.name not in ("mine.py", "__pycache__")]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ((SDPA, "nowhere:attention"), 3, "there is no module 'nowhere'"),
        (("torch.sdpaa", SDPA), 3, "did you mean 'torch.sdpa'?"),
        ((SDPA,), 2, "the following arguments are required: B"),
        ((SDPA, "mine.py:attention", "--problems", "0"), 2, "'0' is no number of problems; write 1 or more"),
        ((SDPA, "mine.py:attention", "--dtype", "float8"), 2, "doesn't take float8"),
    ],
)
def test_wrong_use_of_the_command(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    assert main(["diff", *arguments]) == code
    assert sentence in capsys.readouterr().err
