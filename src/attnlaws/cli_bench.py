"""The command `attnlaws bench`.

Exit codes: 0 timed, and within --fail-if; 1 a side is wrong, or --fail-if says so; 4 nothing was timed, or no case could be
compared; others as for check.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .extras import how_to_install

if TYPE_CHECKING:
    from .bench.history import Kept, Machine
    from .bench.run import Bench
    from .report.bench import FailIf
    from .targets.target import Target

Say = Callable[[str], None]
PICTURE = Path(".attnlaws/bench.png")


def bench_parser(parser: argparse.ArgumentParser, seconds: Callable[[str], float]) -> None:
    """The options of the command."""

    def rule(text: str) -> object:
        from .report.bench import fail_if

        try:
            return fail_if(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    parser.epilog = (__doc__ or "").partition("\n\n")[2]
    parser.add_argument("target", nargs="?", metavar="TARGET", help="a function of query, key and value, as for check")
    parser.add_argument(
        "--against",
        metavar="OTHER",
        help="another target, a stored run (.json), or the folder of stored runs: all since the last change",
    )
    parser.add_argument("--save", action="store_true", help="keep the run in .benchmarks/, as pytest-benchmark does")
    parser.add_argument(
        "--fail-if", type=rule, metavar='"median>10%"', help="exit with 1 where a case is slower by more"
    )
    parser.add_argument(
        "--cases", action="append", metavar="CASE", help="names or sizes, with commas; --list shows them"
    )
    parser.add_argument("--list", action="store_true", help="show the cases")
    parser.add_argument(
        "--threshold", action="append", type=_threshold, metavar="[CASE=]5%", help="a difference that is no matter"
    )
    parser.add_argument("--budget", type=seconds, metavar="100s", help="a limit for the timing (default 100 s)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="the picture (default .attnlaws/bench.png)")
    parser.add_argument("--device", default="cpu")


def _threshold(text: str) -> tuple[str, float]:
    found = re.fullmatch(r"(?:(.+)=)?(\d+(?:\.\d+)?)%", text)
    if not found or not float(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no threshold; write 5% or prefill=8%")
    return found[1] or "", float(found[2]) / 100


def run(options: argparse.Namespace, say: Say, clear: Callable[[], None]) -> int:
    """Run the command; the exit code."""
    from . import api
    from .bench.cases import CASES, UnknownCase, select
    from .bench.history import FOLDER, BadBaseline, past, save, this_machine
    from .bench.run import BUDGET, run_bench
    from .report.bench import kept, render

    if options.list:
        print("\n".join(f"{case.name:<12} {case.sizes}" for case in CASES))
        return 0
    if options.target is None:
        raise BadBaseline("bench needs a target, or --list")
    cases = select(options.cases)
    thresholds = dict(options.threshold or ())
    for name in thresholds:
        if name not in ("", *(case.name for case in cases)):
            raise UnknownCase(f"--threshold names {name!r}, which is no case of this run")
    if options.fail_if and not options.against:
        raise BadBaseline("--fail-if compares: it needs --against")
    say(f"{options.target}: importing and probing")
    target = api.function_of(options.target, device=options.device)
    against: Target | list[Kept] | None = _file(options.against, target.name, this_machine(options.device))
    if against is None and options.against:
        say(f"{options.against}: importing and probing")
        against = api.function_of(options.against, device=options.device)
    found = run_bench(
        target,
        against,
        cases=cases,
        thresholds=thresholds,
        budget=options.budget or BUDGET,
        calibrated=options.save,
        progress=say,
    )
    history = past(target.name, found.machine)
    clear()
    print(render(found, history))
    if options.save and found.timed:
        print(f"kept in {save(kept(found), found.machine, target.name, Path(FOLDER))}")
    _draw(found, options.plot, history)
    return _code(found, options.fail_if)


def _file(against: str | None, target: str, machine: Machine) -> list[Kept] | None:
    """The stored run that is meant; None where it is a target, or nothing. Raises BadBaseline."""
    from .bench.history import BadBaseline, baseline, past, since_change

    path = Path(against or "")
    if against and path.is_dir():
        runs = [kept for items in past(target, machine, path).values() for kept in since_change(items)]
        if not runs:
            raise BadBaseline(f"{against} holds no run of {target} on this machine; keep one with --save")
        return runs
    return baseline(path, target) if against and path.suffix == ".json" else None


def _draw(found: Bench, path: Path | None, history: Mapping[str, Sequence[Kept]]) -> None:
    """The picture; without matplotlib a line that says so."""
    from .report.bench_picture import draw

    if not found.timed:
        return
    try:
        draw(found, path or PICTURE, history)
    except ImportError:
        print(f"no picture: it needs matplotlib; {how_to_install('pictures')}")
    else:
        print(f"the picture is {path or PICTURE}")


def _code(found: Bench, rule: FailIf | None) -> int:
    """The exit code, with a line for each case that fails the rule."""
    from .bench.run import NOT_COMPARABLE

    failing = rule.failing(found) if rule is not None else ()
    for row in failing:
        assert row.comparison is not None
        print(f"fails: {row.case.name} is slower by {row.comparison.ratio - 1:.1%}")
    if found.wrong or failing:
        return 1
    compared = [row for row in found.timed if row.comparison is not None and row.verdict != NOT_COMPARABLE]
    return 4 if not found.timed or (found.against and not compared) else 0
