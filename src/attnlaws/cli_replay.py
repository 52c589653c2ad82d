"""The command `attnlaws replay`: a recorded failure, again."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .cli_common import BROKEN, OK, Usage, isolation_options, limits_of, told

if TYPE_CHECKING:
    from .report.case import Case
    from .run.watch import Watch


def replay_parser(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.epilog = "exit codes: 0 the law holds now; 1 it is broken, or the target crashes; others as for check"
    parser.add_argument("case", metavar="CASE.json")
    parser.add_argument("--target", help="try the case on another target")
    parser.add_argument("--device", default="cpu")
    isolation_options(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command; the exit code. The target is called in a process of its own, where there can be one."""
    from .laws.load import laws_of
    from .report.case import read_case
    from .run.selection import UnknownLaw
    from .run.supervise import DiedEarly, can_supervise, supervised_once
    from .run.watch import Death, Watch

    case = read_case(Path(options.case))
    if case.law not in laws_of():
        raise UnknownLaw(f"the case is about the law {case.law!r}, which doesn't exist here")
    name = options.target or case.target
    if not name:
        raise Usage("the case names no target (it was given as an object); pass --target pkg.mod:attr")
    job = partial(_replayed, case, name, options.device)
    if options.in_process or not can_supervise():
        return job(Watch())
    try:
        ended = supervised_once(lambda watch: told(partial(job, watch)), limits_of(options))
    except DiedEarly as death:
        print(f"attnlaws: {name}: {death}", file=sys.stderr)
        return death.code
    if isinstance(ended, Death):
        print(f"    crashed: {ended.line}")
        return BROKEN
    return ended


def _replayed(case: Case, name: str, device: str, watch: Watch) -> int:
    """The case on the target of this name; what came of it is printed."""
    from . import api
    from .laws.load import laws_of
    from .laws.trial import Crashed
    from .run.check import replay
    from .run.check_module import ready
    from .targets.part import Part
    from .targets.target import Target

    target = api.target_of(name, device=device)
    law = laws_of()[case.law]
    if law.kind != target.LAWS:
        raise Usage(f"{case.law} is no law for {name}")
    if not isinstance(target, Target | Part):
        target = ready(target)[0]
    print(f"{case.law} on {name}\n    {case.problem.describe()}", flush=True)
    watch.law(case.law)
    failure = replay(law, target, case.problem)
    if failure is None:
        print("    held: the failure doesn't show any more" if case.reason else "    held")
        return OK
    print(f"    {'crashed' if isinstance(failure, Crashed) else 'broken'}: {failure}")
    return BROKEN
