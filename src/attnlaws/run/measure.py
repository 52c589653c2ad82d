"""The numbers behind the pictures of the laws of chance: measured on a target or on the reference models, and predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import stats

from ..claims.score_law import product_cdf
from ..judge.chance import Finding, Floats, generator
from ..judge.depth import pre_norm_variances
from ..judge.moments import distribution
from ..judge.softmax_law import entropy, row_law
from ..reference.gpt import GPT
from ..targets.call import Call, TargetRaised
from ..targets.part import Part, PreNorm, torch_stack
from ..targets.recover import recover_weights
from ..targets.shipped_parts import DEEP, NORMED, gpt_stream, shipped_parts
from ..targets.target import Target

#: the head sizes of the scores, and those of the saturation with the keys of its rows
SCORE_DIMS, DIMS, KEYS = (1, 4, 64), (1, 4, 16, 64, 256), 48
#: independent pairs of keys, rows of weights, and models
PAIRS, ROWS, MODELS = 20_000, 1_000, 64
#: the share of intervals that hold what is predicted
LEVEL = 0.999


class CannotMeasure(Exception):
    """The target can't be measured in this way; the message says why."""


@dataclass(frozen=True)
class Point:
    """An estimate at a place, half the width of its 99.9 % interval, and what is predicted there."""

    at: float
    estimate: float
    half: float
    predicted: float

    @property
    def agrees(self) -> bool:
        """Whether the prediction lies in the interval."""
        return abs(self.estimate - self.predicted) <= self.half


def mean_point(at: float, values: Floats, predicted: float) -> Point:
    """The mean of independent values, with Student's interval."""
    n = values.size
    reach = float(stats.t.isf((1.0 - LEVEL) / 2.0, n - 1))
    return Point(at, float(values.mean()), reach * float(values.std(ddof=1)) / n**0.5, predicted)


# -- one target, random queries and keys -----------------------------------------------------------------------------------


def own_scale(target: Target, dim: int) -> float:
    """The scale that the target applies by its convention where none is given."""
    return 1.0 if target.conventions.default_scale == "1" else dim**-0.5


def head_sizes(target: Target, wanted: Sequence[int]) -> tuple[int, ...]:
    """Those of the wanted head sizes that the target takes, or as many of its own."""
    taken = target.abilities.head_dims
    return tuple(n for n in wanted if not taken or n in taken) or taken[: len(wanted)]


