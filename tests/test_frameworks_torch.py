"""Functions that torch.compile made, and kernels in Triton through its interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlaws import api
from attnlaws.targets.target import Target

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "flash_triton.py"
SOME = ("layout.result", "weights.oracle", "heads.grouped")


def plain(query: Any, key: Any, value: Any, is_causal: bool = False, *, shift: int = 0) -> Any:
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1 + shift), -torch.inf)
    return torch.softmax(scores, -1) @ value


def sees_one_more(query: Any, key: Any, value: Any, is_causal: bool = False) -> Any:
    return plain(query, key, value, is_causal, shift=1)


def test_a_compiled_function_is_green_and_stays_compiled() -> None:
    traced = []

    def backend(module: Any, inputs: Any) -> Any:
        traced.append(len(inputs))
        return module.forward

    target = api.target_of(torch.compile(plain, backend=backend, dynamic=False))
    assert isinstance(target, Target)
    assert "torch.compile" in target.framework.note
    assert target.abilities.costly_sizes
    report = api.run(target, laws=["weights.oracle", "causality.future-keys"], profile="glance")
    assert not report.failures, str(report)
    assert len(traced) > 16  # PyTorch's own limit is eight


def test_a_wrong_compiled_function_is_caught() -> None:
    compiled = torch.compile(sees_one_more, backend="eager", dynamic=False)
    report = api.check(compiled, laws=["causality.future-keys"], profile="glance")
    assert report.failures, str(report)


SCRIPT = """
import sys
from attnlaws import api
for path, *laws in (line.split() for line in sys.argv[1:]):
    report = api.check(path + ":attention", laws=laws, profile="glance", budget=100.0)
    green = all(v.status == "held" for v in report.verdicts)
    print(path.rpartition("/")[2], "green" if green else [v.law for v in report.failures])
"""
WRONG = {
    "one_more": ("rows[:, None] >= columns", "rows[:, None] + 1 >= columns", "causality.future-keys"),
    "tail": ("seen = columns[None, :] < keys", "seen = columns[None, :] < keys + 1", "weights.oracle"),
}


def test_kernels_in_triton(tmp_path: Path) -> None:
    """The example is green and variants of it are caught, in a process that sets TRITON_INTERPRET from its start."""
    pytest.importorskip("triton", reason="triton is not installed")
    source = EXAMPLE.read_text(encoding="utf-8")
    asked = [" ".join([str(EXAMPLE), *SOME])]
    for name, (before, after, law) in WRONG.items():
        assert before in source
        (tmp_path / f"{name}.py").write_text(source.replace(before, after), encoding="utf-8")
        asked.append(f"{tmp_path / name}.py {law}")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *asked], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=560, check=True
    )  # fmt: skip
    expected = [f"{EXAMPLE.name} green", *(f"{name}.py {[law]}" for name, (_, _, law) in WRONG.items())]
    assert done.stdout.splitlines() == expected, done.stdout + done.stderr
