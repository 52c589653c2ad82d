"""The card of a target: the conventions found or declared, what it takes, what no law tries."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..targets.conventions import TABLE, Conventions
from ..targets.layer import LayerTarget
from ..targets.model import ModelTarget
from ..targets.part import Part
from ..targets.target import Target
from .layer import layer_card
from .layer import rows as layer_rows
from .model import model_card
from .model import rows as model_rows


@dataclass(frozen=True)
class Row:
    """One line of a card: a question, what was found, and how. `name` is that of a convention, empty for others."""

    name: str
    question: str
    choice: str
    how: str


def card_of(target: Target | LayerTarget | ModelTarget | Part, precision: dict[str, str] | None = None) -> str:
    """The card of a function, a layer, a model or a part of one."""
    if isinstance(target, Part):
        return f"{target.name}   (a {target.kind})\n"
    if isinstance(target, ModelTarget):
        return model_card(target, precision)
    return layer_card(target, precision) if isinstance(target, LayerTarget) else card(target, precision)


def rows_of(target: Target | LayerTarget | ModelTarget | Part) -> list[Row]:
    """What stands on the card, but for the precisions."""
    if isinstance(target, Part):
        return [Row("", "kind of part", target.kind, "")]
    if isinstance(target, Target):
        known, conventions = target.conventions.known, target.conventions
        names = [f.name for f in fields(Conventions) if f.name in known]
        return [Row(name, TABLE[name].question, str(getattr(conventions, name)), known[name]) for name in names]
    found = model_rows(target) if isinstance(target, ModelTarget) else layer_rows(target)
    return [Row("", question, choice, "") for question, choice in found]


def card(target: Target, precision: dict[str, str] | None = None) -> str:
    """The conventions of a function: what was found or declared, and how."""
    spoken = ", ".join(filter(None, (target.framework.name, target.framework.note)))
    lines = [f"{target.name}   ({spoken})", "conventions"]
    lines += [f"  {row.question:<66} {row.choice}  ({row.how})" for row in rows_of(target)]
    for dtype, name in (precision or {}).items():
        lines.append(f"  {'precision in ' + dtype:<66} {name}  ({precision_found(target, dtype)})")
    lines.append("takes       " + ", ".join(takes(target)))
    lines += [f"doesn't take {what}: {why}" for what, why in target.abilities.refusals.items()]
    if target.untried:
        lines.append(f"no law tries {', '.join(target.untried)}")
    if target.signature.assumed:
        lines.append(f"assumed     {target.signature.assumed}, by position")
    return "\n".join(lines) + "\n"


def precision_found(target: Target | LayerTarget | ModelTarget | Part, dtype: str) -> str:
    """How the precision of a dtype was found."""
    return (
        "declared" if isinstance(target, Target) and dtype in target.declared_precision else "the strictest that fits"
    )


def takes(target: Target) -> list[str]:
    """What a function takes, in words."""
    abilities = target.abilities
    words = (
        ("grouped heads", abilities.grouped),
        ("scale", abilities.scale),
        ("Dv != D", abilities.value_width),
        ("Lq != Lk", abilities.rectangular),
        ("gradients", abilities.gradients),
        ("returned weights", abilities.weights),
    )
    routes = [f"{route} mask" for route in abilities.routes]
    return [*abilities.dtypes, *routes, *(word for word, has in words if has)]
