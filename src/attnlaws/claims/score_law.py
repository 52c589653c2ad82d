"""The exact law of s = q.k for independent N(0, 1) entries in d dimensions, and of its normalised form s / sqrt(d).

s = |q| z with z ~ N(0, 1) independent of |q|^2 ~ chi2_d, so P(s <= x) = E Phi(x / |q|). The same law is that of
(chi2_d - chi2'_d) / 2, the variance-gamma law with characteristic function (1 + t^2)^(-d/2) (Madan and Seneta 1990).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special, stats

from .chance import Floats, product


@lru_cache(maxsize=16)
def _lengths(dim: int) -> tuple[Floats, Floats]:
    """Nodes and weights of a quadrature over the length of a N(0, I) vector in `dim` dimensions."""
    low, high = float(stats.chi.ppf(1e-14, dim)), float(stats.chi.isf(1e-22, dim))
    x, w = np.polynomial.legendre.leggauss(160)
    at = low + (x + 1.0) * (high - low) / 2.0
    weights = w * (high - low) / 2.0 * stats.chi.pdf(at, dim)
    return at, weights / weights.sum()


def product_cdf(x: Floats, dim: int) -> Floats:
    """P(q.k / sqrt(d) <= x), by quadrature on a grid and linear interpolation between its 3001 points."""
    grid = np.linspace(-12.0, 12.0, 3001)
    return np.interp(x, grid, _on_grid(dim))


@lru_cache(maxsize=16)
def _on_grid(dim: int) -> Floats:
    lengths, weights = _lengths(dim)
    grid = np.linspace(-12.0, 12.0, 3001)
    values: Floats = product(special.ndtr(grid[:, None] * math.sqrt(dim) / lengths), weights)
    return values


def product_tail(t: float, dim: int) -> float:
    """P(|q.k| / sqrt(d) > t)."""
    lengths, weights = _lengths(dim)
    return 2.0 * float(special.ndtr(-t * math.sqrt(dim) / lengths) @ weights)


def product_density(s: Floats, dim: int) -> Floats:
    """|s|^((d-1)/2) K_((d-1)/2)(|s|) / (sqrt(pi) 2^((d-1)/2) Gamma(d/2)), K the modified Bessel function."""
    order = (dim - 1) / 2.0
    size = np.abs(s)
    log = order * np.log(size) + np.log(special.kve(order, size)) - size
    value: Floats = np.exp(log - 0.5 * math.log(math.pi) - order * math.log(2.0) - special.gammaln(dim / 2.0))
    return value


def distance_to_normal(dim: int) -> float:
    """sup |P(q.k / sqrt(d) <= x) - Phi(x)|."""
    grid = np.linspace(-12.0, 12.0, 3001)
    return float(np.abs(_on_grid(dim) - special.ndtr(grid)).max())


@lru_cache(maxsize=16)
def length_nodes(dim: int, count: int = 24) -> tuple[Floats, Floats]:
    """A few nodes and weights for expectations over |q| / sqrt(d)."""
    low, high = float(stats.chi.ppf(1e-9, dim)), float(stats.chi.isf(1e-9, dim))
    x, w = np.polynomial.legendre.leggauss(count)
    at = low + (x + 1.0) * (high - low) / 2.0
    weights = w * (high - low) / 2.0 * stats.chi.pdf(at, dim)
    return at / math.sqrt(dim), weights / weights.sum()
