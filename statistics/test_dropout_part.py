"""Dropout by itself: its rate, its scale, its independence."""

from __future__ import annotations

import numpy as np

from attnlaws.judge.chance import Finding, size_for_rate
from attnlaws.judge.counts import dropped
from attnlaws.judge.moments import mean
from attnlaws.laws.part_law import PartTrial, part_law

SHAPE = (8, 4, 16, 16)


@part_law("dropping.scale", "what is kept is divided by 1 - p; p = 0 changes nothing", part="dropout")
def test_scale(trial: PartTrial) -> None:
    """x / (1 - p) or 0, so that E dropout(x) = x: inverted dropout."""
    x = trial.rng.uniform(1.0, 2.0, SHAPE).astype(np.float32)
    trial.require(np.array_equal(trial.part(x, 0.0, trial.seed()), x), "a dropout of 0 changes its input")
    for p in (0.1, 0.5):
        got = trial.part(x, p, trial.seed())
        kept = np.where(got == 0, 0.0, x / (1.0 - p))
        trial.require(
            bool((np.abs(got - kept) <= 4 * 2.0**-24 * kept).all()),
            f"with p = {p} a value is neither 0 nor x / (1 - p)",
        )


@part_law("dropping.chance", "values are dropped at the rate p, each independently of all others", part="dropout")
def test_chance(trial: PartTrial) -> None:
    """Zeros ~ Bin(N, p); masks of two calls, samples, heads agree in Bin(n, p^2 + (1 - p)^2) places; rows and columns are binomial."""

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        x = np.ones(SHAPE, dtype=np.float32)
        calls = 2 * -(-size_for_rate(0.1, stage) // (2 * x.size))
        got = np.stack([trial.part(x, 0.1, trial.seed(rng)) for _ in range(calls)])
        share = mean("mean over dropouts", got.mean((1, 2, 3, 4)).astype(np.float64), 1.0, stage=stage)
        return [*dropped(got == 0, np.ones(SHAPE[2:], dtype=bool), 0.1, stage=stage), share]

    trial.evidence.chance("dropping.chance", trial.problem.seed, sample)
