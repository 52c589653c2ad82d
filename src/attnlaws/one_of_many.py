"""One target tried in a process of its own, for `attnlaws matrix`: `python -m attnlaws.one_of_many REQUEST`.

The request is JSON. What was found is written to its `out` as the JSON of a run; the law that is being tried stands in its
`stage`, so that it is known where a process ended that says nothing more.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run.watch import Watch

TIMEOUT = 124


def main(request: str) -> int:
    """Try the target of a request; the exit code is that of check. A target that ends its process is tried on in another."""
    from .run.supervise import DiedEarly, can_supervise, supervised
    from .run.watch import Watch
    from .targets.processes import Limits, default_memory, end_with_the_parent

    asked: dict[str, Any] = json.loads(request)
    end_with_the_parent()
    Path(asked["stage"]).write_text("importing and probing", encoding="utf-8")
    if not can_supervise():
        return _try(asked, Watch())
    try:
        return supervised(lambda watch: _try(asked, watch), Limits(memory=default_memory()))
    except DiedEarly as death:
        print(death, file=sys.stderr)
        return death.code


def _try(asked: dict[str, Any], watch: Watch) -> int:
    from . import api
    from .report.document import document, without_run
    from .run.ledger import Report
    from .targets.address import BadConfiguration, NoSuchTarget, load_target
    from .targets.conventions import UnknownChoice
    from .targets.signature import CannotAdapt

    stage, out = Path(asked["stage"]), Path(asked["out"])
    warnings.simplefilter("ignore")

    def progress(law: str, number: int, total: int, judged: int) -> None:
        if judged <= 1:
            stage.write_text(f"law {number + 1} of {total}: {law}", encoding="utf-8")

    def give_up(report: Report) -> None:
        _write(out, document(replace(report, out_of_time=True)))
        watch.leave(TIMEOUT)

    try:
        target = load_target(asked["name"], root=Path(asked["root"]))
        report = api.run(
            target,
            profile=asked["profile"],
            budget=asked["budget"],
            seed=asked["seed"],
            progress=progress,
            partial=give_up,
            watch=watch,
        )
    except (NoSuchTarget, CannotAdapt, BadConfiguration, UnknownChoice) as error:
        _write(out, without_run(asked["name"], str(error), 3))
        return 3
    _write(out, document(report))
    return report.exit_code


def _write(path: Path, found: dict[str, Any]) -> None:
    """Write it whole or not at all."""
    from .report.document import as_text

    beside = path.with_suffix(".part")
    beside.write_text(as_text(found), encoding="utf-8")
    os.replace(beside, path)


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # what was found is written; threads of a framework may not keep the process
