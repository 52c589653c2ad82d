"""The kill matrix as stored: whole, every fault caught, none named as another; a sample of it tried again."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from attnlaws import api
from attnlaws.cli import main
from attnlaws.faults.as_target import function_of
from attnlaws.faults.catalogue import FAULTS, names
from attnlaws.laws.load import load_laws
from attnlaws.laws.trial import Session
from attnlaws.report import kills
from attnlaws.run import matrix
from attnlaws.run.matrix import NAMED, OTHERWISE, Kill, Matrix

STORED = matrix.load()
ROWS = {row.fault: row for row in STORED.kills}
PAGE = Path(__file__).parents[1] / "docs" / "kill-matrix.md"

#: of each kind: steps, options, gradients, and functions of strides, memory, rows, returned values and packed sequences
SAMPLE = (
    "no scale",
    "causal sees next",
    "mask inverted",
    "heads tiled",
    "keys past 64 dropped",
    "window one key short",
    "sinks ignored",
    "backward hides self",
    "strides ignored",
    "query scaled in place",
    "empty row poisons its head",
    "log-sum-exp of unscaled scores",
    "packed sequence sees the next key",
)


def test_each_fault_has_one_row_and_each_law_in_it_exists() -> None:
    assert sorted(row.fault for row in STORED.kills) == sorted(names())
    for row in STORED.kills:
        assert set(row.laws) <= set(load_laws()), row.fault
        assert row.laws.get(row.first) == row.problems, row.fault


def test_every_fault_is_caught_and_has_a_witness() -> None:
    assert [row.fault for row in STORED.kills if not row.first] == []
    assert all(row.problems > 0 and row.size >= 0 and row.witness for row in STORED.kills)


def test_no_right_function_is_red_or_named() -> None:
    assert len(STORED.controls) >= 6
    assert all(not control.laws and control.problems > 500 for control in STORED.controls)
    assert all(control.diagnosis == matrix.UNNAMED for control in STORED.controls)


def test_no_fault_is_named_as_another() -> None:
    assert [(row.fault, row.diagnosis) for row in STORED.kills if row.diagnosis.startswith(OTHERWISE)] == []
    assert STORED.clean


def test_at_least_four_in_five_are_named_or_told_by_their_law() -> None:
    functions = {fault.name for fault in FAULTS if fault.function is not None}
    nameable = [row for row in STORED.kills if row.fault not in functions]
    assert sum(row.diagnosis == NAMED for row in nameable) >= 0.8 * len(nameable)
    good = sum(row.diagnosis == NAMED or matrix.told_by_its_law(row) for row in STORED.kills)
    assert good >= 0.8 * len(STORED.kills)


@pytest.mark.parametrize("name", SAMPLE)
def test_the_first_law_still_breaks_within_as_many_problems(name: str) -> None:
    (fault,) = matrix.select([name])
    row = ROWS[name]
    with matrix.settings_kept():
        target = api.target_of(function_of(fault), conventions=fault.conventions)
        found, tried = matrix.attempt(load_laws()[row.first], target, Session(), row.problems)
    assert found is not None
    assert tried <= row.problems


def test_a_row_found_now_has_a_small_witness_and_the_right_name() -> None:
    (fault,) = matrix.select(["every weight one"])
    row = matrix.kill(fault)
    assert row.first in row.laws
    assert row.diagnosis == NAMED
    assert row.size <= 2 * ROWS[fault.name].size


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    matrix.save(STORED, tmp_path / "kills.json")
    assert matrix.load(tmp_path / "kills.json") == STORED
    assert (tmp_path / "kills.json").read_text(encoding="utf-8") == matrix.STORED.read_text(encoding="utf-8")


def test_new_rows_take_the_place_of_old_ones() -> None:
    row = replace(STORED.kills[0], problems=99)
    gone = replace(row, fault="a fault that is no more")
    made = matrix.merged(Matrix((*STORED.kills, gone), STORED.controls), Matrix((row,)))
    assert {k.fault: k for k in made.kills} == ROWS | {row.fault: row}
    assert made.controls == STORED.controls


def test_save_needs_a_checkout(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "CHECKOUT", Path("nowhere"))
    assert main(["faults", "zeros", "--run", "--save"]) == 2
    assert "--save writes into a checkout" in capsys.readouterr().err


def test_the_summary_counts_what_is_bad() -> None:
    row = STORED.kills[0]
    missed = Kill(row.fault, "", 0, 0, "", {}, matrix.UNNAMED)
    wrong = replace(row, diagnosis=f"{OTHERWISE}: zeros")
    red = matrix.Control("right", 600, {"weights.oracle": 3})
    for rows, controls, words in (
        ((missed,), (), "0 of 1 faults caught"),
        ((wrong,), (), "named wrongly 1"),
        ((row,), (red,), "1 of 1 right functions red"),
    ):
        made = Matrix(rows, controls)
        assert not made.clean
        assert words in kills.summary(made)
    assert "NOT CAUGHT" in kills.line(missed)


def test_faults_are_listed_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults"]) == 0
    listed = capsys.readouterr().out
    assert all(fault.name in listed and fault.sentence in listed for fault in FAULTS)
    assert main(["faults", "strides-ignored"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    (fault,) = matrix.select(["strides ignored"])
    row = ROWS[fault.name]
    for words in (fault.sentence, fault.fix, *fault.sources, row.first, row.witness, *row.laws):
        assert words in told
    assert "the break of layout.strides says what is wrong" in told


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["causal sees nxt"], "did you mean 'causal sees next'?"),
        (["xq"], "see attnlaws faults"),
        (["--save"], "--save keeps what --run finds"),
        (["zeros", "--run", "--jobs", "0"], "--jobs is 1 or more"),
    ],
)
def test_wrong_usage_of_faults(capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    assert main(["faults", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_fault_is_run_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "--run", "zeros"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^zeros +\S+\.\S+ +1 +\d+ +\d+  named right$", out, re.MULTILINE)
    assert "1 of 1 faults caught (100 %)" in out


def test_a_law_says_what_it_catches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["laws", "layout.strides"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    caught = [row.fault for row in STORED.kills if "layout.strides" in row.laws]
    assert load_laws()["layout.strides"].statement in out
    assert f"catches {len(caught)} of {len(STORED.kills)} faults" in out
    assert all(row.fault in out for row in STORED.kills if row.first == "layout.strides")
    assert "basis weights.oracle" in out


def test_the_page_holds_each_fault_and_each_law() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines() if line.startswith("| ")}
    for row in STORED.kills:
        cells = rows[row.fault].removesuffix(" |").split(" | ")
        assert cells[2:6] == [row.first, str(row.problems), str(row.size), str(len(row.laws))]
        assert cells[6].startswith(row.diagnosis)
    assert set(load_laws()) <= set(rows)
    assert kills.summary(STORED).splitlines()[0] in page
