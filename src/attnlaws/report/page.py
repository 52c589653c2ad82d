"""One HTML page of a run, complete in one file: no network, no script.

The verdict stands at the top; then what broke, with pictures, the laws by family, the card, the error against the bound, and
the proof that wrong answers would have been rejected. Everything that comes from a target is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ..run.ledger import HELD, RED
from . import page_pictures
from .document import Document
from .page_style import CSS
from .words import clean, known, known_words, rows, spelled, unexpected, verdict, verdict_of_all

#: nothing may be loaded, whatever stands in the page
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
SIGNS = {0: ("green", "✓"), 1: ("red", "✗")}


def page(runs: Sequence[Document], exit_code: int) -> str:
    """The text of an HTML file on the runs of a command."""
    title = verdict_of_all(runs, exit_code)
    name = runs[0]["target"]["name"] if len(runs) == 1 else "attnlaws"
    body = "".join(_run(run, f"run{number}") for number, run in enumerate(runs, start=1))
    contents = _contents(runs) if len(runs) > 1 else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n<link rel="icon" href="data:,">\n'
        f"<title>{_e(name)}: {_e(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">To the verdict</a>\n<main id="main">\n{contents}{body}</main>\n'
        f'<footer><p class="soft">{_e(_versions(runs))}</p></footer>\n</body>\n</html>\n'
    )


def _e(text: object) -> str:
    return escape(clean(str(text)))


def _code(text: object) -> str:
    return f"<code>{_e(text)}</code>"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _versions(runs: Sequence[Document]) -> str:
    if not runs:
        return ""
    versions = ", ".join(f"{name} {number}" for name, number in runs[0]["versions"].items())
    return f"attnlaws {runs[0]['attnlaws']}; {versions}"


def _contents(runs: Sequence[Document]) -> str:
    """The targets with their verdicts, where there are several."""
    rows = "".join(
        f'<tr><th scope="row"><a href="#run{number}">{_e(run["target"]["name"])}</a></th>'
        f"<td>{_sign(run)} {_e(verdict(run))}</td></tr>"
        for number, run in enumerate(runs, start=1)
    )
    heads = '<thead><tr><th scope="col">target</th><th scope="col">verdict</th></tr></thead>'
    return f"<h2>Targets</h2><table>{heads}<tbody>{rows}</tbody></table>\n"


def _sign(run: Document) -> str:
    return SIGNS.get(run["exit_code"], ("grey", "?"))[1]


def _run(run: Document, at: str) -> str:
    """One run."""
    parts = [_head(run), _failures(run, at), _card(run, at), _ledger(run, at)]
    if run["margins"]:
        parts.append(_section("Error against the bound", page_pictures.margins(run["margins"]), f"{at}-bound"))
    parts.append(_evidence(run, at))
    return f'<section id="{at}" aria-label="{_e(run["target"]["name"])}">\n{"".join(parts)}</section>\n'


def _section(title: str, content: str, at: str) -> str:
    return f'<h2 id="{at}">{_e(title)}</h2>\n{content}\n' if content else ""


def _head(run: Document) -> str:
    colour, sign = SIGNS.get(run["exit_code"], ("grey", "?"))
    totals = run["totals"]
    facts = (
        f"{totals['problems']:,} problems of {totals['samples']:,} samples, {totals['elements']:,} elements compared in "
        f"{run['seconds']:.1f} s (profile {run['profile']}, seed {run['seed']})"
    )
    if totals["declined"]:
        facts += f"; {_many(totals['declined'], 'problem')} declined by the target"
    folded = sum(failure["under"] is not None for failure in unexpected(run))
    if folded:
        facts += f"; {folded} of the broken laws only follow from more basic ones"
    lines = [f'<p class="soft">{_e(facts)}</p>'] if run["error"] is None else [f"<p>{_e(run['error'])}</p>"]
    if run["out_of_time"]:
        lines.append("<p>The time budget ended first: not all laws were tried.</p>")
    if run["undetected"]:
        lines.append(f"<p>This run could not tell the target from: {_e(', '.join(run['undetected']))}.</p>")
    if run["diagnosis"] is not None and unexpected(run):
        lines.append(f"<p><strong>Reads like</strong> {_e(run['diagnosis']['words'])}</p>")
        lines.append(f"<p><strong>Fix</strong> {_e(run['diagnosis']['fix'])}</p>")
    elif unexpected(run):
        lines += [f"<p><strong>Seen</strong> {_e(hint)}</p>" for hint in run["hints"]]
    return (
        f'<header class="verdict {colour}"><h1>{_e(run["target"]["name"])}</h1>'
        f'<p class="say">{sign} {_e(verdict(run))}</p>{"".join(lines)}</header>\n'
    )


# What broke -----------------------------------------------------------------------------------------------------------


def _failures(run: Document, at: str) -> str:
    """Root causes open, what is folded under them closed, then known failures, and outdated entries of their list."""
    found = unexpected(run)
    shown = {failure["law"] for failure in found}
    roots = [failure for failure in found if failure["under"] not in shown]
    content = "".join(_failure(failure) for failure in roots)
    folded = [failure for failure in found if failure["under"] in shown]
    if folded:
        content += f"<p>{len(folded)} more, folded since a more basic law is broken too:</p>"
        content += "".join(_failure(failure, folded=True) for failure in folded)
    for entry in run["outdated"]:
        content += f'<div class="box"><p>{_code(entry["law"])} is listed as known: {_e(entry["words"])}</p>'
        content += f'<p class="soft">{_issue(entry)}</p></div>'
    text = _section("What broke", content, f"{at}-broken")
    if known(run):
        listed = "".join(_failure(failure, folded=True) for failure in known(run))
        text += _section("Known to be broken", listed, f"{at}-known")
    return text


def _failure(failure: Document, *, folded: bool = False) -> str:
    """One broken law: expected, got, the difference; how to see it again."""
    facts = "".join(f"<dt>{_e(label)}</dt><dd>{_fact(label, text, failure)}</dd>" for label, text in rows(failure))
    pictures = page_pictures.masks(failure["mask"]) if failure["mask"] is not None else ""
    pictures += page_pictures.outputs(failure["output"]) if failure["output"] is not None else ""
    colour = "broken" if failure["known"] is None else "known"
    mark = "✗" if failure["known"] is None else "~"
    head = f'<h3><span class="{colour}">{mark} {_code(failure["law"])}</span> {_e(failure["statement"])}</h3>'
    if failure["known"] is not None:
        head += f' <span class="count">{_e(failure["known"]["reason"])}</span>'
    if folded:
        return f"<details><summary>{head}</summary><dl>{facts}</dl>{pictures}</details>\n"
    return f'<article class="box">{head}<dl>{facts}</dl>{pictures}</article>\n'


def _fact(label: str, text: str, failure: Document) -> str:
    if label == "known":
        return _issue(failure["known"])
    return _code(text) if label in ("smallest witness", "replay", "or, without us", "folded under") else _e(text)


def _issue(entry: Document) -> str:
    """Why a failure is known, with a link where the issue is an address."""
    issue = str(entry["issue"] or "")
    if not issue.startswith(("https://", "http://")):
        return _e(known_words(entry))
    return f'{_e(known_words({**entry, "issue": None}))} (<a href="{_e(issue)}" rel="noreferrer">{_e(issue)}</a>)'


# The laws -------------------------------------------------------------------------------------------------------------


def _ledger(run: Document, at: str) -> str:
    """A folded table for each family, open where a law is red; then what is not applicable, by reason."""
    families: dict[str, list[Document]] = {}
    for law in run["laws"]:
        if law["status"] != "not applicable":
            families.setdefault(law["family"], []).append(law)
    content = "".join(_family(name, laws) for name, laws in families.items())
    reasons: dict[str, list[str]] = {}
    for law in run["laws"]:
        if law["status"] == "not applicable":
            reasons.setdefault(law["reason"], []).append(law["name"])
    if reasons:
        count = sum(map(len, reasons.values()))
        items = "".join(
            f"<dt>{_e(reason)}</dt><dd>{', '.join(map(_code, names))}</dd>" for reason, names in reasons.items()
        )
        head = f'<h3>not applicable</h3> <span class="count">{_many(count, "law")}</span>'
        content += f"<details><summary>{head}</summary><dl>{items}</dl></details>\n"
    return _section("Laws", content, f"{at}-laws")


def _family(name: str, laws: Sequence[Document]) -> str:
    red = [law for law in laws if law["status"] in RED and law["known"] is None]
    roots = any(law["under"] is None for law in red)
    counts: dict[str, int] = {}
    for law in laws:
        words, _ = _status(law)
        counts[words] = counts.get(words, 0) + 1
    told = ", ".join(f"{count} {words}" for words, count in counts.items())
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("law", "result", "evidence"))
    body = "".join(_law(law) for law in laws)
    mark = '<span class="broken">✗</span>' if red else '<span class="doubt">~</span>'
    if set(counts) == {HELD}:
        mark = '<span class="held">✓</span>'
    return (
        f'<details{" open" if roots else ""}><summary>{mark} <h3><strong>{_e(name)}</strong></h3> <span class="count">{_e(told)}</span></summary>'
        f'<table class="ledger"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></details>\n'
    )


def _status(law: Document) -> tuple[str, str]:
    """The result of a law and its colour."""
    if law["known"] is not None:
        return "known", "known"
    status = str(law["status"])
    return status, {"could not tell": "doubt", "fault": "doubt"}.get(status, status)


def _law(law: Document) -> str:
    words, colour = _status(law)
    lines = [f"{_many(law['problems'], 'problem')}, {_many(law['elements'], 'element')}"] if law["elements"] else []
    worst = law["worst"]
    if law["status"] == "held" and not law["findings"]:
        ratio = f"error / bound up to {spelled(worst['ratio'], 2)}" if worst["ratio"] else "exact"
        lines.append(law["note"] or (f"{ratio} ({worst['dtype']})" if worst["ratio"] and worst["dtype"] else ratio))
    if law["not_exact"]:
        lines.append(f"{_many(law['not_exact'], 'time')} within rounding, not exact")
    if law["cut"]:
        lines.append("its share of the time ended")
    if law["declined"]:
        lines.append(f"{_many(law['declined'], 'problem')} declined by the target")
    if law["under"]:
        lines.append(f"folded under {law['under']}")
    elif law["status"] != "held":
        lines.append(law["reason"])
    lines += [_finding(finding) for finding in law["findings"]]
    if law["catches"]:
        lines.append(f"catches {_many(law['catches'], 'fault')} of the catalogue")
    evidence = "".join(f"<small>{_e(line)}</small>" for line in lines)
    return (
        f'<tr><th scope="row">{_code(law["name"])}<small>{_e(law["statement"])}</small></th>'
        f'<td class="{colour}">{_e(words)}</td><td>{evidence}</td></tr>'
    )


def _finding(finding: Document) -> str:
    low, high = (spelled(end, 4) for end in finding["interval"])
    at = f" ({finding['at']})" if finding["at"] else ""
    return (
        f"{finding['quantity']}{at} {spelled(finding['estimate'], 4)} ({low} to {high}), predicted "
        f"{spelled(finding['predicted'], 4)}, n = {finding['n']:,}, p = {spelled(finding['p'], 2)}"
    )


# Evidence and card ----------------------------------------------------------------------------------------------------


def _evidence(run: Document, at: str) -> str:
    """That trivial wrong answers were rejected on these very problems, and what the laws that held catch."""
    content = ""
    if run["catalogue"] is not None:
        faults, caught = run["catalogue"]["faults"], run["catalogue"]["caught"]
        content += (
            f"<p>The laws that held here catch {caught} of the {faults} faults of the catalogue (attnlaws faults).</p>"
        )
    if run["impostors"]:
        body = "".join(
            f'<tr><th scope="row">{_e(item["name"])}</th><td>{item["rejected"]} of {item["tried"]}</td>'
            f"<td>{_meter(item['rejected'], item['tried'])}</td></tr>"
            for item in run["impostors"]
        )
        heads = "".join(f'<th scope="col">{head}</th>' for head in ("impostor", "rejected", "share"))
        caption = "Trivial wrong answers on the problems of this run. Each must be rejected at least once."
        table = f"<caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
        content += f'<table class="tight">{table}</table>'
    return _section("Would a wrong answer have been noticed?", content, f"{at}-evidence")


def _meter(part: int, whole: int) -> str:
    if whole == 0:
        return "no problem could show it"
    share = 100.0 * part / whole
    return f'<span class="meter" aria-hidden="true"><span style="width:{share:.0f}%"></span></span> {share:.0f}&nbsp;%'


def _card(run: Document, at: str) -> str:
    """The conventions, what the target takes, what no law tries."""
    card = run["target"]["card"]
    if card is None:
        return ""
    lines = [(row["question"], row["choice"], row["how"]) for row in card["conventions"]]
    lines += [(f"precision in {item['dtype']}", item["choice"], item["how"]) for item in card["precision"]]
    body = "".join(
        f'<tr><th scope="row">{_e(question)}</th><td>{_e(choice)}{f"<small>{_e(how)}</small>" if how else ""}</td></tr>'
        for question, choice, how in lines
    )
    heads = '<thead><tr><th scope="col">convention</th><th scope="col">choice</th></tr></thead>'
    content = f"<table>{heads}<tbody>{body}</tbody></table>"
    facts: list[tuple[str, Iterable[str]]] = [
        ("takes", card["takes"]),
        ("doesn't take", [f"{what}: {why}" for what, why in card["refuses"].items()]),
        ("no law tries", card["untried"]),
        ("takes and ignores", card["ignored"]),
        ("no meaning was found for", card["unclear"]),
        (
            "declared otherwise",
            [f"{name}: declared {c['declared']}, seen {c['seen']}" for name, c in card["contradicted"].items()],
        ),
    ]
    told = "".join(
        f"<dt>{_e(label)}</dt><dd>{'<br>'.join(map(_e, _joined(label, texts)))}</dd>" for label, texts in facts if texts
    )
    content += f"<dl>{told}</dl>" if told else ""
    head = f'<h3>how it is called, and what it chooses</h3> <span class="count">{_many(len(lines), "line")}</span>'
    return _section("Card", f"<details><summary>{head}</summary>{content}</details>", f"{at}-card")


def _joined(label: str, texts: Iterable[str]) -> list[str]:
    """Words in one line, sentences in a line each."""
    return list(texts) if label in ("doesn't take", "declared otherwise") else [", ".join(texts)]
