"""Keras on PyTorch here, since a process has one backend: right functions green, wrong ones red."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnlaws import api
from attnlaws.targets.keras_backend import choose_backend
from attnlaws.targets.target import Target

try:
    choose_backend()
    import attention_keras
except ImportError as missing:
    pytest.skip(f"keras can't be imported: {missing}", allow_module_level=True)


def adapted(function: Callable[..., Any] | str) -> Target:
    target = api.target_of(function)
    assert isinstance(target, Target)
    assert "Keras" in target.framework.note
    assert "float64" not in target.abilities.dtypes
    return target


@pytest.mark.parametrize("name", ["keras.ops:dot_product_attention", "keras.mha"])
def test_attention_of_keras_is_green(name: str) -> None:
    target = adapted(name)
    assert target.conventions.layout == "BSHD"
    assert target.conventions.empty_bool.startswith("uniform")
    report = api.run(target, profile="glance")
    assert not report.failures, str(report)


def test_right_is_green() -> None:
    report = api.run(adapted(attention_keras.plain), profile="glance")
    assert not report.failures, str(report)


@pytest.mark.parametrize(("wrong", "law"), attention_keras.WRONG, ids=lambda x: getattr(x, "__name__", ""))
def test_wrong_is_caught(wrong: Callable[..., Any], law: str) -> None:
    report = api.run(adapted(wrong), laws=[law], profile="smoke")
    assert [v.law for v in report.failures] == [law], str(report)


def test_the_backend_is_chosen_before_keras_is_imported(tmp_path: Path) -> None:
    """On NumPy, in a process of its own; another backend afterwards is refused in one sentence."""
    script = (
        "from attnlaws import api\n"
        "print(api.target_of('keras.dpa[numpy]').framework.name)\n"
        "try:\n    api.target_of('keras.dpa[jax]')\n"
        "except Exception as error:\n    print(error)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=True
    )  # fmt: skip
    name, refusal = done.stdout.splitlines()
    assert name == "numpy"
    assert "imported already, with the backend numpy, not jax" in refusal
