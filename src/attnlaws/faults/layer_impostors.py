"""Trivial wrong layers that every run must be able to reject, on the problems of the oracle's law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..targets.call import Array
from ..targets.layer_weights import Computed, oracle_layer

if TYPE_CHECKING:
    from ..laws.layer_trial import LayerTrial

Impostor = Callable[["LayerTrial", Computed, dict[str, Array]], Array | None]


def _bias_alone(trial: LayerTrial, exact: Computed, values: dict[str, Array]) -> Array | None:
    p = trial.target.projections
    return None if p is None or p.o is None or not p.o.bias else np.zeros(exact.output.shape) + p.o.offset(values)


def _scaled(factor: float) -> Impostor:
    def output(trial: LayerTrial, exact: Computed, values: dict[str, Array]) -> Array | None:
        p = trial.target.projections
        assert p is not None
        if not (trial.sees()[trial.real()].sum(-1) > 1).any():  # one key has all the weight, whatever the scale
            return None
        return oracle_layer(replace(p, scale=factor * p.scale), values, trial.x, trial.sees()).output

    return output


def _sees_all(trial: LayerTrial, exact: Computed, values: dict[str, Array]) -> Array | None:
    sees = trial.sees()
    if sees.all() or trial.target.projections is None:
        return None
    return oracle_layer(trial.target.projections, values, trial.x, np.ones_like(sees)).output


IMPOSTORS: dict[str, Impostor] = {
    "zeros": lambda trial, exact, values: np.zeros(exact.output.shape),
    "the input itself": lambda trial, exact, values: trial.x if trial.x.shape == exact.output.shape else None,
    "the output bias alone": _bias_alone,
    "uniform weights": _scaled(0.0),
    "scale off by 1 %": _scaled(1.01),
    "no mask": _sees_all,
}
