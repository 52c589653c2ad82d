"""Dropout inside a layer as chance: each place where values are dropped, by itself."""

from __future__ import annotations

import numpy as np

from attnlaws.judge.chance import Finding, size_for_rate
from attnlaws.judge.counts import dropped
from attnlaws.judge.moments import mean
from attnlaws.laws.layer_law import layer_law
from attnlaws.laws.layer_trial import LayerTrial
from attnlaws.problems.layer_problem import LayerWants
from attnlaws.targets.call import Array
from attnlaws.targets.instance import Instance
from attnlaws.targets.layer import LayerTarget

ONE = LayerWants(redrawn=False, padding=False, dtypes=("float32",))
#: the rate that is tried where the layer was built without dropout
RATE = 0.25


def _drops(target: LayerTarget) -> str | None:
    if target.projections is None or target.recognised != "reproduced":
        return "its weights were not found, so that what is dropped can't be seen"
    if not target.itself().dropouts():
        return "has no dropout that is found by its name"
    return None


def _acting(trial: LayerTrial, x: Array) -> list[tuple[Instance, str, float]]:
    """The places of dropout that do something, each in a copy where it alone acts, with its rate."""
    found = []
    for place, own in trial.target.itself().dropouts().items():
        layer = trial.layer(training=True)
        layer.only_dropout(place, own or RATE)
        if not np.array_equal(trial.run(layer, x, seed=1), trial.run(layer, x, seed=2)):
            found.append((layer, place, own or RATE))
    trial.suitable(bool(found))
    return found


@layer_law("layers.dropout", "each dropout drops values at its rate, independently, and divides the others by 1 - p",
           wants=ONE, applies=_drops, chance=True, basis=("layers.oracle", "layers.modes"))  # fmt: skip
def test_dropout(trial: LayerTrial) -> None:
    """With equal scores, V = W_o = 1 and tokens e_j the output is the matrix of weights of each head. Its values under dropout are
    w / (1 - p)^k or 0; zeros ~ Bin(N, 1 - (1 - p)^k), k = 1, or 2 where one dropout acts on weights and output; the masks of
    calls, samples and heads are independent. Srivastava et al. 2014.
    """
    p = trial.target.projections
    assert p is not None
    length = trial.target.only_length or min(p.head_dim, trial.target.width, trial.target.longest, 16)
    trial.suitable(1 < length <= min(p.head_dim, trial.target.width))
    trial.suitable(p.o is None or len(p.o.rows) >= p.heads * p.head_dim)
    transparent = trial.transparent(length)
    batch = max(2, 32_768 // (p.heads * length**2))
    x = np.broadcast_to(np.eye(length, trial.target.width), (batch, length, trial.target.width)).copy()

    def weights(layer: Instance, seed: int) -> Array:
        out = trial.run(layer, x, seed=seed)[..., : p.heads * p.head_dim]
        return out.reshape(batch, length, p.heads, p.head_dim)[..., :length].transpose(0, 2, 1, 3)

    for layer, place, rate in _acting(trial, x):
        layer.set(transparent)
        still = trial.layer()
        still.set(transparent)
        plain = weights(still, 0)
        possible = plain[0, 0] > 0

        def sample(rng: np.random.Generator, stage: int, layer: Instance = layer, place: str = place,
                   rate: float = rate, plain: Array = plain, possible: Array = possible) -> list[Finding]:  # fmt: skip
            calls = 2 * -(-size_for_rate(rate, stage) // (2 * plain.size * int(possible.sum()) // length**2))
            got = np.stack([weights(layer, int(rng.integers(1 << 40))) for _ in range(calls)])
            scale = float(np.median((got / np.where(plain > 0, plain, np.inf))[got > 0]))
            times = 2 if abs(scale * (1.0 - rate) ** 2 - 1.0) < 0.01 else 1
            kept = np.where(got == 0, 0.0, plain / (1.0 - rate) ** times)
            near = np.abs(got - kept) <= 8 * 2.0**-24 * np.abs(kept)
            trial.require(bool(near.all()), f"with dropout {rate:g} at {place} a value is neither 0 nor w / (1 - p)")
            found = dropped(got == 0, np.asarray(possible, dtype=bool), 1.0 - (1.0 - rate) ** times, stage=stage)
            return [f.within(place) for f in found]

        trial.evidence.chance(f"layers.dropout {place}", trial.problem.seed, sample)


@layer_law("layers.dropout-unbiased", "the mean over dropouts is the output without dropout", wants=ONE, applies=_drops,
           chance=True, basis=("layers.dropout",))  # fmt: skip
def test_dropout_unbiased(trial: LayerTrial) -> None:
    """Dropped weights and dropped outputs stand linearly in the output, so its mean over dropouts is the output in evaluation:
    y_dropped . y over y . y has the mean 1 in each call.
    """
    x = trial.rng.standard_normal((16, max(2, trial.problem.length), trial.target.width))
    x = x[:, : trial.target.only_length or trial.target.longest].astype(np.float32).astype(float)
    plain = trial.run(trial.layer(), x)
    for layer, place, _ in _acting(trial, x):

        def sample(rng: np.random.Generator, stage: int, layer: Instance = layer, place: str = place) -> list[Finding]:
            outs = [trial.run(layer, x, seed=int(rng.integers(1 << 40))) for _ in range((200, 300)[stage])]
            shares = np.array([float((out * plain).sum() / (plain**2).sum()) for out in outs])
            return [mean("mean over dropouts, as a share of the output", shares, 1.0, stage=stage).within(place)]

        trial.evidence.chance(f"layers.dropout-unbiased {place}", trial.problem.seed, sample)
