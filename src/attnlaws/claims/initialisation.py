"""Claims on normalised inputs and initial weights."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import special

from .chance import (
    Floats,
    Look,
    fails,
    generator,
    holds,
    law_look,
    mean_look,
    product,
    rank_of,
    torch_seeded,
    variance_look,
)
from .claim import ASSUMING, FALSE, TRUE, Measured, claim, together


def layer_norm(x: Floats, eps: float = 0.0) -> Floats:
    """torch's LayerNorm without its affine part."""
    value: Floats = torch.nn.functional.layer_norm(torch.from_numpy(x), x.shape[-1:], eps=eps).numpy()
    return value


def rms_norm(x: Floats) -> Floats:
    """x / sqrt(mean x^2): |x|^2 = d."""
    value: Floats = x / np.sqrt((x * x).mean(axis=-1, keepdims=True))
    return value


def normed_input(rng: np.random.Generator, width: int) -> Floats:
    """One LayerNormed vector, of a law far from normal."""
    value: Floats = layer_norm(rng.exponential(size=(1, width)))[0]
    return value


@claim(
    "A13",
    ASSUMING,
    "statistical",
    says="First, X is standardised (layer normalisation).",
    statement="LayerNorm gives each token mean 0 and variance 1",
    right="Mean 0 and (biased) variance s^2 / (s^2 + eps), exactly; the law is not made normal. LayerNormed q, k have "
    "Var(q.k) = d^2 / (d - 1), RMS-normed ones d.",
    assumption="standardised means mean 0 and variance 1, and eps = 0",
)
def standardised(kurtosis: float = 3.0 * 7.0 / 9.0) -> Measured:
    """y = (x - mean) / sqrt(var + eps): Ba et al. 2016. A N(0, I) input gives y uniform on a sphere of d - 1 dimensions,
    where a coordinate has kurtosis 3 (d - 1) / (d + 1); here d = 8.
    """
    eps = 1e-2
    x = generator("standardised").exponential(size=(500, 64))
    y = layer_norm(x, eps)
    mean = float(np.abs(y.mean(axis=1)).max())
    s2 = x.var(axis=1)
    variance = float(np.abs(y.var(axis=1) - s2 / (s2 + eps)).max())
    values = np.unique(layer_norm(np.eye(1, 64)).round(9))

    def fourth(rng: np.random.Generator) -> Look:
        return mean_look(layer_norm(rng.standard_normal((30_000, 8)))[:, 0] ** 4, kurtosis)

    def dots(rng: np.random.Generator, predicted: float, layer: bool = True) -> Look:
        norm = layer_norm if layer else rms_norm
        q, k = (norm(z) for z in rng.standard_normal((2, 60_000, 8)))
        return mean_look(np.einsum("nd,nd->n", q, k) ** 2, predicted)

    return together(
        Measured(
            mean < 1e-13 and variance < 1e-13, f"mean within {mean:.0e}, variance s^2/(s^2+eps) to {variance:.0e}"
        ),
        Measured(len(values) == 2, f"a one-hot token becomes two values, {values[0]:.3f} and {values[1]:.3f}"),
        holds("4th moment at d = 8:", fourth),
        holds("E (q.k)^2, LayerNorm, d = 8:", lambda rng: dots(rng, 64 / 7)),
        fails("the same against 8:", lambda rng: dots(rng, 8.0)),
        holds("E (q.k)^2, RMSNorm, d = 8:", lambda rng: dots(rng, 8.0, layer=False)),
    )


@claim(
    "A14",
    FALSE,
    "statistical",
    says="If W is standard normal, x_i.w_j is normal with mean 0 and variance d_k.",
    statement="for a normed x of width d_model and W with entries N(0, 1): x.w ~ N(0, d_k)",
    right="x.w ~ N(0, |x|^2) exactly over the draws of W, and |x|^2 = d_model: the width of the input, not of the key.",
)
def fan_in(width: int = 96) -> Measured:
    """A sum of independent normal values x_i w_i is N(0, sum x_i^2). Here d_model = 96, d_k = 16."""

    def outputs(rng: np.random.Generator) -> Floats:
        x = normed_input(rng, 96)
        values: Floats = product(rng.standard_normal((20_000, 96)), x)
        return values

    return together(
        holds("variance of x.w:", lambda rng: variance_look(outputs(rng), float(width))),
        holds("N(0, 96):", lambda rng: law_look(outputs(rng), lambda y: special.ndtr(y / math.sqrt(96)))),
        fails("variance against d_k:", lambda rng: variance_look(outputs(rng), 16.0)),
    )


