"""Sampling: draws follow softmax(logits / T), of the k most likely tokens, or of the smallest set that holds p."""

from __future__ import annotations

import numpy as np

from attnlaws.judge.chance import Finding, Floats
from attnlaws.judge.counts import draws, rate
from attnlaws.laws.part_law import PartTrial, part_law

DRAWS = (40_000, 60_000)
NEAR = np.array([0.9, 0.95, 0.98, 0.99, 1.01, 1.02, 1.05, 1.1])


def _logits(rng: np.random.Generator, kind: str) -> Floats:
    """Distinct logits: 12 random ones, or 200 that fall as in Zipf's law, so that many cells are nearly empty."""
    if kind == "few":
        return np.asarray(rng.permutation(np.linspace(-2.0, 2.0, 12)) + 0.01 * rng.standard_normal(12))
    return np.asarray(rng.permutation(-np.log(np.arange(1.0, 201.0))))


def law_of(logits: Floats, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None) -> Floats:
    """The probabilities that the options say, in float64. Fan et al. 2018 (top-k), Holtzman et al. 2020 (top-p)."""
    p = np.exp((logits - logits.max()) / temperature)
    p /= p.sum()
    order = np.argsort(-p)
    if top_k is not None:
        p[order[top_k:]] = 0.0
    if top_p is not None:
        p /= p.sum()
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= top_p]] = 0.0
    return np.asarray(p / p.sum())


def _drawn(trial: PartTrial, name: str, kind: str, **options: float) -> None:
    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        logits = _logits(rng, kind)
        many = np.broadcast_to(logits, (DRAWS[stage], logits.size)).copy()
        tokens = trial.part(many, trial.seed(rng), **options)
        counts = np.bincount(tokens, minlength=logits.size)
        words = ", ".join(f"{key} {value:g}" for key, value in options.items())
        law = law_of(logits, **options)  # type: ignore[arg-type]
        return [
            draws(
                f"draws with {words} from {logits.size} tokens: share of the commonest", counts, law, NEAR, stage=stage
            )
        ]

    trial.evidence.chance(f"{name} {kind} {options}", trial.problem.seed, sample)


@part_law("sampling.temperature", "draws follow softmax(logits / T)", part="sampler")
def test_temperature(trial: PartTrial) -> None:
    """P(token) = e^(z/T) / sum e^(z/T). By an e-value, valid where cells are nearly empty; it sees T = 1.02 for 1."""
    for temperature in (0.7, 1.0, 1.6):
        _drawn(trial, "sampling.temperature", "few", temperature=temperature)
    _drawn(trial, "sampling.temperature", "many", temperature=1.0)


@part_law("sampling.top-k", "exactly the k most likely tokens are drawn, in proportion", part="sampler",
          basis=("sampling.temperature",))  # fmt: skip
def test_top_k(trial: PartTrial) -> None:
    """P = softmax over the k largest logits, 0 elsewhere: one draw outside is enough to refute it."""
    for k in (1, 3, 11):
        _drawn(trial, "sampling.top-k", "few", temperature=1.0, top_k=k)
    _drawn(trial, "sampling.top-k", "many", temperature=1.5, top_k=40)


@part_law("sampling.top-p", "the smallest set of the most likely tokens that holds p is drawn, in proportion", part="sampler",
          basis=("sampling.temperature",))  # fmt: skip
def test_top_p(trial: PartTrial) -> None:
    """A token is kept while those ranked before it hold less than p; the temperature comes first. Holtzman et al. 2020, eq. 3."""
    for p in (0.3, 0.75, 0.95):
        _drawn(trial, "sampling.top-p", "few", temperature=1.0, top_p=p)
    _drawn(trial, "sampling.top-p", "many", temperature=0.8, top_p=0.6)


@part_law("sampling.rows", "rows are drawn independently", part="sampler", basis=("sampling.temperature",))
def test_rows(trial: PartTrial) -> None:
    """Two rows with the same probabilities agree with probability sum p^2."""

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        logits = _logits(rng, "few")
        tokens = trial.part(
            np.broadcast_to(logits, (DRAWS[stage], logits.size)).copy(), trial.seed(rng), temperature=1.0
        )
        pairs = tokens.reshape(2, -1)
        same = int((pairs[0] == pairs[1]).sum())
        return [rate("agreement of two rows", same, pairs.shape[1], float((law_of(logits) ** 2).sum()), stage=stage)]

    trial.evidence.chance("sampling.rows", trial.problem.seed, sample)


@part_law("sampling.greedy", "temperature 0 is the largest logit", part="sampler")
def test_greedy(trial: PartTrial) -> None:
    """lim T -> 0 of softmax(z / T) is 1 at the largest logit."""
    logits = trial.rng.standard_normal((64, 30))
    tokens = trial.part(logits, trial.seed(), temperature=0.0)
    trial.require(bool((tokens == logits.argmax(1)).all()), "temperature 0 draws another token than the most likely")
