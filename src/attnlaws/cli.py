"""The command line.

Exit codes: 0 all laws held; 1 a law was broken; 2 wrong usage or configuration; 3 the target could not be imported or
adapted; 4 nothing was really compared; 5 a fault of attnlaws itself; 124 the time budget ended first.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .cli_bench import bench_parser
from .cli_bench import run as run_bench
from .cli_judge import judge_parser
from .cli_judge import run as run_judge
from .cli_matrix import matrix_parser, shard
from .cli_matrix import run as run_matrix
from .cli_reports import BadReport, Reports, print_schema, report_options
from .cli_soak import database_options, found_in, soak_parser
from .cli_soak import run as run_soak

if TYPE_CHECKING:
    from .run.watch import Watch

R = TypeVar("R")

OK, BROKEN, USAGE, NO_TARGET, NOTHING, FAULT, TIMEOUT = 0, 1, 2, 3, 4, 5, 124
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    parser = _parser()
    try:
        options = parser.parse_args(arguments)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    if options.command is None:
        parser.print_help()
        return USAGE
    # Hypothesis keeps caches in the current folder; a command that checks code leaves nothing there but .attnlaws/.
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir()) / "attnlaws-hypothesis"))
    warnings.simplefilter("ignore")  # a target's warnings are not the report's
    return _told(partial(options.run, options))


def _told(job: Callable[[], int], heard: Callable[[str, int], None] = lambda words, code: None) -> int:
    """Every known error is one sentence and its exit code, `heard` too; an unknown one is a fault of ours, shown whole."""
    from .bench.cases import UnknownCase
    from .bench.history import BadBaseline
    from .problems.problem import CorruptCase
    from .run.check import UnknownLaw
    from .run.found import NoDatabase
    from .targets.address import BadConfiguration, NoSuchTarget
    from .targets.conventions import UnknownChoice
    from .targets.signature import CannotAdapt

    try:
        return int(job())
    except (NoSuchTarget, CannotAdapt) as error:
        print(f"attnlaws: {error}", file=sys.stderr)
        heard(str(error), NO_TARGET)
        return NO_TARGET
    except (
        BadConfiguration, UnknownLaw, UnknownChoice, UnknownCase, BadBaseline, BadReport, CorruptCase, NoDatabase, _Usage
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


class _Usage(Exception):
    """Wrong usage that argparse can't see."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attnlaws",
        description=__doc__.splitlines()[0] if __doc__ else None,
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.description = "Which laws of attention does your code break?"
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    check = commands.add_parser("check", help="try the laws on a target")
    check.add_argument(
        "targets",
        nargs="+",
        metavar="TARGET",
        help="pkg.mod:attr, file.py:attr, a preset, or a name from pyproject.toml",
    )
    _run_options(check)
    report_options(check)
    check.set_defaults(run=_check)
    _diff_parser(commands.add_parser("diff", help="where two targets differ, and what explains it"))
    bench = commands.add_parser("bench", help="how long a target takes, beside another or a stored run")
    bench_parser(bench, _seconds)
    bench.set_defaults(run=_bench)
    judge = commands.add_parser("judge", help="a verdict on code that nobody trusts, run in another process")
    judge_parser(judge, _seconds, _bytes)
    judge.set_defaults(run=_judge)
    matrix = commands.add_parser("matrix", help="many targets, each in a process of its own, on one page")
    matrix_parser(matrix, _seconds)
    matrix.set_defaults(run=_matrix)
    soak = commands.add_parser("soak", help="fresh seeds for hours; what was found before comes first")
    soak_parser(soak)
    soak.set_defaults(run=_soak)
    probe = commands.add_parser("probe", help="a target's conventions, as a card")
    probe.add_argument("target", metavar="TARGET")
    probe.add_argument("--device", default="cpu")
    probe.set_defaults(run=_probe)
    _lists(commands)
    _vectors_parser(commands.add_parser("vectors", help="test vectors for code in other languages"))
    replay = commands.add_parser("replay", help="a recorded failure, again")
    replay.add_argument("case", metavar="CASE.json")
    replay.add_argument("--target", help="try the case on another target")
    replay.add_argument("--device", default="cpu")
    replay.set_defaults(run=_replay)
    return parser


