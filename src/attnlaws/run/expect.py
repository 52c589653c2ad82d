"""Holding a report against the list of known failures. Strict: an entry that is so no more fails the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import date

from ..laws.attempt import Failure, try_law
from ..laws.load import laws_of
from ..laws.named import AnyLaw
from ..laws.trial import Crashed, Evidence, Refused, Session, Unsuitable
from ..targets.quiet import OutOfTime
from .budget import deadline_alarm
from .known import Known
from .ledger import BROKEN, COULD_NOT_TELL, CRASHED, HELD, NONDETERMINISTIC, Report, Verdict
from .trying import one_thread

#: seconds that a law may take on a witness
LIMIT = 60.0
PASSES = "it holds now, also on its witness: remove the entry"
ELSEWHERE = "it breaks, but on its witness it holds: this is another failure"


def expected(report: Report, entries: Iterable[Known], *, today: date | None = None) -> Report:
    """The report with its broken laws that are listed as known, and the entries that came true no more.

    A listed law that held is tried on the witness of its entry too, so that a failure that the search found one day and not
    the next stays known. A red law whose witness passes has another failure, which is not known.
    """
    laws = laws_of(report.target.LAWS)
    verdicts = {verdict.law: verdict for verdict in report.verdicts}
    known: dict[str, Known] = {}
    outdated: list[tuple[Known, str]] = []
    for entry in entries:
        if entry.law not in verdicts or not entry.is_about(report.target.name):
            continue
        verdict, words = _held_against(entry, verdicts[entry.law], laws[entry.law], report, today or date.today())
        verdicts[entry.law] = verdict
        if words:
            outdated.append((entry, words))
        elif verdict.red:
            known[entry.law] = entry
    return replace(report, verdicts=tuple(verdicts.values()), known=known, outdated=tuple(outdated))


def _held_against(entry: Known, verdict: Verdict, law: AnyLaw, report: Report, today: date) -> tuple[Verdict, str]:
    """The verdict, red also where only the witness shows it, and why the entry is outdated, if it is."""
    tried, failure = (False, None) if report.out_of_time else _on_witness(entry, verdict, law, report)
    if failure is not None and not verdict.red:
        status = CRASHED if isinstance(failure, Crashed) else BROKEN
        verdict = replace(verdict, status=status, reason=str(failure), witness=entry.witness, failure=failure)
    elif verdict.status == HELD and entry.strict and not report.out_of_time and (tried or entry.witness is None):
        return verdict, PASSES
    elif verdict.red and tried and failure is None and entry.strict:
        return verdict, ELSEWHERE
    if verdict.red and entry.expires is not None and entry.expires < today:
        return verdict, f"it was known until {entry.expires}, which is over"
    return verdict, ""


def _on_witness(entry: Known, verdict: Verdict, law: AnyLaw, report: Report) -> tuple[bool, Failure | None]:
    """Whether the law could be tried on the witness of its entry, and its failure there."""
    if verdict.status not in (HELD, COULD_NOT_TELL, BROKEN, CRASHED, NONDETERMINISTIC) or entry.witness is None:
        return False, None
    if not law.fits(report.target, entry.witness):
        return False, None
    try:
        with one_thread(report.target), deadline_alarm(LIMIT, None):
            return True, try_law(law, report.target, entry.witness, Session(), Evidence())
    except (Unsuitable, Refused, OutOfTime):
        return False, None


def listed(report: Report) -> list[Known]:
    """Entries for the failures of a report that are not known yet."""
    return [
        Known(
            verdict.law,
            "to be explained",
            target=report.target.name,
            witness=verdict.witness,
            strict=verdict.status != NONDETERMINISTIC,
        )
        for verdict in report.unexpected
        if verdict.law not in {entry.law for entry, _ in report.outdated}
    ]
