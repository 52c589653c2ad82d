"""Claims on the temperature of sampling."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from ..judge.softmax_law import entropy, softmax
from .chance import Floats, Look, count_look, generator, holds
from .claim import ASSUMING, ASYMPTOTICALLY, Measured, claim, together

TEMPERATURES = (0.7, 1.0, 2.0, 4.0, 10.0, 100.0)


def logits(name: str, n: int, tokens: int = 12) -> Floats:
    """n rows of logits N(0, 9)."""
    return 3.0 * generator(name).standard_normal((n, tokens))


def tempered(z: Floats, temperature: float) -> Floats:
    """softmax(z / T)."""
    return softmax(z / temperature)


def log_slope(z: Floats, temperature: float, step: float = 1e-5) -> Floats:
    """d log p_i / dT by central differences."""
    above, below = tempered(z, temperature + step), tempered(z, temperature - step)
    value: Floats = (np.log(above) - np.log(below)) / (2 * step)
    return value


@claim(
    "C4",
    ASSUMING,
    "property",
    says="The higher the temperature, the higher the P of the smaller values, so that the probabilities differ less.",
    statement="p_i rises with T for every token but the likeliest",
    right="p_i rises with T exactly where its logit is below the mean logit under p: d log p_i / dT = (E_p z - z_i) / T^2. "
    "The least likely always rises, the likeliest falls, one between may rise and fall. dH/dT = Var_p(z) / T^3.",
    assumption="the token's logit is below the mean logit under p",
)
def rises(power: float = 2.0) -> Measured:
    """The derivative of log softmax(z / T) by T."""
    z, T = logits("rises", 500), 1.3
    p = tempered(z, T)
    mean = (p * z).sum(axis=1, keepdims=True)
    slope = log_slope(z, T)
    off = float(np.abs(slope - (mean - z) / T**power).max())
    heat = (entropy(tempered(z, T + 1e-5)) - entropy(tempered(z, T - 1e-5))) / 2e-5
    variance = (p * z * z).sum(axis=1) - mean[:, 0] ** 2
    cooled = float(np.abs(heat - variance / T**3).max())
    ordered = np.sort(z, axis=1)
    path = np.array([tempered(ordered, t) for t in TEMPERATURES])
    ends = int((np.diff(path[..., 0], axis=0) < 0).sum() + (np.diff(path[..., -1], axis=0) > 0).sum())
    turns = (np.diff(path[..., -3], axis=0) > 0).any(axis=0) & (np.diff(path[..., -3], axis=0) < 0).any(axis=0)
    example = path[:, np.flatnonzero(turns)[0], -3]
    falling = int(((slope < 0) & (z < z.max(axis=1, keepdims=True))).sum())
    return together(
        Measured(off < 1e-6, f"d log p / dT as predicted to {off:.0e}, dH/dT to {cooled:.0e}"),
        Measured(cooled < 1e-6 and ends == 0, f"{ends} of 5000 steps in which p_min falls or p_max rises"),
        Measured(falling > 0, f"{falling} of 5500 others fall at T = 1.3"),
        Measured(
            bool(turns.any()), "a third token: " + ", ".join(f"{x:.3f}" for x in example) + f" at T = {TEMPERATURES}"
        ),
    )


@claim(
    "C5",
    ASYMPTOTICALLY,
    "property",
    says="With T = 0 the output is surely that of the largest probability.",
    statement="p(T) -> one-hot at the argmax as T -> 0",
    right="With a unique maximum 1 - p_max <= (n - 1) exp(-gap / T); m equal maxima share. In float32 the others are exactly "
    "0 for T < gap / 104. T = 0 coded as it stands is 0/0.",
)
def cold(gap_factor: float = 1.0) -> Measured:
    """p_j / p_max = exp(-(z_max - z_j) / T). exp(-104) rounds to 0 in float32: 2^-150 = exp(-103.97)."""
    z = np.sort(logits("cold", 1000), axis=1)
    gap = z[:, -1] - z[:, -2]
    broken = 0
    for T in (1.0, 0.3, 0.1, 0.03):
        rest = tempered(z, T)[:, :-1].sum(axis=1)
        broken += int((rest > 11 * np.exp(-gap_factor * gap / T) * (1 + 1e-12) + 1e-300).sum())
    pair = torch.tensor([0.0, 1.0], dtype=torch.float32)
    zero, positive = (float(torch.softmax(pair / T, 0)[0]) for T in (1 / 104.5, 1 / 80))
    ties = tempered(np.array([[2.0, 2.0, 1.0]]), 0.01)[0]
    literal = torch.softmax(torch.tensor([0.0, 1.0]) / 0.0, 0)
    return together(
        Measured(broken == 0, f"the bound is broken in {broken} of 4000 rows"),
        Measured(zero == 0.0 and positive > 0.0, f"float32, gap 1: {zero:g} at T = 1/104.5, {positive:.1e} at 1/80"),
        Measured(ties[0] == ties[1] == 0.5, f"two equal maxima get {ties[0]:g} each"),
        Measured(bool(literal.isnan().any()), f"T = 0 gives {literal.tolist()}"),
    )


@claim(
    "C6",
    ASSUMING,
    "statistical",
    says="Temperature doesn't change the order: a smaller probability never becomes larger than a larger one.",
    statement="z_i > z_j implies p_i(T) > p_j(T) for every T > 0",
    right="Strictly in exact arithmetic; in floats p_i >= p_j, with ties by rounding or underflow. It holds for the "
    "probabilities, not for counts of samples: with 0.6 and 0.4 the rarer wins 16.6 % of ten draws.",
    assumption="probabilities in exact arithmetic",
)
def order(rarer: float = 0.4) -> Measured:
    """exp is increasing. The counts: P(Binomial(10, 0.4) >= 6)."""
    z = np.sort(logits("order", 2000), axis=1)
    wrong, ties = 0, 0
    for T in (0.05, *TEMPERATURES):
        p = torch.softmax(torch.from_numpy(z / T).float(), -1).numpy()
        wrong += int((np.diff(p, axis=1) < 0).sum())
        ties += int((np.diff(p, axis=1) == 0).sum())
    strict = int((np.diff(np.log(tempered(z, 1.3)), axis=1) <= 0).sum())

    def wins(rng: np.random.Generator) -> Look:
        counts = rng.binomial(10, 0.4, 40_000)
        return count_look(int((counts >= 6).sum()), counts.size, float(stats.binom.sf(5, 10, rarer)))

    return together(
        Measured(wrong == 0 and strict == 0, f"{wrong} of 154000 neighbours in the other order in float32"),
        Measured(ties > 0, f"{ties} tied"),
        holds("the rarer of 0.6, 0.4 wins ten draws:", wins),
    )