def _lists(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    laws = commands.add_parser("laws", help="the list of laws, or one law with its formula")
    laws.add_argument("law", nargs="?")
    laws.set_defaults(run=_laws)
    faults = commands.add_parser(
        "faults", help="the named faults of attention and of models: all, one with what catches it, or all tried now"
    )
    faults.add_argument("fault", nargs="*", metavar="NAME")
    faults.add_argument("--run", action="store_true", dest="now", help="try them now: some 20 minutes for all")
    faults.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    faults.add_argument("--save", action="store_true", help="with --run: keep the rows, in a checkout")
    faults.set_defaults(run=_faults)
    claims = commands.add_parser(
        "claims", help="claims about attention in three texts: true, false, and what was measured"
    )
    claims.add_argument("claim", nargs="*", help="a claim such as A8, or a text such as B; all by default")
    claims.set_defaults(run=_claims)
    pictures = commands.add_parser(
        "pictures", help="pictures of the laws of chance, measured on a target and predicted"
    )
    pictures.add_argument("target", nargs="?", default="attnlaws.reference.attention:attention", metavar="TARGET")
    pictures.add_argument(
        "--out", type=Path, default=Path(".attnlaws/pictures"), metavar="DIR", help="(default %(default)s)"
    )
    pictures.add_argument("--png", action="store_true", help="PNG files beside the SVG files")
    pictures.add_argument("--seed", type=int, default=0, help="another seed draws other samples (default 0)")
    pictures.add_argument("--device", default="cpu")
    pictures.set_defaults(run=_pictures)
    schema = commands.add_parser("schema", help="the JSON schema of what check --json writes")
    schema.set_defaults(run=print_schema)


def _diff_parser(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit codes: 0 no difference found; 1 they differ; 4 nothing could be compared; others as for check"
    parser.add_argument("first", metavar="A", help="a target, as for check")
    parser.add_argument("second", metavar="B", help="another target")
    parser.add_argument("--problems", type=_count, default=150, metavar="N", help="about so many (default 150)")
    parser.add_argument("--seed", type=int, default=0, help="another seed tries other problems (default 0)")
    parser.add_argument(
        "--budget", type=_seconds, default=120.0, metavar="60s", help="a limit in seconds (default 120)"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--dtype", action="append", metavar="DTYPE", help="only this dtype; may be given again, or with commas"
    )
    parser.set_defaults(run=_diff)


def _vectors_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", metavar="TARGET", help="for what this target takes, by its conventions")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write into")
    parser.add_argument("--cases", type=_count, default=200, metavar="N", help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other cases (default 0)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--dtype", action="append", metavar="DTYPE", help="only this dtype; may be given again, or with commas"
    )
    parser.set_defaults(run=_vectors)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of problems; write 1 or more")
    return int(text)


def _run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--laws", action="append", metavar="LAW", help="a law or a family; may be given again")
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--profile", default="quick", choices=("quick", "full", "soak", "smoke"))
    effort.add_argument(
        "--quick", action="store_const", const="quick", dest="profile", help="--profile quick, the default"
    )
    effort.add_argument("--full", action="store_const", const="full", dest="profile", help="--profile full")
    parser.add_argument("--budget", type=_seconds, metavar="60s", help="a limit in seconds, or with s, m, h")
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
    _isolation_options(parser)
    parser.add_argument("--no-files", action="store_true", help="write no case files and scripts into .attnlaws/")


def _isolation_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--patience", type=_seconds, default=60.0, metavar="60s", help="a call without an answer hangs (default 60 s)"
    )
    parser.add_argument(
        "--memory",
        type=_bytes,
        metavar="8GiB",
        help="a limit for the target's process (default 80 %% of the machine's)",
    )
    parser.add_argument(
        "--in-process", action="store_true", help="in this process, for a debugger: what ends it ends the report too"
    )


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(K|M|G|T)?(?:i?B)?", text.strip())
    if not found or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory; write 8GiB or 500MiB")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " "))


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text.strip())
    if not found or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 60, 60s, 5m or 1h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, None: 1}[found[2]]


