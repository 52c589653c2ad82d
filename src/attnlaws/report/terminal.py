"""The report as text: the card, the ledger, the failures, the proof that impostors would have failed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..laws.trial import Broken, Crashed, Died, Evidence
from ..problems.problem import Problem
from ..run.known import Known
from ..run.ledger import HELD, NOT_APPLICABLE, Report, Verdict
from ..targets.call import Call
from ..targets.model import ModelTarget
from .card import card_of
from .excerpt import effective_masks
from .model import witness_rows

MARKS = {
    "held": "✓",
    "not applicable": "·",
    "could not tell": "?",
    "broken": "✗",
    "crashed": "✗",
    "nondeterministic": "✗",
    "fault": "!",
}
KNOWN_MARK = "~"
COLOURS = {
    "held": "32",
    "broken": "31",
    "crashed": "31",
    "nondeterministic": "31",
    "could not tell": "33",
    "fault": "35",
    "not applicable": "2",
}


def render(report: Report, *, colour: bool = False, verbose: bool = False) -> str:
    """The whole report. The same run gives the same text, but for the seconds."""
    parts = [card_of(report.target, report.precision), ledger(report, colour=colour, verbose=verbose)]
    parts += [failure_block(v, report) for v in report.unexpected if v.under is None or v.under in report.known]
    parts.append(outdated(report))
    parts.append(diagnosis(report) if report.unexpected else "")
    parts.append(proof(report))
    parts.append(summary(report))
    return "\n".join(part for part in parts if part)


def ledger(report: Report, *, colour: bool, verbose: bool) -> str:
    """One line a law."""
    lines = ["laws"]
    for verdict in report.verdicts:
        if verdict.status == NOT_APPLICABLE and not verbose:
            continue
        lines.append("  " + ledger_line(verdict, colour, report.known.get(verdict.law)))
        lines += [f"      {finding}" for finding in verdict.evidence.findings]
    skipped = [v for v in report.verdicts if v.status == NOT_APPLICABLE]
    if skipped and not verbose:
        reasons: dict[str, list[str]] = {}
        for verdict in skipped:
            reasons.setdefault(verdict.reason, []).append(verdict.law)
        lines.append("not applicable")
        lines += [f"  · {', '.join(laws)}: {reason}" for reason, laws in reasons.items()]
    return "\n".join(lines) + "\n"


def ledger_line(verdict: Verdict, colour: bool, known: Known | None = None) -> str:
    """How one law ended; where it is known to be broken, why."""
    mark = MARKS[verdict.status] if known is None else KNOWN_MARK
    if colour:
        mark = f"\x1b[{COLOURS[verdict.status if known is None else 'could not tell']}m{mark}\x1b[0m"
    if known is not None:
        tail = f"known: {known}"
    elif verdict.status == HELD and verdict.evidence.findings:
        tail = f"{verdict.evidence.elements} values"
    elif verdict.status == HELD:
        tail = f"{verdict.problems} problems, {verdict.evidence.elements} elements, {_worst(verdict.evidence)}"
    elif verdict.under:
        tail = f"{verdict.status}, folded under {verdict.under}"
    else:
        tail = f"{verdict.status}: {verdict.reason}"
    tail += f", {verdict.declined} declined" if verdict.declined and verdict.status == HELD else ""
    tail += ", its share of the time ended" if verdict.cut else ""
    return f"{mark} {verdict.law:<32} {tail}"


def _worst(evidence: Evidence) -> str:
    if evidence.note:
        return evidence.note
    if evidence.not_exact:
        return f"worst error / bound {evidence.worst:.2g}, {evidence.not_exact} times within rounding, not exact"
    return f"worst error / bound {evidence.worst:.2g}" if evidence.worst else "exact"


def failure_block(verdict: Verdict, report: Report) -> str:
    """What broke, on what, by how much, and how to see it again."""
    lines = [f"✗ {verdict.law:<28} {verdict.statement}"]
    failure, witness = verdict.failure, verdict.witness
    rows: list[tuple[str, str]] = []
    if witness is not None:
        on = _call_of(failure, witness)
        rows.append(
            (
                "seen on"
                if verdict.status == "nondeterministic" or not getattr(failure, "again", True)
                else "smallest witness",
                witness.describe(),
            )
        )
        rows += [("in the call", on)] if on else []
        if isinstance(report.target, ModelTarget):
            rows += witness_rows(report.target, witness)
    if isinstance(failure, Crashed):
        rows.append(("what" if isinstance(failure, Died) else "the target raised", failure.line))
    elif failure is not None:
        rows.append(("what", verdict.reason))
        if failure.got is not None:
            rows.append(("worst element", _element(failure)))
    for label, text in rows:
        lines.append(f"    {label:<18} {text}")
    lines += _picture(verdict, report)
    case, script = report.files.get(verdict.law, ("", ""))
    if case:
        lines.append(f"    {'replay':<18} attnlaws replay {case}")
    if script:
        lines.append(f"    {'or, without us':<18} {script}")
    return "\n".join(lines) + "\n"


def _call_of(failure: Broken | Crashed | None, witness: Problem) -> str:
    """The sizes and the dtype of the failing call, where the law made it other than the problem says."""
    call = getattr(failure, "call", None)
    if not isinstance(call, Call):
        return ""
    batch, heads, kv_heads, queries, keys, head_dim, value_dim = call.sizes
    made = witness.but(
        batch=batch, heads=heads, kv_heads=kv_heads, queries=queries, keys=keys, head_dim=head_dim, dtype=call.dtype
    )
    same = made.but(value_dim=witness.value_dim) == witness
    return "" if same else made.but(value_dim=value_dim).describe()


def _element(failure: Broken) -> str:
    got, want, allowed = failure.got, failure.want, failure.allowed
    assert got is not None
    assert want is not None
    assert allowed is not None
    if allowed == 0:
        return f"{failure.where} = {got:.6g}, must be {want:.6g} exactly"
    off = abs(got - want)
    return f"{failure.where} = {got:.6g}, expected {want:.6g}: off by {off:.3g}, allowed {allowed:.3g} (error / bound {off / allowed:.3g})"


def _picture(verdict: Verdict, report: Report) -> list[str]:
    """The effective mask beside the expected one, where they differ and are small enough to read."""
    found = effective_masks(verdict, report.target)
    if found is None or max(found.got.shape) > 8:
        return []
    return side_by_side(found.got.astype(bool), found.want.astype(bool), f" ({found.where})" if found.where else "")


def side_by_side(seen: NDArray[np.bool_], truth: NDArray[np.bool_], where: str = "") -> list[str]:
    """Two 0/1 grids, row by row."""
    lines = []
    for i in range(seen.shape[0]):
        left, right = (" ".join("1" if cell else "0" for cell in grid[i]) for grid in (seen, truth))
        label = f"effective mask{where}" if i == 0 else ""
        lines.append(f"    {label:<18} {left}      {'expected  ' if i == 0 else ' ' * 10}{right}")
    return lines


def diagnosis(report: Report) -> str:
    """What the target does instead."""
    if report.diagnosis is None:
        return "".join(f"seen         {line}\n" for line in report.hints)
    words, fix = report.diagnosis
    return f"reads like   {words}\nfix          {fix}\n"


def outdated(report: Report) -> str:
    """Entries of the list of known failures that are so no more."""
    return "".join(f"known failure {entry.law}: {words}\n" for entry, words in report.outdated)


def proof(report: Report) -> str:
    """That trivial impostors would have failed on these very problems."""
    tallies = [f"{name} {rejected}/{tried}" for name, (tried, rejected) in report.impostors.items() if tried]
    if not tallies:
        return ""
    lines = ["impostors on the same problems (rejected / tried)"]
    lines.append("  " + ", ".join(tallies))
    if report.undetected:
        lines.append(f"  NOT REJECTED: {', '.join(report.undetected)}; this run could not tell them from the target")
    return "\n".join(lines) + "\n"


def summary(report: Report) -> str:
    """The last line."""
    counts = {status: sum(v.status == status for v in report.verdicts) for status in MARKS}
    words = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
    words += f" ({len(report.known)} of them known)" if report.known else ""
    words += f" ({len(report.cut)} cut short by the time)" if report.cut else ""
    elements = sum(v.evidence.elements for v in report.verdicts)
    more = f", {report.declined} problems declined by the target ({report.refusal})" if report.declined else ""
    end = " TIME BUDGET ENDED FIRST." if report.out_of_time else ""
    return (
        f"{report.target.name}: {words}; {report.problems} problems of {report.samples} samples, {elements} elements compared{more} "
        f"(profile {report.profile}, seed {report.seed}) in {report.seconds:.1f} s.{end}"
    )
