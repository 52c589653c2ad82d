"""Write docs/laws.md, conventions.md, claims.md and kill-matrix.md from the laws, the conventions, the ledger and the faults.

python docs/make.py
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from attnlaws.claims.claim import TEXTS
from attnlaws.claims.ledger import Result, run, summary
from attnlaws.faults.case import Fault
from attnlaws.faults.models.fault import ModelFault
from attnlaws.judge.precision import PROFILES
from attnlaws.laws.load import laws_of, load_laws
from attnlaws.laws.named import AnyLaw
from attnlaws.report import kills as kills_in_words
from attnlaws.run import matrix, model_matrix
from attnlaws.run.matrix import Kill, Matrix
from attnlaws.run.model_matrix import ModelKill, ModelMatrix
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

The laws under `layers` are about modules from (B, L, E) to (B, L, E'); there x is the input and y the output. Those under
`models`, `gpt`, `bert`, `t5`, `cache` and `generation` are about modules from tokens (B, L) to logits (B, L, V); there x are the
tokens and f(x) the logits. Those under `rope`, `alibi`, `buckets`, `sinusoids`, `norm`, `loss`, `sampling`, `corruption`, `initial`,
`dropping` and `depth` are about parts of models (`--as`). All others are about functions of query, key and value. What is said of
chance is tried as docs/chance.md says.
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


CLAIMS = """# Claims

What three texts on attention say, claim by claim: a verdict, the right statement, and what was measured. Nothing in the
last column is written by hand. Each check can fail: for a true claim it shows that it holds, for a false one that it is
false by number and that the right statement holds. `statistics/test_claims.py` runs each check, and runs it once more
with a wrong value, which it must not show.

The verdict is one of four: true; true asymptotically (in a limit that is named); true under an assumption (which is
named); false.

Where chance takes part, the interval is of 99.9 %, p is two-sided under the number after "against", and "refuted" means
p < 0.001 in a first look and p < 0.000005 in one confirmation on a fresh sample. A prediction that is right is refuted
with probability below 1e-8. Samples are drawn with fixed keys of a counter-based generator: with one version of NumPy the
numbers are the same in each run, and running again adds no evidence.

d is the width of a model or a vector, d_k the size of a head, n the number of tokens, sd the standard deviation, u the
unit roundoff, w the weights.

This page is written by `python docs/make.py` from `attnlaws.claims`.
"""

KILLS = f"""# The kill matrix

Every fault of the catalogue against every law: what catches it, on how little, and what the diagnosis says of it.

```
attnlaws faults                           # the faults
attnlaws faults "causal sees next"        # one of them, with what catches it
attnlaws faults --run "causal sees next"  # the same, tried now
attnlaws faults --run                     # all of them, and the right functions: about 20 minutes on one core; --jobs 2
```

The last one prints a line a fault and a summary, and ends with 0 only if every fault is caught, none is named as another, and
no right function is red. What it found when it was last stored (`--save`, in a checkout) is below. This page is written by
`python docs/make.py` from `src/attnlaws/faults/kills.json`; `tests/test_kill_matrix.py` holds it against the catalogue and
tries a sample of it again.

Each law gets up to {matrix.FIRST} problems of its covering design, seed {matrix.SEED}, until it breaks. That is less than in a
quick check, which gives twice as many and lets Hypothesis search on. The law that the catalogue names for a fault gets up to
{matrix.FURTHER[-1]}, as in a full check. Where still nothing breaks, every law gets more, until one breaks: there, and on the
right functions, compilation and the laws of chance are tried too.

## Summary

"""

KILLS_FAULTS = f"""
* *first law*: the first that the report shows as broken and folds under no other, such as a more basic law that is broken too.
* *problems*: how many the first law took. *elements*: of query, key and value together in its smallest witness, found in
  {matrix.SHRINKING} attempts. `attnlaws faults NAME` prints the witness. *laws*: how many break.
* *diagnosis*: what the report says it reads like. A fault is named only where it gives every output or gradient that the target
  gives, on generic problems and on the witnesses, and the truth doesn't; otherwise nothing is named. *named right* is this
  fault, by its name, first.
* *named otherwise* is another fault of the catalogue, which gives the same outputs or gradients on all those problems.
* A fault that is no step, such as one of memory, strides or state, is no function of one call, and no diagnosis names it. It
  is told all the same: by the law in the last column, whose break says what is wrong ("the call changes query in place").

## Faults

| fault | what happens instead | first law | problems | elements | laws | diagnosis |
| --- | --- | --- | --- | --- | --- | --- |
"""

KILLS_LAWS = """
## Laws

How many faults each law catches, how many it is the first to meet, and those that no other law catches. A law without faults
here is about what no fault of the catalogue does.

| law | catches | first | only this law catches |
| --- | --- | --- | --- |
"""

KILLS_MODELS = f"""
# Faults of models

Small decoders, encoders and encoder-decoders with one step replaced, from `src/attnlaws/faults/models/`, and the small models
without a fault. `attnlaws faults` lists them too, `attnlaws faults NAME` tells about one, and `attnlaws faults --run` tries
them: some 10 minutes on one core. `tests/test_model_faults.py` holds each one against its law in a quick check.