def _check(options: argparse.Namespace) -> int:
    from .run.check import select

    select(options.laws, None)  # an unknown law is told before anything is imported for minutes
    reports = Reports(options)
    codes: list[int] = []
    for name in options.targets:
        codes.append(_told(partial(_isolated, options, name, reports), partial(reports.add_untried, name)))
        if codes[-1] == INTERRUPTED:
            return INTERRUPTED
    worst = next((code for code in (BROKEN, FAULT, NO_TARGET, USAGE, TIMEOUT, NOTHING) if code in codes), OK)
    reports.write(worst)
    return worst


def _isolated(options: argparse.Namespace, name: str, reports: Reports) -> int:
    """One target in a process of its own, where there can be one."""
    from .run.supervise import DiedEarly, can_supervise, supervised
    from .run.watch import Watch
    from .targets.processes import Limits, default_memory

    def job(watch: Watch) -> int:
        check = partial(_check_one, options, name, reports, watch, watch.leave)
        code = _told(check, partial(reports.add_untried, name))
        watch.keep(reports.parcel())
        return code

    if options.in_process or not can_supervise():
        return _check_one(options, name, reports, Watch(), reports.write)
    memory = default_memory() if options.memory is None else options.memory
    try:
        return supervised(job, Limits(options.patience, memory), reports.unpack)
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
            raise _Usage(str(error)) from error
        raise
    return show(report).exit_code


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


def _diff(options: argparse.Namespace) -> int:
    """1 where they differ, 0 where no difference was found, 4 where nothing could be compared."""
    from . import api
    from .run.diff import run_diff

    progress = Progress()
    targets = []
    for name in (options.first, options.second):
        progress.say(f"{name}: importing and probing")
        targets.append(api.target_of(name, device=options.device))
    dtypes = [d for given in options.dtype or [] for d in given.split(",")] or None
    try:
        if all(target.LAWS == "model" for target in targets):
            progress.clear()
            parted = api.diff(*targets, seed=options.seed, dtypes=dtypes)
            print(parted)
            return parted.exit_code
        found = run_diff(
            *map(api.function_of, targets),
            seed=options.seed,
            problems=options.problems,
            dtypes=dtypes,
            budget=options.budget,
            progress=progress.now_and_then,
        )
    except ValueError as error:
        if type(error) is ValueError:
            raise _Usage(str(error)) from error
        raise
    progress.clear()
    print(found)
    return found.exit_code


def _bench(options: argparse.Namespace) -> int:
    progress = Progress()
    return run_bench(options, progress.now_and_then, progress.clear)


def _judge(options: argparse.Namespace) -> int:
    progress = Progress()
    return run_judge(options, progress.law, progress.clear)


def _matrix(options: argparse.Namespace) -> int:
    progress = Progress()
    return run_matrix(options, progress.say if progress.live else lambda _: None, progress.clear)


def _soak(options: argparse.Namespace) -> int:
    progress = Progress()
    progress.say(f"{options.target}: importing and probing")
    return run_soak(options, progress.law, progress.clear)


def _vectors(options: argparse.Namespace) -> int:
    from . import api

    dtypes = [d for given in options.dtype or [] for d in given.split(",")] or None
    try:
        count = api.vectors(
            options.target, options.out, cases=options.cases, seed=options.seed, device=options.device, dtypes=dtypes
        )
    except (FileExistsError, NotADirectoryError) as error:
        raise _Usage(str(error)) from error
    except ValueError as error:
        if type(error) is ValueError:
            raise _Usage(str(error)) from error
        raise
    print(f"{count} cases in {options.out}; README.md there says how to use them")
    return OK


