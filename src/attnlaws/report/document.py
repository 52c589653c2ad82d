"""A whole run as JSON: what `attnlaws check --json` writes. report/schema.json is its schema.

A number that is none in JSON is one of the words "nan", "inf" and "-inf".
"""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..judge.chance import Finding
from ..laws.trial import Broken, Crashed
from ..run import matrix, model_matrix
from ..run.known import Known
from ..run.ledger import BROKEN, HELD, Report, Verdict
from ..run.matrix import Kill
from ..run.model_matrix import ModelKill
from ..targets.call import Call
from ..targets.model import ModelTarget
from ..targets.target import Target
from .card import precision_found, rows_of, takes
from .case import case_of
from .excerpt import Excerpt, effective_masks, outputs
from .model import witness_rows

#: the version of the schema; it changes where a field changes its meaning or goes away
SCHEMA = 1
SCHEMA_FILE = Path(__file__).with_name("schema.json")
#: what an exit code says of a run
CONCLUSIONS = {
    0: "laws held",
    1: "laws broken",
    2: "wrong usage",
    3: "not adapted",
    4: "nothing compared",
    5: "fault of attnlaws",
    124: "out of time",
}
_FRAMEWORKS = ("torch", "jax", "flax", "keras", "mlx", "onnx", "onnxruntime", "tinygrad", "transformers", "triton")

Document = dict[str, Any]


def document(report: Report) -> Document:
    """A report as plain JSON types. Where laws broke, their failing calls are made again for the excerpts, but not after the
    time budget.
    """
    return {
        **_head(report.exit_code),
        "target": _target(report),
        "profile": report.profile,
        "seed": report.seed,
        "seconds": round(report.seconds, 3),
        "out_of_time": report.out_of_time,
        "totals": {
            "laws": _counts(v.status for v in report.verdicts),
            "problems": report.problems,
            "samples": report.samples,
            "declined": report.declined,
            "elements": sum(v.evidence.elements for v in report.verdicts),
        },
        "laws": [_law(verdict, report) for verdict in report.verdicts],
        "failures": [_failure(verdict, report) for verdict in report.failures],
        "diagnosis": _diagnosis(report),
        "hints": list(report.hints),
        "impostors": _impostors(report.impostors),
        "undetected": list(report.undetected),
        "outdated": [{**_known(entry), "law": entry.law, "words": words} for entry, words in report.outdated],
        "catalogue": _catalogue(report),
        "margins": _margins(report.verdicts),
        "error": None,
    }


def without_run(name: str, words: str, exit_code: int) -> Document:
    """The document of a target that was not tried, since it could not be imported or adapted, with the reason in words."""
    return {
        **_head(exit_code),
        "target": {"name": name, "address": name, "kind": None, "framework": None, "device": None, "card": None},
        "profile": None,
        "seed": None,
        "seconds": 0.0,
        "out_of_time": exit_code == 124,
        "totals": {"laws": {}, "problems": 0, "samples": 0, "declined": 0, "elements": 0},
        **{name: [] for name in ("laws", "failures", "hints", "impostors", "undetected", "outdated", "margins")},
        "diagnosis": None,
        "catalogue": None,
        "error": words,
    }


def together(documents: Sequence[Document], exit_code: int) -> Document:
    """What the file of a command holds: the runs of all its targets."""
    return {"schema": SCHEMA, "attnlaws": __version__, "exit_code": exit_code, "runs": list(documents)}


def as_text(data: Document) -> str:
    """The text of a JSON file. Raises ValueError for a number that JSON doesn't have."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def number(value: float | None) -> float | str | None:
    """A number, or the word for one that JSON doesn't have."""
    if value is None or math.isfinite(value):
        return None if value is None else float(value)
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _head(exit_code: int) -> Document:
    return {
        "schema": SCHEMA,
        "attnlaws": __version__,
        "versions": _versions(),
        "exit_code": exit_code,
        "conclusion": CONCLUSIONS[exit_code],
    }


