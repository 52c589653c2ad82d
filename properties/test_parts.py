"""Laws of norms and of the loss."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.part_law import PartTrial, part_law
from attnlaws.targets.call import Array

U = 2.0**-24
NORMS = ("layer norm", "rms norm")


def _normed(x: Array, eps: float, kind: str) -> tuple[Array, Array]:
    """The norm in float64, and how far float32 may be from it.

    A mean of E values is off by gamma_E times the mean of |x|; the variance by (E + 3) u relatively, its root by half of it, the
    root's inverse and the product by 3 u more.
    """
    width = x.shape[-1]
    mean = x.mean(-1, keepdims=True) if kind == "layer norm" else np.zeros_like(x[..., :1])
    centred = x - mean
    scale = 1.0 / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    want = centred * scale
    shifted = (width + 2) * U * np.abs(x).mean(-1, keepdims=True) if kind == "layer norm" else 0.0
    allowed = np.abs(want) * ((width + 3) / 2 + 5) * U + 2 * (shifted + U * np.abs(x)) * scale
    return want, np.asarray(allowed)


@part_law("norm.definition", "(x - mean) / sqrt(var + eps), or x / sqrt(mean x^2 + eps)", part=NORMS, chance=False)
def test_definition(trial: PartTrial) -> None:
    """The variance is the biased one, and epsilon stands under the root. Ba et al. 2016; Zhang & Sennrich 2019. Rows of deviation
    sqrt(eps) show where epsilon stands; a large mean is left out, since what it costs is a matter of precision.
    """
    eps = float(trial.part.predicted)
    for width in (2, 7, 64):
        for size in (1.0, 1e3, max(eps, 1e-12) ** 0.5):
            x = (size * trial.rng.standard_normal((5, width))).astype(np.float32).astype(float)
            want, allowed = _normed(x, eps, trial.part.kind)
            trial.near(trial.part(x), want, allowed, f"rows of deviation {size:.2g} are normed otherwise")


@part_law("norm.constant", "a constant row stays finite", part=NORMS, chance=False)
def test_constant(trial: PartTrial) -> None:
    """(x - x) / sqrt(0 + eps) = 0 for LayerNorm; c / sqrt(c^2 + eps) for RMSNorm; a row of zeros gives zeros."""
    for value in (0.0, 1.0, -3.0):
        x = np.full((2, 8), value)
        want, _ = _normed(x, float(trial.part.predicted), trial.part.kind)
        trial.near(trial.part(x), want, 16 * U, f"a row of {value:g} alone")


@part_law("norm.rows", "each row is normed by itself", part=NORMS, chance=False)
def test_rows(trial: PartTrial) -> None:
    """y_i depends on x_i alone."""
    x = trial.rng.standard_normal((6, 16)).astype(np.float32).astype(float)
    other = x.copy()
    other[1:] = 100.0 * trial.rng.standard_normal((5, 16))
    first = np.asarray(trial.part(x))[0]
    trial.near(np.asarray(trial.part(other))[0], first, 4 * U * np.abs(first), "a row depends on others")


def _loss(logits: Array, labels: Array) -> float:
    """The mean over the labels after the first that are not -100."""
    top = logits.max(-1, keepdims=True)
    logs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    terms = [
        -logs[b, i, labels[b, i + 1]]
        for b in range(len(labels))
        for i in range(labels.shape[1] - 1)
        if labels[b, i + 1] >= 0
    ]
    return float(np.mean(terms))


@part_law("loss.definition", "the logits at i predict the token at i + 1; ignored labels don't count, token 0 does",
          part="causal loss", chance=False)  # fmt: skip
def test_loss(trial: PartTrial) -> None:
    """-mean log softmax(z_i)[t_(i+1)] over the positions whose label is not -100: the sum over them divided by their number. A sum of
    n terms and a sum of V exponentials in float32 are off by (V + n + 8) u of their size.
    """
    for batch, length, vocabulary, ignored in ((1, 2, 5, 0.0), (2, 6, 7, 0.0), (3, 9, 11, 0.4)):
        logits = (2.0 * trial.rng.standard_normal((batch, length, vocabulary))).astype(np.float32).astype(float)
        labels = trial.rng.integers(0, vocabulary, (batch, length))
        labels[:, 1] = 0
        labels[:, 2:][trial.rng.random((batch, max(length - 2, 0))) < ignored] = -100
        size = float(np.abs(logits).max()) + np.log(vocabulary)
        want = np.array(_loss(logits, labels))
        got = np.array(trial.part(logits, labels))
        trial.near(got.reshape(1), want.reshape(1), (vocabulary + batch * length + 8) * U * size, "the loss is another")
