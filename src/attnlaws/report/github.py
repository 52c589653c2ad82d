"""GitHub Actions: annotations as workflow commands on the standard output, and a step summary in Markdown.

https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

import html
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from .document import Document
from .words import block, known, known_words, remarks, unexpected, verdict

#: GitHub shows so many annotations of a kind for a step; the rest stands in the summary
SHOWN = 10
#: failures told in full in the summary, which may hold a megabyte
IN_FULL = 30


def commands(runs: Sequence[Document], root: Path | None = None) -> list[str]:
    """Workflow commands: an error for each root cause, a notice for each known failure. `root` is the checkout."""
    errors: list[str] = []
    notices: list[str] = []
    for run in runs:
        name, place = run["target"]["name"], _place(run["target"]["address"], root or _workspace())
        if run["error"] is not None:
            errors.append(_command("error", place, f"attnlaws: {name}", run["error"]))
        for failure in unexpected(run):
            if failure["under"] is None or all(failure["under"] != other["law"] for other in unexpected(run)):
                errors.append(_command("error", place, f"{failure['law']} is broken in {name}", block(failure)))
        for entry in run["outdated"]:
            errors.append(_command("error", place, f"known failure of {name}: {entry['law']}", entry["words"]))
        if run["exit_code"] and run["error"] is None and not unexpected(run) and not run["outdated"]:
            errors.append(_command("error", place, f"attnlaws: {name}", verdict(run)))
        for failure in known(run):
            title = f"{failure['law']} is known to be broken in {name}"
            notices.append(_command("notice", place, title, known_words(failure["known"])))
    return [*errors[:SHOWN], *notices[:SHOWN]]


def summary(runs: Sequence[Document]) -> str:
    """The step summary: a table of the targets, then each failure."""
    lines = ["## attnlaws", "", "| target | verdict | laws | problems | seconds |", "| --- | --- | --- | --- | --- |"]
    for run in runs:
        laws = ", ".join(f"{count} {status}" for status, count in run["totals"]["laws"].items())
        mark = "✅" if run["exit_code"] == 0 else "❌"
        cells = [f"{mark} {_code(run['target']['name'])}", _cell(verdict(run)), _cell(laws)]
        cells += [str(run["totals"]["problems"]), f"{run['seconds']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [""] + [f"- {_code(run['target']['name'])} {_cell(line)}" for run in runs for line in remarks(run)]
    for run in runs:
        lines += _details(run)
    return "\n".join(lines) + "\n\n"


def _details(run: Document) -> list[str]:
    """What failed in one run, each failure folded."""
    if run["exit_code"] == 0 and not known(run):
        return []
    lines = ["", f"### {_code(run['target']['name'])}", ""]
    lines += [_cell(run["error"])] if run["error"] is not None else []
    if run["diagnosis"] is not None:
        diagnosis = run["diagnosis"]
        lines += [f"**Reads like** {_cell(diagnosis['words'])}  ", f"**Fix** {_cell(diagnosis['fix'])}", ""]
    for failure in unexpected(run)[:IN_FULL]:
        head = f"<code>{html.escape(failure['law'])}</code> {html.escape(failure['statement'])}"
        lines += [f"<details><summary>❌ {head}</summary>", "", f"<pre>{html.escape(block(failure))}</pre>", ""]
        lines += ["</details>"]
    rest = len(unexpected(run)) - IN_FULL
    lines += [f"and {rest} more", ""] if rest > 0 else []
    lines += [f"- {_code(entry['law'])}: {_cell(entry['words'])}" for entry in run["outdated"]]
    lines += [f"- {_code(failure['law'])} is known: {_cell(known_words(failure['known']))}" for failure in known(run)]
    if run["undetected"]:
        lines.append(f"These impostors would have passed: {_cell(', '.join(run['undetected']))}")
    return lines


def _command(kind: str, place: Mapping[str, str], title: str, message: str) -> str:
    properties = ",".join(f"{key}={_property(value)}" for key, value in {**place, "title": title}.items())
    return f"::{kind} {properties}::{_data(message)}"


def _data(text: str) -> str:
    """What the runner turns back: a line break would end the command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _code(text: str) -> str:
    """Text in a cell of a table as code, whatever it holds."""
    return f"<code>{_cell(text)}</code>"


def _cell(text: str) -> str:
    """Text that is neither HTML nor Markdown."""
    plain = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_{}\[\]|~#])", lambda found: f"&#{ord(found[0])};", plain)


def _workspace() -> Path:
    return Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())


def _place(address: str | None, root: Path) -> dict[str, str]:
    """The file of a target and the line where it is defined, where both are in the checkout."""
    place, _, attribute = (address or "").partition("(")[0].rpartition(":")
    loaded = sys.modules.get(place)
    path = Path(place) if place.endswith(".py") else Path(getattr(loaded, "__file__", None) or "")
    if not path.is_file() or not path.resolve().is_relative_to(root.resolve()):
        return {}
    name = re.escape(attribute.split(".")[-1])
    text = path.read_text(encoding="utf-8", errors="replace")
    found = re.search(rf"^[ \t]*(?:async def|def|class) +{name}\b", text, re.MULTILINE)
    line = {"line": str(text.count("\n", 0, found.start()) + 1)} if found else {}
    return {"file": path.resolve().relative_to(root.resolve()).as_posix(), **line}
