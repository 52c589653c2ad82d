"""The command `attnlaws check`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from .cli_common import (
    BROKEN,
    FAULT,
    INTERRUPTED,
    NO_TARGET,
    NOTHING,
    OK,
    TIMEOUT,
    USAGE,
    Progress,
    Usage,
    isolation_options,
    limits_of,
    seconds,
    told,
)  # fmt: skip
from .cli_matrix import shard
from .cli_reports import Reports
from .cli_soak import database_options, found_in

if TYPE_CHECKING:
    from .run.watch import Watch


def run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--laws", action="append", metavar="LAW", help="a law or a family; may be given again")
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--profile", default="quick", choices=("quick", "full", "soak", "smoke"))
    effort.add_argument(
        "--quick", action="store_const", const="quick", dest="profile", help="--profile quick, the default"
    )
    effort.add_argument("--full", action="store_const", const="full", dest="profile", help="--profile full")
    parser.add_argument("--budget", type=seconds, metavar="60s", help="a limit in seconds, or with s, m, h")
    parser.add_argument(
        "--as", dest="part", metavar="PART", help="a part of a model: sampler, rotation, layer-norm, causal-loss, ..."
    )
    parser.add_argument("--seed", type=int, default=0, help="another seed tries other problems (default 0)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--dtype", action="append", metavar="DTYPE", help="only this dtype; may be given again, or with commas"
    )
    parser.add_argument("--shard", type=shard, metavar="I/N", help="the laws of machine I of N, as many for each")
    database_options(parser, None)
    parser.add_argument("--verbose", "-v", action="store_true", help="also a line for each law that is not applicable")
    isolation_options(parser)
    parser.add_argument("--no-files", action="store_true", help="write no case files and scripts into .attnlaws/")


def check(options: argparse.Namespace) -> int:
    from .run.selection import select

    select(options.laws, None)  # an unknown law is told before anything is imported for minutes
    reports = Reports(options)
    codes: list[int] = []
    for name in options.targets:
        codes.append(told(partial(_isolated, options, name, reports), partial(reports.add_untried, name)))
        if codes[-1] == INTERRUPTED:
            return INTERRUPTED
    worst = next((code for code in (BROKEN, FAULT, NO_TARGET, USAGE, TIMEOUT, NOTHING) if code in codes), OK)
    reports.write(worst)
    return worst


def _isolated(options: argparse.Namespace, name: str, reports: Reports) -> int:
    """One target in a process of its own, where there can be one."""
    from .run.supervise import DiedEarly, can_supervise, supervised
    from .run.watch import Watch

    def job(watch: Watch) -> int:
        check = partial(_check_one, options, name, reports, watch, watch.leave)
        code = told(check, partial(reports.add_untried, name))
        watch.keep(reports.parcel())
        return code

    if options.in_process or not can_supervise():
        return _check_one(options, name, reports, Watch(), reports.write)
    try:
        return supervised(job, limits_of(options), reports.unpack)
    except DiedEarly as death:
        print(f"attnlaws: {name}: {death}", file=sys.stderr)
        reports.add_untried(name, str(death), death.code)
        return death.code


def _check_one(
    options: argparse.Namespace, name: str, reports: Reports, watch: Watch, leave: Callable[[int], None]
) -> int:
    """`leave` is called with the exit code where the run is about to be ended from outside."""
    from . import api
    from .report.terminal import render
    from .run.ledger import Report
    from .run.shards import part_of

    progress = Progress()
    progress.say(f"{name}: importing and probing")
    target = api.target_of(f"{name} as {options.part}" if options.part else name, device=options.device)
    dtypes = [d for given in options.dtype or [] for d in given.split(",")] or None

    def show(found: Report) -> Report:
        progress.clear()
        report = reports.expected(found)
        saved = report if options.no_files else api.save_failures(report)
        if not reports.silent:
            print(render(saved, colour=sys.stdout.isatty(), verbose=options.verbose))
        reports.add(saved)
        return report

    def ended_first(found: Report) -> None:
        show(replace(found, out_of_time=True))
        watch.keep(reports.parcel())
        leave(TIMEOUT)

    try:
        report = api.run(
            target,
            laws=options.laws,
            profile=options.profile,
            budget=options.budget,
            seed=options.seed,
            dtypes=dtypes,
            progress=progress.law,
            partial=ended_first,
            watch=watch,
            pick=None if options.shard is None else lambda laws, made: part_of(laws, made, *options.shard),
            found=found_in(options, None),
        )
    except ValueError as error:
        if type(error) is ValueError:
            raise Usage(str(error)) from error
        raise
    return show(report).exit_code
