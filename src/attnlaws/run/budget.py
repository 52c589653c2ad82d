"""The time budget, kept even where the target hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from ..targets.quiet import OutOfTime

#: seconds between the interruption that Python code feels and the end of a process that doesn't react
GRACE = 10.0


@contextlib.contextmanager
def deadline_alarm(seconds: float, give_up: Callable[[], None] | None) -> Iterator[None]:
    """Raise OutOfTime in the main thread when the budget ends; end the process with 124 where that has no effect.

    A target that hangs in Python is interrupted by a signal. One that hangs in C code can't be: `give_up` is then
    called from a thread, to report what was found, before the process exits; without it the process is let be.
    """
    in_main = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if not in_main:
        yield
        return

    def ring(_signum: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    def end() -> None:
        assert give_up is not None
        give_up()
        sys.stdout.flush()
        os._exit(124)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds + 0.5)
    watchdog = threading.Timer(seconds + GRACE, end)
    watchdog.daemon = True
    if give_up is not None:
        watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