def _versions() -> dict[str, str]:
    """The versions of Python, of what attnlaws computes with, and of the frameworks that are loaded."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("numpy", "scipy", "hypothesis", *(name for name in _FRAMEWORKS if name in sys.modules)):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = str(getattr(sys.modules.get(name), "__version__", "unknown"))
    return found


def _target(report: Report) -> Document:
    target = report.target
    function = isinstance(target, Target)
    framework = target.framework if isinstance(target, Target) else None
    device = getattr(framework, "device", None) if function else getattr(target, "device", None)
    return {
        "name": target.name,
        "address": target.address,
        "kind": target.LAWS,
        "framework": framework.name if framework is not None else "torch",
        "device": None if device is None else str(device),
        "card": {
            "conventions": [asdict(row) for row in rows_of(target)],
            "precision": [
                {"dtype": dtype, "choice": choice, "how": precision_found(target, dtype)}
                for dtype, choice in report.precision.items()
            ],
            "takes": takes(target) if isinstance(target, Target) else [],
            "refuses": dict(target.abilities.refusals) if isinstance(target, Target) else {},
            "untried": list(target.untried) if isinstance(target, Target) else [],
            "ignored": list(getattr(target, "ignored", ())),
            "unclear": list(getattr(target, "unclear", ())),
            "contradicted": {
                name: {"declared": said, "seen": seen}
                for name, (said, seen) in getattr(target, "contradicted", {}).items()
            },
        },
    }


def _law(verdict: Verdict, report: Report) -> Document:
    evidence = verdict.evidence
    at = next((at for at, ratio in evidence.margins.items() if ratio == evidence.worst), None)
    return {
        "name": verdict.law,
        "family": verdict.law.split(".")[0],
        "statement": verdict.statement,
        "status": verdict.status,
        "ignored": verdict.ignored,
        "reason": verdict.reason,
        "under": verdict.under,
        "known": _known(report.known[verdict.law]) if verdict.law in report.known else None,
        "problems": verdict.problems,
        "samples": verdict.samples,
        "cut": verdict.cut,
        "declined": verdict.declined,
        "seconds": round(verdict.seconds, 3),
        "comparisons": evidence.comparisons,
        "elements": evidence.elements,
        "not_exact": evidence.not_exact,
        "note": evidence.note,
        "catches": sum(verdict.law in laws for laws in _catching(report.target.LAWS).values()),
        "worst": {
            "ratio": number(evidence.worst),
            "dtype": at[0] if at is not None else None,
            "length": at[1] if at is not None else None,
        },
        "findings": [_finding(finding) for finding in evidence.findings],
        "impostors": _impostors(verdict.impostors),
    }


def _known(entry: Known) -> Document:
    """What the list of known failures says of a law."""
    expires = None if entry.expires is None else entry.expires.isoformat()
    return {"reason": entry.reason, "issue": entry.issue or None, "expires": expires}


def _finding(finding: Finding) -> Document:
    return {
        "quantity": finding.quantity,
        "at": finding.at,
        "estimate": number(finding.estimate),
        "interval": [number(end) for end in finding.interval],
        "predicted": number(finding.predicted),
        "n": finding.size,
        "p": number(finding.p_value),
        "sees": finding.sees,
    }


def _failure(verdict: Verdict, report: Report) -> Document:
    failure, witness, target = verdict.failure, verdict.witness, report.target
    case, script = report.files.get(verdict.law, ("", ""))
    shown = verdict.status == BROKEN and not report.out_of_time
    return {
        "law": verdict.law,
        "statement": verdict.statement,
        "status": verdict.status,
        "reason": verdict.reason,
        "under": verdict.under,
        "known": _known(report.known[verdict.law]) if verdict.law in report.known else None,
        "witness": None if witness is None else {"words": witness.describe(), "case": case_of(verdict, report)},
        "call": _sizes(failure),
        "tokens": dict(witness_rows(target, witness)) if isinstance(target, ModelTarget) and witness else {},
        "raised": failure.line if isinstance(failure, Crashed) else None,
        "element": _element(failure),
        "mask": _grids(effective_masks(verdict, target)) if shown else None,
        "output": _grids(outputs(verdict, target)) if shown else None,
        "diagnosis": _diagnosis(report) if verdict.status == BROKEN else None,
        "case_file": case or None,
        "script_file": script or None,
    }


def _sizes(failure: Broken | Crashed | None) -> Document | None:
    """The sizes and the dtype of the failing call, which a law may have made other than the problem says."""
    call = getattr(failure, "call", None)
    if not isinstance(call, Call):
        return None
    names = ("B", "H", "Hkv", "Lq", "Lk", "D", "Dv")
    return {**dict(zip(names, (int(n) for n in call.sizes), strict=True)), "dtype": call.dtype}


def _element(failure: Broken | Crashed | None) -> Document | None:
    """The worst element: where it is, what it must be, and how far off it may be."""
    if not isinstance(failure, Broken) or failure.got is None or failure.want is None or failure.allowed is None:
        return None
    off = abs(failure.got - failure.want)
    ratio = off / failure.allowed if failure.allowed else math.inf
    return {
        "where": failure.where,
        "got": number(failure.got),
        "expected": number(failure.want),
        "difference": number(off),
        "allowed": number(failure.allowed),
        "ratio": number(ratio),
    }


def _grids(found: Excerpt | None) -> Document | None:
    if found is None:
        return None
    with np.errstate(invalid="ignore"):  # of infinities
        difference = found.got - found.want
    return {
        "where": found.where,
        "first_row": found.first[0],
        "first_column": found.first[1],
        "got": _rows(found.got),
        "expected": _rows(found.want),
        "difference": _rows(difference),
        "allowed": None if found.allowed is None else _rows(found.allowed),
    }


def _rows(grid: Iterable[Iterable[float]]) -> list[list[float | str | None]]:
    return [[number(float(value)) for value in row] for row in grid]


def _diagnosis(report: Report) -> Document | None:
    return None if report.diagnosis is None else {"words": report.diagnosis[0], "fix": report.diagnosis[1]}


def _impostors(tallies: Mapping[str, tuple[int, int]]) -> list[Document]:
    return [
        {"name": name, "tried": int(tried), "rejected": int(rejected)} for name, (tried, rejected) in tallies.items()
    ]


@cache
def _catching(kind: str) -> dict[str, frozenset[str]]:
    """The laws that catch each fault of the catalogue, for targets of a kind; none for kinds whose kills are not stored."""
    rows: Sequence[Kill | ModelKill] = ()
    if kind == "attention":
        rows = matrix.load().kills
    elif kind == "model":
        rows = model_matrix.load().kills
    return {row.fault: frozenset(row.laws) for row in rows}


def _catalogue(report: Report) -> Document | None:
    """How many faults of the catalogue break a law that held on this target."""
    catching = _catching(report.target.LAWS)
    held = {verdict.law for verdict in report.verdicts if verdict.status == HELD}
    caught = sum(bool(held & laws) for laws in catching.values())
    return {"faults": len(catching), "caught": caught} if catching else None


def _margins(verdicts: Iterable[Verdict]) -> list[Document]:
    """The largest error / bound of all laws by dtype and length, and the law where it was seen."""
    largest: dict[tuple[str, int], tuple[float, str]] = {}
    for verdict in verdicts:
        for at, ratio in verdict.evidence.margins.items():
            if at not in largest or ratio > largest[at][0]:
                largest[at] = (ratio, verdict.law)
    return [
        {"dtype": dtype, "length": length, "ratio": number(ratio), "law": law}
        for (dtype, length), (ratio, law) in sorted(largest.items())
    ]


def _counts(statuses: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for status in statuses:
        found[status] = found.get(status, 0) + 1
    return found
