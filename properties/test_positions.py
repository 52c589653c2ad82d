"""Laws of positions: rotations, slopes, buckets, sinusoids."""

from __future__ import annotations

import math

import numpy as np

from attnlaws.laws.part_law import PartTrial, part_law
from attnlaws.laws.trial import Broken
from attnlaws.targets.call import Array, TargetRaised

U = 2.0**-24


def _turned(x: Array, positions: Array, base: float, pairing: str) -> Array:
    """RoPE in float64: pair i at position p turned by p / base^(2i/D)."""
    d = x.shape[-1]
    angle = positions[:, None] * base ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angle), np.sin(angle)
    first, second = (x[..., : d // 2], x[..., d // 2 :]) if pairing == "half" else (x[..., 0::2], x[..., 1::2])
    one, two = first * cos - second * sin, second * cos + first * sin
    return np.concatenate([one, two], -1) if pairing == "half" else np.stack([one, two], -1).reshape(x.shape)


def _allowed(x: Array, positions: Array, base: float) -> Array:
    """An angle in float32 is off by 2 + 2 ln(base) roundings of itself at most (the power, the product), a turned pair by its
    length times that, and by 4 roundings of its own."""
    d = x.shape[-1]
    angle = positions[:, None] * base ** (-np.arange(0, d, 2) / d)
    off = (angle * (4.0 + 2.0 * math.log(base)) + 4.0) * U
    size = np.sqrt((x**2).sum(-1, keepdims=True))
    return np.asarray(np.concatenate([off, off], -1).max(-1, keepdims=True) * size + 0.0 * x)


def _input(trial: PartTrial, length: int, d: int) -> Array:
    return trial.rng.standard_normal((2, 3, length, d)).astype(np.float32).astype(float)


def _pairing(trial: PartTrial) -> str:
    """Where the first component goes at position 1: beside itself, or half the width away."""
    unit = np.zeros((1, 1, 1, 8))
    unit[..., 0] = 1.0
    moved = np.abs(np.asarray(trial.part(unit, np.array([1])))[0, 0, 0])
    return "half" if moved[4] > moved[1] else "interleaved"


@part_law("rope.definition", "pair i at position p is turned by p / base^(2i/D)", part="rotation", chance=False)
def test_definition(trial: PartTrial) -> None:
    """(x1, x2) -> (x1 cos a - x2 sin a, x2 cos a + x1 sin a), a = p base^(-2i/D); pairs (i, i + D/2) or (2i, 2i + 1). Su et al. 2021,
    section 3.2.2. Positions up to 8192: in 16 bits they would be off by whole turns.
    """
    for d, far in ((2, 1), (8, 40), (16, 8192)):
        x = _input(trial, 5, d)
        positions = np.sort(trial.rng.integers(0, far + 1, 5))
        base, pairing = float(trial.part.predicted), _pairing(trial)
        want = _turned(x, positions, base, pairing)
        trial.near(trial.part(x, positions), want, _allowed(x, positions, base), "a pair is turned by another angle")


@part_law("rope.norm", "a rotation keeps lengths", part="rotation", chance=False)
def test_norm(trial: PartTrial) -> None:
    """|R x| = |x|: R is orthogonal, whatever the positions."""
    x = _input(trial, 6, 16)
    got = np.asarray(trial.part(x, trial.rng.integers(0, 5000, 6)))
    length = np.sqrt((x**2).sum(-1))
    trial.near(np.sqrt((got**2).sum(-1)), length, 12 * U * length, "a rotation changes a length")


@part_law("rope.origin", "at position 0 nothing is turned", part="rotation", chance=False)
def test_origin(trial: PartTrial) -> None:
    """cos 0 = 1, sin 0 = 0."""
    x = _input(trial, 3, 8)
    trial.near(trial.part(x, np.zeros(3, dtype=np.int64)), x, 2 * U * np.abs(x), "position 0 is turned")


@part_law("rope.relative", "scores of rotated queries and keys depend on the distance alone", part="rotation",
          basis=("rope.definition",), chance=False)  # fmt: skip
def test_relative(trial: PartTrial) -> None:
    """(R_i q).(R_j k) = q.(R_(j-i) k): moving all positions by the same number changes no score."""
    q, k = _input(trial, 6, 16), _input(trial, 6, 16)
    places = trial.rng.integers(0, 50, 6)
    base = float(trial.part.predicted)
    scores, allowed = [], np.zeros((2, 3, 6, 6))
    for shift in (0, 37, 1000):
        at = places + shift
        rotated = np.asarray(trial.part(q, at)), np.asarray(trial.part(k, at))
        scores.append(rotated[0] @ rotated[1].swapaxes(-1, -2))
        off = _allowed(q, at, base)[..., :1], _allowed(k, at, base)[..., :1]
        sizes = (np.linalg.norm(y, axis=-1, keepdims=True) for y in (q, k))
        size_q, size_k = sizes
        allowed = allowed + 16 * (off[0] * size_k.swapaxes(-1, -2) + size_q * off[1].swapaxes(-1, -2))
    for moved in scores[1:]:
        trial.near(moved, scores[0], allowed, "a score depends on more than the distance")


@part_law(
    "alibi.slopes",
    "slopes are 2^(-8/H), 2^(-16/H), ..., 2^-8; of other H distinct ones between",
    part="slopes",
    chance=False,
)
def test_slopes(trial: PartTrial) -> None:
    """m_h = 2^(-8 h / H) for a power of two. Press et al. 2022, section 3. For another H the paper's code takes those of the power
    of two below and every second one of twice that; others choose otherwise, but always H different ones in (0, 1).
    """
    for heads in (1, 2, 4, 8, 16):
        want = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
        trial.near(np.abs(trial.part(heads)), want, 8 * U * want, f"the slopes of {heads} heads are others")
    for heads in (3, 5, 6, 12):
        got = np.abs(np.asarray(trial.part(heads)))
        twice = 2.0 ** (-8.0 * np.arange(1, 33) / 32)
        known = np.abs(np.log2(got[:, None] / twice)).min(1) < 1e-5
        trial.require(
            len(np.unique(got)) == len(got) == heads, f"{heads} heads have {len(np.unique(got))} different slopes"
        )
        trial.require(bool(known.all()), f"a slope of {heads} heads is no power 2^(-k/4): {got.round(5).tolist()}")


@part_law("buckets.definition", "near distances have a bucket each, far ones share it by their logarithm", part="buckets",
          chance=False)  # fmt: skip
def test_buckets(trial: PartTrial) -> None:
    """Raffel et al. 2019, section 2.1: half of a direction's N buckets are exact; from e = N/2 on bucket e + floor(log(n/e) /
    log(max/e) (N - e)), N - 1 at most. An encoder has N = half of the buckets, and the other half for keys after the query.
    """
    distances = np.arange(-300, 301)
    for both, buckets, longest in ((True, 32, 128), (False, 32, 128), (True, 8, 20), (False, 6, 17)):
        got = np.asarray(trial.part(distances, bidirectional=both, num_buckets=buckets, max_distance=longest))
        n = buckets // 2 if both else buckets
        away = np.abs(distances) if both else np.maximum(-distances, 0)
        e = n // 2
        with np.errstate(divide="ignore"):
            level = np.log(np.maximum(away, 1) / e) / math.log(longest / e) * (n - e)
        want = np.where(away < e, away, np.minimum(e + np.floor(level + 1e-9), n - 1)) + (
            n * (distances > 0) if both else 0
        )
        # where the logarithm is an integer but for rounding, float32 may fall to either side of it
        edge = (np.abs(level - np.rint(level)) < 1e-5) & (away >= e)
        lower = np.where(edge, want - 1, want)
        trial.require(bool(((got == want) | (edge & (got == lower))).all()), _first_wrong(distances, got, want, both))


def _first_wrong(distances: Array, got: Array, want: Array, both: bool) -> str:
    at = int(np.argmax(got != want))
    side = "an encoder" if both else "a decoder"
    return f"distance {distances[at]} of {side} is in bucket {int(got[at])}, not {int(want[at])}"


@part_law(
    "sinusoids.definition",
    "PE[p, 2i] = sin(p / 10000^(2i/E)), PE[p, 2i + 1] = cos of the same",
    part="sinusoids",
    chance=False,
)
def test_sinusoids(trial: PartTrial) -> None:
    """Vaswani et al. 2017, section 3.5. Sines and cosines may also stand one half after the other (tensor2tensor), whose powers end at
    10000 exactly. An odd width ends with a sine, or with a zero.
    """
    for length, width in ((7, 8), (300, 16), (5, 6)):
        got = np.asarray(trial.part(length, width))
        p, i = np.arange(length)[:, None], np.arange(width // 2)
        angles = {
            "paper": p * 10_000.0 ** (-2 * i / width),
            "to the end": p * 10_000.0 ** (-i / max(width // 2 - 1, 1)),
        }
        allowed = (p * 24.0 + 4.0) * U + 0 * got
        fits = []
        for angle in angles.values():
            sin, cos = np.sin(angle), np.cos(angle)
            fits += [np.stack([sin, cos], -1).reshape(length, width), np.concatenate([sin, cos], -1)]
        nearest = min(fits, key=lambda want: float(np.abs(got - want).max()))
        trial.near(got, nearest, allowed, "a position has another vector")
    try:
        odd = np.asarray(trial.part(6, 7))
    except TargetRaised as failure:
        # declined in clear words; an error of shapes from inside is a RuntimeError in torch
        if isinstance(failure.error, ValueError | AssertionError | NotImplementedError):
            return
        raise Broken(f"an odd width: {failure.cause_line}") from failure
    trial.require(
        bool(np.isfinite(odd).all()) and len(np.unique(odd, axis=0)) == 6, "with an odd width two positions are alike"
    )
