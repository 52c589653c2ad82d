"""The kill matrix in words: the table, the summary, and what is known of one fault or one law."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from ..faults.case import Fault
from ..faults.models.fault import ModelFault
from ..laws.law import Law
from ..run.matrix import BY_NAME, NAMED, OTHERWISE, UNNAMED, Control, Kill, Matrix, told_by_its_law
from ..run.model_matrix import ModelKill, ModelMatrix


def summary(matrix: Matrix) -> str:
    """The kill rate, the false alarms, and how the faults are named, in one sentence each."""
    kills, controls = matrix.kills, matrix.controls
    caught = sum(bool(k.first) for k in kills)
    named = sum(k.diagnosis == NAMED for k in kills)
    wrongly = sum(k.diagnosis.startswith(OTHERWISE) for k in kills)
    functions = [k for k in kills if BY_NAME[k.fault].function is not None]
    told = sum(told_by_its_law(k) and k.diagnosis == UNNAMED for k in kills)
    red = sum(bool(c.laws) or c.diagnosis != UNNAMED for c in controls)
    tried = sum(c.problems for c in controls)
    lines = [
        f"{caught} of {len(kills)} faults caught ({100 * caught / max(1, len(kills)):.0f} %).",
        f"{red} of {len(controls)} right functions red or named as a fault, on {tried} problems."
        if controls
        else "The right functions were not run: they are with the whole catalogue.",
        f"Named right {named} of {len(kills)}, named wrongly {wrongly}, not named {len(kills) - named - wrongly}.",
        f"{len(functions)} of the {len(kills)} are no steps; of those not named, {told} break the law whose words say what "
        "is wrong.",
    ]
    return "\n".join(lines)


def table(matrix: Matrix) -> str:
    """For the terminal: one line a row."""
    return "\n".join(
        [_line("fault", "first law", "problems", "elements", "laws", "diagnosis"), *map(line, matrix.kills)]
    )


def line(row: Kill) -> str:
    """One fault as a line of the table."""
    first = row.first or "NOT CAUGHT"
    return _line(row.fault, first, str(row.problems), str(row.size), str(len(row.laws)), row.diagnosis)


def _line(fault: str, first: str, problems: str, size: str, laws: str, diagnosis: str) -> str:
    return f"{fault:<34} {first:<30} {problems:>8} {size:>8} {laws:>5}  {diagnosis}"


def control_line(row: Control) -> str:
    """One right function as a line."""
    what = ", ".join(row.laws) if row.laws else "no law breaks"
    return f"{row.name:<42} {row.problems:>5} problems, {what}, {row.diagnosis}"


def about_fault(fault: Fault, row: Kill | None) -> str:
    """What is wrong, the fix, where it was reported, and what catches it."""
    parts = [("instead", fault.sentence), ("fix", fault.fix)]
    parts += [("reported", ", ".join(fault.sources))] if fault.sources else []
    if row is not None and row.first:
        parts.append(("first law", f"{row.first}, after {row.problems} problem{'s' * (row.problems != 1)}"))
        parts.append(("witness", f"{row.witness} ({row.size} elements)"))
        parts.append(("breaks", f"{len(row.laws)} law{'s' * (len(row.laws) != 1)}: {', '.join(row.laws)}"))
        told = f"; the break of {fault.law} says what is wrong" if told_by_its_law(row) else ""
        parts.append(("diagnosis", row.diagnosis + told))
    return "\n".join([fault.name, *_rows(parts)])


def summary_of_models(matrix: ModelMatrix) -> str:
    """The kill rate of the faults of models and the false alarms, in one sentence each."""
    kills, controls = matrix.kills, matrix.controls
    caught, told = sum(bool(k.first) for k in kills), sum(k.told for k in kills)
    lines = [
        f"{caught} of {len(kills)} faults of models caught ({100 * caught / max(1, len(kills)):.0f} %), {told} by the law that "
        "is about them.",
        f"{sum(bool(c.laws) for c in controls)} of {len(controls)} right models red, on {sum(c.problems for c in controls)} "
        "problems."
        if controls
        else "The right models were not run: they are with the whole catalogue.",
    ]
    return "\n".join(lines)


def table_of_models() -> str:
    """The head of the table of models, for the terminal."""
    return _line("fault of a model", "first law", "problems", "tokens", "laws", "its law")


def model_line(row: ModelKill) -> str:
    """One fault of a model as a line of the table."""
    told = "broken" if row.told else "NOT BROKEN"
    return _line(row.fault, row.first or "NOT CAUGHT", str(row.problems), str(row.size), str(len(row.laws)), told)


def right_model_line(row: Control) -> str:
    """One right model as a line."""
    return f"{row.name:<42} {row.problems:>5} problems, {', '.join(row.laws) or 'no law breaks'}"


def about_model_fault(fault: ModelFault, row: ModelKill | None) -> str:
    """What is wrong in a model, the fix, where it was reported, the law that is about it, and what catches it."""
    parts = [("instead", fault.sentence), ("fix", fault.fix)]
    parts += [("reported", ", ".join(fault.sources))] if fault.sources else []
    parts.append(("law", fault.law))
    if row is not None and row.first:
        parts.append(("first law", f"{row.first}, after {row.problems} problem{'s' * (row.problems != 1)}"))
        parts.append(("witness", row.witness))
        parts.append(("breaks", f"{len(row.laws)} law{'s' * (len(row.laws) != 1)}: {', '.join(row.laws)}"))
    return "\n".join([f"{fault.name} (a fault of a model)", *_rows(parts)])


def about_law(law: Law, matrix: Matrix) -> str:
    """What a law catches, and which laws are more basic."""
    caught = [k.fault for k in matrix.kills if law.name in k.laws]
    first = [k.fault for k in matrix.kills if k.first == law.name]
    others = [name for name in caught if name not in first]
    more = f", and {len(others) - 12} more" if len(others) > 12 else ""
    parts = [("catches", f"{len(caught)} of {len(matrix.kills)} faults (attnlaws faults NAME tells about one)")]
    parts += [("first", ", ".join(first))] if first else []
    parts += [("also", ", ".join(others[:12]) + more)] if others else []
    parts += [("basis", ", ".join(law.basis))] if law.basis else []
    return "\n".join(_rows(parts))


def _rows(parts: Iterable[tuple[str, str]]) -> list[str]:
    lines = []
    for name, words in parts:
        lines += textwrap.wrap(f"{name:<14}{words}", 116, initial_indent="    ", subsequent_indent=" " * 18)
    return lines
