"""The command line.

Exit codes: 0 all laws held; 1 a law was broken; 2 wrong usage or configuration; 3 the target could not be imported or
adapted; 4 nothing was really compared; 5 a fault of attnlaws itself; 124 the time budget ended first.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from . import __version__
from .cli_bench import bench_parser
from .cli_bench import run as run_bench
from .cli_check import check as run_check
from .cli_check import run_options
from .cli_common import BROKEN, FAULT, NOTHING, OK, USAGE, Progress, Usage, amount, count, seconds, told
from .cli_faults import faults as run_faults
from .cli_judge import judge_parser
from .cli_judge import run as run_judge
from .cli_matrix import matrix_parser
from .cli_matrix import run as run_matrix
from .cli_replay import replay_parser
from .cli_replay import run as run_replay
from .cli_reports import print_schema, report_options
from .cli_soak import run as run_soak
from .cli_soak import soak_parser


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
    return told(partial(options.run, options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attnlaws",
        description=__doc__.splitlines()[0] if __doc__ else None,
        epilog=(__doc__ or "").partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.description = "Which laws of attention does your code break?"
    parser.add_argument("--version", action="version", version=f"attnlaws {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    check = commands.add_parser("check", help="try the laws on a target")
    check.add_argument(
        "targets",
        nargs="+",
        metavar="TARGET",
        help="pkg.mod:attr, file.py:attr, a preset, or a name from pyproject.toml",
    )
    run_options(check)
    report_options(check)
    check.set_defaults(run=run_check)
    _diff_parser(commands.add_parser("diff", help="where two targets differ, and what explains it"))
    bench = commands.add_parser("bench", help="how long a target takes, beside another or a stored run")
    bench_parser(bench, seconds)
    bench.set_defaults(run=_bench)
    judge = commands.add_parser("judge", help="a verdict on code that nobody trusts, run in another process")
    judge_parser(judge, seconds, amount)
    judge.set_defaults(run=_judge)
    matrix = commands.add_parser("matrix", help="many targets, each in a process of its own, on one page")
    matrix_parser(matrix, seconds)
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
    replay_parser(replay)
    replay.set_defaults(run=run_replay)
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
    faults.set_defaults(run=run_faults)
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
    parser.add_argument("--problems", type=count, default=150, metavar="N", help="about so many (default 150)")
    parser.add_argument("--seed", type=int, default=0, help="another seed tries other problems (default 0)")
    parser.add_argument("--budget", type=seconds, default=120.0, metavar="60s", help="a limit in seconds (default 120)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--dtype", action="append", metavar="DTYPE", help="only this dtype; may be given again, or with commas"
    )
    parser.set_defaults(run=_diff)


def _vectors_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", nargs="?", metavar="TARGET", help="for what this target takes, by its conventions")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write into")
    parser.add_argument("--cases", type=count, default=200, metavar="N", help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other cases (default 0)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--dtype", action="append", metavar="DTYPE", help="only this dtype; may be given again, or with commas"
    )
    parser.set_defaults(run=_vectors)


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
            raise Usage(str(error)) from error
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
        raise Usage(str(error)) from error
    except ValueError as error:
        if type(error) is ValueError:
            raise Usage(str(error)) from error
        raise
    print(f"{count} cases in {options.out}; README.md there says how to use them")
    return OK


def _probe(options: argparse.Namespace) -> int:
    from . import api

    print(api.card(api.target_of(options.target, device=options.device)), end="")
    return OK


def _laws(options: argparse.Namespace) -> int:
    from .run.selection import select

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
        raise Usage(str(error)) from error
    if len(results) == 1:
        print(detail(results[0]))
    print(summary(results))
    return OK if all(result.measured.shows for result in results) else FAULT


def _pictures(options: argparse.Namespace) -> int:
    """1 where the target raises, 2 without matplotlib, 4 where the target can't be measured."""
    from . import api
    from .report.pictures import NoMatplotlib, draw
    from .run.measure import CannotMeasure
    from .run.trying import one_thread
    from .targets.call import TargetRaised, WrongResult

    target = api.function_of(options.target, device=options.device)
    try:
        with one_thread(target):
            for path in draw(target, options.out, png=options.png, seed=options.seed):
                print(path, flush=True)
    except NoMatplotlib as error:
        raise Usage(str(error)) from error
    except OSError as error:
        raise Usage(f"can't write to {options.out}: {error.strerror or error}") from error
    except CannotMeasure as error:
        print(f"attnlaws: {error}", file=sys.stderr)
        return NOTHING
    except (TargetRaised, WrongResult) as error:
        print(f"attnlaws: {target.name} on random queries and keys: {error}", file=sys.stderr)
        return BROKEN
    return OK


if __name__ == "__main__":
    raise SystemExit(main())
