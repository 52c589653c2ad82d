"""Write docs/laws.md and docs/conventions.md from the registry of laws and the table of conventions.

python docs/make.py
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from attnlaws.judge.precision import PROFILES
from attnlaws.laws.law import Law
from attnlaws.laws.load import load_laws
from attnlaws.targets.conventions import TABLE, Conventions

HERE = Path(__file__).parent

LAWS = """# The laws

`attnlaws laws` prints this list, `attnlaws laws NAME` one law with its formula.
This page is written by `python docs/make.py`.

q, k, v are query, key and value, w the weights, o the output, s the scale. B is the batch, H the query heads, Hkv the
key heads, L the queries, S the keys, D the head size, Dv the width of v.

A law compares with the float64 oracle, or it relates outputs of the target to each other. A law marked *exact* hopes for
equal bits; where rounding may legitimately differ, the report counts how often that was so. A law that says nothing about
a target, because the target doesn't take the option, is *not applicable*. It is then grey, and never counts as held.
"""

CONVENTIONS = """# Conventions

A convention is what an implementation may choose without being wrong. A convention never fails a target. The probe finds
it, or you declare it; the card shows it; the oracle adopts it.

The table is closed. What is not in it is not a convention: a missing scale, a leak from the future, a transposed merge
of heads are broken laws.

How a convention was found stands in brackets on the card:

* `probed`: seen in the target's outputs. With q = 0 each visible key has the same weight, so with the rows of the unit
  matrix as values the output shows which keys a query sees.
* `signature`: read from the names of the parameters.
* `declared`: you said so, in `conventions` of `[tool.attnlaws.targets.NAME]` or `attnlaws.check(f, conventions={...})`.
  The probe then doesn't look. If the target does otherwise, the laws that can see it break.
* `unclear`: the target does none of the choices. The nearest is taken, and laws break.

Some choices are not taken from the outputs, since a fault looks the same. You must declare them: `default_scale = "1"`;
`mask_and_causal = "the mask alone"`; `single_query = "all keys"` with the triangle at the top left. The last two are found
for functions of transformers' attention interface, whose rules they are.

Where `refused` or `nan` is declared for a negative or zero scale, such scales are left out. `causal` is read from the
signature where the target has a causal flag.

This page is written by `python docs/make.py` from `attnlaws.targets.conventions.TABLE`.
"""

PRECISION = """
## Precision

How a target rounds is a convention too. The list is closed. The run takes the strictest that fits, for each dtype, and
prints it. With `precision = { bfloat16 = "fused" }` you declare it; a target that is less precise is then broken. What fits
none of the list is broken in any case: bfloat16 sums inside a float32 kernel, for instance.
"""


def laws() -> str:
    """The page of laws, one heading a family."""
    parts, family = [LAWS], ""
    for law in load_laws().values():
        name = law.name.split(".")[0]
        if name != family:
            family = name
            parts.append(f"## {family}\n")
        parts.append(entry(law))
    return "\n".join(parts)


def entry(law: Law) -> str:
    """One law: its statement and its formula."""
    mark = " (exact)" if law.exact else ""
    return f"### {law.name}\n\n{law.statement[0].upper()}{law.statement[1:]}.{mark}\n\n```text\n{law.formula}\n```\n"


def conventions() -> str:
    """The page of conventions: the table, then the precisions."""
    lines = [
        CONVENTIONS,
        "## Table",
        "",
        "| name | what is chosen | choices | who does so |",
        "| --- | --- | --- | --- |",
    ]
    for item in fields(Conventions):
        if item.name in TABLE:
            choice = TABLE[item.name]
            choices = ", ".join(f"`{c}`" for c in choice.choices)
            lines.append(f"| `{item.name}` | {choice.question} | {choices} | {choice.source} |")
    lines += [PRECISION, "| dtype | name | what it allows |", "| --- | --- | --- |"]
    for dtype, profiles in PROFILES.items():
        for p in profiles:
            where = "" if p.device == "any" else f" (on {p.device} only)"
            lines.append(f"| {dtype} | `{p.name}` | {p.note}{where} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (HERE / "laws.md").write_text(laws(), encoding="utf-8")
    (HERE / "conventions.md").write_text(conventions(), encoding="utf-8")
