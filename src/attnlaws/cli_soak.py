"""The command `attnlaws soak`.

Exit codes: 0 no law was broken in the time given; 1 one was; others as for check.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from .cli_common import isolation_options, limits_of, told

if TYPE_CHECKING:
    from .run.found import Found
    from .run.ledger import Report
    from .run.soak import Round

FOLDER = ".attnlaws/found"
#: seconds without a line, where nothing breaks
QUIET = 60.0


def soak_parser(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = (__doc__ or "").partition("\n\n")[2]
    parser.add_argument("target", metavar="TARGET", help="a target, as for check")
    parser.add_argument("--hours", type=_hours, default=1.0, metavar="H", help="how long, such as 8 or 0.5 (default 1)")
    parser.add_argument(
        "--seed-from", type=int, default=0, metavar="N", help="the first seed; give each machine seeds of its own"
    )
    parser.add_argument("--laws", action="append", metavar="LAW", help="a law or a family; may be given again")
    parser.add_argument(
        "--profile",
        default="soak",
        choices=("soak", "full", "quick", "smoke"),
        help="what one seed gets (default soak)",
    )
    database_options(parser, FOLDER)
    parser.add_argument("--device", default="cpu")
    isolation_options(parser)


def database_options(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Where cases are kept."""
    parser.add_argument(
        "--database",
        action="append",
        metavar="FOLDER|redis://HOST",
        help="where broken cases are kept, and tried first the next time, on every machine that gives the same; may be given again"
        + (f" (default {default})" if default else ""),
    )
    parser.add_argument(
        "--read-only", action="append", default=[], metavar="FOLDER|redis://HOST", help="one more, to be read alone"
    )


def found_in(options: argparse.Namespace, default: str | None) -> Found | None:
    """The cases of the databases that are named; None where none is. Raises NoDatabase."""
    from .run.found import Found, database_of

    places = options.database or ([default] if default else [])
    return Found(database_of(places, options.read_only)) if places or options.read_only else None


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of hours; write 8 or 0.5")
    return hours


def run(options: argparse.Namespace, progress: Callable[[str, int, int, int], None], clear: Callable[[], None]) -> int:
    """Run the command; the exit code."""
    from .run.selection import select
    from .run.soak import soak
    from .run.supervise import DiedEarly, can_supervise

    select(options.laws, None)
    found = found_in(options, FOLDER)
    assert found is not None
    target = cache(partial(_target, options, clear))
    one = _one_in_process if options.in_process or not can_supervise() else _one_supervised
    started = said = time.monotonic()
    rounds, problems, faults = 0, 0, 0
    broken: set[str] = set()
    within = ""
    try:
        for made in soak(
            partial(one, options, target, progress),
            found,
            seconds=options.hours * 3600,
            first_seed=options.seed_from,
            profile=options.profile,
            laws=options.laws,
        ):
            clear()
            rounds, problems, faults = rounds + 1, problems + made.problems, faults + made.faults
            broken.update(made.broken)
            within = f", the time ended within seed {made.seed}" if made.cut else ""
            if made.code in (1, 5) or time.monotonic() - said > QUIET:
                print(made.text, flush=True)
                said = time.monotonic()
    except _NoRound as end:
        return 1 if broken else end.code
    except DiedEarly as death:
        print(f"attnlaws: {options.target}: {death}", file=sys.stderr)
        return 1 if broken else death.code
    except KeyboardInterrupt:
        clear()
        print("interrupted")
    spent = (time.monotonic() - started) / 3600
    names = f": {', '.join(sorted(broken))}" if broken else ""
    seeds = f"seeds {options.seed_from} to {options.seed_from + rounds - 1}" if rounds else "no seed"
    print(f"{options.target}: {seeds}{within}, {problems} problems, {spent:.2f} h, {len(broken)} laws broken{names}")
    return 1 if broken else 5 if faults else 0 if problems else 4


class _NoRound(Exception):
    """A process ended without a round, since the target can't be tried; `code` is the exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _target(options: argparse.Namespace, clear: Callable[[], None]) -> Any:
    from . import api

    target = api.target_of(options.target, device=options.device)
    clear()
    return target


def _one_in_process(
    options: argparse.Namespace, target: Callable[[], Any], progress: Any, *, watch: Any = None, **how: Any
) -> Round:
    """One seed."""
    from . import api
    from .report.card import card_of
    from .run.soak import Round

    made = target()
    if how["seed"] == options.seed_from:
        print(card_of(made), flush=True)
    report = api.run(made, progress=progress, watch=watch, **how)
    return Round.of(report, _told(api.save_failures(report)))


def _one_supervised(options: argparse.Namespace, target: Callable[[], Any], progress: Any, **how: Any) -> Round:
    """One seed in a process of its own: what ends that is a verdict, and the next seed has another."""
    from .run.supervise import supervised
    from .run.watch import Watch

    parcels: list[bytes] = []

    def job(watch: Watch) -> int:
        watch.keep(pickle.dumps(_one_in_process(options, target, progress, watch=watch, **how)))
        return 0

    code = supervised(lambda watch: told(partial(job, watch)), limits_of(options), parcels.append)
    if not parcels:
        raise _NoRound(code)
    made: Round = pickle.loads(parcels[-1])
    return made


def _told(report: Report) -> str:
    """One round: a line, and what broke, whole."""
    from .report.terminal import diagnosis, failure_block

    lines = [
        f"seed {report.seed}: {report.problems} problems, {len(report.failures)} laws broken, {report.seconds:.0f} s"
    ]
    lines += [failure_block(verdict, report) for verdict in report.failures if verdict.under is None]
    lines += [diagnosis(report)] if report.failures else []
    lines += [f"fault of attnlaws in {v.law}: {v.reason}" for v in report.verdicts if v.status == "fault"]
    return "\n".join(line for line in lines if line)
