"""A claim: one sentence of a text on attention, a verdict, and a check that can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

Kind = Literal["exact", "property", "statistical"]

TRUE, ASYMPTOTICALLY, ASSUMING, FALSE = "true", "true asymptotically", "true under an assumption", "false"
VERDICTS = (TRUE, ASYMPTOTICALLY, ASSUMING, FALSE)

SELF_ATTENTION = "self-attention and its variance arguments"
CAUSAL_HEADS = "causal and multi-head attention"
WALK_THROUGH = "the GPT walk-through"
TEXTS = {"A": SELF_ATTENTION, "B": CAUSAL_HEADS, "C": WALK_THROUGH}


@dataclass(frozen=True)
class Measured:
    """What a check saw: `found` is one line of numbers. `tests` counts its two-stage tests of chance."""

    shows: bool
    found: str
    tests: int = 0

    def __str__(self) -> str:
        return self.found if self.shows else f"NOT SHOWN: {self.found}"


def together(*parts: Measured) -> Measured:
    """All parts must show; where one does not, the line says which."""
    return Measured(
        all(part.shows for part in parts),
        "; ".join(part.found if part.shows else f"not shown: {part.found}" for part in parts),
        sum(part.tests for part in parts),
    )


@dataclass(frozen=True)
class Claim:
    """A claim of a text. `check` shows that the verdict is right: for a false claim, that it is false and what holds.

    `claim` is the sentence in English, `statement` what it says precisely, `right` the right statement, `assumption`
    what has to be assumed where the verdict is "true under an assumption".
    """

    id: str
    text: str
    claim: str
    statement: str
    verdict: str
    right: str
    kind: Kind
    check: Callable[[], Measured]
    assumption: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"the verdict on {self.id} must be one of {', '.join(VERDICTS)}, not {self.verdict!r}")
        if (self.verdict == ASSUMING) != bool(self.assumption):
            raise ValueError(f"an assumption goes with the verdict {ASSUMING!r} and with no other: see {self.id}")

    @property
    def judged(self) -> str:
        """The verdict, with its assumption."""
        return f"{self.verdict}: {self.assumption}" if self.assumption else self.verdict


ENTERED: dict[str, Claim] = {}

Check = TypeVar("Check", bound=Callable[..., Measured])


def claim(
    id: str, verdict: str, kind: Kind, *, says: str, statement: str, right: str, assumption: str = ""
) -> Callable[[Check], Check]:
    """Enter a claim of which the decorated function is the check. Its first letter names the text.

    Where the function has parameters, their defaults are the true values; with wrong ones it must not show.
    """

    def enter(check: Check) -> Check:
        if id in ENTERED:
            raise ValueError(f"the claim {id} is entered twice")
        ENTERED[id] = Claim(id, TEXTS[id[0]], says, statement, verdict, right, kind, check, assumption)
        return check

    return enter
