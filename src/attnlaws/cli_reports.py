"""The reports of `attnlaws check`: files for other tools, written whatever becomes of the targets."""

from __future__ import annotations

import argparse
import os
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run.known import Known
    from .run.ledger import Report


def report_options(parser: argparse.ArgumentParser) -> None:
    """The options that write reports, and those of known failures."""
    group = parser.add_argument_group("reports", "docs/reports.md tells about each; - is the standard output")
    group.add_argument("--json", metavar="FILE", help="everything, by the schema that attnlaws schema prints")
    group.add_argument("--junit", metavar="FILE", help="JUnit XML, for CI servers")
    group.add_argument("--html", metavar="FILE", help="one page, complete in itself")
    group.add_argument("--badge", metavar="FILE", help="an SVG picture of the verdict")
    group.add_argument(
        "--github",
        action=argparse.BooleanOptionalAction,
        help="annotations and a step summary for GitHub Actions (by default where GITHUB_ACTIONS is true)",
    )
    listed = parser.add_argument_group("known failures")
    listed.add_argument(
        "--known", type=Path, metavar="FILE", help="the list (default attnlaws-known.toml beside pyproject.toml)"
    )
    listed.add_argument("--write-known", action="store_true", help="add what fails now to the list, to start green")


class BadReport(ValueError):
    """A report that can't be written; the message says where and why."""


class Reports:
    """The reports that were asked for, filled target by target.

    Their files are emptied at the start, so that a run that ends early leaves no older report that looks like its own.
    `silent`: the standard output belongs to a report. Raises BadReport for a file that can't be written.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        github = os.environ.get("GITHUB_ACTIONS") == "true"
        self.github: bool = github if options.github is None else options.github
        places = [place for place in (options.json, options.junit, options.html, options.badge) if place]
        if places.count("-") > 1:
            raise BadReport("only one report can go to the standard output")
        for place in places:
            _write(place, "")
        self.silent = "-" in places
        self.wanted = self.github or bool(places)
        self.known_file, self.entries = self._listed()
        self.new: list[Known] = []
        self.documents: list[dict[str, Any]] = []
        self._sent = (0, 0)

    def parcel(self) -> bytes:
        """What came in since the last parcel, for the process that writes the reports."""
        documents, new = self._sent
        self._sent = len(self.documents), len(self.new)
        return pickle.dumps((self.documents[documents:], self.new[new:]))

    def unpack(self, parcel: bytes) -> None:
        """Take in what another process had."""
        documents, new = pickle.loads(parcel)
        self.documents += documents
        self.new += new
        self.entries += new
        self._sent = len(self.documents), len(self.new)

    def _listed(self) -> tuple[Path, list[Known]]:
        """The list of known failures and what stands in it. Raises BadKnown; a list that was named must be there."""
        from .report.known_file import beside_project, read

        given: Path | None = self.options.known
        path = given or beside_project(Path.cwd())
        needed = given is not None and not self.options.write_known
        return path, list(read(path)) if needed or path.exists() else []

    def expected(self, report: Report) -> Report:
        """The report held against the list; with --write-known what is red is listed first."""
        from .run.expect import expected, listed

        found = expected(report, self.entries)
        if self.options.write_known:
            new = listed(found)
            self.new += new
            self.entries += new
            found = expected(report, self.entries)
            if found.cut:
                names = ", ".join(verdict.law for verdict in found.cut)
                laws = "law was" if len(found.cut) == 1 else "laws were"
                print(
                    f"attnlaws: {len(found.cut)} {laws} cut short by the time: {names}; what breaks on the "
                    "problems that are left is not in the list. A larger --budget tries them",
                    file=sys.stderr,
                )
        return found

    def add(self, report: Report) -> None:
        """The report on one target."""
        from .report.document import document

        if self.wanted:
            self.documents.append(document(report))

    def add_untried(self, name: str, words: str, exit_code: int) -> None:
        """A target that was not tried, and why."""
        from .report.document import without_run

        if self.wanted:
            self.documents.append(without_run(name, words, exit_code))

    def write(self, exit_code: int) -> None:
        """Write what was asked for."""
        from .report.badge import badge
        from .report.document import as_text, together
        from .report.junit import junit
        from .report.known_file import add
        from .report.page import page

        if self.new:
            add(self.known_file, self.new)
            print(f"attnlaws: {len(self.new)} known failures written to {self.known_file}", file=sys.stderr)
        if self.options.json:
            _write(self.options.json, as_text(together(self.documents, exit_code)))
        if self.options.junit:
            _write(self.options.junit, junit(self.documents))
        if self.options.html:
            _write(self.options.html, page(self.documents, exit_code))
        if self.options.badge:
            _write(self.options.badge, badge(self.documents, exit_code))
        if self.github:
            self._tell_github()

    def _tell_github(self) -> None:
        from .report.github import commands, summary

        if place := os.environ.get("GITHUB_STEP_SUMMARY"):
            _write(place, summary(self.documents), "a")
        for line in commands(self.documents):
            print(line, file=sys.stderr if self.silent else sys.stdout)


def _write(place: str, text: str, mode: str = "w") -> None:
    """Into a file, whose folder is made, or to the standard output."""
    if place == "-":
        sys.stdout.write(text)
        return
    path = Path(place)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8", errors="replace") as stream:
            stream.write(text)
    except OSError as error:
        raise BadReport(f"can't write to {place}: {error.strerror or error}") from error


def print_schema(_: argparse.Namespace) -> int:
    """The command `attnlaws schema`."""
    from .report.document import SCHEMA_FILE

    print(SCHEMA_FILE.read_text(encoding="utf-8"), end="")
    return 0
