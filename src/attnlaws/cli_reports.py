"""The reports of `attnlaws check`: files for other tools, written whatever becomes of the targets."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run.ledger import Report


def report_options(parser: argparse.ArgumentParser) -> None:
    """The options that write reports."""
    group = parser.add_argument_group("reports", "docs/reports.md tells about each; - is the standard output")
    group.add_argument("--json", metavar="FILE", help="everything, by the schema that attnlaws schema prints")


class BadReport(ValueError):
    """A report that can't be written; the message says where and why."""


class Reports:
    """The reports that were asked for, filled target by target.

    Their files are emptied at the start, so that a run that ends early leaves no older report that looks like its own.
    Raises BadReport for a file that can't be written.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        for place in filter(None, (options.json,)):
            _write(place, "")
        self.documents: list[dict[str, Any]] = []

    @property
    def wanted(self) -> bool:
        """Whether any report was asked for."""
        return bool(self.options.json)

    @property
    def silent(self) -> bool:
        """Whether the standard output belongs to a report."""
        return bool(self.options.json == "-")

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
        from .report.document import as_text, together

        if self.options.json:
            _write(self.options.json, as_text(together(self.documents, exit_code)))


def _write(place: str, text: str) -> None:
    """Into a file, whose folder is made, or to the standard output."""
    if place == "-":
        sys.stdout.write(text)
        return
    path = Path(place)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadReport(f"can't write to {place}: {error.strerror or error}") from error


def print_schema(_: argparse.Namespace) -> int:
    """The command `attnlaws schema`."""
    from .report.document import SCHEMA_FILE

    print(SCHEMA_FILE.read_text(encoding="utf-8"), end="")
    return 0