Each law of models gets {model_matrix.FIRST} problem of its covering design, seed {model_matrix.SEED}, on the right models {model_matrix.FIRST_RIGHT}. The law that
the catalogue names for a fault gets a quick check where that breaks nothing; it must break. No report says that a model reads
like one of these: each is a small model of its own, and its outputs can't be compared with those of another.

* *law*: the one that is about the fault, as the catalogue says. *first law*: the first that breaks and folds under no other.
* *problems*: how many the first law took. *tokens*: the size of its smallest witness, found in {model_matrix.SHRINKING} attempts.
* *laws*: how many break.

"""

KILLS_MODELS_TABLE = """
| fault of a model | what happens instead | law | first law | problems | tokens | laws |
| --- | --- | --- | --- | --- | --- | --- |
"""


def laws() -> str:
    """The page of laws, one heading a family."""
    parts, family = [LAWS], ""
    for law in laws_of().values():
        name = law.name.split(".")[0]
        if name != family:
            family = name
            parts.append(f"## {family}\n")
        parts.append(entry(law))
    return "\n".join(parts)


def entry(law: AnyLaw) -> str:
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


def claims() -> str:
    """The page of claims, one table a text, measured anew."""
    results = list(run())
    parts = [CLAIMS]
    for text in TEXTS.values():
        parts += [f"## {text[0].upper()}{text[1:]}\n", "| id | the claim | verdict | what is right | measured |"]
        parts.append("| --- | --- | --- | --- | --- |")
        parts += [claim_row(r) for r in results if r.claim.text == text]
        parts.append("")
    parts.append(summary(results, timed=False))
    return "\n".join(parts) + "\n"


def claim_row(result: Result) -> str:
    """One claim as a row of its table."""
    claim = result.claim
    cells = (claim.id, claim.claim, claim.judged, claim.right, str(result.measured))
    return "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |"


def kill_matrix(stored: Matrix, models: ModelMatrix) -> str:
    """The page of the kill matrix, as stored: attention, then models."""
    order = {fault.name: place for place, fault in enumerate(matrix.select())}
    kills = sorted(stored.kills, key=lambda kill: order[kill.fault])
    controls = [f"* {kills_in_words.control_line(c)}" for c in stored.controls]
    parts = [KILLS, *(f"* {line}\n" for line in kills_in_words.summary(stored).splitlines())]
    parts += ["\nThe right functions:\n\n", "\n".join(" ".join(c.split()) for c in controls), "\n", KILLS_FAULTS]
    faults = {fault.name: fault for fault in matrix.select()}
    parts += [kill_row(kill, faults[kill.fault]) + "\n" for kill in kills]
    parts += [KILLS_LAWS, *(law_row(name, kills) + "\n" for name in load_laws())]
    return "".join([*parts, *model_kills(models)])


def model_kills(stored: ModelMatrix) -> list[str]:
    """The part of the page that is about models."""
    rows = {kill.fault: kill for kill in stored.kills}
    parts = [KILLS_MODELS, *(f"* {line}\n" for line in kills_in_words.summary_of_models(stored).splitlines())]
    parts += ["\nThe right models:\n\n"]
    parts += [f"* {' '.join(kills_in_words.right_model_line(c).split())}\n" for c in stored.controls]
    found = [(fault, rows[fault.name]) for fault in model_matrix.MODEL_FAULTS]
    return [*parts, KILLS_MODELS_TABLE, *(model_kill_row(kill, fault) + "\n" for fault, kill in found)]


def model_kill_row(kill: ModelKill, fault: ModelFault) -> str:
    """One fault of a model as a row of its table."""
    what = " ".join([fault.sentence, *(f"({source_link(source)})" for source in fault.sources)])
    cells = (kill.fault, what, fault.law, kill.first, str(kill.problems), str(kill.size), str(len(kill.laws)))
    return "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |"


def kill_row(kill: Kill, fault: Fault) -> str:
    """One fault as a row of its table."""
    told = f"{kill.diagnosis}; told by {fault.law}" if matrix.told_by_its_law(kill) else kill.diagnosis
    what = " ".join([fault.sentence, *(f"({source_link(source)})" for source in fault.sources)])
    cells = (kill.fault, what, kill.first, str(kill.problems), str(kill.size), str(len(kill.laws)), told)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |"


def source_link(source: str) -> str:
    """owner/repository#number as a link."""
    place, number = source.split("#")
    return f"[{source}](https://github.com/{place}/issues/{number})"


def law_row(name: str, kills: list[Kill]) -> str:
    """One law as a row of its table."""
    caught = [kill for kill in kills if name in kill.laws]
    first = sum(kill.first == name for kill in kills)
    only = ", ".join(kill.fault for kill in caught if len(kill.laws) == 1)
    return f"| {name} | {len(caught)} | {first} | {only} |"


if __name__ == "__main__":
    (HERE / "laws.md").write_text(laws(), encoding="utf-8")
    (HERE / "conventions.md").write_text(conventions(), encoding="utf-8")
    (HERE / "claims.md").write_text(claims(), encoding="utf-8")
    (HERE / "kill-matrix.md").write_text(kill_matrix(matrix.load(), model_matrix.load()), encoding="utf-8")
