"""The report of two models compared: where they agree, and the first part after which they don't."""

from __future__ import annotations

from ..run.diff_models import ModelDifference, Parting
from ..targets.model import ModelTarget

SMALL = "less than float32 rounds: an epsilon, an approximation, or a step that one of them takes in float32"


def render(report: ModelDifference) -> str:
    """The whole report. The same run gives the same text, but for the seconds."""
    lines = [_name("A", report.first), _name("B", report.second), ""]
    if report.nothing:
        return "\n".join([*lines, f"nothing to compare: {report.nothing}"])
    weights = (
        "B was given A's, which have the same names and shapes"
        if report.same_weights
        else "each has its own (their names differ): they should hold the same numbers"
    )
    lines += [f"  weights            {weights}", f"  arithmetic         {report.dtype}", ""]
    blocks: dict[tuple[object, ...], list[Parting]] = {}
    for parting in report.partings:
        blocks.setdefault((parting.equal, parting.first, parting.small), []).append(parting)
    for alike in blocks.values():
        lines += _block(alike, report.compared)
    lines += [f"  raised             {line}" for line in report.raised]
    return "\n".join([*lines, _summary(report)])


def _name(side: str, target: ModelTarget) -> str:
    return f"{side}   {target.name}   ({target.kind}, {target.parameter_count} parameters)"


def _block(alike: list[Parting], compared: int) -> list[str]:
    """The first of some that part at the same place."""
    parting = alike[0]
    (mine, theirs), (a, b) = parting.equal, parting.first
    equal = f"{mine} = {theirs}" if mine else "none: they part from the first part on"
    got, want = parting.values
    lines = [
        f"≠ {parting.problem.describe()}",
        f"    last equal         {equal}",
        f"    so on              {len(alike)} of {compared} texts",
        f"    they part at       A {a}, B {b}: {parting.where} {got:.9g} and {want:.9g}, allowed {parting.allowed:.2g}",
    ]
    if parting.small:
        lines.append(f"    a small difference {SMALL}")
    return [*lines, ""]


def _summary(report: ModelDifference) -> str:
    count, seconds = len(report.partings), report.seconds
    if not report.compared:
        return "nothing could be compared"
    if count:
        return f"they differ on {count} of {report.compared} texts in {seconds:.1f} s."
    matched, whole = report.matched
    return f"no difference: {report.compared} texts compared, {matched} of A's {whole} parts have an equal in B, in {seconds:.1f} s."
