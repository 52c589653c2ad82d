"""The report of a comparison: the conventions that differ, then one block for each explanation of a difference."""

from __future__ import annotations

from dataclasses import fields

from ..run.diff import SIDES, Cause, Difference
from ..targets.conventions import TABLE, Conventions
from ..targets.target import Target

#: the targets are called in their own words, so a difference in these is none; whoever calls them must do so too
REMARK = "each gets its own"
TRANSLATED = ("layout", "output_layout", "mask_means", "padding_means")
#: no problem of a comparison shows these
NOT_COMPARED = ("finite_mask", "negative_scale", "zero_scale", "lse_base", "empty_lse")
#: these are choices of a target even where the probe had nothing to look at
ALWAYS = ("causal", "default_scale")


def render(report: Difference) -> str:
    """The whole report. The same run gives the same text, but for the seconds."""
    parts = [_names(report), _conventions(report), _only(report)]
    parts += [_block(cause, report) for cause in report.causes]
    parts.append(summary(report))
    return "\n".join(part for part in parts if part)


def _names(report: Difference) -> str:
    targets = zip(SIDES, (report.first, report.second), strict=True)
    return "\n".join(f"{side}   {target.name}   ({target.framework.name})" for side, target in targets) + "\n"


def _conventions(report: Difference) -> str:
    """The conventions in which the two cards differ, side by side."""
    rows = []
    for name in differing_names(report):
        a, b = _choice(report.first, name), _choice(report.second, name)
        rows.append((TABLE[name].question, a, b, _remark(name, a, b)))
    rows += [("a mask is given as", *pair, REMARK) for pair in report.routes.items()]
    for dtype, mine in report.precision[0].items():
        other = report.precision[1].get(dtype, mine)
        if mine != other:
            rows.append((f"precision in {dtype}", mine, other, "within the bounds"))
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in [*rows, ("", *SIDES, "")]) for i in range(3)]
    head = f"{'conventions that differ':<{widths[0] + 2}}  {'A':<{widths[1]}}  B"
    lines = [f"  {q:<{widths[0]}}  {a:<{widths[1]}}  {b:<{widths[2]}}  {remark}".rstrip() for q, a, b, remark in rows]
    return "\n".join([head, *lines]) + "\n"


def differing_names(report: Difference) -> list[str]:
    """The conventions whose choices differ and are known of both."""
    a, b = report.first.conventions, report.second.conventions
    names = [f.name for f in fields(Conventions) if f.name != "known"]
    known = [n for n in names if n in ALWAYS or (n in a.known and n in b.known)]
    flags = {a.causal, b.causal} == {"flag", "not offered"}  # told by what only one takes
    return [n for n in known if getattr(a, n) != getattr(b, n) and not (n == "causal" and flags)]


def _choice(target: Target, name: str) -> str:
    unclear = target.conventions.known.get(name) == "unclear"
    return f"{getattr(target.conventions, name)}{' (unclear)' if unclear else ''}"


def _remark(name: str, *choices: str) -> str:
    if name in TRANSLATED:
        return REMARK
    if "required" in choices:
        return "1/sqrt(D) is given"
    return "not compared" if name in NOT_COMPARED or {"refused", "square only"} & set(choices) else ""


def _only(report: Difference) -> str:
    """What was left out, since one of them doesn't take it, and declared conventions that are not so."""
    lines = [f"only {side} takes   {', '.join(what)}" for side, what in zip(SIDES, report.only, strict=True) if what]
    lines += [f"not compared   {count} problems: {why}" for why, count in report.not_compared.items()]
    for side, target in zip(SIDES, (report.first, report.second), strict=True):
        for name, (said, seen) in target.contradicted.items():
            lines.append(f"{side} is declared {name} = {said!r}, but the probe sees {seen!r}")
    return "\n".join(lines) + "\n" if lines else ""


def _block(cause: Cause, report: Difference) -> str:
    """One explanation: what it is, how much it explains, and where to see it."""
    lines = [f"≠ {title}" for title in _titles(cause)]
    rows = [
        ("shows on" if cause.share is None else "explains", _explains(cause, report)),
        ("smallest problem", cause.witness.describe()),
    ]
    if cause.line:
        rows.append((f"{cause.reason.raises} raises", cause.line))
    element = cause.element
    if element is not None:
        off = abs(element.first - element.second)
        apart = f"apart by {off:.3g}, allowed {element.allowed:.3g}" if off == off else "one is not a number"
        rows.append(("worst element", f"{element.where}: A {element.first:.6g}, B {element.second:.6g}; {apart}"))
    lines += [f"    {label:<18} {text}" for label, text in rows]
    if cause.seen is not None:
        for number, (left, right) in enumerate(zip(*cause.seen, strict=True)):
            label, a, b = ("visible keys", "A", "B") if number == 0 else ("", " ", " ")
            lines.append(f"    {label:<18} {a} {left}      {b} {right}")
    lines += [f"    {label:<18} {text}" for label, text in _advice(cause, report)]
    return "\n".join(lines) + "\n"


def _titles(cause: Cause) -> list[str]:
    """What explains the difference, one line each."""
    reason = cause.reason
    found = [f"{TABLE[name].question}: A {a}, B {b}" for name, a, b in reason.conventions]
    found += [f"a fault of {side}: {words}" for side, words, _ in reason.faults]
    found += [f"{reason.raises} raises where the other answers"] if reason.raises else []
    return [*found, *(f"not explained: {side} breaks {law}" for side, law in reason.breaks)]


def _explains(cause: Cause, report: Difference) -> str:
    differ = report.differing
    which = f"{cause.problems} of {differ} differing problem{'s' if differ > 1 else ''}"
    if cause.share is None:
        return which
    percent = 100.0 * cause.share
    if percent >= 99.95:
        return f"{which}, 100 % of the difference"
    rest = "" if cause.reason.faults else ", the rest within rounding"  # each side keeps to the bound of its own oracle
    return f"{which}, {percent:.1f} % of the difference{rest}"


def _advice(cause: Cause, report: Difference) -> list[tuple[str, str]]:
    """What to change, or what to ask next."""
    targets = dict(zip(SIDES, (report.first, report.second), strict=True))
    rows = [(f"fix in {side}", fix) for side, _, fix in cause.reason.faults]
    sides = [cause.reason.raises] if cause.reason.raises else [side for side, _ in cause.reason.breaks]
    return rows + [("see", _check(targets[side])) for side in sides]


def _check(target: Target) -> str:
    return f"attnlaws check {target.address}" if target.address else f"attnlaws.check(...) of {target.name}"


def summary(report: Difference) -> str:
    """The last line."""
    names = f"{report.first.name} and {report.second.name}"
    if report.nothing:
        return f"{names}: nothing could be compared: {report.nothing}"
    tail = f"(seed {report.seed}) in {report.seconds:.1f} s." + (
        " TIME BUDGET ENDED FIRST." if report.out_of_time else ""
    )
    if not report.compared:
        return f"{names}: nothing could be compared {tail}"
    counts = f"{report.compared} problems, {report.elements} elements compared"
    if not report.causes:
        return f"{names}: no difference; {counts} {tail}"
    return f"{names}: they differ on {report.differing} of {counts} {tail}"
