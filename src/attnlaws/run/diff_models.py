"""Where two models differ: the first part of one whose result has no equal in the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..problems.model_problem import ModelProblem, generator, inputs_of, paddings
from ..targets.call import Array, TargetRaised, WrongResult
from ..targets.model import ModelTarget
from ..targets.model_inputs import Inputs, places_of
from ..targets.model_instance import ModelInstance
from ..targets.model_stages import Stage, stages_of
from .trying import one_thread

#: what is compared: texts without padding, and padded on either side where both are told of padding
LENGTHS, BATCH = (1, 2, 7, 16), 3
#: the unit roundoff of the arithmetic that a small difference may come from
SMALL = 2.0**-24


@dataclass(frozen=True)
class Parting:
    """Where two models part on one problem.

    `equal` are the last parts of A and B that agree, `first` those after which the values differ ("" where one has no
    such part); `where`, `got` and `want` the element that is furthest apart, of the parts or else of the logits.
    """

    problem: ModelProblem
    equal: tuple[str, str]
    first: tuple[str, str]
    where: str
    values: tuple[float, float]
    allowed: float
    #: less apart than float32 rounds: an epsilon, an approximation, or a step in float32
    small: bool


@dataclass(frozen=True)
class ModelDifference:
    """Two models compared. Prints itself; `exit_code` is what the command line returns."""

    first: ModelTarget
    second: ModelTarget
    dtype: str = ""
    #: whether B was given A's weights; else each has its own
    same_weights: bool = False
    compared: int = 0
    #: parts of A that have an equal in B, of all that depend on the tokens, on the last problem where nothing differs
    matched: tuple[int, int] = (0, 0)
    partings: tuple[Parting, ...] = ()
    raised: tuple[str, ...] = ()
    nothing: str = ""
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 no difference found, 1 they differ, 4 nothing could be compared."""
        if self.partings:
            return 1
        return 0 if self.compared else 4

    def __str__(self) -> str:
        from ..report.model_difference import render

        return render(self)


def run_model_diff(
    first: ModelTarget, second: ModelTarget, *, seed: int = 0, dtypes: Sequence[str] | None = None
) -> ModelDifference:
    """Compare two models on a few texts, part by part. Where their parameters have the same names and shapes, B is given A's.

    Raises ValueError for a dtype that they don't both take.
    """
    started = time.monotonic()
    shared = [d for d in first.dtypes if d in second.dtypes and (not dtypes or d in dtypes)]
    if not shared:
        raise ValueError(f"no dtype that both take: {', '.join(first.dtypes)}; {', '.join(second.dtypes)}")
    nothing = _unlike(first, second)
    if nothing:
        return ModelDifference(first, second, nothing=nothing)
    dtype = shared[-1]
    with one_thread(first):
        pair = first.fresh(dtype), second.fresh(dtype)
        same = _given_weights(*pair)
        partings: list[Parting] = []
        raised: list[str] = []
        compared, matched = 0, (0, 0)
        for problem in _problems(first, second, dtype, seed):
            try:
                parting, count = _compared(pair, problem)
            except (TargetRaised, WrongResult) as failure:
                raised.append(f"{problem.describe()}: {failure}")
                continue
            compared += 1
            if parting is not None:
                partings.append(parting)
            else:
                matched = count
    seconds = time.monotonic() - started
    return ModelDifference(first, second, dtype, same, compared, matched, tuple(partings), tuple(raised), "", seconds)


def _unlike(a: ModelTarget, b: ModelTarget) -> str:
    if a.kind != b.kind:
        return f"A is a model of kind {a.kind}, B of kind {b.kind}"
    if (a.vocabulary, a.source_vocabulary) != (b.vocabulary, b.source_vocabulary):
        return f"A has {a.vocabulary} ids, B has {b.vocabulary}"
    return ""


def _given_weights(a: ModelInstance, b: ModelInstance) -> bool:
    """Give B the weights of A where they have the same names and shapes; whether they do."""
    mine, theirs = a.parameters(), b.parameters()
    if {n: v.shape for n, v in mine.items()} != {n: v.shape for n, v in theirs.items()}:
        return False
    b.set(mine)
    return True


def _problems(a: ModelTarget, b: ModelTarget, dtype: str, seed: int) -> list[ModelProblem]:
    longest = min(a.longest, b.longest)
    ways = ["none", *(way for way in ("right", "left") if way in paddings(a) and way in paddings(b))]
    return [
        ModelProblem(
            batch=BATCH, length=n, source=4 if a.source else 1, dtype=dtype, padding=way, seed=seed, redrawn=False
        )
        for way in ways
        for n in LENGTHS
        if n <= longest and (way == "none" or n == LENGTHS[2])
    ]


