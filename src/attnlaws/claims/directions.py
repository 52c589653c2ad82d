"""Claims on directions in many dimensions: analogies, and how many nearly orthogonal vectors there is room for."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
from scipy import optimize, special

from .chance import Floats, Look, count_look, fails, generator, holds, product, rank_of
from .claim import ASSUMING, FALSE, TRUE, Measured, claim, together
from .dot_products import unit


def welch_maximum(dims: int, degrees: float) -> float:
    """The most unit vectors in R^n with all angles within `degrees` of 90: N <= n (1 - e^2) / (1 - n e^2), e = sin.

    sum_ij (u_i.u_j)^2 = |sum_i u_i u_i^T|^2 >= N^2 / n, and at most N + N (N - 1) e^2. It says nothing once n e^2 >= 1.
    Welch 1974.
    """
    e2 = math.sin(math.radians(degrees)) ** 2
    return dims * (1.0 - e2) / (1.0 - dims * e2) if dims * e2 < 1.0 else math.inf


def pair_share(dims: int, degrees: float) -> float:
    """The share of pairs of random directions within `degrees` of 90: I_{e^2}(1/2, (n-1)/2)."""
    return float(special.betainc(0.5, (dims - 1) / 2.0, math.sin(math.radians(degrees)) ** 2))


def simplex(count: int) -> Floats:
    """The Gram matrix of a regular simplex of `count` unit vectors: cosines -1 / (count - 1), rank count - 1."""
    value: Floats = np.eye(count) * count / (count - 1) - 1.0 / (count - 1)
    return value


@claim(
    "C22",
    TRUE,
    "exact",
    says="In n dimensions there are only n representations: the number of basis vectors.",
    statement="R^n holds at most n nonzero vectors that are orthogonal to each other",
    right="True: orthogonal vectors are linearly independent.",
)
def orthogonal(spare: int = 0) -> Measured:
    """Gram-Schmidt on n + 1 integer vectors, in fractions: the last is left with 0, exactly."""
    zeros = []
    for n in range(2, 8):
        rows = generator(f"orthogonal {n}").integers(-5, 6, (n + 1 - spare, n))
        basis: list[list[Fraction]] = []
        for row in rows:
            rest = [Fraction(int(x)) for x in row]
            for b in basis:
                c = sum((x * y for x, y in zip(rest, b, strict=True)), Fraction(0)) / sum(
                    (y * y for y in b), Fraction(0)
                )
                rest = [x - c * y for x, y in zip(rest, b, strict=True)]
            if any(rest):
                basis.append(rest)
        zeros.append(len(rows) - len(basis))
    return Measured(
        all(z == 1 for z in zeros), f"n = 2..7, n + {1 - spare} vectors: {zeros} of them have no direction of their own"
    )


@claim(
    "C23",
    FALSE,
    "statistical",
    says="With angles of 89 to 91 degrees allowed, 100 dimensions can hold at least 10000 vectors.",
    statement="R^100 holds 10,000 unit vectors with all angles in 89..91 degrees",
    right="At most 103. A regular simplex gives 101. 10,000 vectors need at least 2,472 dimensions, random ones about "
    "103,000; in 100 dimensions 10,000 vectors need a tolerance of at least 8.05 degrees.",
)
def room(vectors: int = 103, dims: int = 100) -> Measured:
    """Welch's bound, attained up to two; of random pairs a share I_{e^2}(1/2, (n-1)/2) lies within 1 degree of 90."""
    bound = math.floor(welch_maximum(dims, 1.0))
    gram = simplex(101)
    widest = float(np.degrees(np.arccos((gram - np.eye(101)).min())))
    rank = rank_of(gram)
    e2 = math.sin(math.radians(1.0)) ** 2
    needed = math.ceil(10_000 / (1.0 + 9_999 * e2))
    N, n = 10_000, 100
    least = math.degrees(math.asin(math.sqrt((3 * N - n * n - 2 * n) / ((n + 2) * (N - n)))))
    random = random_dimensions(N)
    cosines = np.abs(np.triu(_random_gram(generator("room"), 2000, n), 1)).max()

    def share(rng: np.random.Generator, predicted: float) -> Look:
        a, b = rng.standard_normal((2, 30_000, n))
        cosine = np.einsum("nd,nd->n", unit(a), unit(b))
        return count_look(int((cosine**2 < e2).sum()), 30_000, predicted)

    return together(
        Measured(bound == vectors, f"at most {bound} in {dims} dimensions"),
        Measured(rank == 100 and widest < 91, f"101 of them have rank {rank} and angles {widest:.3f}"),
        Measured(welch_maximum(needed, 1.0) >= N > welch_maximum(needed - 1, 1.0), f"10000 need {needed} dimensions"),
        Measured(8.0 < least < 8.1, f"or {least:.2f} degrees in 100"),
        Measured(90_000 < random < 115_000, f"random ones need {random}"),
        Measured(
            bool(cosines > 10 * math.sqrt(e2)), f"2000 random ones reach {np.degrees(np.arccos(cosines)):.0f} degrees"
        ),
        holds("random pairs within 1 degree of 90:", lambda rng: share(rng, pair_share(n, 1.0))),
        fails("the same against 1:", lambda rng: share(rng, 1.0 - 1e-9)),
    )


def _random_gram(rng: np.random.Generator, count: int, dims: int) -> Floats:
    vectors = unit(rng.standard_normal((count, dims)))
    return product(vectors, vectors.T)


