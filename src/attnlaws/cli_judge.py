"""The command `attnlaws judge`: a verdict on code that nobody trusts."""

from __future__ import annotations

import argparse
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path


def judge_parser(
    parser: argparse.ArgumentParser, seconds: Callable[[str], float], amount: Callable[[str], int]
) -> None:
    """The options of the command."""
    parser.epilog = (
        "exit codes: 0 correct; 1 wrong, crashes, hangs or suspect; 3, 4, 5, 124 could not judge, as for check"
    )
    parser.add_argument("target", metavar="FILE[:NAME]", help="a Python file, and the function in it")
    parser.add_argument(
        "--budget", type=seconds, default=120.0, metavar="120s", help="a limit in seconds (default 120)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdict there; - for standard output")
    parser.add_argument("--laws", action="append", metavar="LAW", help="a law or a family; may be given again")
    parser.add_argument("--profile", default="quick", choices=("quick", "full", "smoke"))
    parser.add_argument("--seed", type=int, help="of the inputs; by default one that nobody can know beforehand")
    parser.add_argument("--patience", type=seconds, default=60.0, metavar="60s", help="a call without an answer hangs")
    parser.add_argument("--memory", type=amount, metavar="8GiB", help="a limit (default 80 %% of the machine's)")
    parser.add_argument("--forbid", action="append", default=[], metavar="PKG.FUNCTION", help="that may not be called")
    parser.add_argument("--device", default="cpu")


def run(options: argparse.Namespace, progress: Callable[[str, int, int, int], None], clear: Callable[[], None]) -> int:
    """Run the command; the exit code."""
    from .run.judge import Rules, judge
    from .targets.processes import Limits, adopt_orphans, default_memory, descendants, end_descendants

    place, colon, name = options.target.rpartition(":")
    file, name = (place, name) if colon and place.endswith(".py") else (options.target, "")
    memory = default_memory() if options.memory is None else options.memory
    rules = Rules(
        options.budget,
        options.profile,
        secrets.randbelow(1 << 30) if options.seed is None else options.seed,
        Limits(options.patience, memory),
        options.device,
        tuple(options.laws) if options.laws else None,
        tuple(options.forbid),
    )
    if options.json is not None and str(options.json) != "-":
        options.json.unlink(missing_ok=True)  # a verdict of an earlier run must not be taken for this one's
    adopt_orphans()
    others = descendants(os.getpid())
    found = judge(file, name, rules, progress=progress)
    end_descendants(os.getpid(), others)  # nothing of what was judged may outlive the verdict, and write another one
    clear()
    text = json.dumps(found.to_json(), indent=2)
    if options.json is not None and str(options.json) != "-":
        options.json.write_text(text + "\n", encoding="utf-8")
    print(text if str(options.json) == "-" else found)
    return found.code
