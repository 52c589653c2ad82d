"""The JSON of a run: it is what the schema says, and what the report says."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
import torch.nn.functional as F

import attnlaws
from attnlaws import api
from attnlaws.cli import main
from attnlaws.report.document import SCHEMA_FILE, as_text, document, number, without_run
from attnlaws.run.ledger import Report

SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
BROKEN = """
import torch
def unscaled(query, key, value, is_causal=False):
    scores = query @ key.transpose(-1, -2)
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(1), -torch.inf)
    return torch.softmax(scores, -1) @ value
"""


def validate(data: Any, kind: str) -> None:
    jsonschema.Draft202012Validator({**SCHEMA, "anyOf": [{"$ref": f"#/$defs/{kind}"}]}).validate(data)


def leaky(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(1), -torch.inf)
    return torch.softmax(scores, -1) @ value


@pytest.fixture(scope="module")
def red() -> Report:
    return attnlaws.check(leaky, laws=["causality", "weights.oracle", "scores"], profile="smoke")


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_a_green_run_fits_the_schema_and_says_what_the_report_says() -> None:
    report = attnlaws.check(F.scaled_dot_product_attention, laws=["weights", "heads"], profile="smoke")
    data = json.loads(as_text(document(report)))
    validate(data, "run")
    assert data["exit_code"] == 0
    assert data["conclusion"] == "laws held"
    assert data["failures"] == []
    assert [law["name"] for law in data["laws"]] == [v.law for v in report.verdicts]
    assert sum(law["problems"] for law in data["laws"]) == data["totals"]["problems"] == report.problems > 0
    assert {"name": "zeros", "tried": report.impostors["zeros"][0], "rejected": report.impostors["zeros"][1]} in data[
        "impostors"
    ]
    assert {"torch", "numpy", "python"} <= set(data["versions"])
    layout = next(row for row in data["target"]["card"]["conventions"] if row["name"] == "layout")
    assert layout["choice"] == "BHSD"


def test_the_worst_ratio_names_its_dtype_and_is_among_the_margins() -> None:
    report = attnlaws.check(F.scaled_dot_product_attention, laws=["weights.oracle"], profile="smoke")
    data = document(report)
    (law,) = data["laws"]
    assert 0 < law["worst"]["ratio"] <= 1
    where = {"dtype": law["worst"]["dtype"], "length": law["worst"]["length"]}
    assert {**where, "ratio": law["worst"]["ratio"], "law": "weights.oracle"} in data["margins"]
    assert {m["dtype"] for m in data["margins"]} >= {"float32", "bfloat16"}
    assert law["impostors"] == data["impostors"]  # the only law that meets them


def test_a_red_run_shows_what_was_expected_and_what_was_seen(red: Report) -> None:
    data = json.loads(as_text(document(red)))
    validate(data, "run")
    assert data["exit_code"] == 1
    shown = {failure["law"]: failure for failure in data["failures"]}
    leak = shown["causality.future-keys"]
    assert leak["witness"]["case"]["problem"]["causal"] is True
    mask = leak["mask"]
    assert any(
        got and not want for got, want in zip(*(chain(*mask[side]) for side in ("got", "expected")), strict=True)
    )
    assert sum(map(sum, mask["difference"])) == sum(map(sum, mask["got"])) - sum(map(sum, mask["expected"])) > 0
    assert leak["diagnosis"] == data["diagnosis"] is not None
    assert any(failure["output"] for failure in shown.values())


def test_a_case_in_the_document_replays(red: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failure = document(red)["failures"][0]
    case = tmp_path / "case.json"
    case.write_text(json.dumps(failure["witness"]["case"]))
    (tmp_path / "mine.py").write_text(BROKEN)
    assert main(["replay", str(case), "--target", f"{tmp_path}/mine.py:unscaled"]) == 1
    assert failure["law"] in capsys.readouterr().out


def test_chance_is_told_with_its_interval() -> None:
    report = api.check("attnlaws.reference.sampling:sample", part="sampler", laws=["sampling"])
    data = json.loads(as_text(document(report)))
    validate(data, "run")
    finding = next(law["findings"][0] for law in data["laws"] if law["findings"])
    assert finding["interval"][0] <= finding["estimate"] <= finding["interval"][1]


@pytest.mark.parametrize(
    "target",
    ["attnlaws.reference.heads:MultiHeadAttention(d_in=10, d_out=12, context_length=40, num_heads=3)", "reference.gpt"],
)
def test_layers_and_models_fit_the_schema(target: str) -> None:
    data = json.loads(as_text(document(attnlaws.check(target, profile="smoke"))))
    validate(data, "run")
    assert data["exit_code"] == 0
    assert data["target"]["card"]["conventions"]
    assert data["impostors"]


def test_a_target_that_raises_has_its_exception() -> None:
    def raising(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if key.shape[-2] > 30:
            raise IndexError("tile 31 is out of range")
        return F.scaled_dot_product_attention(query, key, value)

    data = json.loads(as_text(document(attnlaws.check(raising, laws=["weights"], profile="smoke"))))
    validate(data, "run")
    assert any(f["status"] == "crashed" and "tile 31" in f["raised"] for f in data["failures"])


def test_numbers_that_json_does_not_have() -> None:
    assert [number(x) for x in (1.5, float("nan"), float("inf"), -float("inf"), None)] == [
        1.5,
        "nan",
        "inf",
        "-inf",
        None,
    ]
    validate(without_run("mine.py:f", "no such file", 3), "run")


def test_check_writes_one_file_for_all_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    out = tmp_path / "new" / "run.json"
    names = [f"{tmp_path}/mine.py:unscaled", "torch.sdpa", f"{tmp_path}/mine.py:missing"]
    code = main(["check", *names, "--laws", "scores.default-scale", "--no-files", "--json", str(out)])
    data = json.loads(out.read_text())
    validate(data, "runs")
    assert code == data["exit_code"] == 1
    assert [run["exit_code"] for run in data["runs"]] == [1, 0, 3]
    assert "missing" in data["runs"][2]["error"]
    assert "scores.default-scale" in capsys.readouterr().out


def test_json_on_the_standard_output_is_alone_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "torch.sdpa", "--laws", "weights.uniform", "--json", "-"]) == 0
    validate(json.loads(capsys.readouterr().out), "runs")


def test_a_report_that_can_not_be_written_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["check", "torch.sdpa", "--json", f"{tmp_path}/file/run.json"]) == 2
    assert "can't write" in capsys.readouterr().err


def test_the_schema_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
