"""The judge: a verdict on a function that nobody trusts, which another process runs.

The laws, the probe, the oracle and every comparison are here; the file is imported there (`targets/worker.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..targets.conventions import Conventions
from ..targets.frameworks import Framework
from ..targets.probe import adapt
from ..targets.processes import Limits
from ..targets.quiet import OutOfTime
from ..targets.remote import RemoteFramework, RemoteFunction
from ..targets.signature import CannotAdapt, understand
from ..targets.target import Target
from ..targets.worker import Ended, Raised, Starter, Worker
from .budget import deadline_alarm
from .check import replay, run_checks
from .ledger import BROKEN, CRASHED, NONDETERMINISTIC, Report, Verdict
from .selection import select
from .suspicion import Suspicion, suspicion
from .trying import Progress
from .watch import Watch

CORRECT, WRONG, CRASHES, HANGS, SUSPECT = "correct", "wrong", "crashes", "hangs", "suspect"
COULD_NOT_JUDGE = "could not judge"
OUT_OF_TIME = "the time budget ended first"


@dataclass(frozen=True)
class Judgement:
    """What became of a function. `code` is the exit code; `report` is there where the laws were tried."""

    target: str
    verdict: str
    reason: str
    code: int
    seed: int
    law: str = ""
    witness: str = ""
    problem: Any = None
    deaths: tuple[str, ...] = ()
    calls: int = 0
    seconds: float = 0.0
    report: Report | None = None
    conventions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        report = self.report
        tallies = {} if report is None else report.impostors
        return {
            "attnlaws-judge": 1,
            "target": self.target,
            "verdict": self.verdict,
            "reason": self.reason,
            "law": self.law or None,
            "witness": self.witness or None,
            "problem": self.problem,
            "impostors": {name: {"tried": tried, "rejected": no} for name, (tried, no) in tallies.items()},
            "precision": {} if report is None else report.precision,
            "conventions": self.conventions,
            "laws": {} if report is None else {v.law: v.status for v in report.verdicts},
            "deaths": list(self.deaths),
            "calls": self.calls,
            "problems": 0 if report is None else report.problems,
            "declined": 0 if report is None else report.declined,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "exit_code": self.code,
        }

    def __str__(self) -> str:
        lines = [f"{self.target}: {self.verdict}" + (f": {self.reason}" if self.reason else "")]
        rows = [("law", self.law), ("witness", self.witness)]
        if self.report is not None:
            tallies = [f"{name} {no}/{tried}" for name, (tried, no) in self.report.impostors.items() if tried]
            kinds = [f"{dtype} as {name}" for dtype, name in self.report.precision.items()]
            rows += [("impostors", ", ".join(tallies)), ("precision", ", ".join(kinds))]
        rows.append(("deaths", f"{len(self.deaths)}: {self.deaths[0]}" if self.deaths else ""))
        rows.append(("tried", f"{self.calls} calls, seed {self.seed}, {self.seconds:.1f} s"))
        return "\n".join(lines + [f"  {label:<10} {text}" for label, text in rows if text])


class _UntilBroken(Watch):
    """One broken law is enough for a verdict."""

    def enough(self, verdict: Verdict) -> bool:
        return verdict.red


@dataclass(frozen=True)
class Rules:
    """What a judge goes by. `budget` seconds in all; `forbid` are functions that may not be called."""

    budget: float = 120.0
    profile: str = "quick"
    seed: int = 0
    limits: Limits = field(default_factory=Limits)
    device: str = "cpu"
    laws: tuple[str, ...] | None = None
    forbid: tuple[str, ...] = ()


def judge(
    file: str,
    name: str = "",
    rules: Rules | None = None,
    *,
    progress: Progress | None = None,
    starter: Starter | None = None,
) -> Judgement:
    """The judgement on a function of query, key and value in a Python file; where many are judged they share a starter.

    Raises UnknownLaw for laws that don't exist.
    """
    rules = rules or Rules()
    worker = Worker(file, name, rules.limits, device=rules.device, forbid=rules.forbid, starter=starter)
    case = _Case(worker, f"{file}:{name}" if name else file, rules, progress)
    try:
        with deadline_alarm(rules.budget, None):
            return case.judged()
    except OutOfTime:
        return case.out_of_time()
    finally:
        worker.close()


class _Case:
    """One function before the judge."""

    def __init__(self, worker: Worker, name: str, rules: Rules, progress: Progress | None) -> None:
        self.worker, self.name, self.rules, self.progress = worker, name, rules, progress
        self.started = time.monotonic()
        self.target: Target | None = None
        self.began = False

    def says(self, verdict: str, reason: str, code: int, **more: Any) -> Judgement:
        """The judgement, with what was noted."""
        notes = self.worker.notes
        known = self.target.conventions.known if self.target is not None else {}
        shown = {name: str(getattr(self.target.conventions, name)) for name in known} if self.target is not None else {}
        deaths = tuple(str(death) for death in notes.deaths)
        seconds = time.monotonic() - self.started
        return Judgement(
            self.name,
            verdict,
            reason,
            code,
            self.rules.seed,
            deaths=deaths,
            calls=notes.calls,
            seconds=seconds,
            conventions=shown,
            **more,
        )

    def out_of_time(self) -> Judgement:
        """The budget ended before a verdict."""
        reason = OUT_OF_TIME if self.began else f"{OUT_OF_TIME}, before any law was tried"
        return self.by_notes(None) or self.says(COULD_NOT_JUDGE, reason, 124)

    def judged(self) -> Judgement:
        """Import, probe, look for what only cheaters do, and try the laws."""
        try:
            said = self.worker.load()
            self.name = self.name if ":" in self.name else f"{self.name}:{said['name']}"
            function = RemoteFunction(self.worker, said["parameters"])
            self.target, refusal = self.adapted(function, said["speaks"])
        except Ended as death:
            early = self.says(COULD_NOT_JUDGE, f"{death}, when the file was imported", 3)
            return (self.by_notes(None) if self.worker.notes.calls else None) or early
        except (CannotAdapt, Raised) as error:
            return self.by_notes(None) or self.says(COULD_NOT_JUDGE, str(error), 3)
        found = suspicion(self.target, self.rules.seed, self.renew)
        noted = self.by_notes(found)
        if noted is not None:
            return noted
        if refusal is not None:
            return self.says(COULD_NOT_JUDGE, refusal, 3)
        self.began = True
        left = max(self.rules.budget - (time.monotonic() - self.started), 0.1)
        report = run_checks(
            self.target,
            laws=self.rules.laws,
            profile=self.rules.profile,
            budget=left,
            seed=self.rules.seed,
            progress=self.progress,
            watch=_UntilBroken(),
        )
        return self.by_report(report)

    def renew(self) -> None:
        """The function in a process that starts anew."""
        self.worker.stop()

    def adapted(self, function: RemoteFunction, names: Sequence[str]) -> tuple[Target, str | None]:
        """The target in the first framework that does. Where none does a plain one, to look at its answers, and the refusal."""
        refusal, plain = "it speaks no framework that is installed", None
        for name in names:
            try:
                framework: Framework = RemoteFramework(self.worker, name)
                signature = understand(function)
                plain = plain or Target(self.name, function, framework, signature, Conventions())
                return adapt(function, name=self.name, framework=framework), None
            except CannotAdapt as error:
                refusal = str(error) if plain is None or refusal.startswith("it speaks") else refusal
        if plain is None:
            raise CannotAdapt(refusal)
        self.worker.framework = plain.framework.name
        self.renew()
        return plain, refusal

    def by_notes(self, found: Suspicion | None) -> Judgement | None:
        """The judgement by what was seen beside the laws."""
        notes = self.worker.notes
        if notes.used:
            return self.says(SUSPECT, f"calls what is forbidden: {', '.join(sorted(notes.used))}", 1)
        if notes.attack is not None:
            return self.says(SUSPECT, str(notes.attack), 1)
        if found is not None:
            return self.says(SUSPECT, found.what, 1, law=found.law, witness=found.witness)
        if notes.deaths:
            first = notes.deaths[0]
            return self.says(HANGS if first.kind == "hang" else CRASHES, str(first), 1)
        if notes.mutated:
            return self.says(SUSPECT, "changes its inputs in place", 1, law="conduct.inputs-untouched")
        return None

    def by_report(self, report: Report) -> Judgement:
        """The judgement by the laws, and what was noted on the way."""
        roots = sorted((v for v in report.failures), key=lambda v: v.under is not None)
        noted = self.by_notes(None)
        if noted is not None and (noted.verdict == SUSPECT or not roots):
            return self.says(noted.verdict, noted.reason, 1, report=report, **_seen(roots[0] if roots else None))
        if roots:
            return self.by_failure(roots[0], report)
        tried = sum(verdict.problems > 0 for verdict in report.verdicts)
        reasons = {
            0: _declined(report),
            4: "nothing was compared, or a trivial answer was never rejected",
            5: "a fault of attnlaws itself",
            124: f"{OUT_OF_TIME}; {tried} of {len(report.verdicts)} laws were tried, and none broke",
        }
        code = report.exit_code
        return self.says(COULD_NOT_JUDGE if code else CORRECT, reasons[code], code, report=report)

    def by_failure(self, verdict: Verdict, report: Report) -> Judgement:
        """A broken law: wrong, or suspect where a process that starts anew keeps it on the same problem."""
        kind = {BROKEN: WRONG, CRASHED: CRASHES, NONDETERMINISTIC: SUSPECT}[verdict.status]
        reason = verdict.reason
        deaths = self.worker.notes.deaths
        if verdict.status == CRASHED and deaths and any(death.kind == "hang" for death in deaths):
            kind = HANGS
        if verdict.status == BROKEN and self.holds_anew(verdict):
            kind, reason = SUSPECT, f"{reason}; in a process that starts anew it is right on the same inputs"
        return self.says(kind, reason, 1, report=report, **_seen(verdict))

    def holds_anew(self, verdict: Verdict) -> bool:
        """Whether the law holds on the witness in a process that starts anew."""
        law = next(law for law in select(None) if law.name == verdict.law)
        self.renew()
        return verdict.witness is not None and replay(law, self.target, verdict.witness) is None


def _declined(report: Report) -> str:
    """How much of what it was asked the function did not answer; nothing where it answered all."""
    if not report.declined:
        return ""
    asked = report.problems + report.declined
    return f"in what it takes; it declined {report.declined} of {asked} problems itself: {report.refusal}"


def _seen(verdict: Verdict | None) -> dict[str, Any]:
    """The law and the witness of a verdict, as fields of a judgement."""
    if verdict is None:
        return {}
    witness = verdict.witness
    described = {} if witness is None else {"witness": witness.describe(), "problem": witness.to_json()}
    return {"law": verdict.law, **described}
