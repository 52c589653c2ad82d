"""The kill matrix of models: each fault of the catalogue of models against each law of models.

Each law but the slow ones gets the first problems of its covering design, as in a check; the law that the catalogue names for a fault gets as
many as in a quick check, with Hypothesis' search, where those didn't break it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..faults.models.catalogue import MODEL_FAULTS
from ..faults.models.fault import ModelFault
from ..faults.models.small import SmallBERT, SmallGPT, SmallT5
from ..laws.attempt import Failure, try_law
from ..laws.load import laws_of
from ..laws.named import AnyLaw
from ..laws.trial import Crashed, Evidence, Refused, Session, Unsuitable
from ..targets.model import ModelTarget
from .folding import folded
from .ledger import BROKEN, CRASHED, HELD, Verdict
from .matrix import Control, each, settings_kept
from .minimise import minimise
from .one_law import run_law
from .trying import PROFILES_OF_EFFORT, one_thread

#: problems a law: as in a glance
FIRST = 1
#: likewise, on the right models
FIRST_RIGHT = 8
#: attempts at a smaller witness
SHRINKING = 40
SEED = 0
STORED = Path(__file__).parents[1] / "faults" / "model_kills.json"

BY_NAME = {fault.name: fault for fault in MODEL_FAULTS}
#: right models: those that the faults are made of
CONTROLS: dict[str, Callable[[], Any]] = {
    "the small decoder without a fault": SmallGPT,
    "the small encoder without a fault": SmallBERT,
    "the small encoder-decoder without a fault": SmallT5,
}


@dataclass(frozen=True)
class ModelKill:
    """What became of one fault of a model.

    `first` is the first law that breaks and folds under no other, empty without a break; `problems` says how many it took,
    `size` and `witness` what its smallest witness is, in tokens of text and source; `laws` has the problems that each broken law took.
    """

    fault: str
    first: str
    problems: int
    size: int
    witness: str
    laws: Mapping[str, int]

    @property
    def told(self) -> bool:
        """Whether the law that the catalogue names for the fault breaks."""
        return BY_NAME[self.fault].law in self.laws


@dataclass(frozen=True)
class ModelMatrix:
    """The rows of the faults of models, in the order of the catalogue, and those of the right models."""

    kills: tuple[ModelKill, ...]
    controls: tuple[Control, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether every fault breaks its law, and no right model breaks any."""
        return all(kill.told for kill in self.kills) and not any(control.laws for control in self.controls)


def kill(name: str) -> ModelKill:
    """The row of one fault, tried now."""
    fault = BY_NAME[name]
    with settings_kept():
        target = _target(fault.make)
        with one_thread(target):
            session = Session()
            verdicts = _breaks(target, session, fault)[0]
            shown = folded(verdicts, laws_of("model")) if verdicts else []
            first = next((v for v in shown if v.under is None), None)
            if first is None:
                return ModelKill(name, "", 0, 0, "", {})
            smallest = _smallest(laws_of("model")[first.law], first, target, session)
    counts = {v.law: v.problems for v in verdicts}
    source = smallest.source if target.kind == "encoder-decoder" else 0
    tokens = smallest.batch * (smallest.length + source)
    return ModelKill(name, first.law, first.problems, tokens, smallest.describe(), counts)


def control(name: str) -> Control:
    """The row of one right model, tried now."""
    with settings_kept():
        target = _target(CONTROLS[name])
        with one_thread(target):
            breaks, tried = _breaks(target, Session(), None)
    return Control(name, tried, {v.law: v.problems for v in breaks})


def _target(make: Callable[[], Any]) -> ModelTarget:
    from .. import api

    target = api.target_of(make)
    assert isinstance(target, ModelTarget), target
    return target


def _breaks(target: ModelTarget, session: Session, fault: ModelFault | None) -> tuple[list[Verdict], int]:
    """The laws that break, in the order of the report, and the number of problems tried in all."""
    found, tried = [], 0
    for law in laws_of("model").values():
        if law.slow or law.not_applicable(target) is not None:
            continue
        with settings_kept():
            verdict = _attempt(law, target, session, FIRST if fault is not None else FIRST_RIGHT)
            if fault is not None and law.name == fault.law and not verdict.red:
                verdict = _searched(law, target)
        tried += verdict.problems
        if verdict.red:
            found.append(verdict)
    return found, tried


def _attempt(law: AnyLaw, target: ModelTarget, session: Session, wanted: int) -> Verdict:
    """One law on the first `wanted` problems that suit it, until it breaks."""
    wanted = max(1, round(wanted * min(law.share, 1.0)))
    judged = 0
    for problem in islice(law.covering(target, SEED), 5 * wanted):
        try:
            failure = try_law(law, target, problem, session, Evidence())
        except (Unsuitable, Refused):
            continue
        judged += 1
        if failure is not None:
            status = CRASHED if isinstance(failure, Crashed) else BROKEN
            return Verdict(law.name, law.statement, status, str(failure), judged, witness=problem, failure=failure)
        if judged == wanted:
            break
    return Verdict(law.name, law.statement, HELD, problems=judged)


def _searched(law: AnyLaw, target: ModelTarget) -> Verdict:
    """One law as in a quick check, within a minute."""
    end = time.monotonic() + 60.0
    return run_law(law, target, Session(), PROFILES_OF_EFFORT["quick"][0], seed=SEED, deadline=end, share_ends=end)


def _smallest(law: AnyLaw, found: Verdict, target: ModelTarget, session: Session) -> Any:
    """The smallest witness of a break that is found in some attempts."""

    def fails(problem: Any) -> Failure | None:
        if not law.fits(target, problem):
            return None
        try:
            return try_law(law, target, problem, session, Evidence())
        except (Unsuitable, Refused):
            return None

    assert found.failure is not None
    with settings_kept():
        return minimise(found.witness, found.failure, fails, limit=SHRINKING)[0]


def run(names: Sequence[str], jobs: int = 1) -> Iterator[ModelKill]:
    """The rows of these faults, each given as soon as it is known, in `jobs` processes."""
    yield from each(kill, names, jobs)


def run_controls(jobs: int = 1) -> Iterator[Control]:
    """The rows of the right models."""
    yield from each(control, list(CONTROLS), jobs)


# The stored one --------------------------------------------------------------------------------------------------


def load(path: Path = STORED) -> ModelMatrix:
    """The matrix that comes with the package."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return ModelMatrix(
        tuple(ModelKill(**row) for row in data["faults"]), tuple(Control(**row) for row in data["controls"])
    )


def save(matrix: ModelMatrix, path: Path = STORED) -> None:
    """Write the matrix, one line a row, sorted by name."""
    parts = []
    controls = [{"name": row.name, "problems": row.problems, "laws": dict(row.laws)} for row in matrix.controls]
    for key, rows in (("controls", controls), ("faults", [asdict(row) for row in matrix.kills])):
        made = sorted(json.dumps(row, ensure_ascii=False) for row in rows)
        parts.append(f'"{key}": [\n' + ",\n".join(made) + "\n]")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def merged(old: ModelMatrix, new: ModelMatrix) -> ModelMatrix:
    """The old matrix with the rows of the new one in their place, and without faults that are no more."""
    kills = {row.fault: row for row in (*old.kills, *new.kills) if row.fault in BY_NAME}
    controls = {row.name: row for row in (*old.controls, *new.controls) if row.name in CONTROLS}
    return ModelMatrix(tuple(kills.values()), tuple(controls.values()))
