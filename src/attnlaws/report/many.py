"""The page of many targets: implementations beside laws and beside conventions, each break with its witness, what changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import __version__
from ..run.ledger import (
    BROKEN,
    COULD_NOT_TELL,
    CRASHED,
    FAULT,
    HELD,
    NONDETERMINISTIC,
    NOT_APPLICABLE,
    RED,
)
from ..run.many import DIED, IGNORED, KILLED, NOT_ADAPTED, TRIED, Effort, Outcome
from .blocks import Block, Cell, Folded, Page, Pairs, Section, Table, Text

#: worst first, with what stands for it in a cell
MARKS = {
    BROKEN: "✗",
    CRASHED: "⚡",
    NONDETERMINISTIC: "≈",
    IGNORED: "∅",
    FAULT: "!",
    COULD_NOT_TELL: "?",
    HELD: "✓",
    NOT_APPLICABLE: "·",
}
LEGEND = (
    "✓ held · ✗ broken · ∅ an option is accepted and silently ignored · ⚡ the target raised an error on a legal input · "
    "≈ not the same twice · ? could not tell · a dot: not applicable, with the reason below. In brackets: broken too, as a "
    "consequence of another broken law. The numbers count laws."
)
KINDS = {
    "attention": "Functions of query, key and value",
    "layer": "Layers",
    "model": "Language models",
    "part": "Parts of models",
}
_COMMON = ("numpy", "torch")

Law = Mapping[str, Any]


# -- in the terminal -----------------------------------------------------------------------------------------------


def line(outcome: Outcome) -> str:
    """One target in one line."""
    if outcome.ended != TRIED:
        return f"{outcome.name:<40} {outcome.ended}: {outcome.words}"
    kept = "as before" if outcome.kept else f"{outcome.seconds:.0f} s"
    return f"{outcome.name:<40} {_counted(outcome.statuses.values())}  ({kept})"


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    """All of them in one sentence, and what it took."""
    broken = sum(outcome.ended == DIED or bool(_red(outcome)) for outcome in outcomes)
    lost = sum(outcome.ended in (KILLED, NOT_ADAPTED) for outcome in outcomes)
    other = f", {lost} not tried to the end" if lost else ""
    used = sum(outcome.cpu for outcome in outcomes if not outcome.kept)
    return (
        f"{len(outcomes)} implementations: {len(outcomes) - broken - lost} without a broken law, {broken} with{other}; "
        f"{seconds:.0f} s, {used:.0f} s of the processor"
    )


def _counted(statuses: Iterable[str]) -> str:
    found = list(statuses)
    return ", ".join(f"{found.count(status)} {status}" for status in MARKS if status in found)


# -- the page ------------------------------------------------------------------------------------------------------


def page(outcomes: Sequence[Outcome], effort: Effort) -> Page:
    """The whole page. It is the same for the same results, but for the seconds."""
    blocks: list[Block] = [Text(_opening(outcomes, effort)), Text(LEGEND)]
    for kind, title in KINDS.items():
        some = [outcome for outcome in outcomes if _kind(outcome) == kind]
        if some:
            blocks.append(Section(title, kind, (_overview(some), *_by_family(some))))
    blocks += [_breaks(outcomes), _untried(outcomes), *_conventions(outcomes), _reasons(outcomes), _changes(outcomes)]
    return Page("Implementations of attention and the laws", tuple(b for b in blocks if not _empty(b)))


def _empty(block: Block) -> bool:
    return isinstance(block, Section) and not block.blocks


def _opening(outcomes: Sequence[Outcome], effort: Effort) -> str:
    broken = [outcome for outcome in outcomes if outcome.ended == DIED or _red(outcome)]
    problems = sum(outcome.document["totals"]["problems"] for outcome in outcomes if outcome.document is not None)
    return (
        f"{len(outcomes)} implementations; {len(broken)} break a law. Written by attnlaws {__version__}: {problems} problems, "
        f"profile {effort.profile}, seed {effort.seed}, each implementation in a process of its own, at most "
        f"{effort.budget:g} s for its laws."
    )


def _kind(outcome: Outcome) -> str:
    return "" if outcome.document is None else str(outcome.document["target"]["kind"])


def _red(outcome: Outcome) -> list[Law]:
    """The failures of a target that are not consequences of others."""
    return [f for f in (outcome.document or {}).get("failures", ()) if f["under"] is None]


def _anchor(name: str) -> str:
    return "of-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _versions(outcome: Outcome) -> str:
    """The packages that it is from: torch and numpy alone where there are no others."""
    if str(outcome.key["target"]).startswith(("attnlaws.", "reference.")):
        return f"attnlaws {__version__}"
    shown = {k: v for k, v in outcome.packages.items() if k not in _COMMON} or {
        k: v for k, v in outcome.packages.items() if k == "torch"
    }
    return ", ".join(f"{name} {version}" for name, version in shown.items())


def _families(outcomes: Sequence[Outcome]) -> dict[str, list[str]]:
    """The laws that say something about one of these targets, by family, in the order of the runs."""
    laws = [law for outcome in outcomes for law in (outcome.document or {}).get("laws", ())]
    applicable = {law["name"] for law in laws if law["status"] != NOT_APPLICABLE}
    found: dict[str, list[str]] = {}
    for law in laws:
        if law["name"] in applicable:
            names = found.setdefault(law["family"], [])
            if law["name"] not in names:
                names.append(law["name"])
    return found


def _overview(outcomes: Sequence[Outcome]) -> Table:
    families = _families(outcomes)
    rows = []
    for outcome in outcomes:
        assert outcome.document is not None
        laws = outcome.document["laws"]
        red = bool(_red(outcome))
        cells = [Cell(outcome.name, section=_anchor(outcome.name) if red else "")]
        cells += [_family_cell([law for law in laws if law["family"] == family], outcome) for family in families]
        cells += [
            Cell(str(outcome.document["totals"]["problems"])),
            Cell(f"{outcome.cpu:.0f}"),
            Cell(_versions(outcome)),
        ]
        rows.append(tuple(cells))
    return Table("", ("implementation", *families, "problems", "CPU s", "version"), tuple(rows))


def _family_cell(laws: Sequence[Law], outcome: Outcome) -> Cell:
    """The worst of a family first; where none is red, how many held."""
    statuses = {law["name"]: _status(law) for law in laws}
    roots = [_status(law) for law in laws if law["under"] is None]
    under = [_status(law) for law in laws if law["under"] is not None]
    shown = []
    for status, mark in MARKS.items():
        if status not in (HELD, NOT_APPLICABLE):
            shown += [f"{mark} {roots.count(status)}"] * (status in roots)
            shown += [f"({mark} {under.count(status)})"] * (status in under)
    words = "; ".join(f"{name}: {status}" for name, status in statuses.items() if status != NOT_APPLICABLE)
    held = list(statuses.values()).count(HELD)
    if held:
        shown.append(f"✓ {held}")
    worst = next((status for status in MARKS if status in statuses.values()), NOT_APPLICABLE)
    section = _anchor(outcome.name) if any(law["status"] in RED for law in laws) else ""
    return Cell(" ".join(shown) or MARKS[NOT_APPLICABLE], worst, words, section)


def _laws(count: int) -> str:
    return "1 law" if count == 1 else f"{count} laws"


def _status(law: Law) -> str:
    return IGNORED if law["ignored"] else str(law["status"])


def _by_family(outcomes: Sequence[Outcome]) -> list[Folded]:
    """Each family with its laws, one a column."""
    made = []
    for family, names in _families(outcomes).items():
        rows = []
        for outcome in outcomes:
            laws = {law["name"]: law for law in (outcome.document or {}).get("laws", ())}
            cells = [_law_cell(laws.get(name), outcome) for name in names]
            rows.append((Cell(outcome.name), *cells))
        head = ("implementation", *(name.partition(".")[2] for name in names))
        worst = [
            _status(law) for o in outcomes for law in (o.document or {}).get("laws", ()) if law["family"] == family
        ]
        red = sum(status in (*RED, IGNORED) for status in worst)
        title = f"{family}: {_laws(len(names))}" + (f", {red} times broken" if red else "")
        made.append(Folded(title, (Table("", head, tuple(rows)),)))
    return made


def _law_cell(law: Law | None, outcome: Outcome) -> Cell:
    if law is None:
        return Cell(MARKS[NOT_APPLICABLE], NOT_APPLICABLE, "no law for it")
    status = _status(law)
    mark = f"({MARKS[status]})" if law["under"] else MARKS[status]
    words = f"a consequence of {law['under']}" if law["under"] else law["reason"] or f"{law['problems']} problems"
    return Cell(mark, status, words, _anchor(outcome.name) if law["status"] in RED else "")


# -- breaks --------------------------------------------------------------------------------------------------------


def _breaks(outcomes: Sequence[Outcome]) -> Section:
    """Every red target with the witness of each break."""
    made: list[Block] = []
    for outcome in outcomes:
        red = _red(outcome)
        if outcome.document is None or not red:
            continue
        blocks: list[Block] = [Text(f"{_versions(outcome)}; {outcome.key['target']}")]
        diagnosis = outcome.document["diagnosis"]
        if diagnosis is not None:
            blocks.append(Pairs((("reads like", diagnosis["words"]), ("fix", diagnosis["fix"]))))
        elif outcome.document["hints"]:
            blocks.append(Pairs(tuple(("seen", hint) for hint in outcome.document["hints"])))
        for failure in red:
            blocks.append(Pairs(_witness(failure)))
        ignored = [law["reason"] for law in outcome.document["laws"] if law["ignored"] and law["under"] is not None]
        if ignored:
            blocks.append(Pairs(tuple(("silently ignored", reason) for reason in ignored)))
        under = [f["law"] for f in outcome.document["failures"] if f["under"] is not None]
        if under:
            blocks.append(Text(f"Broken too, as a consequence: {', '.join(under)}."))
        made.append(Section(outcome.name, _anchor(outcome.name), tuple(blocks), level=3))
    return Section("Breaks", "breaks", tuple(made))


def _witness(failure: Law) -> tuple[tuple[str, str], ...]:
    """A break in words: the law, what it says, the smallest input, and what was seen."""
    pairs = [(failure["law"], f"{failure['statement']} ({failure['status']})")]
    witness, element = failure["witness"], failure["element"]
    if witness is not None:
        pairs.append(("smallest witness", witness["words"]))
    pairs += [(label, text) for label, text in failure["tokens"].items()]
    pairs.append(("what", failure["raised"] or failure["reason"]))
    if element is not None:
        pairs.append(
            ("worst element", f"{element['where']} = {_short(element['got'])}, expected {_short(element['expected'])}")
        )
    return tuple(pairs)


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _untried(outcomes: Sequence[Outcome]) -> Section:
    """Targets of which there is no whole run."""
    rows = [(o.name, o.ended, o.words) for o in outcomes if o.ended != TRIED]
    for outcome in outcomes:
        found = outcome.document
        if found is None:
            continue
        late = [law["name"] for law in found["laws"] if law["status"] == COULD_NOT_TELL]
        if found["out_of_time"]:
            rows.append(
                (outcome.name, "out of time", f"not tried to the end: {', '.join(late) or 'the search was cut'}")
            )
        if found["undetected"]:
            names = ", ".join(found["undetected"])
            rows.append((outcome.name, COULD_NOT_TELL, f"these impostors would have passed on its problems: {names}"))
    cells = tuple((Cell(name), Cell(ended, ended), Cell(words)) for name, ended, words in rows)
    table = Table("", ("implementation", "how it ended", "what is known"), cells)
    return Section("Not tried to the end", "untried", (table,) if rows else ())


# -- conventions, reasons, changes ---------------------------------------------------------------------------------


def _conventions(outcomes: Sequence[Outcome]) -> list[Block]:
    """Conventions beside each other: those that differ; what all share is said once."""
    made: list[Block] = []
    for kind, title in KINDS.items():
        some = [outcome for outcome in outcomes if _kind(outcome) == kind]
        cards = {outcome.name: _card(outcome) for outcome in some}
        questions = list(dict.fromkeys(question for card in cards.values() for question in card))
        shared = {q: {card.get(q, "") for card in cards.values()} for q in questions}
        differ = [q for q in questions if len(shared[q]) > 1]
        same = tuple((q, next(iter(shared[q]))) for q in questions if len(shared[q]) == 1)
        rows = tuple(
            (Cell(name), *(Cell(card.get(q, "–")) for q in differ)) for name, card in cards.items()
        )  # fmt: skip
        blocks: list[Block] = [Table("", ("implementation", *differ), rows)] if rows and differ else []
        blocks += [Folded("the same for all", (Pairs(same),))] if same else []
        if blocks:
            made.append(Section(f"Conventions: {title.lower()}", f"conventions-{kind}", tuple(blocks)))
    return made


def _card(outcome: Outcome) -> dict[str, str]:
    assert outcome.document is not None
    card = outcome.document["target"]["card"] or {"conventions": (), "precision": ()}
    found = {
        row["question"]: row["choice"] + (" (unclear)" if row["how"] == "unclear" else "")
        for row in card["conventions"]
    }
    return found | {f"precision in {row['dtype']}": row["choice"] for row in card["precision"]}


def _reasons(outcomes: Sequence[Outcome]) -> Section:
    """Why laws say nothing about a target, and what could not be told."""
    blocks: list[Block] = []
    for outcome in outcomes:
        reasons: dict[str, list[str]] = {}
        for law in (outcome.document or {}).get("laws", ()):
            if law["status"] in (NOT_APPLICABLE, COULD_NOT_TELL):
                reasons.setdefault(f"{law['status']}: {law['reason']}", []).append(law["name"])
        if reasons:
            pairs = tuple((reason, ", ".join(laws)) for reason, laws in reasons.items())
            blocks.append(Folded(f"{outcome.name}: {_laws(sum(map(len, reasons.values())))}", (Pairs(pairs),)))
    return Section("Not applicable, or could not tell", "reasons", tuple(blocks))


def _changes(outcomes: Sequence[Outcome]) -> Section:
    """What a target does otherwise than when it was tried before with other code."""
    blocks: list[Block] = []
    for outcome in outcomes:
        before = outcome.before
        if before is None:
            continue
        pairs = changes(before, outcome)
        if pairs:
            blocks.append(Section(outcome.name, f"changed-{_anchor(outcome.name)}", (Pairs(pairs),), level=3))
    if not blocks and any(outcome.before is not None for outcome in outcomes):
        blocks.append(Text("No law ends otherwise than in the run before."))
    return Section("What changed", "changes", tuple(blocks))


def changes(before: Mapping[str, Any], outcome: Outcome) -> tuple[tuple[str, str], ...]:
    """Laws that end otherwise, with what of its code is another; nothing where no law does."""
    was, now = dict(before["statuses"]), outcome.statuses
    found = [(law, f"{was.get(law, 'not tried')} → {now.get(law, 'not tried')}") for law in {**was, **now}]
    found = [(law, text) for law, text in found if was.get(law) != now.get(law)]
    if before["ended"] != outcome.ended:
        found.insert(0, ("the whole", f"{before['ended']} → {outcome.ended}"))
    return (*found, *_other_code(before["key"], outcome.key)) if found else ()


def _other_code(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for key in {**old, **new}:
        if old.get(key) == new.get(key):
            continue
        if key == "packages":
            names = {**old[key], **new[key]}
            found += [
                (name, f"{old[key].get(name, 'absent')} → {new[key].get(name, 'absent')}")
                for name in names
                if old[key].get(name) != new[key].get(name)
            ]
        else:
            found.append((key, f"{old.get(key)} → {new.get(key)}"))
    return found
