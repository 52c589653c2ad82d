"""Claims on dot products: what they measure, and the law of q.k for independent N(0, 1) entries."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy import special, stats

from .chance import Floats, Look, count_look, fails, generator, holds, law_look, mean_look, products_look, variance_look
from .claim import ASSUMING, ASYMPTOTICALLY, FALSE, TRUE, Measured, claim, together
from .score_law import distance_to_normal, product_cdf, product_density, product_tail


def products(rng: np.random.Generator, n: int, dim: int) -> Floats:
    """n independent q.k, each of two fresh N(0, I) vectors in `dim` dimensions."""
    values: Floats = np.einsum("nd,nd->n", rng.standard_normal((n, dim)), rng.standard_normal((n, dim)))
    return values


def products_by_length(rng: np.random.Generator, n: int, dim: int) -> Floats:
    """The same law with two draws each: |q| z, |q|^2 ~ chi-square."""
    return np.sqrt(rng.chisquare(dim, n)) * rng.standard_normal(n)


@claim(
    "A1",
    TRUE,
    "statistical",
    says="In a high-dimensional space dot products can become too large, so the score is scaled.",
    statement="sd(q.k) = sqrt(d_k) for independent entries of mean 0 and variance 1",
    right="The variance is d_k exactly, for every law of the entries with mean 0 and variance 1.",
)
def grows(power: float = 1.0) -> Measured:
    """Var(q.k) = sum_i E q_i^2 E k_i^2 = d. Vaswani et al. 2017, section 3.2.1, footnote 4."""
    signs = np.array(list(itertools.product((-1, 1), repeat=6)))
    variance = float(((signs @ signs.T) ** 2).mean())
    every = Measured(variance == 6**power, f"signs in 6 dimensions, all pairs: E s^2 = {variance:g}")

    def sample(rng: np.random.Generator, dim: int) -> Look:
        return products_look(products(rng, 32_768, dim), dim, float(dim) ** power)

    return together(
        every,
        holds("variance at d = 16:", lambda rng: sample(rng, 16)),
        holds("variance at d = 64:", lambda rng: sample(rng, 64)),
    )


@claim(
    "A4",
    FALSE,
    "property",
    says="The more the directions of two vectors agree (the closer they are), the larger is their dot product.",
    statement="for all a, b, c: cos(a, b) > cos(a, c) implies a.b > a.c",
    right="a.b = |a||b| cos: true at fixed norms only. (1, 0).(1, 0) = 1 at 0 degrees, (1, 0).(10, 10) = 10 at 45.",
)
def direction(normed: bool = True) -> Measured:
    """A counterexample in the plane, and the share of random triples whose order is the other way round."""
    a, same, oblique = np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.array([10.0, 10.0])
    counter = Measured(a @ same < a @ oblique, f"a.b = {a @ same:g} at 0 degrees, {a @ oblique:g} at 45")
    rng = generator("direction")
    x, y, z = rng.standard_normal((3, 20_000, 16))
    first, second = disordered(x, y, z), disordered(x, unit(y), unit(z)) if normed else disordered(x, y, z)
    return together(
        counter,
        Measured(first > 0, f"{first} of 20000 random triples have the order reversed"),
        Measured(second == 0, f"{second} once b and c have norm 1"),
    )


def unit(x: Floats) -> Floats:
    """Each row divided by its norm."""
    scaled: Floats = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return scaled


def disordered(a: Floats, b: Floats, c: Floats) -> int:
    """In how many rows b lies nearer to a's direction than c does, and has the smaller dot product (beyond rounding)."""
    by_angle = np.einsum("nd,nd->n", a, unit(b) - unit(c))
    by_product = np.einsum("nd,nd->n", a, b - c)
    clear = np.abs(by_angle) > 1e-9
    return int((clear & (by_angle * by_product < 0)).sum())


@claim(
    "A5",
    FALSE,
    "statistical",
    says="A_i^2 tends to a chi-square distribution with d_k degrees of freedom, so A_i^2 has the mean d_k.",
    statement="for A_i ~ N(0, 1): A_i^2 ~ chi2 with d_k degrees of freedom, in the limit",
    right="The sum over i does, exactly and for every d_k; one A_i^2 is chi2 with 1 degree of freedom and mean 1. "
    "The sum has variance 2 d_k, so |A|^2 varies by sqrt(2 / d_k): 17.7 % at 64.",
)
def squares(freedom: int = 1) -> Measured:
    """A sum of d squares of N(0, 1) is chi2_d by definition (Helmert 1876)."""

    def one(rng: np.random.Generator) -> Look:
        return law_look(rng.standard_normal(20_000) ** 2, stats.chi2(freedom).cdf)

    def total(rng: np.random.Generator, dim: int) -> Look:
        return law_look((rng.standard_normal((20_000, dim)) ** 2).sum(axis=1), stats.chi2(dim).cdf)

    spread = math.sqrt(stats.chi2(64).var()) / stats.chi2(64).mean()
    return together(
        holds(f"one A_i^2 as chi2 with {freedom}:", one),
        fails(
            "one A_i^2 against mean 64:", lambda rng: mean_look(rng.standard_normal(20_000) ** 2, 64.0, math.sqrt(2))
        ),
        holds("the sum of 3 as chi2 with 3:", lambda rng: total(rng, 3)),
        holds("the sum of 64 as chi2 with 64:", lambda rng: total(rng, 64)),
        Measured(abs(spread - math.sqrt(2 / 64)) < 1e-12, f"relative sd of |A|^2 at 64: {spread:.1%}"),
    )


