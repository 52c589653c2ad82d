"""MLX on the CPU: right functions green, wrong ones red, the random state put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("mlx.core", reason="mlx is not installed", exc_type=ImportError)

import attention_mlx

from attnlaws import api
from attnlaws.targets.mlx_arrays import MlxFramework
from attnlaws.targets.target import Target


def adapted(function: Callable[..., Any] | str) -> Target:
    target = api.target_of(function)
    assert isinstance(target, Target)
    assert target.framework.name == "mlx"
    assert target.abilities.gradients
    return target


def test_the_attention_of_mlx_is_green() -> None:
    target = adapted("mlx.sdpa")
    c = target.conventions
    assert (c.layout, c.alignment, c.default_scale, c.mask_and_causal) == (
        "BHSD",
        "bottom-right",
        "required",
        "refused",
    )
    report = api.run(target, profile="smoke")
    assert report.exit_code == 0, str(report)
    assert {"conduct.vmap", "masks.sinks"} <= {v.law for v in report.verdicts if v.status == "held"}


def test_its_signature_is_read_from_its_docstring() -> None:
    target = adapted("mlx.core.fast:scaled_dot_product_attention")
    assert target.abilities.sinks
    assert target.abilities.routes == ("additive", "bool")


def test_right_is_green() -> None:
    report = api.run(adapted(attention_mlx.plain), profile="smoke", seed=1)
    assert report.exit_code == 0, str(report)


@pytest.mark.parametrize(("wrong", "law"), attention_mlx.WRONG, ids=lambda x: getattr(x, "__name__", ""))
def test_wrong_is_caught(wrong: Callable[..., Any], law: str) -> None:
    report = api.run(adapted(wrong), laws=[law], profile="smoke")
    assert [v.law for v in report.failures] == [law], str(report)


def test_the_random_state_is_put_back() -> None:
    framework = MlxFramework()
    before = framework.global_state()
    with framework.seeded(5):
        assert framework.global_state() != before
    assert framework.global_state() == before
