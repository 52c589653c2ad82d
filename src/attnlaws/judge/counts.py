"""Findings about counts: rates, agreement of dropped places, dispersion over rows and columns, draws from a known law."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from .chance import FIRST, Finding, Floats, reach

Bools = NDArray[np.bool_]


def rate(quantity: str, hits: int, size: int, predicted: float, *, stage: int = 0) -> Finding:
    """A count of `hits` in `size` independent trials: binomial, exactly."""
    law = stats.binom(size, predicted)
    p = min(1.0, 2.0 * min(float(law.cdf(hits)), float(law.sf(hits - 1))))
    error = math.sqrt(max(predicted * (1.0 - predicted), 1e-300) / size)
    effect = 100.0 * reach(stage) * error / predicted if predicted else math.inf
    return Finding(quantity, hits / size, error, predicted, size, p, effect, "% of the rate")


def agreement(quantity: str, one: Bools, other: Bools, dropped: float, *, stage: int = 0) -> Finding:
    """How often two independent masks that drop at a rate p agree: Bin(n, p^2 + (1 - p)^2), exactly."""
    share = dropped**2 + (1.0 - dropped) ** 2
    return rate(quantity, int((one == other).sum()), one.size, share, stage=stage)


def dispersion(quantity: str, counts: NDArray[np.int64], trials: int, p: float, *, stage: int = 0) -> Finding:
    """Counts of `trials` independent places each: mean of (x - np)^2 / (npq) is 1, of variance 2 + (1 - 6pq)/(npq) each.

    Places that are dropped together make it larger: it sees what is shared over a row or a column of a matrix. One-sided.
    """
    q = 1.0 - p
    npq = trials * p * q
    spread = ((counts - trials * p) ** 2 / npq).astype(np.float64)
    n, deviation = counts.size, math.sqrt(2.0 + (1.0 - 6.0 * p * q) / npq)
    freedom = 2.0 * n / deviation**2
    at = float(spread.mean())
    law = stats.chi2(freedom)
    value = float(law.sf(freedom * at))
    error = deviation / math.sqrt(n)
    return Finding(quantity, at, error, 1.0, n, value, 100.0 * reach(stage) * error, "% of the variance")


def draws(quantity: str, counts: NDArray[np.int64], p: Floats, temperatures: Floats, *, stage: int = 0) -> Finding:
    """Draws from a law with cells of any size, by an e-value: 1/E is a p-value however the draws were stopped.

    E is the mean of two families of likelihood ratios: Dirichlet mixtures around p (they see any alternative), and powers
    p^(1/T) / sum p^(1/T) over `temperatures` (they see a wrong temperature). Pearson's chi-square is unusable where cells are
    small. Markov: P(E >= t) <= 1/t (Ville 1939; Ramdas et al. 2023, arXiv:2210.01948).
    """
    n = int(counts.sum())
    if ((counts > 0) & (p <= 0)).any():
        return Finding(quantity, 0.0, 0.0, 1.0, n, 0.0, effect_of="any draw of probability 0")
    inside = p > 0
    x, law = counts[inside].astype(float), p[inside]
    log_p = float(x @ np.log(law))
    dirichlet = []
    for weight in (30.0, 300.0, 3000.0, 30000.0):
        a = weight * law
        dirichlet.append(
            float((special.gammaln(x + a) - special.gammaln(a)).sum())
            + float(special.gammaln(weight) - special.gammaln(n + weight))
            - log_p
        )
    tempered = []
    for t in temperatures:
        powers = np.log(law) / t
        tempered.append(float(x @ (powers - special.logsumexp(powers))) - log_p)
    families = [special.logsumexp(f) - math.log(len(f)) for f in (dirichlet, tempered) if f]
    log_e = float(special.logsumexp(families) - math.log(len(families)))
    share = float(x.max() / n)
    return Finding(
        quantity,
        share,
        math.sqrt(share * (1 - share) / n),
        float(law[int(x.argmax())]),
        n,
        float(min(1.0, math.exp(-min(log_e, 700.0)))),
        effect_of=f"an e-value above {1 / FIRST:g}",
    )


def dropped(zeros: Bools, possible: Bools, p: float, *, stage: int = 0) -> list[Finding]:
    """What a dropout's zeros (calls, B, H, L, S) say: its rate, and whether calls, samples, heads, rows or columns share a mask.

    `possible` (L, S) is where a weight is not 0 without dropout. Rate: Bin(N, p). Two masks agree in Bin(n, p^2 + (1 - p)^2)
    places. A mask that is shared over rows (columns) makes the counts of columns (rows) vary more than binomially.
    """
    places = zeros[..., possible]
    found = [rate("rate of dropout", int(places.sum()), places.size, p, stage=stage)]
    for axis, name in enumerate(("calls", "samples", "heads")):
        if zeros.shape[axis] > 1:
            half = zeros.shape[axis] // 2
            one, other = (np.take(places, range(at, at + half), axis) for at in (0, half))
            found.append(agreement(f"agreement of two {name}", one, other, p, stage=stage))
    if possible.all() and min(possible.shape) > 1:
        for axis, name in ((-2, "columns"), (-1, "rows")):
            counts = zeros.sum(axis).astype(np.int64).ravel()
            found.append(dispersion(f"dispersion over {name}", counts, zeros.shape[axis], p, stage=stage))
    return found
