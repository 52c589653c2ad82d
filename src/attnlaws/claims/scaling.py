"""Claims on the scale of the scores and on what it does to softmax."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

from ..judge.softmax_law import entropy, largest_slope, row_law, softmax
from .chance import Floats, Look, fails, generator, holds, mean_look, product, products_look, torch_seeded
from .claim import ASSUMING, ASYMPTOTICALLY, FALSE, TRUE, Measured, claim, together
from .score_law import length_nodes


def scale_of_torch(head: int, values: int) -> float:
    """The scale that torch's attention uses, read off its weights: log(w_1 / w_0) / q.(k_1 - k_0), in float64."""
    rng = generator(f"scale of torch {head} {values}")
    q, k = rng.standard_normal((1, head)), rng.standard_normal((2, head))
    v = np.eye(2, values)  # the output's first two columns are the weights
    query, key, value = (torch.from_numpy(x)[None, None] for x in (q, k, v))
    out = F.scaled_dot_product_attention(query, key, value)[0, 0, 0]
    return float(torch.log(out[1] / out[0])) / float(q[0] @ (k[1] - k[0]))


@claim(
    "A2",
    TRUE,
    "exact",
    says="d_k is the dimension of the key vector and is used to scale the dot product.",
    statement="the scale is 1 / sqrt(head size of K), whatever the width of V",
    right="1 / sqrt(d_k): not the width of V, nor that of the model.",
)
def key_dimension(of: str = "key") -> Measured:
    """softmax(Q K^T / sqrt(d_k)) V: Vaswani et al. 2017, equation (1); probed in torch's attention."""
    found, wanted = [], []
    for head, values in ((16, 5), (9, 40), (64, 3)):
        found.append(scale_of_torch(head, values))
        wanted.append((head if of == "key" else values) ** -0.5)
    off = max(abs(f / w - 1.0) for f, w in zip(found, wanted, strict=True))
    seen = ", ".join(f"{f:.6f}" for f in found)
    return Measured(off < 1e-10, f"torch with (d_k, d_v) = (16, 5), (9, 40), (64, 3) scales by {seen}")


@claim(
    "C9",
    TRUE,
    "exact",
    says="In practice we also divide by a constant of the dimension.",
    statement="scores are divided by sqrt(d_k)",
    right="The constant is sqrt(d_k), d_k the size of a head: 11.31 for GPT-3's 128.",
)
def constant(power: float = 0.5) -> Measured:
    """Vaswani et al. 2017, equation (1); probed in torch's attention."""
    sizes = (4, 16, 64, 128)
    found = [1.0 / scale_of_torch(d, 3) for d in sizes]
    off = max(abs(f / d**power - 1.0) for f, d in zip(found, sizes, strict=True))
    return Measured(
        off < 1e-10, "torch divides by " + ", ".join(f"{f:.4f} (d = {d})" for f, d in zip(found, sizes, strict=True))
    )


