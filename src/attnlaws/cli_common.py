"""What the commands share: exit codes, errors that are told in a line, progress, and units."""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from .cli_reports import BadReport

if TYPE_CHECKING:
    from .targets.processes import Limits

OK, BROKEN, USAGE, NO_TARGET, NOTHING, FAULT, TIMEOUT = 0, 1, 2, 3, 4, 5, 124
INTERRUPTED = 130


class Usage(Exception):
    """Wrong usage that argparse can't see."""


def told(job: Callable[[], int], heard: Callable[[str, int], None] = lambda words, code: None) -> int:
    """Every known error is one sentence and its exit code, `heard` too; an unknown one is a fault of ours, shown whole."""
    from .bench.cases import UnknownCase
    from .bench.history import BadBaseline
    from .problems.problem import CorruptCase
    from .run.found import NoDatabase
    from .run.selection import UnknownLaw
    from .targets.address import BadConfiguration, NoSuchTarget
    from .targets.conventions import UnknownChoice
    from .targets.device import NoDevice
    from .targets.signature import CannotAdapt

    try:
        return int(job())
    except (NoSuchTarget, CannotAdapt) as error:
        print(f"attnlaws: {error}", file=sys.stderr)
        heard(str(error), NO_TARGET)
        return NO_TARGET
    except (
        BadConfiguration, UnknownLaw, UnknownChoice, UnknownCase, BadBaseline, BadReport, CorruptCase, NoDatabase, NoDevice, Usage
    ) as error:  # fmt: skip
        print(f"attnlaws: {error}", file=sys.stderr)
        heard(str(error), USAGE)
        return USAGE
    except KeyboardInterrupt:
        print("attnlaws: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return OK
    except Exception as error:
        traceback.print_exc()
        heard(f"{type(error).__name__}: {error}", FAULT)
        print(
            "attnlaws: this is a fault of attnlaws, not of your target; please report the lines above", file=sys.stderr
        )
        return FAULT


class Progress:
    """One line on a terminal, a line now and then elsewhere: from the first second on."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self.started = self.last = time.monotonic()

    def say(self, text: str) -> None:
        """Show a line of progress."""
        if self.live:
            sys.stderr.write(f"\r\x1b[K{text[:110]}")
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def law(self, name: str, number: int, total: int, judged: int) -> None:
        """Called for every problem of a law."""
        self.now_and_then(f"law {number + 1} of {total}: {name}, {judged} problems")

    def now_and_then(self, text: str) -> None:
        """Called for every problem; shows at most four lines a second live, one every five seconds otherwise."""
        now = time.monotonic()
        if now - self.last >= (0.25 if self.live else 5.0):
            self.last = now
            self.say(f"{now - self.started:5.1f} s  {text}")

    def clear(self) -> None:
        """Remove the live line."""
        if self.live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of problems; write 1 or more")
    return int(text)


def amount(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(K|M|G|T)?(?:i?B)?", text.strip())
    if not found or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory; write 8GiB or 500MiB")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " "))


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text.strip())
    if not found or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 60, 60s, 5m or 1h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, None: 1}[found[2]]


def isolation_options(parser: argparse.ArgumentParser) -> None:
    """What the process of a target may take, and whether it gets one of its own."""
    parser.add_argument(
        "--patience", type=seconds, default=60.0, metavar="60s", help="a call without an answer hangs (default 60 s)"
    )
    parser.add_argument(
        "--memory",
        type=amount,
        metavar="8GiB",
        help="a limit for the target's process (default 80 %% of the machine's)",
    )
    parser.add_argument(
        "--in-process", action="store_true", help="in this process, for a debugger: what ends it ends the report too"
    )


def limits_of(options: argparse.Namespace) -> Limits:
    """What the process of a target may take, by these options."""
    from .targets.processes import Limits, default_memory

    return Limits(options.patience, default_memory() if options.memory is None else options.memory)
