"""How long a target takes, with pytest-benchmark: its times, its tables, its comparisons.

pytest benchmarks --benchmark-only --attn-target pkg.mod:fn

`attnlaws bench` times the same cases, and gives verdicts; the names here are those that it keeps.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from attnlaws import api
from attnlaws.bench.cases import CASES, MODEL_PASSES, Case, not_taken
from attnlaws.bench.model import ModelWork
from attnlaws.bench.roof import Meter, roof_of
from attnlaws.bench.timing import SAMPLE
from attnlaws.bench.work import FunctionWork, judge_small
from attnlaws.laws.trial import Broken, Crashed, Refused
from attnlaws.run.trying import one_thread
from attnlaws.targets.address import BadConfiguration, NoSuchTarget
from attnlaws.targets.conventions import UnknownChoice
from attnlaws.targets.frameworks import framework_named
from attnlaws.targets.signature import CannotAdapt

pytest.importorskip("pytest_benchmark")

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from attnlaws.targets.target import Target

DEFAULTS = ("attnlaws.reference.attention:attention", "torch.sdpa")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each case on each target, the case first so that targets stand together."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[case.name for case in CASES])
        metafunc.parametrize("target", metafunc.config.getoption("attn_target") or DEFAULTS)


@pytest.mark.benchmark(timer=time.thread_time, disable_gc=True)
def test_speed(request: pytest.FixtureRequest, benchmark: BenchmarkFixture, case: Case, target: str) -> None:
    """CPU time of one thread. What is wrong on the timed inputs, before or after, or on a small causal call, has no time."""
    adapted = _adapted(target, request.config.getoption("attn_device"))
    device = str(getattr(adapted.framework, "device", "cpu"))
    if device != "cpu":
        pytest.skip("a call on a device is over before it has computed: attnlaws bench --device takes its events")
    reason = not_taken(case, adapted)
    if reason is not None:
        pytest.skip(reason)
    with one_thread(framework_named("torch")):
        _time(benchmark, case, adapted)


def _time(benchmark: BenchmarkFixture, case: Case, target: Target) -> None:
    try:
        judge_small(target)
        work = ModelWork(target, case) if case.kind in MODEL_PASSES else FunctionWork(target, case)
        error = work.judge()
        run = work.prepare(0)
        started = time.perf_counter()
        run()
        times = max(1, round(SAMPLE / (time.perf_counter() - started)))
        result = benchmark.pedantic(run, rounds=50, iterations=times, warmup_rounds=5)
        error = max(error, work.judge_timed(0, result))
    except Refused as refusal:
        pytest.skip(f"declined: {refusal}")
    except (Broken, Crashed) as failure:
        words = f"{target.name} is wrong, so it has no time: {failure}"
    else:
        roof = roof_of(case, Meter().rates(case))
        share = roof.share(benchmark.stats.stats.median)
        benchmark.group = case.sizes
        benchmark.extra_info.update(error_over_bound=error, share_of_limit=round(share, 3), limit=roof.limit)
        return
    pytest.fail(words, pytrace=False)


def _adapted(name: str, device: str) -> Target:
    try:
        return api.function_of(name, device=device)
    except (NoSuchTarget, CannotAdapt, BadConfiguration, UnknownChoice) as error:
        words = f"attnlaws: {error}"
    pytest.fail(words, pytrace=False)
