"""Layers: every right one is green, every wrong one is caught; addresses, cards, cases."""

from __future__ import annotations

import pytest
from layers_right import RIGHT_LAYERS, RightLayer
from layers_wrong import WRONG_LAYERS, WrongLayer

import attnlaws
from attnlaws import api


@pytest.mark.parametrize("right", RIGHT_LAYERS, ids=lambda r: r.name)
def test_right_is_green(right: RightLayer) -> None:
    target = api.target_of(right.make())
    found = target.projections.style if target.recognised == "reproduced" else None
    assert found == right.weights, attnlaws.card(target)
    for seed in (1, 2):
        report = api.run(target, profile="glance", seed=seed)
        assert report.exit_code == 0, str(report)


@pytest.mark.parametrize("wrong", WRONG_LAYERS, ids=lambda w: w.name)
def test_wrong_is_caught(wrong: WrongLayer) -> None:
    report = attnlaws.check(wrong.make, laws=[wrong.law], profile="smoke")
    assert [v.law for v in report.failures] == [wrong.law], str(report)
    assert report.exit_code == 1
    assert all(v.witness is not None for v in report.failures)


def test_the_zoo_of_layers_is_large_enough() -> None:
    assert len(RIGHT_LAYERS) >= 12
    assert len(WRONG_LAYERS) >= 20
