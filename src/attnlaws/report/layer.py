"""The card of a layer: how it is called, what its outputs depend on, what was found of its weights."""

from __future__ import annotations

from ..targets import initial
from ..targets.far import tried_lengths
from ..targets.layer import LayerTarget


def layer_card(target: LayerTarget, precision: dict[str, str] | None = None) -> str:
    """What was found out or declared about a layer."""
    lines = [f"{target.name}   (a layer, torch)", "conventions"]
    lines += [f"  {words:<42} {found}" for words, found in rows(target)]
    lines += [
        f"  {'precision in ' + dtype:<42} {name}  (the strictest that fits)"
        for dtype, name in (precision or {}).items()
    ]
    lines += [f"takes and ignores {name}" for name in target.ignored]
    lines += [f"no meaning was found for {name}" for name in target.unclear]
    return "\n".join(lines) + "\n"


def rows(target: LayerTarget) -> list[tuple[str, str]]:
    """What stands on the card: a question and what was found."""
    out = target.width_out or target.width
    into, over = ("B, L", "B, L") if target.axes == "BLE" else ("L, B", "L, B")
    rows = [
        (
            "input and output",
            f"({into}, {target.width}) to ({over}, {out})"
            + ("" if target.inputs == 1 else ", given as query, key and value"),
        ),
        ("what an output depends on", _told(target, "causal", str(target.dependence))),
        ("lengths", f"{target.only_length} alone" if target.only_length else tried_lengths(target.longest, target.far)),
    ]
    if target.flag:
        rows.append(("causality is asked for by", f"the flag {target.flag}"))
    elif target.asks_causal:
        rows.append(("causality is asked for by", f"a mask: {target.mask}"))
    if target.padding is not None:
        rows.append(("padding", str(target.padding)))
    if target.with_mask is not None:
        rows.append(("where a mask is given", str(target.with_mask)))
    used = "where a token stands matters" if target.positions == "used" else "none: the order of tokens doesn't matter"
    rows.append(("positions", _told(target, "positions", used)))
    rows.append(("weights", _weights(target)))
    if target.projections is not None and target.make is not None:
        rows.append(("initial weights", _initial(target)))
    rows.append(("parameters", f"{target.parameter_count}"))
    return rows


def _told(target: LayerTarget, key: str, words: str) -> str:
    how = target.known.get(key)
    return f"{words}  ({how or 'probed'})"


def _weights(target: LayerTarget) -> str:
    if target.projections is None:
        return "not found by name and shape"
    how = {
        "reproduced": "the oracle's layer with them gives the output",
        "declared": "declared",
        "by a fault": "by their names; with one fault the oracle's layer gives the output",
        "no": "not recognised: the oracle's layer with them gives another output",
    }[target.recognised]
    return f"{target.projections}  ({how})"


def _initial(target: LayerTarget) -> str:
    """The rules of the matrices, those that share one together."""
    rules: dict[str, list[str]] = {}
    for name in initial.slots(target.projections) if target.projections else ():
        rules.setdefault(str(target.initial.get(name, "no known rule")), []).append(name)
    how = target.known.get("initial", "recognised")
    return "; ".join(f"{', '.join(names)} {rule}" for rule, names in rules.items()) + f"  ({how})"
