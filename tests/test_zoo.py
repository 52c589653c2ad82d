"""The zoo: every wrong attention function is caught by a named law, every right one is green."""

from __future__ import annotations

import pytest
from right_attention import RIGHT, Right
from right_options import RIGHT_OPTIONS
from wrong_attention import WRONG, WRONG_BACKWARD, Wrong

from attnlaws import api
from attnlaws.laws.load import load_laws
from attnlaws.run.check import run_checks

#: wrong in ways that no law looks at yet; strict, so that a law that catches one takes it off this list
WAITING = {
    "mask_without_gradient": "a mask that gives no gradient may be so by design; the card says it",
    "causal_off_in_rank_three": "inputs of three axes beside four: nothing says that a function claims them",
}


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xfail(strict=True, reason=WAITING[name])] if name in WAITING else []


def _cases() -> list[object]:
    return [pytest.param(w, id=w.name, marks=_marks(w.name)) for w in [*WRONG, *WRONG_BACKWARD]]


@pytest.mark.parametrize("wrong", _cases())
def test_wrong_is_caught(wrong: Wrong) -> None:
    report = api.check(wrong.function, laws=[wrong.law])
    if not report.failures:  # rare triggers: another law may meet them first
        report = api.check(wrong.function)
    assert report.failures, str(report)
    assert all(v.witness is not None for v in report.failures)
    assert report.exit_code == 1


@pytest.mark.parametrize("right", [*RIGHT, *RIGHT_OPTIONS], ids=lambda r: r.name)
def test_right_is_green(right: Right) -> None:
    target = api.target_of(right.function)
    report = run_checks(target, profile="smoke", seed=1)
    assert not report.failures, str(report)
    assert report.exit_code == 0, str(report)


#: laws that take long even on one problem, or that chance alone decides: one seed is enough here
LONG = ("scores.precision", "layout.long", "conduct.compile", "statistics.score-variance", "conventions.declared")


@pytest.mark.parametrize("right", [*RIGHT, *RIGHT_OPTIONS], ids=lambda r: r.name)
def test_right_is_green_over_fifty_seeds(right: Right) -> None:
    target = api.target_of(right.function)
    laws = [
        name
        for name, law in load_laws().items()
        if name not in LONG and not law.slow and not law.chance and not law.not_applicable(target)
    ]
    seeds = 5 if right.name == "definition_by_loops" else 50  # Python loops over every element
    for seed in range(seeds):
        mine = [laws[(5 * seed + n) % len(laws)] for n in range(5)]
        report = run_checks(target, laws=mine, profile="glance", seed=1000 + seed)
        assert not report.failures, str(report)


def test_the_zoo_is_large_enough() -> None:
    assert len(WRONG) >= 40
    assert len(RIGHT) + len(RIGHT_OPTIONS) >= 60
