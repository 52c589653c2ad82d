"""Processes with code in them that may do anything: how they end, what they hold, and limits."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Limits:
    """Seconds that one call of the target may take, and bytes that its process may hold (0: no limit)."""

    patience: float = 60.0
    memory: int = 0


def default_memory() -> int:
    """Four fifths of what this machine has, or of what this process may use where that is less; 0 where it isn't known."""
    known = []
    with contextlib.suppress(ValueError, OSError, AttributeError):
        known.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(ValueError, OSError):
        known.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(known, default=0) * 4 // 5


def end_with_the_parent() -> None:
    """No core files; on Linux killed where the parent is killed, and first where memory runs out."""
    import ctypes
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def adopt_orphans() -> None:
    """From now on processes whose parent ended become children of this one, where the system can do that (Linux)."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1)


def end_descendants(process: int, but: Set[int] = frozenset()) -> None:
    """Kill all that a process started, and what those started, but for some; without /proc nothing happens."""
    for _ in range(100):  # what is forked meanwhile is met in the next round
        living = descendants(process) - but
        if not living:
            return
        for number in living:
            with contextlib.suppress(OSError):
                os.kill(number, signal.SIGKILL)


def descendants(process: int) -> set[int]:
    """The numbers of processes below this one that still run."""
    parents, found = dict[int, int](), set[int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            parents[int(path.parent.name)] = int(parent)
            found |= {int(path.parent.name)} if state != "Z" else set()
    below, added = {process}, {process}
    while added:
        added = {child for child, parent in parents.items() if parent in below} - below
        below |= added
    return (found & below) - {process}


def ending(status: int) -> tuple[str, str]:
    """A wait status as a kind and in words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            return f"signal {number}", f"was killed by signal {number} ({signal.Signals(number).name})"
        return f"signal {number}", f"was killed by signal {number}"
    code = os.waitstatus_to_exitcode(status)
    return f"exit {code}", f"ended with os._exit({code})"


def resident(process: int) -> int:
    """Bytes of memory that a process holds; 0 where the system doesn't tell."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def too_much_memory(process: int, limits: Limits) -> tuple[str, str] | None:
    """The death by memory, as a kind and in words, where a process holds more than it may."""
    if not limits.memory or resident(process) <= limits.memory:
        return None
    return "memory", f"held more than {limits.memory / (1 << 30):.3g} GiB of memory"
