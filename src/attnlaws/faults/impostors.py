"""Impostors: trivial wrong answers, tried on the very problems of a run.

A run that never rejects one of them could not have told it from the target, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..reference import oracle
from ..reference.oracle import Attended
from ..targets.call import Call

if TYPE_CHECKING:
    from ..laws.trial import Trial

Array = NDArray[np.float64]


def _value(call: Call) -> Array:
    return np.repeat(call.value, call.query.shape[1] // call.value.shape[1], axis=1)


def _rows(array: Array, rows: int) -> Array:
    """The array with its length axis cut or repeated to that many rows."""
    return array[:, :, np.arange(rows) % max(array.shape[2], 1)] if array.shape[2] else array


def _columns(array: Array, width: int) -> Array:
    return array[..., np.arange(width) % array.shape[-1]]


def _softmax_of(trial: Trial, call: Call, scores: Array, visible: NDArray[np.bool_]) -> Array:
    with np.errstate(all="ignore"):
        kept = np.where(visible, scores, -np.inf)
        weights = np.exp(kept - kept.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
    return np.asarray(np.matmul(np.nan_to_num(weights), _value(call)))


def _key_dropped(trial: Trial, exact: Attended) -> Array:
    visible = exact.visible.copy()
    visible[..., -1] = visible[..., -1] & (visible.sum(-1) < 2)
    return _softmax_of(trial, trial.call, exact.scores, visible)


def _rescaled(trial: Trial, exact: Attended) -> Array:
    return _softmax_of(trial, trial.call, exact.scores + 0.01 * exact.scaled, exact.visible)


def _uncausal(trial: Trial, exact: Attended) -> Array | None:
    call = trial.call
    if not trial.triangle_applies() or exact.visible.all():
        return None
    options = {**trial.options(call), "causal": None}
    return np.asarray(oracle.attention(call.query, call.key, call.value, **options).output)


IMPOSTORS: dict[str, Callable[[Trial, Attended], Array | None]] = {
    "zeros": lambda t, e: np.zeros_like(e.output),
    "mean of V": lambda t, e: np.broadcast_to(_value(t.call).mean(2, keepdims=True), e.output.shape),
    "V itself": lambda t, e: _rows(_value(t.call), e.output.shape[2]),
    "q itself": lambda t, e: _columns(t.call.query, e.output.shape[3]),
    "uniform weights": lambda t, e: _softmax_of(t, t.call, np.zeros_like(e.scores), e.visible),
    "scale off by 1 %": _rescaled,
    "last key dropped": _key_dropped,
    "not causal": _uncausal,
}


def tally_impostors(trial: Trial, exact: Attended) -> None:
    """Count, for each impostor, on how many problems it applies and on how many the bound rejects it."""
    if exact.output.size == 0 or trial.call.sinks is not None or not np.isfinite(exact.output).all():
        return
    precision = trial.ladder(trial.call.dtype)[0]
    factor = 2.0 if trial.call.dtype == "float64" else 1.0
    bound = factor * trial.bound(trial.call, precision, exact)
    for name, make in IMPOSTORS.items():
        output = make(trial, exact)
        if output is None:
            continue
        tally = trial.session.impostors.setdefault(name, [0, 0])
        tally[0] += 1
        tally[1] += bool((np.abs(output - exact.output) > bound).any())