def random_weights(
    target: Target, rng: np.random.Generator, *, rows: int, keys: int, dim: int, scaled: bool, normed: bool = False
) -> Floats:
    """Weights (rows, keys) of N(0, 1) queries, one a row, over N(0, 1) keys; `normed` gives each query the length sqrt(dim).

    The scores are q.k / sqrt(dim), or q.k where not `scaled`: the query is multiplied by the wanted scale over the target's
    own, so that no target needs an argument for it. Raises CannotMeasure, and TargetRaised or WrongResult as a call does.
    """
    batch, heads = _together(target, min(rows, max(1, (1 << 21) // (keys * dim))))
    factor = (dim**-0.5 if scaled else 1.0) / own_scale(target, dim)
    dtype = next((d for d in ("float64", "float32") if d in target.abilities.dtypes), target.abilities.dtypes[0])
    parts: list[Floats] = []
    for _ in range(-(-rows // (batch * heads))):
        query = rng.standard_normal((batch, heads, 1, dim))
        if normed:
            query *= dim**0.5 / np.linalg.norm(query, axis=-1, keepdims=True)
        key = rng.standard_normal((batch, heads, keys, dim))
        query, key = (x.astype(np.float32).astype(np.float64) for x in (factor * query, key))
        call = Call(query, key, np.zeros((batch, heads, keys, dim)), dtype)
        try:
            parts.append(recover_weights(target, call).reshape(-1, keys))
        except TargetRaised as failure:
            if isinstance(failure.error, NotImplementedError):
                raise CannotMeasure(f"{target.name} declines head size {dim}: {failure.cause_line}") from failure
            raise
    return np.concatenate(parts)[:rows]


def _together(target: Target, rows: int) -> tuple[int, int]:
    """How many rows one call takes, as samples and as heads. Raises CannotMeasure."""
    made, can = target.conventions, target.abilities
    if not can.rectangular or not can.single_query:
        raise CannotMeasure(f"{target.name} takes no single query with several keys")
    if made.causal == "always" and made.alignment != "bottom-right" and made.single_query != "all keys":
        raise CannotMeasure(f"{target.name} is always causal: a single query sees one key, and its weight says nothing")
    if can.batch and made.layout != "packed":
        return rows, 1
    if can.heads:
        return 1, min(rows, 128)
    raise CannotMeasure(f"{target.name} takes one row at a time")


@dataclass(frozen=True)
class Scores:
    """Independent scores of one head size; `deviation` is 1 where they are scaled, sqrt(dim) where they are not."""

    dim: int
    deviation: float
    values: Floats

    @property
    def variance(self) -> tuple[float, float, float]:
        """Their mean square and its 99.9 % interval, for values of the kurtosis 3 + 6/d: as `judge.moments.products`."""
        square, freedom = float((self.values**2).mean()), 2.0 * self.values.size / (2.0 + 6.0 / self.dim)
        least, most = (float(stats.chi2.ppf(p, freedom)) for p in ((1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0))
        return square, square * freedom / most, square * freedom / least

    def distance(self, cdf: Callable[[Floats], Floats] | None = None) -> Finding:
        """Kolmogorov's distance to a law of deviation 1; to that of q.k / sqrt(d) where none is given."""
        law = cdf or (lambda x: product_cdf(x, self.dim))
        return distribution("distance", self.values / self.deviation, law)


def scores(target: Target, dim: int, *, scaled: bool = True, seed: int = 0, size: int = PAIRS) -> Scores:
    """log(w_1 / w_0) / sqrt(2) = s q.(k_1 - k_0) / sqrt(2) of a query and two keys: the law of one score s q.k.

    (k_1 - k_0) / sqrt(2) is N(0, I) and independent of q, as k is. Raises CannotMeasure, TargetRaised or WrongResult.
    """
    rng = generator(f"picture of scores {dim} {scaled}", seed)
    weights = random_weights(target, rng, rows=size, keys=2, dim=dim, scaled=scaled)
    with np.errstate(all="ignore"):
        values = np.log(weights[:, 1] / weights[:, 0]) / np.sqrt(2.0)
    good = values[np.isfinite(values)]
    if good.size < size // 2:
        raise CannotMeasure(f"most pairs of weights of {target.name} have no finite logarithm")
    return Scores(dim, 1.0 if scaled else dim**0.5, good)


@dataclass(frozen=True)
class Quantiles:
    """Quantiles at places where N(0, 1) has `normal`: of a sample, of the exact law, and the latter's 99.9 % bands, one by one."""

    normal: Floats
    sample: Floats
    exact: Floats
    low: Floats
    high: Floats


def quantiles(found: Scores) -> Quantiles:
    """Order statistics k of n against F^-1 of their share; F(x_(k)) has the law Beta(k, n - k + 1)."""
    n = found.values.size
    rank = np.unique(np.clip(np.round(n * stats.norm.cdf(np.linspace(-3.4, 3.4, 35))).astype(int), 1, n))
    grid = np.linspace(-12.0, 12.0, 3001)
    cdf = product_cdf(grid, found.dim)
    low, high = (stats.beta.ppf(p, rank, n - rank + 1) for p in ((1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0))
    share = (rank - 0.5) / n
    exact, low, high = (np.interp(p, cdf, grid) for p in (share, low, high))
    sample = np.sort(found.values / found.deviation)[rank - 1]
    return Quantiles(stats.norm.ppf(share), sample, exact, low, high)


@dataclass(frozen=True)
class Saturation:
    """Entropy of the weights in nats, and trace of the softmax Jacobian, by head size, with the scale or without."""

    scaled: bool
    entropy: tuple[Point, ...]
    trace: tuple[Point, ...]


def saturation(target: Target, *, scaled: bool, seed: int = 0, size: int = ROWS) -> Saturation:
    """Rows over `KEYS` keys with exactly independent N(0, deviation^2) scores: queries have the length sqrt(d).

    tr J = sum w_i (1 - w_i) = 1 - sum w^2. Raises CannotMeasure, TargetRaised or WrongResult.
    """
    entropies, traces = [], []
    for dim in head_sizes(target, DIMS):
        rng = generator(f"picture of saturation {dim} {scaled}", seed)
        w = random_weights(target, rng, rows=size, keys=KEYS, dim=dim, scaled=scaled, normed=True)
        law = row_law(KEYS, 1.0 if scaled else dim**0.5)
        entropies.append(mean_point(dim, entropy(w), law.entropy))
        traces.append(mean_point(dim, 1.0 - (w**2).sum(axis=-1), 1.0 - law.concentration))
    return Saturation(scaled, tuple(entropies), tuple(traces))


# -- the reference models --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Depth:
    """Variance of the residual stream after 0, 1, ... blocks, over that after 0."""

    name: str
    points: tuple[Point, ...]
    models: int


def depth(*, seed: int = 0, models: int = MODELS) -> tuple[Depth, Depth, Depth]:
    """Pre-LayerNorm with residual weights as wide as others, and 1/sqrt(2 layers) of that; post-LayerNorm."""
    scaled = shipped_parts()["reference.gpt.GPT by depth"]
    wide: PreNorm = replace(scaled.predicted, residual_deviation=scaled.predicted.deviation)
    unscaled = torch_stack("residual weights not scaled", _unscaled, gpt_stream, wide)
    post = shipped_parts()["reference.bert.Bert by depth"]
    return (
        pre_norm("pre-LayerNorm, not scaled", unscaled, seed=seed, models=models),
        pre_norm("pre-LayerNorm, scaled", scaled, seed=seed, models=models),
        post_norm("post-LayerNorm", post, seed=seed, models=max(2, models // 8)),
    )


def _unscaled() -> GPT:
    """The reference GPT with the last matrices of its residual branches drawn as the others."""
    model = GPT(DEEP)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("c_proj.weight"):
                parameter.mul_((2 * DEEP.num_layers) ** 0.5)
    return model


def pre_norm(name: str, stack: Part, *, seed: int, models: int) -> Depth:
    """Each model starts at its own variance, so each has its own prediction; the interval is that of what is left."""
    rng = generator(f"picture of depth {name}", seed)
    found, wanted = [], []
    for _ in range(models):
        v = np.asarray(stack(int(rng.integers(1 << 40))))
        found.append(v / v[0])
        wanted.append(pre_norm_variances(stack.predicted, float(v[0])) / v[0])
    points = []
    for block, predicted in enumerate(np.mean(wanted, axis=0)):
        left = np.array([f[block] - w[block] for f, w in zip(found, wanted, strict=True)])
        points.append(mean_point(block, predicted + left, float(predicted)))
    return Depth(name, tuple(points), models)


def post_norm(name: str, stack: Part, *, seed: int, models: int) -> Depth:
    """The variance is that of the norm's gain, 1, but for rounding: sums of E terms in float32 twice, and a few more."""
    rng = generator(f"picture of depth {name}", seed)
    found = np.array([stack(int(rng.integers(1 << 40))) for _ in range(models)])
    rounding = 2.0 * (NORMED.d_model + 8) * 2.0**-24
    points = (mean_point(block, values / found[:, 0], 1.0) for block, values in enumerate(found.T))
    return Depth(name, tuple(replace(point, half=point.half + rounding) for point in points), models)
