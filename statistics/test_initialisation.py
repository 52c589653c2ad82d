"""Laws of initial weights: what two builds of a layer, and the heads of one, may have in common."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from scipy import stats

from attnlaws.judge.chance import FIRST, SECOND
from attnlaws.laws.layer_law import layer_law
from attnlaws.laws.layer_trial import LayerTrial
from attnlaws.problems.layer_problem import LayerWants
from attnlaws.targets.layer import LayerTarget

ONE = LayerWants(redrawn=False)


def _buildable(target: LayerTarget) -> str | None:
    return None if target.make is not None else "was given as a module: it can't be built anew"


def _projected(target: LayerTarget) -> str | None:
    missing = _buildable(target)
    if missing is None and target.projections is None:
        return "its projections were not found by name and shape"
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
    share=0.001,
    basis=("layers.initial-weights",),
)
def test_initial_independence(trial: LayerTrial) -> None:
    """For independent normal entries r^2 of two blocks of n entries has the law Beta(1/2, (n - 2)/2). All pairs of heads of q,
    k and v are tried, Bonferroni. First look and confirmation on a fresh build: a false alarm has probability 1.7e-8.
    """

    def least(seed: int) -> tuple[float, str]:
        blocks = trial.blocks(trial.built(seed))
        trial.suitable(len(blocks) > 1 and all(np.unique(b).size > 4 for b in blocks.values()))
        pairs = list(combinations(blocks, 2))
        found = []
        for one, other in pairs:
            a, b = (blocks[n] - blocks[n].mean() for n in (one, other))
            r2 = float((a * b).sum() ** 2 / ((a * a).sum() * (b * b).sum()))
            found.append((float(stats.beta.sf(min(r2, 1.0), 0.5, (a.size - 2) / 2)) * len(pairs), f"{one} and {other}"))
        trial.evidence.add(sum(b.size for b in blocks.values()), 0.0)
        return min(found)

    p, names = least(2 * trial.problem.seed + 1)
    trial.evidence.note = f"smallest p over all pairs, Bonferroni, {min(p, 1.0):.2g}"
    if p < FIRST:
        p, names = least(2 * trial.problem.seed + 2)
        trial.require(p >= SECOND, f"the initial weights of {names} are correlated: p = {p:.2g}, Bonferroni")
