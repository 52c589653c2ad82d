"""The ledger: what became of each law, and on what evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..laws.trial import Broken, Crashed, Evidence, Ignored
from ..targets.layer import LayerTarget
from ..targets.model import ModelTarget
from ..targets.part import Part
from ..targets.target import Target
from .known import Known

HELD, BROKEN, CRASHED = "held", "broken", "crashed"
NOT_APPLICABLE, COULD_NOT_TELL, NONDETERMINISTIC = "not applicable", "could not tell", "nondeterministic"
#: the law itself failed: a fault of attnlaws, told as one, never blamed on the target
FAULT = "fault"
RED = (BROKEN, CRASHED, NONDETERMINISTIC)


@dataclass(frozen=True)
class Verdict:
    """How one law ended. `witness` and `failure` are there where it is red."""

    law: str
    statement: str
    status: str
    reason: str = ""
    problems: int = 0
    #: samples in these problems: each holds its own draw of the values
    samples: int = 0
    evidence: Evidence = field(default_factory=Evidence)
    witness: Any = None
    failure: Broken | Crashed | None = None
    seconds: float = 0.0
    under: str | None = None
    #: impostors that met the problems of this law: (tried, rejected)
    impostors: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: its share of the time ended before all of its problems were tried
    cut: bool = False
    #: problems that the target declined in its own clear words (NotImplementedError), and the first of them
    declined: int = 0
    refusal: str = ""

    @property
    def red(self) -> bool:
        """Whether this verdict fails the run."""
        return self.status in RED

    @property
    def ignored(self) -> bool:
        """Whether it is broken since an option that the target accepts has no effect."""
        return self.status == BROKEN and isinstance(self.failure, Ignored)


@dataclass(frozen=True)
class Report:
    """A whole run. Prints itself; `exit_code` is what the command line returns."""

    target: Target | LayerTarget | ModelTarget | Part
    verdicts: tuple[Verdict, ...]
    impostors: dict[str, tuple[int, int]]
    precision: dict[str, str]
    profile: str
    seed: int
    seconds: float
    out_of_time: bool = False
    files: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: what the target does instead, and the fix, where a named fault reproduces it
    diagnosis: tuple[str, str] | None = None
    #: what is seen of the breaks where no named fault explains them
    hints: tuple[str, ...] = ()
    #: broken laws that are listed as known, and entries of the list that came true no more, with what became of them
    known: Mapping[str, Known] = field(default_factory=dict)
    outdated: tuple[tuple[Known, str], ...] = ()

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The red verdicts, known ones too."""
        return tuple(v for v in self.verdicts if v.red)

    @property
    def unexpected(self) -> tuple[Verdict, ...]:
        """The red verdicts that are not listed as known: these fail the run."""
        return tuple(v for v in self.failures if v.law not in self.known)

    @property
    def problems(self) -> int:
        """Problems judged in all."""
        return sum(v.problems for v in self.verdicts)

    @property
    def samples(self) -> int:
        """Samples in them, each with its own draw of the values."""
        return sum(v.samples for v in self.verdicts)

    @property
    def cut(self) -> tuple[Verdict, ...]:
        """The verdicts on fewer problems than were planned, since their share of the time ended."""
        return tuple(v for v in self.verdicts if v.cut)

    @property
    def declined(self) -> int:
        """Problems that the target declined: nothing is known of what it would do there."""
        return sum(v.declined for v in self.verdicts)

    @property
    def refusal(self) -> str:
        """Its words where it declined first."""
        return next((v.refusal for v in self.verdicts if v.declined), "")

    @property
    def undetected(self) -> tuple[str, ...]:
        """Impostors that applied to the run's problems and were never rejected."""
        return tuple(name for name, (tried, rejected) in self.impostors.items() if tried and not rejected)

    @property
    def exit_code(self) -> int:
        """0 all laws held or are known to be broken, 1 one is broken or an entry of the list of known ones is outdated,
        4 nothing was compared, 5 a fault of ours, 124 out of time before the end.
        """
        if self.unexpected or self.outdated:
            return 1
        if any(v.status == FAULT for v in self.verdicts):
            return 5
        if self.out_of_time:
            return 124
        compared = self.known or any(v.status == HELD for v in self.verdicts)
        return 4 if not compared or self.undetected else 0

    def raise_for_failures(self) -> None:
        """Raise LawsBroken with the printed report where a law is broken or nothing was compared."""
        if self.exit_code:
            raise LawsBroken(str(self))

    def __str__(self) -> str:
        from ..report.terminal import render

        return render(self, colour=False)


class LawsBroken(AssertionError):
    """A target breaks laws; the message is the report."""
