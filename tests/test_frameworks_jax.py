"""JAX: right functions green, wrong ones red, settings put back, what cannot be compiled called as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

import attention_jax  # noqa: E402

from attnlaws import api  # noqa: E402
from attnlaws.targets.jax_arrays import JaxFramework  # noqa: E402
from attnlaws.targets.target import Target  # noqa: E402

#: a few laws of each kind: one program is compiled for each set of sizes, so all of them take minutes
SOME = ("layout.result", "weights.oracle", "causality.future-keys", "masks.empty-row", "gradients.oracle", "conduct.repeatable", "conduct.vmap")  # fmt: skip


def adapted(function: Callable[..., Any] | str) -> Target:
    target = api.target_of(function)
    assert isinstance(target, Target)
    assert target.framework.name == "jax"
    return target


def test_dot_product_attention_of_jax() -> None:
    target = adapted("jax.nn:dot_product_attention")
    c = target.conventions
    assert (c.layout, c.alignment, c.mask_means, c.empty_bool) == ("BSHD", "top-left", "attend", "uniform")
    assert set(target.abilities.dtypes) == {"float32", "float64", "bfloat16", "float16"}
    assert target.abilities.gradients
    report = api.run(target, laws=SOME, profile="glance")
    assert report.exit_code in (0, 4), str(report)  # 4: two problems can be too few to tell every impostor
    assert not report.failures, str(report)
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("right", attention_jax.RIGHT, ids=lambda f: getattr(f, "__name__", str(f)))
def test_right_is_green(right: Callable[..., Any]) -> None:
    report = api.run(adapted(right), laws=SOME, profile="glance", seed=2)
    assert not report.failures, str(report)
    assert sum(v.evidence.comparisons for v in report.verdicts) > 10


@pytest.mark.parametrize(("wrong", "law"), attention_jax.WRONG, ids=lambda x: getattr(x, "__name__", ""))
def test_wrong_is_caught(wrong: Callable[..., Any], law: str) -> None:
    report = api.run(adapted(wrong), laws=[law], profile="smoke")
    assert [v.law for v in report.failures] == [law], str(report)


def test_what_draws_random_numbers_is_not_compiled() -> None:
    q = jax.numpy.ones((1, 2, 1, 4))
    for function, eager in ((attention_jax.noisy, True), (attention_jax.plain, False)):
        framework = JaxFramework()
        framework.call(function, [q, q, q], {})
        assert framework.eager is eager


def test_noise_is_told_though_functions_are_compiled() -> None:
    report = api.run(adapted(attention_jax.noisy), laws=["conduct.repeatable"], profile="glance", budget=10.0)
    assert report.failures, str(report)


def test_float64_is_float64_and_the_setting_is_put_back() -> None:
    framework = JaxFramework()
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 3, 2, 4))
    with framework.calling("float64"):
        result = framework.call(attention_jax.plain, [framework.tensor(x, "float64") for x in (q, k, v)], {})
    weights = np.exp(np.einsum("bihd,bjhd->bhij", q, k) / 2.0)
    want = np.einsum("bhij,bjhd->bihd", weights / weights.sum(-1, keepdims=True), v)
    assert framework.dtype_of(result) == "float64"
    assert np.abs(framework.to_numpy(result) - want).max() < 1e-14
    assert not jax.config.jax_enable_x64