@claim(
    "A6",
    ASSUMING,
    "statistical",
    says="|A|^2 |B|^2 equals d_k^2; d_k is a constant.",
    statement="|A|^2 |B|^2 = d_k^2 for A, B with N(0, 1) entries",
    right="For N(0, 1) entries only the mean is d_k^2; the relative sd is 2 sqrt(1/d + 1/d^2), 25 % at 64, and "
    "E|A||B| = 63.50 there. For vectors normed to |A|^2 = d it is d_k^2 exactly.",
    assumption="the vectors are normed (LayerNorm or RMSNorm with eps = 0)",
)
def lengths(normed: bool = True) -> Measured:
    """E|A|^2 = d, Var(|A|^2 |B|^2) / d^4 = (1 + 2/d)^2 - 1; E|A| = sqrt(2) Gamma((d+1)/2) / Gamma(d/2)."""
    dim = 64
    spread = 2.0 * math.sqrt(1 / dim + 1 / dim**2)
    both = 2.0 * math.exp(2.0 * (special.gammaln((dim + 1) / 2) - special.gammaln(dim / 2)))

    def sizes(rng: np.random.Generator) -> Floats:
        sizes: Floats = rng.chisquare(dim, 65_536) * rng.chisquare(dim, 65_536) / dim**2
        return sizes

    a = generator("lengths").standard_normal((1000, dim))
    a = unit(a) * math.sqrt(dim) if normed else a
    largest = float(np.abs((a**2).sum(axis=1) / dim - 1.0).max())
    return together(
        holds("E |A|^2|B|^2 / d^2 at 64:", lambda rng: mean_look(sizes(rng), 1.0, spread)),
        holds("its variance:", lambda rng: mean_look((sizes(rng) - 1.0) ** 2, spread**2)),
        fails("E |A||B| against 64:", lambda rng: mean_look(np.sqrt(sizes(rng)) * dim, float(dim), both * spread / 2)),
        holds("E |A||B|:", lambda rng: mean_look(np.sqrt(sizes(rng)) * dim, both)),
        Measured(spread > 0.2, f"relative sd {spread:.1%}"),
        Measured(largest < 1e-14, f"normed vectors: |A|^2 = d to {largest:.1g}"),
    )


@claim(
    "A7",
    ASYMPTOTICALLY,
    "statistical",
    says="If the elements of a vector are standard normal, the dot product measures similarity, and is comparable.",
    statement="q.k = d cos(angle) for N(0, 1) entries",
    right="q.k / (d cos) = |q||k| / d deviates from 1 by about 1/sqrt(d): 12.5 % at 64. For normed vectors it is exact.",
)
def similarity(rate: float = -0.5) -> Measured:
    """E(|q||k| / d)^2 = 1, so its sd is sqrt(1 - (E|q||k| / d)^2)."""
    found = {d: math.sqrt(1.0 - _mean_length(d) ** 4) for d in (16, 64, 1024, 16384)}
    slope = math.log(found[16384] / found[1024]) / math.log(16)

    def size(rng: np.random.Generator) -> Look:
        return mean_look(np.sqrt(rng.chisquare(64, 50_000) * rng.chisquare(64, 50_000)) / 64, _mean_length(64) ** 2)

    q, k = (unit(x) * 8.0 for x in generator("similarity").standard_normal((2, 1000, 64)))
    off = float(np.abs(np.einsum("nd,nd->n", q, k) - 64 * np.einsum("nd,nd->n", unit(q), unit(k))).max())
    return together(
        Measured(abs(slope - rate) < 0.01, "sd " + ", ".join(f"{v:.4f} (d = {d})" for d, v in found.items())),
        Measured(abs(found[16384] * math.sqrt(16384) - 1.0) < 0.01, f"falls as d^{slope:.3f}"),
        holds("E |q||k| / d at 64:", size),
        Measured(off < 1e-12, f"normed: |q.k - d cos| <= {off:.1g}"),
    )


def _mean_length(dim: int) -> float:
    """E|q| / sqrt(d)."""
    return math.exp(special.gammaln((dim + 1) / 2) - special.gammaln(dim / 2)) * math.sqrt(2 / dim)


