"""What a document says in words: the verdict on a run in one line, and the rows that tell of a failure.

A document is what report/document.py makes of a report; JUnit, GitHub, the badge and the page are made of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .document import Document

#: what neither XML 1.0 nor HTML has a way to say
_UNSPEAKABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: str) -> str:
    """A text without control characters."""
    return _UNSPEAKABLE.sub("\ufffd", text)


def unexpected(run: Document) -> list[Document]:
    """The failures that fail the run, root causes first."""
    found = [failure for failure in run["failures"] if failure["known"] is None]
    return sorted(found, key=lambda failure: failure["under"] is not None)


def known(run: Document) -> list[Document]:
    """The failures that are listed as known."""
    return [failure for failure in run["failures"] if failure["known"] is not None]


def held(run: Document) -> int:
    """How many laws held."""
    return int(run["totals"]["laws"].get("held", 0))


def verdict(run: Document) -> str:
    """The run in a few words, such as "73 laws held" or "2 laws broken"."""
    if run["error"] is not None:
        return str(run["conclusion"])
    parts = []
    if broken := len(unexpected(run)):
        parts.append(f"{broken} {_laws(broken)} broken")
    if outdated := len(run["outdated"]):
        parts.append(f"{outdated} known {'failures' if outdated > 1 else 'failure'} outdated")
    if not parts and run["exit_code"]:
        parts.append(str(run["conclusion"]))
    if not parts:
        parts.append(f"{held(run)} {_laws(held(run))} held")
    if known(run):
        parts.append(f"{len(known(run))} known to be broken")
    return ", ".join(parts)


def verdict_of_all(runs: Sequence[Document], exit_code: int) -> str:
    """The runs of a command in a few words."""
    if len(runs) == 1:
        return verdict(runs[0])
    bad = sum(run["exit_code"] != 0 for run in runs)
    if bad or exit_code:
        return f"{bad} of {len(runs)} targets not green"
    total = sum(held(run) for run in runs)
    return f"{len(runs)} targets, {total} laws held"


def _laws(count: int) -> str:
    return "law" if count == 1 else "laws"


def known_words(entry: Document) -> str:
    """Why a failure is known, where it is told of, and until when."""
    issue = f" ({entry['issue']})" if entry["issue"] else ""
    until = f", until {entry['expires']}" if entry["expires"] else ""
    return f"{entry['reason']}{issue}{until}"


def rows(failure: Document) -> list[tuple[str, str]]:
    """A failure as labels and texts, as the terminal tells it."""
    found: list[tuple[str, str]] = []
    if failure["known"] is not None:
        found.append(("known", known_words(failure["known"])))
    if failure["under"]:
        found.append(("folded under", failure["under"]))
    if failure["witness"] is not None:
        label = "seen on" if failure["status"] == "nondeterministic" else "smallest witness"
        found.append((label, failure["witness"]["words"]))
    found += list(failure["tokens"].items())
    if failure["raised"] is not None:
        found.append(("the target raised", failure["raised"]))
    else:
        found.append(("what", failure["reason"]))
    if failure["element"] is not None:
        found.append(("worst element", element(failure["element"])))
    if failure["diagnosis"] is not None:
        found.append(("reads like", failure["diagnosis"]["words"]))
        found.append(("fix", failure["diagnosis"]["fix"]))
    if failure["case_file"]:
        found.append(("replay", f"attnlaws replay {failure['case_file']}"))
    if failure["script_file"]:
        found.append(("or, without us", failure["script_file"]))
    return found


def element(found: Document) -> str:
    """The worst element in a line."""
    place, got, want = found["where"] or "value", spelled(found["got"]), spelled(found["expected"])
    if found["allowed"] == 0:
        return f"{place} = {got}, must be {want} exactly"
    off, allowed, ratio = (spelled(found[name], 3) for name in ("difference", "allowed", "ratio"))
    return f"{place} = {got}, expected {want}: off by {off}, allowed {allowed} (error / bound {ratio})"


def spelled(value: float | str | None, digits: int = 6) -> str:
    """A number of a document as text."""
    return str(value) if value is None or isinstance(value, str) else f"{value:.{digits}g}"


def block(failure: Document) -> str:
    """A failure as plain text."""
    lines = [f"{failure['law']}: {failure['statement']}"]
    lines += [f"    {label:<18} {text}" for label, text in rows(failure)]
    mask = failure["mask"]
    if mask is not None and len(mask["got"]) <= 8 and len(mask["got"][0]) <= 8:
        lines += _side_by_side(mask)
    return "\n".join(lines)


def _side_by_side(mask: Document) -> Iterable[str]:
    for i, (got, want) in enumerate(zip(mask["got"], mask["expected"], strict=True)):
        left, right = (" ".join(spelled(cell) for cell in row) for row in (got, want))
        yield f"    {'effective mask' if i == 0 else '':<18} {left}      {'expected  ' if i == 0 else ' ' * 10}{right}"


def remarks(run: Document) -> list[str]:
    """What a green law doesn't tell: that it was tried on fewer problems than were planned."""
    return [
        f"{law['name']}: {what}"
        for law in run["laws"]
        for what, said in (
            ("its share of the time ended", law["cut"]),
            (f"{law['declined']} problems declined by the target", law["declined"]),
        )
        if said
    ]