def random_dimensions(count: int) -> int:
    """The dimensions in which `count` random vectors have one expected pair outside 89..91 degrees."""
    pairs = count * (count - 1) / 2
    e2 = math.sin(math.radians(1.0)) ** 2
    root = optimize.brentq(lambda n: math.log(pairs * special.betaincc(0.5, (n - 1) / 2, e2)), 1e4, 1e6)
    return round(float(root))


@claim(
    "C24",
    FALSE,
    "exact",
    says="So one more dimension can give far more than ten times the features.",
    statement="the number of vectors at 89..91 degrees grows more than tenfold from n = 100 to 101",
    right="From at most 103 to at most 104. Where random vectors do, in high dimensions, one more dimension multiplies "
    "their number by exp(e^2/4) to exp(e^2/2), 1.00008 to 1.00015, e = sin of 1 degree: tenfold takes 15,119 dimensions or more.",
)
def growth(next_dimension: int = 104) -> Measured:
    """N vectors at random have about N^2 exp(-n e^2 / 2) pairs outside: N ~ exp(n e^2 / 4) until the first, exp(n e^2 / 2)
    until as many as vectors, which can be left out.
    """
    before, after = (math.floor(welch_maximum(n, 1.0)) for n in (100, 101))
    most = after / 101  # a simplex holds 101 in R^100
    e2 = math.sin(math.radians(1.0)) ** 2
    slow, fast = math.exp(e2 / 4), math.exp(e2 / 2)
    tenfold = math.log(10) / (e2 / 2)
    return together(
        Measured((before, after) == (103, next_dimension), f"at most {before} in 100 dimensions, {after} in 101"),
        Measured(1.0 <= most < 10.0, f"at most {most:.4f} times as many"),
        Measured(fast < 1.0002, f"random codes grow by {slow:.5f} to {fast:.5f} a dimension"),
        Measured(tenfold > 15_000, f"tenfold takes {tenfold:.0f} dimensions"),
    )


def analogy(t: float) -> dict[str, float]:
    """Cosines with king - man + woman where each word is the sum of its attributes and a vector of its own, of square t.

    Royal, male, female and the four own vectors are orthogonal, so the cosines are those expected for random noise.
    """
    axes = np.eye(7)
    own = math.sqrt(t) * axes[3:]
    words = {
        "king": axes[0] + axes[1] + own[0],
        "queen": axes[0] + axes[2] + own[1],
        "man": axes[1] + own[2],
        "woman": axes[2] + own[3],
    }
    x = words["king"] - words["man"] + words["woman"]
    return {name: float(unit(x) @ unit(word)) for name, word in words.items()}


def nearest(rng: np.random.Generator, t: float, runs: int, among: Floats) -> tuple[int, int]:
    """How often queen is the nearest of all words to king - man + woman, and how often with the three inputs left out."""
    every = without = 0
    dims = among.shape[1]
    for _ in range(runs):
        axes = torch.linalg.qr(torch.from_numpy(rng.standard_normal((dims, 3))))[0].numpy().T
        own = rng.standard_normal((4, dims)) * math.sqrt(t / dims)
        king, queen, man, woman = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 0], [0, 0, 1]]) @ axes + own
        x = unit(king - man + woman)
        near = float(unit(queen) @ x)
        others = float(product(among, x).max())
        inputs = max(float(unit(w) @ x) for w in (king, man, woman))
        without += near > others
        every += near > max(others, inputs)
    return every, without


@claim(
    "C3",
    ASSUMING,
    "statistical",
    says="The vector of queen can be guessed as E(king) + (E(woman) - E(man)).",
    statement="queen is the word nearest to king - man + woman",
    right="In an additive model with a part of square t in each word that is its own, queen is nearer than woman iff "
    "(1 + t)(2 + t) < 4, t < 0.5616, nearer than king iff t < 1. Beyond that the nearest word is one of the inputs, and only "
    "leaving them out gives queen.",
    assumption="words add up attributes, and t < 0.5616, or the three inputs are left out",
)
def king(turn: float = (math.sqrt(17) - 3) / 2) -> Measured:
    """Cosines queen 2, king 1 + t, woman (1 + t) sqrt((2 + t) / (1 + t)), all over sqrt((2 + 3t)(2 + t))."""
    closed = max(
        abs(analogy(t)["queen"] - 2 / math.sqrt((2 + 3 * t) * (2 + t)))
        + abs(analogy(t)["woman"] - (1 + t) / math.sqrt((2 + 3 * t) * (1 + t)))
        for t in (0.0, 0.3, 0.9)
    )
    below, above = analogy(turn - 1e-6), analogy(turn + 1e-6)
    crossing = below["queen"] > below["woman"] and above["queen"] < above["woman"]
    at_one = analogy(1 - 1e-6)["queen"] > analogy(1 - 1e-6)["king"] and analogy(1.1)["queen"] < analogy(1.1)["king"]
    words = unit(generator("other words").standard_normal((4000, 300)))

    def look(rng: np.random.Generator) -> Look:
        every, _ = nearest(rng, 0.9, 100, words)
        return count_look(every, 100, 0.5)

    easy = nearest(generator("easy analogies"), 0.3, 40, words)
    hard = nearest(generator("hard analogies"), 0.9, 40, words)
    return together(
        Measured(closed < 1e-14, f"exact cosine at t = 0 {analogy(0.0)['queen']:.3f}"),
        Measured(crossing and at_one, f"woman overtakes queen at t = {turn:.4f}, king at 1"),
        Measured(easy == (40, 40), f"t = 0.3: queen is nearest in {easy[0]} of 40, {easy[1]} with the inputs left out"),
        Measured(hard[0] < 20 and hard[1] == 40, f"t = 0.9: {hard[0]} and {hard[1]} of 40"),
        fails("t = 0.9, nearest half the time:", look),
    )
