"""Saturation: with the scale the weights of random queries and keys are as flat in many dimensions as in few."""

from __future__ import annotations

import numpy as np

from attnlaws.judge.chance import Finding
from attnlaws.judge.moments import mean
from attnlaws.judge.softmax_law import entropy, row_law
from attnlaws.laws.law import law
from attnlaws.laws.trial import Trial
from attnlaws.problems.wants import Wants
from attnlaws.targets.call import Call
from attnlaws.targets.target import Target

PLAIN = Wants(causal=False, masks=("none",), bias=False, scale=False, min_batch=1, small=True, rectangular=None,
              dtypes=("float32", "float64"))  # fmt: skip
KEYS, ROWS = 48, (4096, 6144)


def _rows_apart(target: Target) -> str | None:
    can = target.abilities.batch and target.abilities.rectangular and target.conventions.layout != "packed"
    return None if can else "takes no batch of one query and many keys"


@law(
    "statistics.saturation",
    "entropy and gradient of the softmax of random scores don't depend on the head size",
    wants=PLAIN,
    applies=_rows_apart,
    chance=True,
    basis=("statistics.score-variance",),
)
def test_saturation(trial: Trial) -> None:
    """A query of length sqrt(D) has exactly independent N(0, D s^2) scores with N(0, 1) keys, whatever D. With D s^2 = 1 the
    entropy of a row of n weights is near ln n - 1/2 and the trace of its Jacobian, 1 - sum w^2, near 1 - e/n, at every D;
    without the scale both fall with D. Predictions by quadrature (judge/softmax_law.py).
    """
    taken = trial.abilities.head_dims
    dims = sorted({n for n in taken if n <= 256} or {4, 32})

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        found = []
        for dim in dict.fromkeys((dims[0], dims[-1])):
            query = rng.standard_normal((ROWS[stage], 1, 1, dim))
            query *= np.sqrt(dim) / np.linalg.norm(query, axis=-1, keepdims=True)
            key = rng.standard_normal((ROWS[stage], 1, KEYS, dim))
            w = trial.weights(Call(query, key, np.zeros((ROWS[stage], 1, KEYS, dim)), trial.call.dtype))[:, 0, 0]
            law_of_row = row_law(KEYS, float(np.sqrt(dim)) * trial.scale(trial.call.but(query=query)))
            found += [
                mean(f"entropy of the weights at D = {dim}", entropy(w), law_of_row.entropy, stage=stage),
                mean(f"trace of the softmax Jacobian at D = {dim}", 1.0 - (w**2).sum(-1),
                     1.0 - law_of_row.concentration, stage=stage),
            ]  # fmt: skip
        return found

    trial.evidence.chance("statistics.saturation", trial.problem.seed, sample)
