"""Variance with depth: before the norms it grows linearly, after them it stays 1."""

from __future__ import annotations

import numpy as np

from attnlaws.judge.chance import Finding
from attnlaws.judge.depth import pre_norm_variances
from attnlaws.judge.moments import mean
from attnlaws.laws.part_law import PartTrial, part_law

MODELS = (48, 64)


@part_law(
    "depth.pre-norm",
    "with pre-LayerNorm the residual stream's variance grows as its weights' deviations say",
    part="stack",
)
def test_pre_norm(trial: PartTrial) -> None:
    """v_{l+1} - v_l = E^2 s^2 s_o^2 + F s_o^2 E f(s sqrt(E) z)^2, about the same in each block: linear, not exponential. With
    s_o = s / sqrt(2L) the stack adds 1 / 2L of what it would add without. Radford et al. 2019, section 2.3; arXiv:2002.04745.
    """

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        half, whole = [], []
        for _ in range(MODELS[stage]):
            v = np.asarray(trial.part(trial.seed(rng)))
            wanted = pre_norm_variances(trial.part.predicted, float(v[0]))
            middle = len(v) // 2
            half.append((v[middle] - v[0]) / (wanted[middle] - v[0]))
            whole.append((v[-1] - v[0]) / (wanted[-1] - v[0]))
        return [
            mean("variance added by half the blocks over its prediction", np.array(half), 1.0, stage=stage),
            mean("variance added by all blocks over its prediction", np.array(whole), 1.0, stage=stage),
        ]

    trial.evidence.chance("depth.pre-norm", trial.problem.seed, sample)


@part_law(
    "depth.post-norm",
    "with post-LayerNorm the variance is that of the norm's gain after every block",
    part="normed stack",
)
def test_post_norm(trial: PartTrial) -> None:
    """x_{l+1} = LayerNorm(x_l + f(x_l)) has the variance v / (v + eps) with gain 1: 1 at every depth. Ba et al. 2016."""
    variances = np.asarray(trial.part(trial.seed()))
    trial.evidence.add(variances.size, 0.0)
    trial.require(
        bool((np.abs(variances - 1.0) < 1e-4).all()), f"variances by depth {variances.round(4).tolist()} are not 1"
    )
