"""What a break looks like: the effective mask and the output beside what they must be, in a few rows and columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..laws.trial import Broken, Evidence, Session, Trial, worst
from ..run.ledger import Verdict
from ..targets.call import Call, TargetRaised, WrongResult
from ..targets.layer import LayerTarget
from ..targets.model import ModelTarget
from ..targets.part import Part
from ..targets.target import Target
from ..targets.trying import effective_mask

#: the rows and columns that an excerpt shows at most
SIZE = 16


@dataclass(frozen=True)
class Excerpt:
    """Two grids of the same sample and head: what the target gives and what it must give, (rows, columns).

    `first` is the row and the column at which the grids begin in the whole; `allowed` how far a value may be off.
    """

    got: NDArray[np.float64]
    want: NDArray[np.float64]
    where: str = ""
    first: tuple[int, int] = (0, 0)
    allowed: NDArray[np.float64] | None = None


def effective_masks(verdict: Verdict, target: Target | LayerTarget | ModelTarget | Part) -> Excerpt | None:
    """Which keys a query of the failing call has weight on, and which it may have; None where they agree or can't be seen."""
    call = _failing_call(verdict)
    if call is None or not isinstance(target, Target) or not _small(call.query.shape[2], call.key.shape[2]):
        return None
    try:
        seen = effective_mask(target, call, strict=True)
        truth = Trial(target, verdict.witness, Session(), Evidence()).allowed_pairs(call)
    except (TargetRaised, WrongResult, ValueError):  # no answer, or sizes that don't fit: no picture
        return None
    different = (seen != truth).any((2, 3))
    if not different.any():
        return None
    b, h = (int(n) for n in np.argwhere(different)[0])
    where = f"sample {b}, head {h}" if different.size > 1 else ""
    return Excerpt(seen[b, h].astype(np.float64), truth[b, h].astype(np.float64), where)


def outputs(verdict: Verdict, target: Target | LayerTarget | ModelTarget | Part) -> Excerpt | None:
    """The target's output of the failing call and the oracle's, around the worst element; None where they agree."""
    call = _failing_call(verdict)
    if call is None or not isinstance(target, Target):
        return None
    trial = Trial(target, verdict.witness, Session(), Evidence())
    try:
        got, exact = target(call).output, trial.exact(call)
        allowed = (2.0 if call.dtype == "float64" else 1.0) * trial.bound(call, trial.ladder(call.dtype)[-1], exact)
    except (TargetRaised, WrongResult, ValueError):
        return None
    want = np.asarray(exact.output)
    if got.shape != want.shape:
        return None
    ratio, index, _ = worst(got, want, allowed)
    if ratio <= 1.0:
        return None
    b, h, i, c = index
    rows, columns = (slice(*_around(at, size)) for at, size in ((i, got.shape[2]), (c, got.shape[3])))
    cut = (b, h, rows, columns)
    where = f"sample {b}, head {h}" if got.shape[0] * got.shape[1] > 1 else ""
    return Excerpt(got[cut], want[cut], where, (rows.start, columns.start), allowed[cut])


def _failing_call(verdict: Verdict) -> Call | None:
    """The call on which a law broke, where it broke by values."""
    failure = verdict.failure
    return failure.call if isinstance(failure, Broken) else None


def _small(queries: int, keys: int) -> bool:
    return min(queries, keys) > 0 and max(queries, keys) <= SIZE


def _around(at: int, size: int) -> tuple[int, int]:
    """The ends of a stretch of at most SIZE places that holds one."""
    start = max(0, min(at - SIZE // 2, size - SIZE))
    return start, min(size, start + SIZE)
