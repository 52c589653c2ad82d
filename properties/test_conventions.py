"""The law of declared conventions: what is declared is what the black box does."""

from __future__ import annotations

from attnlaws.laws.law import law
from attnlaws.laws.trial import Trial
from attnlaws.problems.wants import Wants


@law(
    "conventions.declared",
    "a declared convention is the one that the target follows",
    applies=lambda t: None if t.declared else "nothing is declared",
    wants=Wants(small=True),
    share=0.001,
)
def test_declared(trial: Trial) -> None:
    """The probe, left to itself, finds each declared choice, or can't tell. What it finds otherwise is a contradiction."""
    told = ", ".join(
        f"{name} is declared {choice!r}, the probe sees {seen!r}"
        for name, (choice, seen) in trial.target.contradicted.items()
    )
    trial.require(not told, told)
