"""Layers: every right one is green, every wrong one is caught; addresses, cards, cases."""

from __future__ import annotations

import pytest
from layers_right import RIGHT_LAYERS, RightLayer

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
