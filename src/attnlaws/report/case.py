"""Case files: a failure as a dozen numbers in JSON, replayed after any upgrade."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..problems.layer_problem import LayerProblem
from ..problems.model_problem import ModelProblem
from ..problems.part_problem import PartProblem
from ..problems.problem import CASE_FORMAT, CorruptCase, Problem
from ..run.ledger import Report, Verdict

FOLDER = ".attnlaws"
PART_FAMILIES = (
    "rope", "alibi", "buckets", "sinusoids", "norm", "loss", "sampling", "corruption", "initial", "dropping", "depth",
)  # fmt: skip
#: the kind of problem by the family of the law; all others are about attention functions
PROBLEMS: dict[str, type[LayerProblem | ModelProblem | PartProblem | Problem]] = {
    "layers": LayerProblem,
    **dict.fromkeys(("models", "gpt", "bert", "t5", "cache", "generation"), ModelProblem),
    **dict.fromkeys(PART_FAMILIES, PartProblem),
}


@dataclass(frozen=True)
class Case:
    """One recorded failure: the law, the target's address, and the problem."""

    law: str
    target: str
    problem: Problem | LayerProblem | ModelProblem | PartProblem
    reason: str = ""


def write_case(verdict: Verdict, report: Report, folder: Path) -> Path:
    """Write the case of a red verdict; the path."""
    assert verdict.witness is not None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{verdict.law}.json"
    path.write_text(json.dumps(case_of(verdict, report), indent=2) + "\n", encoding="utf-8")
    return path


def case_of(verdict: Verdict, report: Report) -> dict[str, Any]:
    """What a case file holds of a red verdict."""
    return {
        "attnlaws": CASE_FORMAT,
        "law": verdict.law,
        "target": report.target.address,
        "reason": verdict.reason,
        "problem": verdict.witness.to_json(),
    }


def read_case(path: Path) -> Case:
    """The case in a file. Raises CorruptCase where it can't be read, saying what is wrong."""
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CorruptCase(f"{path} can't be read: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CorruptCase(f"{path} is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise CorruptCase(f"{path} holds {type(data).__name__}, not a case")
    if data.get("attnlaws") != CASE_FORMAT:
        raise CorruptCase(f"{path} has format {data.get('attnlaws')!r}, this version reads {CASE_FORMAT}")
    for name, kind in (("law", str), ("problem", dict)):
        if not isinstance(data.get(name), kind):
            raise CorruptCase(f"{path} lacks {name!r}")
    problems = PROBLEMS.get(data["law"].split(".")[0], Problem)
    return Case(
        data["law"], str(data.get("target") or ""), problems.from_json(data["problem"]), str(data.get("reason", ""))
    )
