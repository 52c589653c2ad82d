"""Dropout of attention weights as chance: its rate, its independence, and that it leaves the mean as it is."""

from __future__ import annotations

import numpy as np

from attnlaws.judge.chance import Finding, size_for_rate
from attnlaws.judge.counts import dropped
from attnlaws.judge.moments import mean
from attnlaws.laws.law import law
from attnlaws.laws.trial import Trial
from attnlaws.problems.wants import Wants
from attnlaws.targets.call import Call
from attnlaws.targets.target import Target
from attnlaws.targets.trying import size_of

PLAIN = Wants(
    small=True, causal=False, masks=("none",), bias=False, scale=False, grouped=False, dtypes=("float32", "float64")
)
#: kernels that compare a byte with 256 (1 - p) have this rate exactly
RATE = 0.25


def _has_dropout(target: Target) -> str | None:
    return None if target.abilities.dropout else "takes no dropout"


def _call(trial: Trial, rng: np.random.Generator, *, one_hot: bool) -> Call:
    """A square call of many samples and heads with moderate scores, so that every weight is seen."""
    a, size = trial.abilities, size_of(trial.target)
    batch, heads = 32 if a.batch else 1, 4 if a.heads else 1
    shape = (batch, heads, size, size)
    query, key = (rng.integers(-8, 9, shape) / 8.0 for _ in range(2))
    value = np.broadcast_to(np.eye(size), shape).copy() if one_hot else rng.integers(-8, 9, shape) / 4.0
    return Call(query, key, value, trial.call.dtype, causal=trial.call.causal)


@law("dropout.chance", "weights are dropped at the rate p, each independently of all others", wants=PLAIN,
     applies=_has_dropout, chance=True, basis=("dropout.weights",))  # fmt: skip
def test_chance(trial: Trial) -> None:
    """Zeros of the weights ~ Bin(N, p); the masks of two calls, samples or heads agree in Bin(n, p^2 + (1 - p)^2) places; counts
    over rows and over columns are binomial. Srivastava et al. 2014, section 4: an independent Bernoulli variable for each.
    """

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        call = _call(trial, rng, one_hot=True)
        possible = trial.exact(call).output > 1e-4
        trial.suitable(bool(possible.all()) or trial.triangle_applies())
        calls = 2 * -(-size_for_rate(RATE, stage) // (2 * int(possible.sum())))
        with trial.target.framework.seeded(int(rng.integers(1 << 31))):
            zeros = np.stack([trial.run(call.but(dropout=RATE, training=True)).output == 0 for _ in range(calls)])
        return dropped(zeros, possible[0, 0], RATE, stage=stage)

    trial.evidence.chance("dropout.chance", trial.problem.seed, sample)


@law("dropout.unbiased", "the mean over dropouts is the output without dropout", wants=PLAIN, applies=_has_dropout,
     chance=True, basis=("dropout.weights", "dropout.chance"))  # fmt: skip
def test_unbiased(trial: Trial) -> None:
    """E sum_j b_j w_ij / (1 - p) v_j = o_i with b_j ~ Bernoulli(1 - p): o_dropped . o over o . o has the mean 1."""

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        call = _call(trial, rng, one_hot=False)
        plain = trial.run(call).output
        with trial.target.framework.seeded(int(rng.integers(1 << 31))):
            outs = [trial.run(call.but(dropout=RATE, training=True)).output for _ in range((16, 24)[stage])]
        shares = np.concatenate([((o * plain).sum((2, 3)) / (plain**2).sum((2, 3))).ravel() for o in outs])
        return [mean("mean over dropouts, as a share of the output", shares, 1.0, stage=stage)]

    trial.evidence.chance("dropout.unbiased", trial.problem.seed, sample)
