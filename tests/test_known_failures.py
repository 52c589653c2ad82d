"""Known failures: told with their reason, never in the way, and strict: what is so no more fails the run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
import torch
from reports_shared import SOURCE, leaky

import attnlaws
from attnlaws.cli import main
from attnlaws.problems.layer_problem import LayerProblem
from attnlaws.problems.model_problem import ModelProblem
from attnlaws.problems.part_problem import PartProblem
from attnlaws.problems.problem import Problem
from attnlaws.report.document import document
from attnlaws.report.known_file import BadKnown, add, beside_project, read
from attnlaws.run.expect import ELSEWHERE, PASSES, expected
from attnlaws.run.known import Known
from attnlaws.run.ledger import BROKEN, HELD, Report

pytest_plugins = ["pytester"]

LAW = "causality.future-keys"
ENTRY = f'[[known]]\nlaw = "{LAW}"\nreason = "a leak of one"\nissue = "https://example.org/7"\n'


def rare(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    """Right, but for a leak at one size that a short search does not meet."""
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    if is_causal:
        leak = int(query.shape[-2] == key.shape[-2] == 23)
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(leak), -torch.inf)
    return torch.softmax(scores, -1) @ value


def right(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def run(target: object, *laws: str) -> Report:
    return attnlaws.check(target, laws=list(laws or [LAW]), profile="smoke")


def status(report: Report) -> str:
    (verdict,) = report.verdicts
    return verdict.status


@pytest.fixture(scope="module")
def red() -> Report:
    return run(leaky)


@pytest.fixture(scope="module")
def green() -> Report:
    return run(right)


def test_a_known_failure_is_told_and_does_not_count(red: Report) -> None:
    (verdict,) = red.failures
    entry = Known(LAW, "a leak of one", issue="https://example.org/7", witness=verdict.witness)
    report = expected(red, [entry])
    assert (red.exit_code, report.exit_code) == (1, 0)
    assert report.unexpected == ()
    assert f"~ {LAW}" in str(report)
    assert "known: a leak of one (https://example.org/7)" in str(report)
    assert "smallest witness" not in str(report)
    assert document(report)["failures"][0]["known"]["reason"] == "a leak of one"


def test_an_entry_for_another_target_or_law_changes_nothing(red: Report) -> None:
    others = [
        Known(LAW, "x", target="torch.*"),
        Known("weights.oracle", "x"),
        Known("heads.grouped", "x", target="*:leaky"),
    ]
    report = expected(red, others)
    assert report.exit_code == 1
    assert not report.known
    assert not report.outdated


@pytest.mark.parametrize("pattern", ["*", "*:leaky", "reports_shared:leaky"])
def test_a_pattern_chooses_targets(red: Report, pattern: str) -> None:
    assert expected(red, [Known(LAW, "x", target=pattern)]).exit_code == 0


def test_a_name_with_brackets_is_itself() -> None:
    assert Known(LAW, "x", target="torch.sdpa[math]").is_about("torch.sdpa[math]")
    assert not Known(LAW, "x", target="torch.sdpa[math]").is_about("torch.sdpa")


def test_what_now_passes_fails_the_run(green: Report) -> None:
    witness = Problem(queries=2, keys=2, causal=True)
    for entry in (Known(LAW, "x", witness=witness), Known(LAW, "x")):
        report = expected(green, [entry])
        assert report.exit_code == 1
        assert [words for _, words in report.outdated] == [PASSES]
        assert PASSES in str(report)
    assert expected(green, [Known(LAW, "x", strict=False)]).exit_code == 0


def test_a_rare_failure_stays_known_by_its_witness() -> None:
    report = run(rare)
    assert status(report) == HELD  # the search does not meet the size
    witness = Problem(queries=23, keys=23, causal=True)
    pinned = expected(report, [Known(LAW, "x", witness=witness)])
    assert status(pinned) == BROKEN
    assert pinned.exit_code == 0
    assert pinned.failures[0].witness == witness


def test_another_failure_of_the_same_law_is_not_known(red: Report) -> None:
    alone = Problem(queries=1, keys=1, causal=True, batch=2)
    report = expected(red, [Known(LAW, "x", witness=replace(alone, queries=3, keys=3))])
    assert report.exit_code == 0  # it breaks there
    fixed = replace(red, target=run(right).target)  # the target holds on the witness, yet the law is red
    report = expected(fixed, [Known(LAW, "x", witness=replace(alone, queries=3, keys=3))])
    assert [words for _, words in report.outdated] == [ELSEWHERE]
    assert report.exit_code == 1


def test_a_witness_that_does_not_fit_the_target_says_nothing(green: Report) -> None:
    entry = Known(LAW, "x", witness=Problem(queries=2, keys=2, causal=True, dtype="float8"))
    report = expected(green, [entry])
    assert not report.outdated
    assert report.exit_code == 0


def test_an_entry_that_is_over_counts_as_a_failure(red: Report) -> None:
    today = date(2027, 1, 31)
    last = Known(LAW, "x", expires=today)
    assert expected(red, [last], today=today).exit_code == 0
    over = expected(red, [last], today=today + timedelta(days=1))
    assert over.exit_code == 1
    assert over.unexpected
    assert "until 2027-01-31, which is over" in str(over)


def test_a_known_root_hides_no_failure_that_is_folded_under_it(red: Report) -> None:
    (verdict,) = red.verdicts
    under = replace(verdict, law="causality.past-matters", under=LAW)
    report = expected(replace(red, verdicts=(verdict, under)), [Known(LAW, "x")])
    assert report.exit_code == 1
    assert "✗ causality.past-matters" in str(report)
    assert "smallest witness" in str(report)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[known]]\nlaw = "causality.future-key"\nreason = "x"', "did you mean 'causality.future-keys'?"),
        (ENTRY + "expire = 2027-01-01", "did you mean 'expires'?"),
        (ENTRY + 'expires = "soon"', "expires = 'soon' must be a date"),
        (ENTRY + "expires = 2027-01-01T00:00:00", "must be a date"),
        ('[[known]]\nlaw = "causality.future-keys"', "lacks 'reason'"),
        ('[[known]]\nlaw = "causality.future-keys"\nreason = " "', "lacks 'reason'"),
        (ENTRY + "witness = { querys = 3 }", "unknown field 'querys'"),
        (ENTRY + ENTRY, "twice"),
        ("[[knwon]]\n", "did you mean 'known'?"),
        ("known = 3", "must be a list"),
        ("[[known", "is no TOML"),
    ],
)
def test_a_wrong_list_is_wrong_usage(tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(BadKnown) as caught:
        read(path)
    assert words in str(caught.value)
    assert main(["check", "torch.sdpa", "--known", str(path)]) == 2
    assert words in capsys.readouterr().err


def test_the_list_in_the_docs_is_right(tmp_path: Path) -> None:
    docs = Path(__file__).resolve().parents[1] / "docs" / "reports.md"
    (example,) = re.findall(r"```toml\n(.*?)```", docs.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "known.toml").write_text(example)
    (entry,) = read(tmp_path / "known.toml")
    assert entry.law == LAW
    assert entry.witness == Problem(queries=3, keys=3, causal=True)
    assert entry.expires == date(2027, 1, 31)


def test_a_list_that_was_named_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "torch.sdpa", "--known", str(tmp_path / "gone.toml")]) == 2
    assert "can't be read" in capsys.readouterr().err


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    entries = [
        Known(
            LAW,
            'a "quoted" \\ reason\nof two lines, π',
            "https://example.org/7",
            "mine.py:f",
            date(2027, 1, 31),
            strict=False,
        ),
        Known("layers.causality", "x", witness=LayerProblem(batch=2, length=3, dtype="float64")),
        Known("gpt.causality", "x", witness=ModelProblem(length=5, padding="right")),
        Known("sampling.top-k", "x", witness=PartProblem(seed=7)),
        Known("weights.oracle", "x", witness=Problem(queries=3, keys=4, causal=True, softcap=2.5, scale=0.5)),
    ]
    add(path, entries[:1])
    path.write_text(path.read_text() + "# a remark\n")
    add(path, entries[1:])
    assert list(read(path)) == entries
    assert "# a remark" in path.read_text()


def test_the_list_is_beside_the_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    inner = tmp_path / "src" / "inner"
    inner.mkdir(parents=True)
    assert beside_project(inner) == tmp_path / "attnlaws-known.toml"


def test_write_known_starts_green_and_stays_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    command = ["check", "mine.py:leaky", "--laws", "causality", "--profile", "smoke", "--no-files"]
    assert main(command) == 1
    assert main([*command, "--write-known"]) == 0
    entries = read(tmp_path / "attnlaws-known.toml")
    assert LAW in {entry.law for entry in entries}
    assert {(entry.reason, entry.target) for entry in entries} == {("to be explained", "mine.py:leaky")}
    assert all(entry.witness is not None for entry in entries)
    text = (tmp_path / "attnlaws-known.toml").read_text()
    capsys.readouterr()
    assert main([*command, "--seed", "7"]) == 0
    assert "known: to be explained" in capsys.readouterr().out
    assert main([*command, "--write-known"]) == 0
    assert (tmp_path / "attnlaws-known.toml").read_text() == text  # nothing new
    (tmp_path / "mine.py").write_text(SOURCE.replace(".tril(1)", ".tril()"))
    import sys

    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert main([*command, "--json", "run.json"]) == 1
    assert PASSES in capsys.readouterr().out
    run = json.loads(Path("run.json").read_text())["runs"][0]
    assert {entry["law"] for entry in run["outdated"]} == {entry.law for entry in entries}
    assert run["conclusion"] == "laws broken"


def test_a_layer_is_tried_on_its_witness() -> None:
    layer = "attnlaws.reference.heads:MultiHeadAttention(d_in=10, d_out=12, context_length=40, num_heads=3)"
    report = attnlaws.check(layer, laws=["layers.causality"], profile="smoke")
    witness = LayerProblem(batch=1, length=3)
    assert expected(report, [Known("layers.causality", "x", witness=witness)]).outdated[0][1] == PASSES
    assert not expected(report, [Known("layers.causality", "x", witness=replace(witness, length=99))]).outdated


def test_the_library_takes_a_list(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(ENTRY)
    report = attnlaws.check(leaky, laws=[LAW], profile="smoke", known=path)
    assert report.exit_code == 0
    report.raise_for_failures()


def test_the_plugin_expects_known_failures_strictly(pytester: pytest.Pytester) -> None:
    (pytester.path / "mine.py").write_text(SOURCE)
    pytester.makepyprojecttoml("")
    (pytester.path / "attnlaws-known.toml").write_text(ENTRY)
    pytester.makepyfile(
        test_mine="""
        import attnlaws

        @attnlaws.parametrize("mine.py:leaky", laws=["causality.future-keys"], known="attnlaws-known.toml")
        def test_leaky(law):
            law()
        """
    )
    options = ["--pyargs", "attnlaws", "-q", "-rxf", "-k", "future_keys", "-p", "no:cacheprovider"]
    found = pytester.runpytest_subprocess(*options, "--attn-target", "mine.py:leaky", "--attn-profile", "smoke")
    found.assert_outcomes(xfailed=1, deselected=found.parseoutcomes().get("deselected", 0))
    found.stdout.fnmatch_lines(["*known: a leak of one (https://example.org/7)*"])
    pytester.runpytest_subprocess("test_mine.py", "-p", "no:cacheprovider").assert_outcomes(xfailed=1)
    (pytester.path / "mine.py").write_text(SOURCE.replace(".tril(1)", ".tril()"))
    found = pytester.runpytest_subprocess(*options, "--attn-target", "mine.py:leaky", "--attn-profile", "smoke")
    found.assert_outcomes(failed=1, deselected=found.parseoutcomes().get("deselected", 0))
    found.stdout.fnmatch_lines([f"*{PASSES}*"])
    (pytester.path / "attnlaws-known.toml").write_text(ENTRY.replace("future-keys", "future-key"))
    found = pytester.runpytest_subprocess(*options, "--attn-target", "mine.py:leaky")
    assert found.ret != 0
    assert "did you mean 'causality.future-keys'?" in "\n".join([*found.outlines, *found.errlines])
