"""Laws of initial weights: what two builds of a layer, and the heads of one, may have in common."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from attnlaws.judge.chance import Finding
from attnlaws.judge.moments import correlation, distribution, head_ratios, largest, score_matrices, second_moment
from attnlaws.laws.layer_law import layer_law
from attnlaws.laws.layer_trial import LayerTrial
from attnlaws.problems.layer_problem import LayerWants
from attnlaws.targets.initial import POSITIVE
from attnlaws.targets.layer import LayerTarget

ONE = LayerWants(redrawn=False)


def _buildable(target: LayerTarget) -> str | None:
    return None if target.make is not None else "was given as a module: it can't be built anew"


def _projected(target: LayerTarget) -> str | None:
    missing = _buildable(target)
    if missing is None and target.projections is None:
        return "its projections were not found by name and shape"
    return missing


def _many_heads(target: LayerTarget) -> str | None:
    missing = _projected(target)
    if missing is None and target.projections is not None and target.projections.heads == 1:
        return "has one head"
    return missing


def _ruled(target: LayerTarget) -> str | None:
    missing = _projected(target)
    if missing is None and not target.initial:
        return 'its initial weights follow no known rule; declare layer = { initialisation = "normal(0.02)" }'
    return missing


def _scored(target: LayerTarget) -> str | None:
    missing = _ruled(target)
    if missing is None and not {"q", "k"} <= set(target.initial):
        return "its initial queries or keys follow no known rule"
    if missing is None and POSITIVE in (target.initial["q"].family, target.initial["k"].family):
        return "its initial queries or keys have weights of one sign: scores of a mean that isn't 0"
    return missing


@layer_law(
    "layers.initial-weights",
    "two builds have different weights, and no two rows of a random matrix are equal",
    wants=ONE,
    applies=_buildable,
    share=0.001,
)
def test_initial_weights(trial: LayerTrial) -> None:
    """W(seed 1) != W(seed 2) for some random matrix of the layer, and w_i != w_j for the rows i != j of each. Random values are
    equal with probability 0; constant matrices, and zero rows, are left alone.
    """
    first, second = trial.built(2 * trial.problem.seed + 1), trial.built(2 * trial.problem.seed + 2)
    random = {name: w for name, w in first.items() if w.ndim == 2 and min(w.shape) > 1 and np.unique(w).size > 4}
    trial.suitable(bool(random))
    same = all(np.array_equal(w, second[name]) for name, w in random.items())
    trial.require(not same, "two builds with different seeds have the same weights: a seed is fixed inside")
    for name, w in random.items():
        rows = w[np.abs(w).max(1) > 0]
        trial.require(len(np.unique(rows, axis=0)) == len(rows), f"two rows of {name} are equal")
        trial.evidence.add(w.size, 0.0)


@layer_law(
    "layers.initial-independence",
    "the initial weights of q, k and v, and of their heads, are not correlated",
    wants=ONE,
    applies=_projected,
    chance=True,
    basis=("layers.initial-weights",),
)
def test_initial_independence(trial: LayerTrial) -> None:
    """For independent normal entries r^2 of two blocks of n entries has the law Beta(1/2, (n - 2)/2). All pairs of heads of q,
    k and v are tried, Bonferroni, over many builds.
    """

    def sample(_: np.random.Generator, stage: int) -> list[Finding]:
        blocks = {n: b for n, b in trial.heads_of(trial.initial(stage)).items() if np.unique(b).size > 16}
        trial.suitable(len(blocks) > 1)
        pairs = {f"{one}, {other}": (blocks[one], blocks[other]) for one, other in combinations(blocks, 2)}
        return [correlation("largest correlation between blocks of initial weights", pairs, stage=stage)]

    trial.evidence.chance("layers.initial-independence", trial.problem.seed, sample)


@layer_law(
    "layers.projection-variance",
    "the initial projections of tokens of variance 1 have the variance that the rule of the weights predicts",
    wants=ONE,
    applies=_ruled,
    chance=True,
    basis=("layers.initial-weights",),
)
def test_projection_variance(trial: LayerTrial) -> None:
    """Var(x . w) = |x|^2 sigma^2 = E sigma^2, with sigma^2 as the rule of initialisation has it for the fan-in and fan-out, over
    many builds. Glorot & Bengio 2010; fused matrices of q, k and v have the fan-out 3E, and a smaller variance.
    """
    rules = trial.target.initial

    def sample(_: np.random.Generator, stage: int) -> list[Finding]:
        found = []
        for name, w in trial.initial(stage).items():
            if name in rules:
                rule, fan_in = rules[name], w.shape[2]
                found.append(second_moment(
                    f"variance of {name}", fan_in * float((w**2).mean()), w.size, fan_in * rule.size**2,
                    kurtosis=rule.family.kurtosis, stage=stage,
                ))  # fmt: skip
        return found

    trial.evidence.chance("layers.projection-variance", trial.problem.seed, sample)


@layer_law(
    "layers.initial-distribution",
    "the initial weights have the distribution of their rule",
    wants=ONE,
    applies=_ruled,
    chance=True,
    basis=("layers.projection-variance",),
)
def test_initial_distribution(trial: LayerTrial) -> None:
    """sup |F_n(w) - F(w / sigma)| has Kolmogorov's law, F known in full: nothing is estimated, so no correction is due."""
    rules = trial.target.initial

    def sample(_: np.random.Generator, stage: int) -> list[Finding]:
        return [
            distribution(f"distance of {name} from {rules[name]}", w.ravel() / rules[name].size,
                         rules[name].family.cdf, stage=stage)
            for name, w in trial.initial(stage).items() if name in rules
        ]  # fmt: skip

    trial.evidence.chance("layers.initial-distribution", trial.problem.seed, sample)


