"""How long a target's forward pass takes in float32, after one comparison with the oracle.

pytest benchmarks --benchmark-only --attn-target pkg.mod:fn
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from attnlaws import api
from attnlaws.laws.trial import Broken, Crashed, Evidence, Session, Trial
from attnlaws.problems.problem import Problem
from attnlaws.targets.address import BadConfiguration, NoSuchTarget
from attnlaws.targets.conventions import UnknownChoice
from attnlaws.targets.signature import CannotAdapt

pytest.importorskip("pytest_benchmark")

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from attnlaws.targets.target import Target

DEFAULTS = ("attnlaws.reference.attention:attention", "torch.sdpa")

#: batch, heads, queries, keys, head size: a prompt, and one step of decoding
SHAPES = {"prompt": (1, 8, 512, 512, 64), "decode": (8, 8, 1, 2048, 64)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each shape on each target, the shape first so that targets stand together."""
    names = metafunc.config.getoption("attn_target") or DEFAULTS
    metafunc.parametrize("name", names)
    metafunc.parametrize("shape", SHAPES)


def test_forward(request: pytest.FixtureRequest, benchmark: BenchmarkFixture, name: str, shape: str) -> None:
    """The median of many calls. A target that is wrong on this very problem, or on a causal one, is not timed."""
    target = _adapted(name, request.config.getoption("attn_device"))
    if target.conventions.causal == "flag":
        _agree(target, _problem(target, "prompt").but(causal=True))
    trial = _agree(target, _problem(target, shape))
    (positional, keywords), _ = target.arguments(trial.call, (), False)
    wait = _wait_for(target)

    def forward() -> Any:
        result = target.function(*positional, **keywords)
        wait()
        return result

    benchmark.group = f"{shape}: B, H, L, S, D = {SHAPES[shape]}, float32"
    benchmark.extra_info.update(target=name, shape=SHAPES[shape], error_over_bound=trial.evidence.worst)
    benchmark.pedantic(forward, rounds=50, warmup_rounds=5)


def _adapted(name: str, device: str) -> Target:
    try:
        return api.target_of(name, device=device)
    except (NoSuchTarget, CannotAdapt, BadConfiguration, UnknownChoice) as error:
        words = f"attnlaws: {error}"
    pytest.fail(words, pytrace=False)


def _agree(target: Target, problem: Problem) -> Trial:
    """One comparison with the oracle, within the computed bound."""
    trial = Trial(target, problem, Session(), Evidence())
    try:
        trial.agrees_with_oracle(trial.run().output, trial.call, "the output is not softmax(scale q k^T + mask) v")
    except (Broken, Crashed) as failure:
        words = f"{target.name} is wrong, so it is not timed: {failure} ({problem.describe()})"
    else:
        return trial
    pytest.fail(words, pytrace=False)


def _problem(target: Target, shape: str) -> Problem:
    """The shape as far as the target takes it: one sample or one head where its layout has no more."""
    batch, heads, queries, keys, size = SHAPES[shape]
    able = target.abilities
    if "float32" not in able.dtypes:
        pytest.skip("takes no float32")
    if queries != keys and not able.rectangular:
        pytest.skip("takes equal lengths only")
    batch, heads = (batch if able.batch else 1), (heads if able.heads else 1)
    causal = target.conventions.causal == "always"
    return Problem(batch, heads, heads, queries, keys, size, size, "float32", causal=causal, seed=1)


def _wait_for(target: Target) -> Any:
    """What waits for the device: a call on an accelerator returns before it has computed."""
    torch = getattr(target.framework, "torch", None)
    device = str(getattr(target.framework, "device", "cpu"))
    return torch.cuda.synchronize if torch is not None and device.startswith("cuda") else lambda: None
