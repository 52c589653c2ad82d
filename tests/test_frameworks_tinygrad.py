"""tinygrad: a kernel is made for each size, so that a few sizes of two functions must do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="tinygrad is not installed")

from tinygrad import Tensor

from attnlaws import api
from attnlaws.targets.target import Target
from attnlaws.targets.tinygrad_arrays import TinygradFramework


def plain(query: Any, key: Any, value: Any) -> Any:
    return query.scaled_dot_product_attention(key, value)


def no_scale(query: Any, key: Any, value: Any) -> Any:
    assert isinstance(query, Tensor)
    return (query @ key.transpose(-1, -2)).softmax(-1) @ value


def test_values_and_gradients() -> None:
    framework = TinygradFramework()
    q, k, v, up = np.random.default_rng(0).standard_normal((4, 1, 2, 3, 4))
    inputs = [framework.tensor(x, "float64") for x in (q, k, v)]
    result, pull = framework.recorded(plain, inputs, {}, inputs)
    weights = np.exp(q @ k.swapaxes(-1, -2) / 2.0)
    weights /= weights.sum(-1, keepdims=True)
    assert framework.dtype_of(result) == "float64"
    assert np.abs(framework.to_numpy(result) - weights @ v).max() < 1e-12
    dq, dk, dv = (framework.to_numpy(g) for g in pull(result, framework.tensor(up, "float64")))
    above = up @ v.swapaxes(-1, -2)
    scores = weights * (above - (weights * above).sum(-1, keepdims=True)) / 2.0
    for got, want in ((dq, scores @ k), (dk, scores.swapaxes(-1, -2) @ q), (dv, weights.swapaxes(-1, -2) @ up)):
        assert np.abs(got - want).max() < 1e-12


@pytest.mark.parametrize(("function", "right"), [(plain, True), (no_scale, False)], ids=["plain", "no_scale"])
def test_right_is_green_and_wrong_is_red(function: Any, right: bool) -> None:
    target = api.target_of(function)
    assert isinstance(target, Target)
    assert target.framework.name == "tinygrad"
    report = api.run(target, laws=["layout.result", "scores.default-scale"], profile="glance")
    assert [v.law for v in report.failures] == ([] if right else ["scores.default-scale"]), str(report)
    assert any(v.status == "held" for v in report.verdicts)
