"""The command `attnlaws faults`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from .cli_common import BROKEN, OK, Progress, Usage

R = TypeVar("R")


def faults(options: argparse.Namespace) -> int:
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
        raise Usage(str(error)) from error
    functions = [fault for fault in chosen if not isinstance(fault, ModelFault)]
    models = [fault for fault in chosen if isinstance(fault, ModelFault)]
    if options.now:
        return _run_faults(options, [fault.name for fault in functions], [fault.name for fault in models])
    if options.save:
        raise Usage("--save keeps what --run finds: attnlaws faults --run --save")
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
        raise Usage("--jobs is 1 or more")
    if options.save and not matrix.CHECKOUT.exists():
        raise Usage("--save writes into a checkout, and this is an installed package")
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