def _inputs(target: ModelTarget, given: Inputs) -> Inputs:
    """The same texts in this model's words: position ids count the real tokens alone where it takes them."""
    if given.real is None or not target.positions:
        return given
    return given.but(places=places_of(given.real) + target.first_place)


def _compared(
    pair: tuple[ModelInstance, ModelInstance], problem: ModelProblem
) -> tuple[Parting | None, tuple[int, int]]:
    """Where the two part on a problem, if they do; how many parts of A have an equal in B, of how many."""
    a, b = pair
    given = inputs_of(problem, a.target)
    rows = np.ones(given.ids.shape, dtype=bool) if given.real is None else given.real
    mine, theirs = stages_of(a, _inputs(a.target, given)), stages_of(b, _inputs(b.target, given))
    unit = {"float64": 2.0**-53}.get(problem.dtype, 2.0**-24)
    moved = _moved(a, problem, _inputs(a.target, given), mine)

    def ratio(stage: Stage, other: Stage, factor: float) -> float:
        """The largest difference at real tokens over what is allowed."""
        if stage.values.shape != other.values.shape:
            return np.inf
        gap = np.abs(stage.values - other.values)
        if gap.shape[:2] == rows.shape:
            gap = gap[rows]
        limit = factor * (moved[stage.path] + 8.0 * np.abs(stage.values).max(initial=0.0))
        return float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0) / max(limit, np.finfo(np.float64).tiny))

    telling = [stage for stage in mine if stage.path == "logits" or moved[stage.path] > 0.0]
    equal, after, matched = ("", ""), 0, 0
    left = telling
    for place, stage in enumerate(telling[:-1]):
        found = next((j for j in range(after, len(theirs) - 1) if ratio(stage, theirs[j], unit) <= 1.0), None)
        if found is not None:
            equal, after, matched = (stage.path, theirs[found].path), found + 1, matched + 1
            left = telling[place + 1 :]
    if ratio(mine[-1], theirs[-1], unit) <= 1.0:
        return None, (matched, len(telling) - 1)
    stage, other = next(
        ((s, o) for s in left for o in theirs[after:] if s.values.shape == o.values.shape), (mine[-1], theirs[-1])
    )
    small = max(ratio(mine[-1], theirs[-1], SMALL), 0.0) <= 1.0
    index, values = _furthest(stage.values, other.values)
    allowed = unit * (moved[stage.path] + 8.0 * float(np.abs(stage.values).max(initial=0.0)))
    where = f"[{', '.join(map(str, index))}]"
    return Parting(problem, equal, (stage.path, other.path), where, values, allowed, small), (matched, len(telling) - 1)


def _furthest(a: Array, b: Array) -> tuple[tuple[int, ...], tuple[float, float]]:
    gap = np.nan_to_num(np.abs(a - b), nan=np.inf)
    index = tuple(int(n) for n in np.unravel_index(int(gap.argmax()), gap.shape))
    return index, (float(a[index]), float(b[index]))


def _moved(instance: ModelInstance, problem: ModelProblem, inputs: Inputs, base: list[Stage]) -> dict[str, float]:
    """How far each part's result moves for each unit of roundoff u, times 8, when the parameters move by 6 sqrt(n) u.

    That is what two right computations may be apart (Higham & Mary 2019; see `ModelTrial.slack`). A part that doesn't move depends on
    no parameter, so that it says nothing about the model.
    """
    values, rng = instance.parameters(), generator(problem, 3)
    widest = max([max(v.shape) for v in values.values() if v.ndim > 1], default=1)
    unit = SMALL
    by = 6.0 * np.sqrt(min(widest, 4096) + inputs.length + 16.0)
    largest = {stage.path: 0.0 for stage in base}
    for _ in range(3):
        instance.set({n: v * (1.0 + by * unit * rng.uniform(-1, 1, v.shape)) for n, v in values.items()})
        for stage, was in zip(stages_of(instance, inputs), base, strict=True):
            change = np.abs(stage.values - was.values)
            largest[stage.path] = max(largest[stage.path], float(change[np.isfinite(change)].max(initial=0.0)))
    instance.set(values)
    return {path: 8.0 * value / unit for path, value in largest.items()}