def _probe(options: argparse.Namespace) -> int:
    from . import api

    print(api.card(api.target_of(options.target, device=options.device)), end="")
    return OK


def _laws(options: argparse.Namespace) -> int:
    from .run.check import select

    if options.law is None:
        for law in select(None, None):
            print(f"{law.name:<32} {law.statement}")
        return OK
    from .laws.law import Law
    from .report.kills import about_law
    from .run.matrix import load

    chosen = select([options.law], None)
    matrix = load() if any(isinstance(law, Law) for law in chosen) else None
    for law in chosen:
        about = f"\n{about_law(law, matrix)}\n" if isinstance(law, Law) and matrix is not None else ""
        print(f"{law.name}: {law.statement}\n\n{law.formula}\n{about}")
    return OK


def _faults(options: argparse.Namespace) -> int:
    from .faults.case import Fault
    from .faults.catalogue import FAULTS
    from .faults.models.catalogue import MODEL_FAULTS
    from .faults.models.fault import ModelFault
    from .report.kills import about_fault, about_model_fault
    from .run import matrix, model_matrix

    every: tuple[Fault | ModelFault, ...] = (*FAULTS, *MODEL_FAULTS)
    try:
        chosen = matrix.pick(options.fault, every)
    except matrix.UnknownFault as error:
        raise _Usage(str(error)) from error
    functions = [fault for fault in chosen if not isinstance(fault, ModelFault)]
    models = [fault for fault in chosen if isinstance(fault, ModelFault)]
    if options.now:
        return _run_faults(options, [fault.name for fault in functions], [fault.name for fault in models])
    if options.save:
        raise _Usage("--save keeps what --run finds: attnlaws faults --run --save")
    if not options.fault:
        for fault in chosen:
            kind = "model" if isinstance(fault, ModelFault) else "attention"
            print(f"{fault.name:<38} {kind:<10} {fault.sentence}")
        return OK
    stored = {row.fault: row for row in matrix.load().kills} if functions else {}
    stored_models = {row.fault: row for row in model_matrix.load().kills} if models else {}
    for function in functions:
        print(f"{about_fault(function, stored.get(function.name))}\n")
    for model in models:
        print(f"{about_model_fault(model, stored_models.get(model.name))}\n")
    return OK


def _run_faults(options: argparse.Namespace, functions: list[str], models: list[str]) -> int:
    """Each fault is tried now; 1 where one is not caught or named as another, or where something right is red."""
    from .run import matrix

    if options.jobs < 1:
        raise _Usage("--jobs is 1 or more")
    if options.save and not matrix.CHECKOUT.exists():
        raise _Usage("--save writes into a checkout, and this is an installed package")
    clean = [_run_function_faults(options, functions)] if functions else []
    clean += [_run_model_faults(options, models)] if models else []
    return OK if all(clean) else BROKEN


def _run_function_faults(options: argparse.Namespace, names: list[str]) -> bool:
    """Whether each fault of attention is caught and none is named as another, and no right function is red."""
    from .report import kills
    from .run import matrix

    print(kills.table(matrix.Matrix(())))
    rows = _shown(matrix.run(names, options.jobs), kills.line, f"of {len(names)} faults")
    controls = [] if options.fault else _shown(matrix.run_controls(options.jobs), kills.control_line, "right functions")
    made = matrix.Matrix(tuple(rows), tuple(controls))
    print(f"\n{kills.summary(made)}")
    if options.save:
        matrix.save(matrix.merged(matrix.load(), made) if matrix.STORED.exists() else made)
        print(f"written to {matrix.STORED}; now run python docs/make.py")
    return made.clean


