"""Rules of initialisation by themselves, and the initial weights of a whole model."""

from __future__ import annotations

import numpy as np

from attnlaws.judge.chance import Finding, size_for_scale
from attnlaws.judge.moments import distribution, mean, second_moment
from attnlaws.laws.part_law import PartTrial, part_law

#: rectangular, so that fan-in and fan-out can't be taken for each other
SHAPE = (96, 160)


@part_law("initial.rule", "a rule gives the deviation and the distribution that it names", part="initialiser")
def test_rule(trial: PartTrial) -> None:
    """E w^2 = sigma(fan_in, fan_out)^2 and E w = 0; w / sigma has the distribution of the family, known in full."""
    family, size = trial.part.predicted
    rows, columns = SHAPE
    sigma = float(size(columns, rows))

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        count = -(-size_for_scale(family.kurtosis, stage) // (rows * columns))
        w = np.stack([trial.part(rows, columns, trial.seed(rng)) for _ in range(count)])
        flat = w.ravel()
        return [
            second_moment("mean square of the weights", float((w**2).mean()), w.size, sigma**2, kurtosis=family.kurtosis,
                          stage=stage),
            mean("mean of the weights", flat, 0.0, deviation=sigma, stage=stage),
            distribution(f"distance from {family.name}", flat / sigma, family.cdf, stage=stage),
        ]  # fmt: skip

    trial.evidence.chance("initial.rule", trial.problem.seed, sample)


@part_law(
    "initial.model", "each matrix of a model starts with its own deviation; biases are 0 and gains 1", part="weights"
)
def test_model(trial: PartTrial) -> None:
    """GPT-2: 0.02, and 0.02 / sqrt(2 layers) for the last matrix of each residual branch. Radford et al. 2019, section 2.3."""
    predicted = trial.part.predicted
    values = trial.part(trial.seed())
    for name, w in values.items():
        if predicted(name) is None:
            constant = 0.0 if name.endswith("bias") else 1.0
            trial.require(bool((w == constant).all()), f"{name} is not {constant:g} at the start")
    kinds = sorted({float(s) for n in values if (s := predicted(n)) is not None})

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        pools: dict[float, list[np.ndarray]] = {kind: [] for kind in kinds}  # type: ignore[type-arg]
        while not all(sum(w.size for w in pool) >= size_for_scale(3.0, stage) for pool in pools.values()):
            for name, w in trial.part(trial.seed(rng)).items():
                if (s := predicted(name)) is not None:
                    pools[float(s)].append(w.ravel())
        found = []
        for kind, pool in pools.items():
            w = np.concatenate(pool)
            found.append(second_moment(f"mean square of the weights of deviation {kind:.4g}", float((w**2).mean()), w.size,
                                       kind**2, stage=stage))  # fmt: skip
        return found

    trial.evidence.chance("initial.model", trial.problem.seed, sample)


@part_law("initial.directions", "the initial embeddings of two tokens are nearly at right angles", part="weights",
          basis=("initial.model",))  # fmt: skip
def test_directions(trial: PartTrial) -> None:
    """cos of independent normal vectors in d dimensions: E cos^2 = 1/d, kurtosis 3d/(d + 2). So exp(c d) directions fit nearly
    orthogonally: superposition. Elhage et al. 2022, section 2.
    """

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        squares, dim, wanted = [], 1, size_for_scale(3.0, stage, 0.1)
        while sum(s.size for s in squares) < wanted:
            table = next(w for n, w in trial.part(trial.seed(rng)).items() if n.startswith("wte"))
            rows, dim = table[: len(table) // 2 * 2].reshape(-1, 2, table.shape[1]), table.shape[1]
            unit = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
            squares.append((unit[:, 0] * unit[:, 1]).sum(-1) ** 2)
        all_of_them = np.concatenate(squares)
        return [second_moment("mean of cos^2 between embeddings", float(all_of_them.mean()), all_of_them.size, 1.0 / dim,
                              kurtosis=3.0 * dim / (dim + 2.0), stage=stage)]  # fmt: skip

    trial.evidence.chance("initial.directions", trial.problem.seed, sample)
