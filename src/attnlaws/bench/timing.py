"""Timing sides in turn in one process, so that what the machine does meanwhile falls on all of them alike.

Where one thread computes, its CPU time is taken: other processes take the core away, but not the time. A side that uses
other threads is seen by the CPU time of the process, one that waits (for a device, a process, a sleep) by its voluntary
context switches; then the clock that sees that work is taken for all sides. On CUDA device events are.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Run = Callable[[], Any]
#: seconds by the clock of the thread, of the process, of the wall
Reading = tuple[float, float, float]

#: A sample lasts this long at least, in seconds. Reading the clock, some 2 microseconds, is then about 1 %. Longer ones would
#: be worse: on a busy machine both samples of a round should fall between two interruptions, which are milliseconds apart.
SAMPLE = 2e-4
#: Rounds in a block, more where they are short: as many as fit into this time. Buffers are made anew for each block, so
#: that where they lie in memory varies between blocks.
FEWEST, MOST, BLOCK = 5, 25, 1.2e-2
CLOCKS = ("CPU time of one thread", "CPU time of all threads", "wall time")
THREAD, PROCESS, WALL = range(3)


@dataclass(frozen=True)
class Side:
    """What is timed. `prepare(block)` makes its inputs in fresh memory, and gives the call; each block other values."""

    name: str
    prepare: Callable[[int], Run]


class Clock(Protocol):
    """Takes the time of some calls."""

    name: str

    def take(self, run: Run, times: int) -> tuple[float, float, Any]:
        """Seconds for all the calls, by the thread and by the wall, and what the last one gave."""

    def elsewhere(self, run: Run, times: int) -> tuple[float, float]:
        """Of some calls: the CPU time of the process over that of this thread, and how often a call waited."""


class CpuClock:
    """The clocks of a call on the CPU."""

    name = "cpu"

    def take(self, run: Run, times: int) -> tuple[float, float, Any]:
        """Seconds for all the calls, by the thread and by the wall, and what the last one gave."""
        result = None
        wall, thread = time.perf_counter(), time.thread_time()
        for _ in range(times):
            result = run()
        return time.thread_time() - thread, time.perf_counter() - wall, result

    def elsewhere(self, run: Run, times: int) -> tuple[float, float]:
        """Of some calls: the CPU time of the process over that of this thread, and voluntary context switches a call."""
        waited, process, thread = _waited(), time.process_time(), time.thread_time()
        for _ in range(times):
            run()
        thread, process = time.thread_time() - thread, time.process_time() - process
        return process / max(thread, 1e-9), (_waited() - waited) / times


def _waited() -> int:
    """Voluntary context switches of this thread; 0 where the system doesn't tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)).ru_nvcsw


class CudaClock:
    """Device events around each call, the L2 cache emptied before it: what was computed counts, not what was launched."""

    name = "cuda"

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.device = torch, torch.device(device)
        size = torch.cuda.get_device_properties(self.device).L2_cache_size or (64 << 20)
        self.filler = torch.empty(4 * size, dtype=torch.uint8, device=self.device)

    def take(self, run: Run, times: int) -> tuple[float, float, Any]:
        """Seconds between the events, summed over the calls, for either clock; and what the last call gave."""
        total, result = 0.0, None
        with self.torch.cuda.device(self.device):
            for _ in range(times):
                self.filler.zero_()
                before, after = (self._event() for _ in range(2))
                self.torch.cuda.synchronize()
                before.record()
                result = run()
                self.torch.cuda.synchronize()  # other streams too: their work ends before the second event
                after.record()
                self.torch.cuda.synchronize()
                total += before.elapsed_time(after) / 1e3
        return total, total, result

    def _event(self) -> Any:
        return self.torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def elsewhere(self, run: Run, times: int) -> tuple[float, float]:
        """Nothing: the device is what is timed."""
        return 1.0, 0.0


def clock_of(device: str) -> Clock:
    """The clock for a device."""
    return CudaClock(device) if device.startswith("cuda") else CpuClock()


class Race:
    """Sides timed in turn, in growing numbers of blocks. Times are in seconds a call."""

    def __init__(self, sides: Sequence[Side], clock: Clock | None = None) -> None:
        self.sides = tuple(sides)
        self.clock = clock or CpuClock()
        self.times = self.rounds = 0  # calls a sample, the same for each side, and rounds a block
        self.taken: list[Floats] = []  # a block each: (thread or wall, side, round)
        self.outside: list[list[tuple[float, float]]] = []
        #: the last two blocks, and what the last timed call of each side gave in them
        self.last: deque[tuple[int, list[Any]]] = deque(maxlen=2)

    def run(self, blocks: int, deadline: float = float("inf")) -> bool:
        """Time more blocks; False where the deadline (of time.monotonic) came first, and the blocks so far are kept."""
        with _undisturbed():
            for _ in range(blocks):
                if time.monotonic() > deadline and self.taken:
                    return False
                self._block(len(self.taken))
        return True

    def _block(self, number: int) -> None:
        order = list(range(len(self.sides)))
        calls: list[Run] = [_nothing] * len(order)
        # Memory that is freed is handed out again: who comes first changes, so that the sides change places in it.
        for side in order if number % 2 == 0 else order[::-1]:
            calls[side] = self.sides[side].prepare(number)
        for call in calls:
            call()
        if not self.times:
            self._measure(calls)
        self.outside.append([self.clock.elsewhere(call, self.times) for call in calls])
        block, given = np.zeros((2, len(order), self.rounds)), [None] * len(order)
        for n in range(self.rounds):
            shift = n // 2 % len(order)
            turn = order[shift:] + order[:shift]
            for side in turn if (n + number) % 2 == 0 else turn[::-1]:
                thread, wall, given[side] = self.clock.take(calls[side], self.times)
                block[:, side, n] = thread / self.times, wall / self.times
        self.taken.append(block)
        self.last.append((number, given))

    def _measure(self, calls: Sequence[Run]) -> None:
        """How many calls of the quickest side make a sample, and how many rounds a block."""
        each = [min(self.clock.take(run, 2)[1] / 2 for _ in range(3)) for run in calls]
        self.times = int(np.clip(np.ceil(SAMPLE / max(min(each), 1e-9)), 1, 1000))
        self.rounds = int(np.clip(BLOCK / (self.times * max(each)), FEWEST, MOST))

    @property
    def judged(self) -> int:
        """The clock that sees the work of every side."""
        threads, waits = np.median(self.outside, axis=0).max(axis=0)
        if waits >= 0.5:
            return WALL
        return PROCESS if threads > 1.1 else THREAD

    @property
    def clock_name(self) -> str:
        """Its name."""
        return "device events" if self.clock.name == "cuda" else CLOCKS[self.judged]

    def seconds(self, side: int) -> Floats:
        """(blocks, rounds) seconds a call of a side."""
        judged = self.judged
        taken: Floats = np.stack([block[1 if judged == WALL else 0, side] for block in self.taken])
        if judged == PROCESS:
            taken = taken * np.median([block[side][0] for block in self.outside])
        return np.asarray(np.maximum(taken, 1e-9))  # a virtual machine's clock may stand still for a sample

    def log_ratios(self, side: int, other: int) -> Floats:
        """(blocks, rounds): log of the time of a side over that of another, taken in the same round."""
        ratios: Floats = np.log(self.seconds(side)) - np.log(self.seconds(other))
        return ratios


def _nothing() -> None:
    return None


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection inside."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()
