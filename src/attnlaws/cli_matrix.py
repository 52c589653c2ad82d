"""The command `attnlaws matrix`.

Exit codes: 0 all laws held on all targets; 1 one is broken, or a target's process died before any law was tried; 3 a target could not be imported or adapted;
124 one didn't end in its time; others as for check.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run.many import Outcome

Say = Callable[[str], None]


def matrix_parser(parser: argparse.ArgumentParser, seconds: Callable[[str], float]) -> None:
    """The options of the command."""
    parser.epilog = (__doc__ or "").partition("\n\n")[2]
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help="targets as for check, each in a process of its own"
    )
    parser.add_argument(
        "--list",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="more targets: a text with one a line, or a TOML file with [tool.attnlaws.targets], such as pyproject.toml",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(".attnlaws/matrix"),
        metavar="FOLDER|FILE.html",
        help="where the page is written, as HTML and as Markdown, with a result a target beside it (default %(default)s)",
    )
    parser.add_argument("--jobs", type=_positive, default=2, metavar="N", help="processes at a time (default 2)")
    parser.add_argument(
        "--resume", action="store_true", help="targets that are done, and have not changed, stay as they are"
    )
    parser.add_argument("--profile", default="quick", choices=("smoke", "quick", "full"))
    parser.add_argument(
        "--budget-each", type=seconds, default=120.0, metavar="120s", help="a limit for each target (default 120 s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="another seed tries other problems (default 0)")
    parser.add_argument("--shard", type=shard, metavar="I/N", help="the targets of machine I of N; they share --out")


def shard(text: str) -> tuple[int, int]:
    """ "2/4" as numbers."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard; write 1/4 to 4/4")
    return int(found[1]), int(found[2])


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes; write 1 or more")
    return int(text)


def run(options: argparse.Namespace, say: Say, clear: Callable[[], None]) -> int:
    """Run the command; the exit code."""
    if hasattr(signal, "SIGTERM"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes of the targets are ended
    from .report.blocks_html import as_html
    from .report.many import line, page, summary
    from .run.many import Effort, asked_for, run_many, shard_of
    from .targets.address import BadConfiguration

    targets = asked_for(options.targets, options.list)
    if not targets:
        raise BadConfiguration("matrix needs targets, or a --list of them")
    mine = shard_of(targets, *options.shard) if options.shard else targets
    html, results = places(options.out)
    effort = Effort(options.profile, options.seed, options.budget_each)
    started = time.monotonic()
    found: dict[str, Outcome] = {}
    say(f"{len(mine)} targets, {options.jobs} at a time")
    for outcome in run_many(mine, results, effort, jobs=options.jobs, resume=options.resume):
        found[outcome.name] = outcome
        clear()
        print(line(outcome), flush=True)
        say(f"{time.monotonic() - started:5.0f} s  {len(found)} of {len(mine)} targets")
    clear()
    ordered = [found[asked.name] for asked in mine]
    html.parent.mkdir(parents=True, exist_ok=True)
    made = page(ordered, effort)
    html.write_text(as_html(made), encoding="utf-8")
    html.with_suffix(".md").write_text(made.as_markdown(), encoding="utf-8")
    print(f"\n{summary(ordered, time.monotonic() - started)}\n{html}, and {html.with_suffix('.md').name} beside it")
    return code(ordered)


def places(out: Path) -> tuple[Path, Path]:
    """The page, and the folder of the results."""
    if out.suffix == ".html":
        return out, out.with_suffix(".results")
    return out / "matrix.html", out / "results"


def code(outcomes: Sequence[Outcome]) -> int:
    """The worst of all, in the order of check."""
    from .run.many import DIED

    codes = [1 if outcome.ended == DIED else outcome.code for outcome in outcomes]
    return next((code for code in (1, 5, 3, 2, 124, 4) if code in codes), 0)
