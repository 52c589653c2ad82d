"""How many problems attnlaws judges a second, and what the time goes to.

pytest benchmarks/test_engine_speed.py --benchmark-only -s

One run of all quick laws on a target; the rate and the shares are in `extra_info`. Two versions of attnlaws are compared by
running this with each in turn, some times over: seconds of one run alone say little on a busy machine.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import pytest

from attnlaws import api
from attnlaws.run.check import run_checks

pytest.importorskip("pytest_benchmark")

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

TARGETS = ("torch.sdpa", "attnlaws.reference.attention:attention")
#: Where the innermost of these is on the stack, the time is its own; the first that fits counts.
PARTS = (
    ("Hypothesis", ("/hypothesis/",)),
    ("oracle", ("/reference/oracle.py",)),
    ("drawing problems", ("/attnlaws/problems/",)),
    ("target", ("/attnlaws/targets/", "/torch/", "/reference/")),
    ("judging", ("/attnlaws/judge/", "/attnlaws/laws/", "/attnlaws/faults/")),
    ("laws", ("/properties/", "/statistics/")),
    ("engine", ("/attnlaws/",)),
)
STEP = 1e-3


@contextlib.contextmanager
def sampled() -> Iterator[Counter[str]]:
    """Which part works at each millisecond of CPU time inside: samples by part."""
    seen: Counter[str] = Counter()

    def look(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            path = str(Path(frame.f_code.co_filename).as_posix())
            part = next((name for name, places in PARTS if any(place in path for place in places)), None)
            if part is not None:
                seen[part] += 1
                return
            frame = frame.f_back
        seen["other"] += 1

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, STEP, STEP)
    try:
        yield seen
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.benchmark(timer=time.thread_time, disable_gc=False)
def test_problems_a_second(benchmark: BenchmarkFixture, name: str) -> None:
    """The quick profile, whole: problems judged over CPU time of the thread, and shares of what that time went to."""
    target = api.function_of(name)
    with sampled() as seen:
        report = benchmark.pedantic(lambda: run_checks(target, profile="quick", budget=500.0), rounds=1, iterations=1)
    assert report.exit_code == 0
    assert report.problems > 1000
    total = sum(seen.values())
    shares = {part: round(count / total, 3) for part, count in seen.most_common()}
    rate = report.problems / benchmark.stats.stats.mean
    benchmark.extra_info.update(problems=report.problems, problems_a_second=round(rate), shares=shares)
    print(f"\n{name}: {report.problems} problems, {rate:.0f} a second of CPU time; {shares}")
