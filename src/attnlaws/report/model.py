"""The card of a model: how it is called, what its logits depend on, how it decodes; and the tokens of a witness."""

from __future__ import annotations

from typing import Any

from ..problems.model_problem import ModelProblem, inputs_of
from ..targets.far import tried_lengths
from ..targets.model import ModelTarget


def model_card(target: ModelTarget, precision: dict[str, str] | None = None) -> str:
    """What was found out or declared about a model."""
    lines = [f"{target.name}   ({'an' if target.kind[0] == 'e' else 'a'} {target.kind}, torch)", "conventions"]
    lines += [f"  {words:<42} {found}" for words, found in rows(target)]
    lines += [
        f"  {'precision in ' + dtype:<42} {name}  (the strictest that fits)"
        for dtype, name in (precision or {}).items()
    ]
    lines += [f"takes and ignores {name}" for name in target.ignored]
    lines += [f"no meaning was found for {name}" for name in target.unclear if name not in target.known]
    return "\n".join(lines) + "\n"


def rows(target: ModelTarget) -> list[tuple[str, str]]:
    """What stands on the card: a question and what was found."""
    into = "B, L" if target.axes == "BL" else "L, B"
    source = f" and ({into.replace('L', 'S')}) of the source" if target.source else ""
    rows = [
        ("input and output", f"tokens ({into}){source} to logits ({into}, {target.width}), {_reads(target)}"),
        (
            "vocabulary",
            f"{target.vocabulary}" + (f", {target.pad_id} is the pad id" if target.pad_id is not None else ""),
        ),
        ("what logits depend on", f"{target.dependence}  ({target.known.get('kind', 'probed')})"),
        ("lengths", tried_lengths(target.longest, target.far)),
    ]
    if target.pad is not None:
        rows.append(("padding", str(target.pad)))
    if target.source_pad is not None:
        rows.append(("padding of the source", str(target.source_pad)))
    left = {
        "absent": "as if it were not there" + (", with position ids" if target.positions else ""),
        "counts": "takes places: positions count it",
        "not taken": "gives NaN at real tokens: not tried",
    }.get(target.left_padding)
    if left:
        rows.append(("padding on the left", left))
    if target.positions:
        first = f", from {target.first_place} on" if target.first_place else ""
        rows.append(
            ("position ids", f"{target.positions} ({', '.join(target.positions_shape)}), {target.placed}{first}")
        )
    if target.segments:
        rows.append(("segments", f"{target.segments}, {target.segment_count} of them"))
    if target.labels:
        rows.append(("loss", f"{target.loss}" if target.loss else target.known.get("loss", "none")))
    if target.cache is not None:
        rows.append(("cache", str(target.cache)))
    if target.generate is not None:
        rows.append(("generates", _generates(target)))
    elif why := target.known.get("generate"):
        rows.append(("generates", f"nothing that was read: {why}"))
    if target.tied or target.says_tied:
        groups = "; ".join(" = ".join(names) for names in target.tied) or f"none, though {target.says_tied} says so"
        rows.append(("tied weights", groups))
    rows.append(("parameters", f"{target.parameter_count}"))
    return rows


def _reads(target: ModelTarget) -> str:
    return {
        "all": "for each position",
        "last": "for the last position alone: others by their beginnings",
        "with labels": f"for each position where {target.labels} are given",
    }[target.reads]


def _generates(target: ModelTarget) -> str:
    way = target.generate
    assert way is not None
    asked = ", ".join(f"{way.roles[role]}={value}" for role, value in (way.greedy or {}).items())
    greedy = (
        "no way to the most likely token was found"
        if way.greedy is None
        else f"the most likely token by {asked or 'default'}"
    )
    chooses = [way.roles[role] for role in ("temperature", "top_k", "top_p") if role in way.roles]
    return "; ".join(
        [greedy, *([f"takes {', '.join(chooses)}"] if chooses else []), *([] if way.many else ["one text at a time"])]
    )


def witness_rows(target: ModelTarget, problem: ModelProblem) -> list[tuple[str, str]]:
    """The tokens of a witness, and which of them are real, where they are few."""
    inputs = inputs_of(problem, target)
    rows: list[tuple[str, Any]] = [("tokens", inputs.ids), ("source", inputs.source), ("real", inputs.real)]
    return [
        (name, " | ".join(" ".join(str(int(n)) for n in row) for row in array))
        for name, array in rows
        if array is not None and array.size <= 40
    ]
