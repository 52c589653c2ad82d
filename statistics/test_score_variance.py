"""The variance of the scaled scores, read off a target's own outputs."""

from __future__ import annotations

import numpy as np

from attnlaws.judge.chance import Finding, size_for_scale
from attnlaws.judge.moments import products
from attnlaws.laws.law import law
from attnlaws.laws.trial import Broken, Trial
from attnlaws.problems.wants import Wants
from attnlaws.targets.call import Call
from attnlaws.targets.target import Target

PLAIN = Wants(
    causal=False, masks=("none",), bias=False, scale=False, min_batch=1, small=True, rectangular=None,
    dtypes=("float32", "float64"),
)  # fmt: skip


def _rows_apart(target: Target) -> str | None:
    can = target.abilities.batch and target.abilities.rectangular
    return None if can else "takes no batch of one query and two keys"


@law(
    "statistics.score-variance",
    "scaled scores of independent N(0, 1) queries and keys have variance 1",
    wants=PLAIN,
    applies=_rows_apart,
    chance=True,
    basis=("scores.default-scale", "weights.row-stochastic"),
)
def test_score_variance(trial: Trial) -> None:
    """Var(q.k) = D, so s = 1/sqrt(D) gives scores of variance D s^2 = 1: Vaswani et al. 2017, footnote 4.

    With one query and two keys, log(w_1 / w_0) / sqrt(2) = s q.(k_1 - k_0) / sqrt(2) has the law of one scaled score, of
    kurtosis 3 + 6/D. Pairs are disjoint, hence independent.
    """
    taken = trial.abilities.head_dims
    dim = 16 if not taken or 16 in taken else taken[-1]

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        # Pairs are samples, or heads where samples are packed one after another.
        batch, heads = (1, 128) if trial.conventions.layout == "packed" else (8192, 1)
        wanted, total, count = size_for_scale(3.0 + 6.0 / dim, stage), 0.0, 0
        for _ in range(-(-wanted // (batch * heads))):
            query = rng.standard_normal((batch, heads, 1, dim)).astype(np.float32).astype(float)
            key = rng.standard_normal((batch, heads, 2, dim)).astype(np.float32).astype(float)
            weights = trial.weights(Call(query, key, np.zeros((batch, heads, 2, dim)), trial.call.dtype))
            with np.errstate(all="ignore"):
                scores = np.log(weights[..., 1] / weights[..., 0]) / np.sqrt(2.0)
            good = np.isfinite(scores)
            total += float((scores[good] ** 2).sum())
            count += int(good.sum())
        if count < wanted // 2:
            raise Broken("most pairs of weights have no finite logarithm: the scores have no variance to measure")
        predicted = dim * trial.scale(trial.call.but(query=np.zeros((1, 1, 1, dim)))) ** 2
        return [products("variance of the scaled scores", total / count, count, predicted, dim=dim, stage=stage)]

    trial.evidence.chance("statistics.score-variance", trial.problem.seed, sample)
