"""How the variance of the residual stream grows with depth, at the start, for the first token of a text."""

from __future__ import annotations

import numpy as np

from ..targets.part import PreNorm
from .chance import Floats


def pre_norm_variances(stack: PreNorm, start: float) -> Floats:
    """The expected variance after 0, 1, ... blocks, (layers + 1,), from `start`: it grows by about the same in each block.

    A norm gives the variance r = v / (v + eps). The first token attends to itself alone, so attention adds
    E s_v^2 E s_o^2 r; the feed-forward part adds F s_o^2 E f(s sqrt(E r) z)^2 with z ~ N(0, 1), here by Gauss-Hermite.
    Both times 1 - 1/E: what is added has E independent coordinates, and their variance is that about their own mean.
    Xiong et al. 2020, arXiv:2002.04745, lemma 2.
    """
    z, weight = np.polynomial.hermite_e.hermegauss(80)
    weight = weight / weight.sum()
    centred = 1.0 - 1.0 / stack.width
    v, found = start, [start]
    for _ in range(stack.layers):
        r = v / (v + stack.eps)
        v += (stack.width * stack.deviation * stack.residual_deviation) ** 2 * r * centred
        r = v / (v + stack.eps)
        squares = gelu_tanh(stack.deviation * np.sqrt(stack.width * r) * z) ** 2
        v += stack.inner * stack.residual_deviation**2 * float(weight @ squares) * centred
        found.append(v)
    return np.array(found)


def gelu_tanh(x: Floats) -> Floats:
    """x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2: GPT-2's activation. arXiv:1606.08415."""
    return np.asarray(x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3))) / 2.0)
