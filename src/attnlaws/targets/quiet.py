"""Around code of a target: what it prints is put aside, what it raises is told, and whoever watches knows that it runs."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from .call import TargetRaised


class OutOfTime(BaseException):
    """The budget ended: an alarm, perhaps in the midst of a target's code. Like KeyboardInterrupt no Exception: a target
    that catches those must not swallow it.
    """


@dataclass(frozen=True)
class Supervision:
    """What a supervised process does around a call: count it, and send what it prints to `sink`."""

    begins: Callable[[], Any]
    ends: Callable[[], Any]
    sink: TextIO


_by: list[Supervision] = []


def supervised_by(supervision: Supervision | None) -> None:
    """From now on calls are told to this one, or to nobody. The standard streams are the process', so this is too."""
    _by[:] = [] if supervision is None else [supervision]


@contextlib.contextmanager
def target_code() -> Iterator[None]:
    """Raises TargetRaised with whatever is raised inside.

    Two things pass: the alarm at the end of the budget, and Ctrl-C. A supervised process gets no Ctrl-C: a KeyboardInterrupt
    is the target's own there.
    """
    by = _by[0] if _by else None
    try:
        if by is None:
            with contextlib.redirect_stdout(io.StringIO()):
                yield
            return
        by.begins()
        try:
            with contextlib.redirect_stdout(by.sink), contextlib.redirect_stderr(by.sink):
                yield
        finally:
            by.ends()
    except (OutOfTime, TargetRaised):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and by is None:
            raise
        raise TargetRaised(error) from error