@claim(
    "B12",
    FALSE,
    "exact",
    says="Scaling by the square root of the embedding dimension is why it is called scaled dot-product attention.",
    statement="with H heads on E dimensions the scores are divided by sqrt(E)",
    right="They are divided by sqrt(E / H), the size of a head. sqrt(E) is wrong by sqrt(H): 3.46 times for GPT-2 "
    "(12 heads), 9.80 for GPT-3 (96).",
)
def embedding_dimension(heads: int = 12) -> Measured:
    """The scale of nn.MultiheadAttention, from its weights of each head and its own projections."""
    E, H = 96, 12
    rng = generator("embedding dimension")
    with torch_seeded(rng):
        layer = torch.nn.MultiheadAttention(E, H, bias=False, batch_first=True, dtype=torch.float64)
    x = torch.from_numpy(rng.standard_normal((1, 2, E)))
    with torch.no_grad():
        w = layer(x, x, x, average_attn_weights=False)[1][0]  # (H, 2, 2)
        q, k, _ = F.linear(x[0], layer.in_proj_weight).view(2, 3, H, E // H).permute(1, 2, 0, 3)  # (H, 2, D) each
        scale = torch.log(w[:, 0, 1] / w[:, 0, 0]) / (q[:, 0] * (k[:, 1] - k[:, 0])).sum(-1)
    divisor = 1.0 / scale.numpy()
    right = float(np.abs(divisor / math.sqrt(E / heads) - 1.0).max())
    ratio = math.sqrt(E) / float(divisor.mean())
    return together(
        Measured(right < 1e-9, f"nn.MultiheadAttention(96, 12) divides by {divisor.mean():.4f} in each head"),
        Measured(abs(ratio - math.sqrt(H)) < 1e-9, f"sqrt(96) = {math.sqrt(E):.4f} is {ratio:.4f} times that"),
        Measured(math.sqrt(12) > 3.4 and math.sqrt(96) > 9.7, f"sqrt(96 heads) = {math.sqrt(96):.3f}"),
    )


@claim(
    "B10",
    FALSE,
    "statistical",
    says="In GPT-like models the embedding dimension is usually above 1000, which can make dot products very large.",
    statement="Var(q.k) grows with the embedding dimension E",
    right="q.k has d_k terms, the size of a head (64 in GPT-2, 128 in GPT-3). With inputs and weights of unit gain its "
    "variance is d_k for every E. The smallest GPT-2 has E = 768.",
)
def embedding_size(by: str = "head") -> Measured:
    """x LayerNormed and W ~ N(0, 1/E): q, k are N(0, 1) over the draws of W_q, W_k, so Var(q.k) = d_k = 4."""

    def sample(rng: np.random.Generator, E: int, against: str = by) -> Look:
        x, y = (c / np.sqrt((c * c).mean()) for c in rng.standard_normal((2, E)))
        n, head = 2000, 4
        q = product(rng.standard_normal((n * head, E)), x) / math.sqrt(E)
        k = product(rng.standard_normal((n * head, E)), y) / math.sqrt(E)
        scores = (q * k).reshape(n, head).sum(axis=1)
        return products_look(scores, head, 4.0 if against == "head" else 4.0 * E / 64)

    return together(
        holds("Var(q.k), head size 4, E = 64:", lambda rng: sample(rng, 64)),
        holds("Var(q.k), head size 4, E = 512:", lambda rng: sample(rng, 512)),
        fails("the same in proportion to E:", lambda rng: sample(rng, 512, "embedding")),
    )


def rows(rng: np.random.Generator, n: int, dim: float) -> Floats:
    """n softmax rows over 1024 keys with scores N(0, dim): a query of |q|^2 = dim, keys with N(0, 1) entries."""
    return softmax(math.sqrt(dim) * rng.standard_normal((n, 1024)))


@claim(
    "A9",
    ASYMPTOTICALLY,
    "statistical",
    says="As d_k grows a largest value V_max appears whose share tends to 1; the other elements get almost no gradient.",
    statement="for a row of n scores N(0, d): E sum w^2 -> 1 as d -> infinity",
    right="True in the limit. The row saturates only beyond sd sqrt(2 ln n) (n = 1024: 3.72, so d_k > 13.9); above it "
    "E sum w^2 is about 1 - sqrt(2 ln n) / sd. At d_k = 64 unscaled it is 0.60, scaled 0.0026.",
)
def saturates(unscaled: float = 64.0) -> Measured:
    """Exact expectations by quadrature, see `softmax_law`; the limit law is that of Derrida's random energy model."""

    def sample(rng: np.random.Generator, dim: float, predicted: float) -> Look:
        return mean_look((rows(rng, 1500, dim) ** 2).sum(axis=1), row_law(1024, math.sqrt(predicted)).concentration)

    deviations = (2.0, 3.72, 8.0, 32.0, 64.0)
    exact = [row_law(1024, s).concentration for s in deviations]
    limit = [1.0 - math.sqrt(2 * math.log(1024)) / s for s in deviations]
    near = abs(exact[-1] - limit[-1])
    largest = float(rows(generator("largest"), 400, 64.0).max(axis=1).mean())
    return together(
        holds("E sum w^2, d = 64 unscaled:", lambda rng: sample(rng, 64.0, unscaled)),
        holds("E sum w^2, scaled:", lambda rng: sample(rng, 1.0, 1.0)),
        Measured(0.6 < largest < 0.8, f"mean largest weight unscaled {largest:.2f}"),
        Measured(
            exact[0] < 0.1 and sorted(exact) == exact and exact[-1] > 0.94,
            "by quadrature " + ", ".join(f"{e:.3f} (sd {s:g})" for e, s in zip(exact, deviations, strict=True)),
        ),
        Measured(near < 0.015, f"1 - sqrt(2 ln n) / sd is {limit[-1]:.3f} at sd 64"),
    )


@claim(
    "A10",
    ASSUMING,
    "statistical",
    says="The gradient that the other elements of the vector contribute is almost 0.",
    statement="J = diag(w) - w w^T falls to 0 as d_k grows",
    right="tr J = 1 - sum w^2 falls: 0.997 scaled, 0.40 at d = 64, 0.14 at 512 (n = 1024). The spectral norm of J rises "
    "first: 0.016 scaled, 0.22 at 64, with a peak of 0.24 near sd 5, and falls only then.",
    assumption="the gradient is measured by the trace of J, not by its largest singular value",
)
def gradient(measure: str = "trace") -> Measured:
    """J_ij = dw_i / ds_j. Its trace and its largest eigenvalue, over rows with N(0, d) scores."""

    def trace(rng: np.random.Generator, dim: float) -> Look:
        predicted = 1.0 - row_law(1024, math.sqrt(dim)).concentration
        return mean_look(1.0 - (rows(rng, 1200, dim) ** 2).sum(axis=1), predicted)

    rng = generator("spectral norm")
    norms = {s: float(largest_slope(rows(rng, 400, s * s)).mean()) for s in (1.0, 5.0, 8.0, 45.0)}
    traces = [1.0 - row_law(1024, s).concentration for s in (1.0, 8.0, 22.6)]
    falls = sorted(traces, reverse=True) == traces if measure == "trace" else norms[8.0] < norms[1.0]
    return together(
        holds("tr J at d = 1:", lambda rng: trace(rng, 1.0)),
        holds("tr J at d = 64:", lambda rng: trace(rng, 64.0)),
        holds("tr J at d = 512:", lambda rng: trace(rng, 512.0)),
        Measured(falls, f"the {measure} falls"),
        Measured(
            norms[8.0] > 5 * norms[1.0] and norms[5.0] > norms[8.0] > norms[45.0],
            "mean spectral norm " + ", ".join(f"{v:.3f} (sd {s:g})" for s, v in norms.items()),
        ),
    )


@claim(
    "A12",
    ASSUMING,
    "statistical",
    says="This solves the gradient problem of softmax, and the score too is standard normal.",
    statement="after scaling, the entropy of a row doesn't depend on d_k",
    right="At initialisation the entropy is about ln n - 1/2 for every d_k, where unscaled it falls with d_k. Trained "
    "weights may grow, and the score is normal only as d_k grows.",
    assumption="queries and keys have independent N(0, 1) entries, as at initialisation",
)
def independent_of_dimension(scaled: bool = True) -> Measured:
    """E entropy is that of N(0, |q|^2 s^2) scores, averaged over |q|^2 ~ chi2_d, with s the scale."""

    def predicted(dim: int, factor: float) -> float:
        at, weights = length_nodes(dim)
        return float(np.array([row_law(1024, float(a * factor)).entropy for a in at]) @ weights)

    def sample(rng: np.random.Generator, dim: int) -> Look:
        lengths = np.sqrt(rng.chisquare(dim, (1500, 1)) * (1.0 if not scaled else 1.0 / dim))
        return mean_look(entropy(softmax(lengths * rng.standard_normal((1500, 1024)))), predicted(dim, 1.0))

    near = [predicted(d, 1.0) for d in (16, 64, 256)]
    unscaled = [row_law(1024, math.sqrt(d)).entropy for d in (16, 64, 256)]
    return together(
        holds("entropy at d = 16:", lambda rng: sample(rng, 16)),
        holds("entropy at d = 64:", lambda rng: sample(rng, 64)),
        holds("entropy at d = 256:", lambda rng: sample(rng, 256)),
        Measured(
            max(abs(e - (math.log(1024) - 0.5)) for e in near) < 0.02, f"ln 1024 - 1/2 = {math.log(1024) - 0.5:.4f}"
        ),
        Measured(unscaled[0] - unscaled[2] > 1.5, "unscaled " + ", ".join(f"{e:.2f}" for e in unscaled)),
    )


@claim(
    "B11",
    ASYMPTOTICALLY,
    "property",
    says="As dot products grow, softmax behaves more like a step function, so that gradients come close to zero.",
    statement="softmax(c s) -> one-hot as c -> infinity",
    right="1 - p_max <= (n - 1) exp(-c gap), gap from the largest to the second score; with m equal maxima each gets 1/m.",
)
def step_function(gap_factor: float = 1.0) -> Measured:
    """p_j / p_max = exp(-c (s_max - s_j)) <= exp(-c gap) for each of the n - 1 others."""
    s = generator("step function").standard_normal((2000, 12))
    ordered = -np.sort(-s, axis=1)
    gap = ordered[:, 0] - ordered[:, 1]
    broken, slopes = 0, []
    for c in (1.0, 10.0, 100.0, 1000.0):
        w = -np.sort(-softmax(c * s), axis=1)
        broken += int((w[:, 1:].sum(axis=1) > 11 * np.exp(-c * gap * gap_factor) * (1 + 1e-12) + 1e-300).sum())
        slopes.append(float((1.0 - (w**2).sum(axis=1)).mean()))
    ties = softmax(1000.0 * np.array([3.0, 3.0, 1.0, 3.0]))
    return together(
        Measured(broken == 0, f"the bound is broken in {broken} of 8000 rows"),
        Measured(slopes[-1] < 0.01, "mean tr J " + ", ".join(f"{x:.4f}" for x in slopes) + " at c = 1, 10, 100, 1000"),
        Measured(bool((ties == np.array([1, 1, 0, 1]) / 3).all()), f"three equal maxima get {ties[0]:.4f} each"),
    )