@claim(
    "A15",
    ASSUMING,
    "statistical",
    says="So W is initialised normal with mean 0 and standard deviation 1/sqrt(d), and x_i.w_j is standard normal.",
    statement="x.w ~ N(0, 1) for w with entries N(0, 1/d)",
    right="True over the draws of W. Over tokens with one W, output j has variance |w_j|^2 = 1 +- sqrt(2/d), and n tokens "
    "give no more than d_out min(n, d_model) independent values.",
    assumption="x is fixed and normed with eps = 0, and the probability is over W",
)
def unit_outputs(power: float = -0.5) -> Measured:
    """|x|^2 = d gives x.w ~ N(0, d sd^2). For RMS-normed Gaussian tokens E x x^T = I, so output j has variance |w_j|^2."""
    d = 64
    w = np.full(d, math.sqrt((1.0 + math.sqrt(2 / d)) / d))  # |w|^2 one standard deviation above 1

    def over_weights(rng: np.random.Generator) -> Look:
        return law_look(product(rng.standard_normal((20_000, d)) * d**power, normed_input(rng, d)), special.ndtr)

    def over_tokens(rng: np.random.Generator, predicted: float) -> Look:
        return mean_look(product(rms_norm(rng.standard_normal((50_000, d))), w) ** 2, predicted)

    def spread(rng: np.random.Generator) -> Look:
        sizes = ((rng.standard_normal((20_000, d)) / math.sqrt(d)) ** 2).sum(axis=1)
        return mean_look((sizes - 1.0) ** 2, 2 / d)

    rng = generator("rank of the outputs")
    rank = rank_of(product(rng.standard_normal((300, d)), rng.standard_normal((d, 128))))
    return together(
        holds("N(0, 1) over W:", over_weights),
        holds("variance over tokens, one w:", lambda rng: over_tokens(rng, float(w @ w))),
        fails("the same against 1:", lambda rng: over_tokens(rng, 1.0)),
        holds("variance of |w|^2 at d = 64:", spread),
        Measured(rank == d, f"300 tokens x 128 outputs from width 64 have rank {rank}"),
    )


@claim(
    "A16",
    TRUE,
    "statistical",
    says="Xavier normal initialisation: mean 0, standard deviation sqrt(2 / (fan_in + fan_out)).",
    statement="xavier_normal_ draws N(0, 2 / (fan_in + fan_out))",
    right="True by definition. It is 1/sqrt(d) for square matrices only: a head of GPT-3 (12288 to 128) gets Var(q) = 1.979, "
    "a fused qkv matrix (d to 3d) 1/2: 15.7 times apart in the variance of the scores.",
)
def xavier(fan_out_counts: bool = True) -> Measured:
    """Glorot and Bengio 2010, equation (12). Var(q) = fan_in sd^2 for a normed input."""

    def sample(rng: np.random.Generator, inputs: int, outputs: int) -> Look:
        with torch_seeded(rng):
            weight = torch.nn.init.xavier_normal_(torch.empty(outputs, inputs, dtype=torch.float64))
        fans = inputs + (outputs if fan_out_counts else inputs)
        return variance_look(weight.numpy().ravel() * math.sqrt(inputs), inputs * 2.0 / fans)

    single, fused = 12288 * 2 / (12288 + 128), 2 / 4
    return together(
        holds("Var(q), 256 to 256:", lambda rng: sample(rng, 256, 256)),
        holds("Var(q), 12288 to 16:", lambda rng: sample(rng, 12288, 16)),
        holds("Var(q), 256 to 768:", lambda rng: sample(rng, 256, 768)),
        Measured(round(single, 3) == 1.979, f"12288 to 128: {single:.4f}, against {fused} fused"),
        Measured(
            round((single / fused) ** 2, 1) == 15.7, f"variance of scores {(single / fused) ** 2:.2f} times apart"
        ),
    )


def gelu(x: Floats) -> Floats:
    """x Phi(x): Hendrycks and Gimpel 2016."""
    value: Floats = x * special.ndtr(x)
    return value