def _run_model_faults(options: argparse.Namespace, names: list[str]) -> bool:
    """Whether each fault of a model breaks the law that is about it, and no right model is red."""
    from .report import kills
    from .run import model_matrix

    print(kills.table_of_models())
    rows = _shown(model_matrix.run(names, options.jobs), kills.model_line, f"of {len(names)} faults of models")
    controls = (
        [] if options.fault else _shown(model_matrix.run_controls(options.jobs), kills.right_model_line, "right models")
    )
    made = model_matrix.ModelMatrix(tuple(rows), tuple(controls))
    print(f"\n{kills.summary_of_models(made)}")
    if options.save:
        model_matrix.save(model_matrix.merged(model_matrix.load(), made) if model_matrix.STORED.exists() else made)
        print(f"written to {model_matrix.STORED}; now run python docs/make.py")
    return made.clean


def _shown(found: Iterable[R], line: Callable[[R], str], of: str) -> list[R]:
    """Rows, each printed as soon as it is there, with a count of them on a terminal."""
    progress, rows = Progress(), list[R]()
    for row in found:
        rows.append(row)
        progress.clear()
        print(line(row), flush=True)
        if progress.live:
            progress.say(f"{time.monotonic() - progress.started:5.1f} s  {len(rows)} {of}")
    progress.clear()
    return rows


def _claims(options: argparse.Namespace) -> int:
    """Each claim is checked now; 5 where a check doesn't show what the ledger says."""
    from .claims.ledger import UnknownClaim, detail, row, run, summary

    results = []
    try:
        for result in run(options.claim):
            results.append(result)
            if not (len(options.claim) == 1 and len(options.claim[0]) > 1):
                print("\n".join(row(result)), flush=True)
    except UnknownClaim as error:
        raise _Usage(str(error)) from error
    if len(results) == 1:
        print(detail(results[0]))
    print(summary(results))
    return OK if all(result.measured.shows for result in results) else FAULT


def _pictures(options: argparse.Namespace) -> int:
    """1 where the target raises, 2 without matplotlib, 4 where the target can't be measured."""
    from . import api
    from .report.pictures import NoMatplotlib, draw
    from .run.check import one_thread
    from .run.measure import CannotMeasure
    from .targets.call import TargetRaised, WrongResult

    target = api.function_of(options.target, device=options.device)
    try:
        with one_thread(target):
            for path in draw(target, options.out, png=options.png, seed=options.seed):
                print(path, flush=True)
    except NoMatplotlib as error:
        raise _Usage(str(error)) from error
    except OSError as error:
        raise _Usage(f"can't write to {options.out}: {error.strerror or error}") from error
    except CannotMeasure as error:
        print(f"attnlaws: {error}", file=sys.stderr)
        return NOTHING
    except (TargetRaised, WrongResult) as error:
        print(f"attnlaws: {target.name} on random queries and keys: {error}", file=sys.stderr)
        return BROKEN
    return OK


def _replay(options: argparse.Namespace) -> int:
    from . import api
    from .laws.load import laws_of
    from .report.case import read_case
    from .run.check import UnknownLaw, replay
    from .run.check_module import ready
    from .targets.part import Part
    from .targets.target import Target

    case = read_case(Path(options.case))
    laws = laws_of()
    if case.law not in laws:
        raise UnknownLaw(f"the case is about the law {case.law!r}, which doesn't exist here")
    name = options.target or case.target
    if not name:
        raise _Usage("the case names no target (it was given as an object); pass --target pkg.mod:attr")
    target = api.target_of(name, device=options.device)
    law = laws[case.law]
    if law.kind != target.LAWS:
        raise _Usage(f"{case.law} is no law for {name}")
    if not isinstance(target, Target | Part):
        target = ready(target)[0]
    failure = replay(law, target, case.problem)
    print(f"{case.law} on {name}\n    {case.problem.describe()}")
    if failure is None:
        print("    held: the failure doesn't show any more" if case.reason else "    held")
        return OK
    print(f"    broken: {failure}")
    return BROKEN


if __name__ == "__main__":
    raise SystemExit(main())