@layer_law(
    "layers.initial-heads",
    "the heads of a projection start with the same variance",
    wants=ONE,
    applies=_many_heads,
    chance=True,
    basis=("layers.initial-weights",),
)
def test_initial_heads(trial: LayerTrial) -> None:
    """Heads are exchangeable at the start: the mean square of a head over that of all is 1, with the variance
    (kappa - 1)/n_h (1 - 1/H). Every head of q, k and v, Bonferroni. What only the pooled variance shows hides here.
    """
    p = trial.target.projections
    assert p is not None
    heads = {"q": p.heads, "k": p.kv_heads, "v": p.kv_heads}

    def sample(_: np.random.Generator, stage: int) -> list[Finding]:
        found = {}
        for name, w in trial.initial(stage).items():
            if heads.get(name, 1) > 1 and np.unique(w).size > 16:
                found.update({f"{name} of head {h}": r for h, r in enumerate(head_ratios(w, heads[name]))})
        trial.suitable(bool(found))
        return [largest("variance of one head over that of all", found, 1.0, stage=stage)]

    trial.evidence.chance("layers.initial-heads", trial.problem.seed, sample)


@layer_law(
    "layers.score-variance",
    "the scaled scores of the initial layer have the variance that its rule predicts",
    wants=ONE,
    applies=_scored,
    chance=True,
    basis=("layers.projection-variance",),
)
def test_score_variance(trial: LayerTrial) -> None:
    """S = s X Wq^T Wk X^T over tokens of variance 1 (X X^T = E I): E S_ij^2 = s^2 D (E sq^2)(E sk^2), D of a head.

    One matrix of a head and a build counts as one value: Var T = 2 (2E + D + 1)/(E^2 D), not 2/E^2 as its entries suggest.
    """
    p, rules = trial.target.projections, trial.target.initial
    assert p is not None

    def sample(_: np.random.Generator, stage: int) -> list[Finding]:
        w = trial.initial(stage)
        builds, _, width = w["q"].shape
        own = p.heads // p.kv_heads  # heads that share a key are not independent: the first of each group
        query = w["q"].reshape(builds, p.heads, p.head_dim, width)[:, ::own]
        key = w["k"].reshape(builds, p.kv_heads, p.head_dim, width)
        # |Wq^T Wk|^2 = tr(A B) with A = Wq Wq^T and B = Wk Wk^T, (D, D) each
        squares = (np.matmul(query, query.swapaxes(-1, -2)) * np.matmul(key, key.swapaxes(-1, -2))).sum((-1, -2))
        predicted = p.scale**2 * p.head_dim * (width * rules["q"].size ** 2) * (width * rules["k"].size ** 2)
        return [score_matrices(
            "variance of the scaled scores", p.scale**2 * float(squares.mean()), builds * p.kv_heads, predicted,
            rows=width, columns=width, dim=p.head_dim, stage=stage,
        )]  # fmt: skip

    trial.evidence.chance("layers.score-variance", trial.problem.seed, sample)
