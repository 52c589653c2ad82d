"""The ledger, the impostors, the library's face and the plugin."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import attnlaws
from attnlaws import api
from attnlaws.cli import main
from attnlaws.laws.load import load_laws
from attnlaws.report.document import document
from attnlaws.run.check import run_checks

pytest_plugins = ["pytester"]

SLOW = """
import time, torch
def slow(q, k, v):
    time.sleep(0.001)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)
"""


def zeros(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.zeros(*query.shape[:-1], value.shape[-1], dtype=query.dtype)


def test_impostors_are_rejected_on_the_problems_of_the_run() -> None:
    report = attnlaws.check(F.scaled_dot_product_attention, laws=["weights.oracle"])
    assert report.exit_code == 0
    assert set(report.impostors) == {
        "zeros",
        "mean of V",
        "V itself",
        "q itself",
        "uniform weights",
        "scale off by 1 %",
        "last key dropped",
        "not causal",
    }
    assert all(rejected > tried / 2 for tried, rejected in report.impostors.values())


def test_a_run_that_cannot_tell_an_impostor_is_not_green() -> None:
    report = attnlaws.check(F.scaled_dot_product_attention, laws=["conduct.repeatable"], profile="smoke")
    assert report.exit_code == 0  # no impostor was tried, and none is claimed
    blind = api.replace(report, impostors={"zeros": (3, 0)})
    assert blind.exit_code == 4
    assert "NOT REJECTED: zeros" in str(blind)


def test_impostors_that_were_not_tried_are_not_told() -> None:
    report = attnlaws.check(F.scaled_dot_product_attention, laws=["weights.uniform"], profile="smoke")
    some = api.replace(report, impostors={"zeros": (3, 3), "V itself": (0, 0)})
    assert "  zeros 3/3\n" in str(some)
    assert "V itself" not in str(some)
    assert "impostors" not in str(api.replace(report, impostors={"V itself": (0, 0)}))


def test_nothing_compared_is_exit_code_4() -> None:
    report = attnlaws.check(F.scaled_dot_product_attention, laws=["weights.match-output"])
    assert report.exit_code == 4
    with pytest.raises(attnlaws.LawsBroken):
        report.raise_for_failures()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["torch.sdpa", "attnlaws.reference.attention:attention"])
def test_the_laws_hold_on_cuda(name: str) -> None:
    report = attnlaws.check(name, device="cuda", profile="smoke")
    assert report.exit_code == 0, str(report)


def test_raise_for_failures_says_what_broke() -> None:
    with pytest.raises(attnlaws.LawsBroken, match="with q = 0 the output is not the mean"):
        attnlaws.check(zeros, laws=["weights.uniform"], profile="smoke").raise_for_failures()


def test_a_flickering_target_is_nondeterministic_not_flaky() -> None:
    state = {"calls": 0}

    def flickers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        state["calls"] += 1
        right = F.scaled_dot_product_attention(q, k, v)
        return right * 2 if state["calls"] % 97 == 0 else right

    report = attnlaws.check(flickers, laws=["weights.oracle"])
    (verdict,) = report.verdicts
    assert verdict.status in ("nondeterministic", "broken")
    assert report.exit_code == 1


@pytest.mark.alone
def test_quick_tries_at_least_3000_problems_in_time() -> None:
    target = api.target_of("torch.sdpa")
    started = time.process_time()
    report = run_checks(target)
    seconds = time.process_time() - started
    assert report.exit_code == 0, str(report)
    assert report.problems >= 3000
    assert seconds < 20.0


def test_the_budget_leaves_every_law_its_share() -> None:
    def slow(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        time.sleep(0.001)
        return F.scaled_dot_product_attention(q, k, v)

    report = attnlaws.check(
        slow, laws=["weights.oracle", "weights.hull", "weights.uniform"], profile="soak", budget=6.0
    )
    assert report.exit_code == 0, str(report)
    assert all(12 <= v.problems < 1000 for v in report.verdicts)
    assert report.seconds < 8.0
    assert report.cut == report.verdicts
    assert str(report).count(", its share of the time ended") == 3
    assert "3 held (3 cut short by the time); " in str(report)
    assert [law["cut"] for law in document(report)["laws"]] == [True, True, True]


def test_a_law_that_tried_all_of_its_problems_is_not_cut() -> None:
    report = attnlaws.check(F.scaled_dot_product_attention, laws=["weights.uniform"], profile="smoke")
    assert report.exit_code == 0
    assert report.cut == ()
    assert "time ended" not in str(report)
    assert "cut" not in str(report)


def test_a_list_of_known_failures_that_is_begun_on_a_run_cut_short_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SLOW)
    command = ["check", "mine.py:slow", "--laws", "weights.oracle", "--profile", "soak", "--budget", "3", "--no-files"]
    assert main([*command, "--write-known"]) == 0
    assert "1 law was cut short by the time: weights.oracle" in capsys.readouterr().err
    assert main(command) == 0
    assert "cut short" not in capsys.readouterr().err


@attnlaws.parametrize(F.scaled_dot_product_attention, laws=["weights.uniform", "causality.cutoff"], profile="smoke")
def test_parametrize_gives_one_item_a_law(law) -> None:  # type: ignore[no-untyped-def]
    law()


def test_the_plugin_gives_one_item_a_law(pytester: pytest.Pytester, tmp_path: Path) -> None:
    pytester.makepyfile(
        mine="""
        import torch
        def no_scale(query, key, value):
            return torch.softmax(query @ key.transpose(-1, -2), -1) @ value
        """
    )
    done = pytester.runpytest_subprocess(
        "--pyargs", "attnlaws", "--attn-target=mine.py:no_scale", "--attn-profile=smoke", "-q", "-p", "no:cacheprovider"
    )
    counts = done.parseoutcomes()
    assert sum(counts.values()) == len(load_laws())
    assert counts["failed"] >= 2
    text = done.stdout.str()
    assert "scores.default-scale" in text
    assert "smallest witness" in text
    assert "Traceback" not in text
    assert (pytester.path / ".attnlaws" / "scores.default-scale.json").is_file()


def test_what_was_found_survives_a_budget_that_ends_while_it_is_shrunk() -> None:
    state = {"armed": False, "wrong": False}

    def wrong_then_slow(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if state["wrong"]:
            time.sleep(1.0)
        state["wrong"] = state["armed"] and (state["wrong"] or k.shape[-2] == 3)
        return F.scaled_dot_product_attention(q, k, v) * (2.0 if state["wrong"] else 1.0)

    target = api.target_of(wrong_then_slow)
    state["armed"] = True
    report = run_checks(target, laws=["weights.oracle"], budget=2.0)
    assert report.exit_code == 1
    (verdict,) = report.verdicts
    assert verdict.witness is not None
    assert "before this was confirmed and shrunk" in verdict.reason
    assert report.seconds < 6.0
