"""Faults of models: each is caught by its law; the stored kills hold all of them; the command line tells of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import attnlaws
from attnlaws.cli import main
from attnlaws.faults.catalogue import names
from attnlaws.faults.models.catalogue import MODEL_FAULTS
from attnlaws.faults.models.fault import ModelFault
from attnlaws.laws.load import laws_of
from attnlaws.report import kills
from attnlaws.run import model_matrix
from attnlaws.run.model_matrix import ModelKill, ModelMatrix

STORED = model_matrix.load()
ROWS = {row.fault: row for row in STORED.kills}
PAGE = Path(__file__).parents[1] / "docs" / "kill-matrix.md"


@pytest.mark.parametrize("fault", MODEL_FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_caught_by_its_law(fault: ModelFault) -> None:
    report = attnlaws.check(fault.make, laws=[fault.law])
    assert [v.law for v in report.failures] == [fault.law], str(report)
    assert report.exit_code == 1
    assert all(v.witness is not None for v in report.failures)


def test_the_catalogue_is_large_and_its_names_are_its_own() -> None:
    assert len(MODEL_FAULTS) >= 90
    every = [*names(), *(fault.name for fault in MODEL_FAULTS)]
    assert len({name.lower().replace("-", " ") for name in every}) == len(every)
    assert len({fault.sentence for fault in MODEL_FAULTS}) == len(MODEL_FAULTS)


def test_each_fault_has_a_sentence_a_fix_sources_and_a_law() -> None:
    for fault in MODEL_FAULTS:
        assert len(fault.sentence) > 15, fault.name
        assert len(fault.fix) > 10, fault.name
        assert fault.fix != fault.sentence
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", source) for source in fault.sources), fault.name
        assert fault.law in laws_of("model"), fault.name


def test_each_fault_has_a_row_and_breaks_its_law() -> None:
    assert sorted(ROWS) == sorted(fault.name for fault in MODEL_FAULTS)
    assert [row.fault for row in STORED.kills if not row.told] == []
    for row in STORED.kills:
        assert set(row.laws) <= set(laws_of("model")), row.fault
        assert row.laws[row.first] == row.problems > 0, row.fault
        assert row.size > 0, row.fault
        assert row.witness, row.fault


@pytest.mark.parametrize("name", ["decoder sees next", "softmax twice in the loss", "source cut off"])
def test_a_row_found_now_is_the_stored_one(name: str) -> None:
    row = model_matrix.kill(name)
    assert (row.first, row.problems, set(row.laws)) == (ROWS[name].first, ROWS[name].problems, set(ROWS[name].laws))
    assert row.size <= 2 * ROWS[name].size


def test_no_right_model_is_red() -> None:
    assert sorted(control.name for control in STORED.controls) == sorted(model_matrix.CONTROLS)
    assert all(not control.laws and control.problems > 10 for control in STORED.controls)
    assert STORED.clean


def test_a_missed_fault_and_a_red_model_are_told() -> None:
    row = STORED.kills[0]
    missed = ModelKill(row.fault, "", 0, 0, "", {})
    red = replace(STORED.controls[0], laws={"gpt.causality": 1})
    assert not ModelMatrix((missed,)).clean
    assert "0 of 1 faults of models caught" in kills.summary_of_models(ModelMatrix((missed,)))
    assert "NOT CAUGHT" in kills.model_line(missed)
    assert not ModelMatrix((row,), (red,)).clean
    assert "1 of 1 right models red" in kills.summary_of_models(ModelMatrix((row,), (red,)))
    other = replace(row, laws={"models.repeatable": 1}, first="models.repeatable")
    assert not ModelMatrix((other,)).clean


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    model_matrix.save(STORED, tmp_path / "kills.json")
    assert model_matrix.load(tmp_path / "kills.json") == STORED
    assert (tmp_path / "kills.json").read_text("utf-8") == model_matrix.STORED.read_text("utf-8")
    row = replace(STORED.kills[0], problems=99)
    gone = replace(row, fault="a fault that is no more")
    made = model_matrix.merged(ModelMatrix((*STORED.kills, gone), STORED.controls), ModelMatrix((row,)))
    assert {k.fault: k for k in made.kills} == ROWS | {row.fault: row}


def test_faults_of_models_are_listed_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults"]) == 0
    listed = capsys.readouterr().out.splitlines()
    for fault in MODEL_FAULTS:
        assert any(
            line.startswith(f"{fault.name} ") and " model " in line and fault.sentence in line for line in listed
        )
    assert main(["faults", "cache-hidden", "zeros"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    fault, row = model_matrix.BY_NAME["cache hidden"], ROWS["cache hidden"]
    for words in ("a fault of a model", fault.sentence, fault.fix, *fault.sources, fault.law, row.witness, *row.laws):
        assert words in told
    assert "zeros" in told


def test_a_fault_of_a_model_is_run_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["faults", "--run", "softmax twice in the loss"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^softmax twice in the loss +models\.loss +1 +\d+ +\d+  broken$", out, re.MULTILINE)
    assert "1 of 1 faults of models caught (100 %)" in out


def test_the_page_holds_each_fault_of_a_model() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in page.splitlines() if line.startswith("| ")}
    for fault in MODEL_FAULTS:
        row = ROWS[fault.name]
        cells = rows[fault.name].removesuffix(" |").split(" | ")
        assert cells[2:] == [fault.law, row.first, str(row.problems), str(row.size), str(len(row.laws))]
    assert kills.summary_of_models(STORED).splitlines()[0] in page
