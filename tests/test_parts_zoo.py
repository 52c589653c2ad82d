"""Positions, norms and losses: each wrong one is red by the law meant, each right one green by all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from parts_wrong import RIGHT, WRONG

import attnlaws
from attnlaws.targets.part import Part


@pytest.mark.parametrize(("name", "law", "make"), WRONG, ids=[name for name, _, _ in WRONG])
def test_wrong_is_red(name: str, law: str, make: Callable[[], Part]) -> None:
    (verdict,) = attnlaws.check(make(), laws=[law], seed=1).verdicts
    assert verdict.red, (verdict.status, verdict.reason)


@pytest.mark.parametrize(("name", "make"), RIGHT, ids=[name for name, _ in RIGHT])
def test_right_is_green(name: str, make: Callable[[], Part]) -> None:
    for seed in range(5):
        report = attnlaws.check(make(), seed=seed)
        assert report.exit_code == 0, str(report)


def test_a_part_is_taken_by_name() -> None:
    """`attnlaws check ADDRESS --as KIND`, and the same in Python; an unknown kind is told with the nearest."""
    from attnlaws.cli import main

    assert main(["check", "attnlaws.reference.positions:rotary", "--as", "rotation", "--no-files"]) == 0
    assert main(["check", "torch.nn:LayerNorm", "--as", "layer-norm", "--no-files"]) == 0
    assert main(["check", "torch.nn:LayerNorm", "--as", "rms-norm", "--no-files"]) == 1
    assert main(["check", "attnlaws.reference.positions:rotary", "--as", "rotating"]) == 3
    assert attnlaws.check("attnlaws.reference.objectives:causal_loss", part="causal-loss").exit_code == 0
    assert attnlaws.check(lambda logits, labels: logits.nope, part="causal-loss").exit_code == 1
