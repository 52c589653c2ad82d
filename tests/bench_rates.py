"""How often a comparison is wrong: identical code, and code that is slower by 10 %, compared again and again.

    OMP_NUM_THREADS=1 python tests/bench_rates.py --identical 300 --slower 100 [--busy 2]

Each comparison is a whole one as `attnlaws bench --against` makes it: several cases, all looks, Holm's correction. The cases are
small, so that some hundred comparisons take minutes. --busy N keeps N other processes at work meanwhile. What it found
when it was last run stands in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from attnlaws import api
from attnlaws.bench.cases import Case
from attnlaws.bench.contest import settle
from attnlaws.bench.timing import Race, Run, Side
from attnlaws.bench.verdict import FASTER, INCONCLUSIVE, SAME, SLOWER, THRESHOLD
from attnlaws.bench.work import FunctionWork
from attnlaws.targets.target import Target

CASES = (
    Case("tiny", "forward", 1, 2, 2, 16, 16, 16),
    Case("forward", "forward", 1, 2, 2, 128, 128, 64),
    Case("decode", "forward", 1, 8, 8, 1, 256, 64),
    Case("backward", "backward", 1, 2, 2, 64, 64, 32, causal=True),
)
TARGETS = ("torch.sdpa", "attnlaws.reference.attention:attention")


def spinning(run: Run, share: float) -> Run:
    """The call, and then idle turns for this share of the CPU time that it took: slower by exactly that."""

    def slowed() -> Any:
        started = time.thread_time()
        result = run()
        until = started + (time.thread_time() - started) * (1 + share)
        while time.thread_time() < until:
            pass
        return result

    return slowed


def repeating(runs: Sequence[Run]) -> Run:
    """Eleven calls for ten: slower by 10 % in the way of real code."""

    def slowed() -> Any:
        for run in runs:
            result = run()
        return result

    return slowed


@cache
def target_named(name: str) -> Target:
    """The target, probed once."""
    return api.function_of(name)


def sides(kind: str, name: str, case: Case) -> list[Side]:
    """The side that may be slower, and the other."""
    target = target_named(name)
    first, second = FunctionWork(target, case), FunctionWork(target, case)
    changed: dict[str, Callable[[int], Run]] = {
        "identical": first.prepare,
        "spin": lambda block: spinning(first.prepare(block), 0.10),
        "repeat": lambda block: repeating([first.prepare(block)] * 11),
    }
    other = second.prepare if kind != "repeat" else lambda block: repeating([second.prepare(block)] * 10)
    return [Side("first", changed[kind]), Side("second", other)]


def comparisons(kind: str, times: int) -> tuple[Counter[str], list[float], float]:
    """Verdicts of all cases of many whole comparisons, "alarm" for each comparison with a difference seen; the ratios."""
    seen: Counter[str] = Counter()
    ratios: list[float] = []
    # Reading the clock twice takes microseconds: next to a call of some milliseconds that is nothing, next to others it is not.
    places = [1, 3] if kind == "spin" else list(range(len(CASES)))
    started = time.monotonic()
    for n in range(times):
        name = TARGETS[n % len(TARGETS)]
        # One slow case among equal ones, as a regression is; each case in its turn.
        slow = places[n // len(TARGETS) % len(places)]
        races = [Race(sides(kind if at == slow else "identical", name, case)) for at, case in enumerate(CASES)]
        found = settle(races, [THRESHOLD] * len(races))
        others = [verdict for at, (_, verdict) in enumerate(found) if at != slow or kind == "identical"]
        seen["comparisons"] += 1
        seen["alarm"] += any(verdict in (SLOWER, FASTER) for verdict in others)
        seen.update(f"equal: {verdict}" for verdict in others)
        if kind != "identical":
            seen[f"slow: {found[slow][1]}"] += 1
            ratios.append(found[slow][0].ratio)
        seen["rounds"] += sum(comparison.rounds for comparison, _ in found)
        if (n + 1) % 20 == 0:
            print(f"    {kind} {n + 1}: {dict(seen)}, {time.monotonic() - started:.0f} s", flush=True)
    return seen, ratios, time.monotonic() - started


def _work() -> None:
    """Another process at work: matrices, for ever."""
    torch.set_num_threads(1)
    x = torch.randn(512, 512)
    while True:
        x = torch.nn.functional.normalize(x @ x)


def told(kind: str, seen: Counter[str], ratios: list[float], seconds: float) -> str:
    """One line of what was seen."""
    n = seen["comparisons"]
    equal = {verdict: seen[f"equal: {verdict}"] for verdict in (SAME, INCONCLUSIVE, SLOWER, FASTER)}
    words = f"{kind}: {n} comparisons, a difference between equal code in {seen['alarm']} of them; equal cases {equal}"
    if kind != "identical":
        ratios.sort()
        middle = ratios[len(ratios) // 2]
        words += f"; the slower one found {seen[f'slow: {SLOWER}']} of {n} times (inconclusive {seen[f'slow: {INCONCLUSIVE}']}, same {seen[f'slow: {SAME}']}), ratio {ratios[0]:.3f} .. {middle:.3f} .. {ratios[-1]:.3f}"
    return f"{words}; {seen['rounds'] / n:.0f} rounds and {seconds / n:.1f} s a comparison"


def main() -> None:
    """Run the campaign and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--identical", type=int, default=300)
    parser.add_argument("--slower", type=int, default=100)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="other processes at work meanwhile")
    options = parser.parse_args()
    torch.set_num_threads(1)
    others = [multiprocessing.get_context("spawn").Process(target=_work, daemon=True) for _ in range(options.busy)]
    for other in others:
        other.start()
    load = os.getloadavg()[0]
    try:
        for kind, times in (("identical", options.identical), ("spin", options.slower), ("repeat", options.slower)):
            if times:
                print(told(kind, *comparisons(kind, times)), flush=True)
    finally:
        for other in others:
            other.terminate()
    print(f"load average {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