def relu(x: Floats) -> Floats:
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def moments(name: str, deviation: float = 1.0) -> tuple[float, float]:
    """E f(s z)^2 and Var f(s z) for z ~ N(0, 1), by the trapezoidal rule."""
    z = np.linspace(-12.0, 12.0, 24_001)
    weight = np.exp(-z * z / 2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    f = (gelu if name == "gelu" else relu)(deviation * z)
    second, first = float(weight @ f**2), float(weight @ f)
    return second, second - first**2


@claim(
    "A17",
    FALSE,
    "statistical",
    says="He normal initialisation (sd sqrt(2 / fan_in)) compensates the halving of the variance by activations like GELU.",
    statement="E gelu(z)^2 = 1/2 for z ~ N(0, 1)",
    right="1/2 is ReLU's second moment (its variance is 0.3408). GELU's is 0.42522, so its gain is 1.5335, not 1.4142: "
    "with He's the signal decays to 0.706 after 2 layers, 0.229 after 6, 0.008 after 12.",
)
def he_for_gelu(second_moment: float = 0.425216) -> Measured:
    """He et al. 2015, section 2.2: the gain is 1/sqrt(E f(z)^2). With He's, v -> 2 E gelu(sqrt(v) z)^2 a layer."""
    found, variance = moments("gelu")
    half, relu_variance = moments("relu")
    v, decay = 1.0, []
    for _ in range(12):
        v = 2.0 * moments("gelu", math.sqrt(v))[0]
        decay.append(v)
    return together(
        Measured(abs(found - second_moment) < 1e-5, f"GELU: E f^2 {found:.5f}, variance {variance:.5f}"),
        Measured(abs(half - 0.5) < 1e-6, f"ReLU: {half:.5f}, variance {relu_variance:.4f}"),
        Measured(abs(found**-0.5 - math.sqrt(2)) > 0.1, f"GELU's gain {found**-0.5:.4f}"),
        holds("E gelu(z)^2:", lambda rng: mean_look(gelu(rng.standard_normal(100_000)) ** 2, second_moment)),
        fails("the same against 1/2:", lambda rng: mean_look(gelu(rng.standard_normal(100_000)) ** 2, 0.5)),
        holds("E relu(z)^2:", lambda rng: mean_look(relu(rng.standard_normal(100_000)) ** 2, 0.5)),
        Measured(
            decay[11] < 0.01, "signal " + ", ".join(f"{decay[i]:.4f} ({i + 1})" for i in (0, 1, 5, 11)) + " layers"
        ),
    )


@claim(
    "A18",
    FALSE,
    "statistical",
    says="Pre-LayerNorm, a great architectural innovation of GPT-2, verifies it (W of sd 1/sqrt(d)).",
    statement="GPT-2's weights give q entries of variance 1",
    right="GPT-2 draws with sd 0.02 = 1/sqrt(2500) at every width: q entries have sd 0.554 (d = 768), 0.8 (1600), and would "
    "have 2.217 at 12288. The scaled scores have sd 0.307, 0.64, 4.92.",
)
def gpt2(deviation: float = 0.02) -> Measured:
    """x LayerNormed: q entries are N(0, d sd^2) over W, and scaled scores have variance (d sd^2)^2. Radford et al. 2019."""

    def sample(rng: np.random.Generator, predicted: float) -> Look:
        weight = 0.02 * rng.standard_normal((6000, 768), dtype=np.float32).astype(np.float64)
        return variance_look(product(weight, normed_input(rng, 768)), predicted)

    widths = (768, 1600, 12288)
    entries = [0.02 * math.sqrt(d) for d in widths]
    return together(
        holds("Var(q), d = 768:", lambda rng: sample(rng, 768 * deviation**2)),
        fails("the same against 1:", lambda rng: sample(rng, 1.0)),
        Measured(
            abs(entries[0] - 1) > 0.4 and entries[2] > 2,
            "sd of q entries " + ", ".join(f"{e:.3f} ({d})" for e, d in zip(entries, widths, strict=True)),
        ),
        Measured(abs(0.02**-2 - 2500) < 1e-9, "of scaled scores " + ", ".join(f"{e * e:.3f}" for e in entries)),
    )