@claim(
    "A8",
    FALSE,
    "statistical",
    says="The elements of s follow a normal distribution with d_k degrees of freedom, so s has mean 0 and variance d_k.",
    statement="q.k ~ N(0, d_k) for independent N(0, 1) entries",
    right="Mean and variance are right, the law is not: variance-gamma, kurtosis 3 + 6/d. Given q, a row of scores is "
    "exactly N(0, |q|^2): its variance is |q|^2, not d_k.",
)
def law(dim: int = 8) -> Measured:
    """s = |q| z, z ~ N(0, 1): variance-gamma, E s^4 = 3 d^2 + 6 d. Madan and Seneta 1990; see `score_law`. Here d = 8."""
    grid = np.linspace(1e-5, 60.0, 12_001)
    density = product_density(grid, dim)
    mass, fourth = (2.0 * float(np.trapezoid(density * grid**p, grid)) for p in (0, 4))
    kurtosis = fourth / (2.0 * float(np.trapezoid(density * grid**2, grid))) ** 2
    root = math.sqrt(8)
    q = np.full(8, math.sqrt(1.0 + math.sqrt(2 / 8)))  # one standard deviation longer than usual

    def sample(rng: np.random.Generator) -> Floats:
        return products(rng, 100_000, 8) / root

    def row(rng: np.random.Generator, predicted: float) -> Look:
        return variance_look(rng.standard_normal((20_000, 8)) @ q, predicted)

    return together(
        holds("variance-gamma at d = 8:", lambda rng: law_look(sample(rng), lambda x: product_cdf(x, dim))),
        fails("N(0, 8):", lambda rng: law_look(sample(rng), special.ndtr)),
        Measured(abs(mass - 1) < 1e-5, f"the density integrates to {mass:.7f}"),
        Measured(abs(kurtosis - (3 + 6 / 8)) < 1e-6, f"kurtosis {kurtosis:.4f}"),
        holds("variance of a row given q:", lambda rng: row(rng, float(q @ q))),
        fails("the same against d:", lambda rng: row(rng, 8.0)),
    )


@claim(
    "A11",
    ASYMPTOTICALLY,
    "statistical",
    says="The new s (divided by its standard deviation) follows the standard normal distribution.",
    statement="q.k / sqrt(d_k) ~ N(0, 1)",
    right="Mean 0 and variance 1 exactly; the law only as d grows, its distance about 0.1375 / d (0.0021 at 64). "
    "The tail beyond 5 is 4.8 times the normal one at 64, 135 times at 8.",
)
def normalised(tail_dim: int = 8) -> Measured:
    """Kolmogorov distances and tails by quadrature over |q|; the tail beyond 4 by counting."""
    distance = {d: distance_to_normal(d) for d in (8, 32, 64, 128, 512)}
    scaled = [d * v for d, v in distance.items()]
    normal = 2.0 * float(special.ndtr(-5.0))
    tails = {d: product_tail(5.0, d) / normal for d in (8, 64)}

    def beyond(rng: np.random.Generator, predicted: float) -> Look:
        scores = products_by_length(rng, 400_000, 8) / math.sqrt(8)
        return count_look(int((np.abs(scores) > 4.0).sum()), scores.size, predicted)

    return together(
        Measured(
            max(scaled) / min(scaled) < 1.01 and distance[512] < 3e-4,
            "distance to N(0, 1) " + ", ".join(f"{v:.5f} (d = {d})" for d, v in distance.items()),
        ),
        Measured(tails[8] > 100 and tails[64] > 4, f"tail beyond 5: {tails[64]:.2f} times (64), {tails[8]:.1f} (8)"),
        holds("P(|s| > 4) at d = 8:", lambda rng: beyond(rng, product_tail(4.0, tail_dim))),
        fails("the same against N(0, 1):", lambda rng: beyond(rng, 2.0 * float(special.ndtr(-4.0)))),
    )


@claim(
    "C8",
    FALSE,
    "property",
    says="The dot product of query and key asks whether two vectors have the same direction and about the same size.",
    statement="for a given direction, q.k is largest where |k| = |q|",
    right="q.k is linear in each norm: it has no maximum at equal sizes. Twice as long a key has twice the score.",
)
def size(factor: float = 2.0) -> Measured:
    """q.(t k) = t q.k for every t."""
    q, k = generator("size").integers(-9, 10, (2, 2000, 16)).astype(np.float64)
    k = np.where((np.einsum("nd,nd->n", q, k) > 0)[:, None], k, -k)
    kept = np.einsum("nd,nd->n", q, k)
    longer = np.einsum("nd,nd->n", q, 2.0 * k)
    same = float((q * q).sum(axis=1)[0])
    twice = float((q * 2.0 * q).sum(axis=1)[0])
    exact = int((longer == factor * kept).sum())
    return together(
        Measured(exact == 2000, f"q.(2k) = {factor:g} q.k in {exact} of 2000 cases, bitwise"),
        Measured(twice > same, f"q.q = {same:g}, yet q.(2q) = {twice:g}"),
    )
