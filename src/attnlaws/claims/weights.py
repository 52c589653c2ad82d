"""Claims on the attention weights as probabilities, and on the sum they take over V."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from ..judge.softmax_law import softmax
from ..reference import oracle
from .chance import Floats, generator
from .claim import ASSUMING, TRUE, Measured, claim, together

#: unit roundoffs
ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@claim(
    "A3",
    TRUE,
    "property",
    says="The larger this score is, the more the i-th position should attend to the j-th.",
    statement="inside a row, s_ij > s_ik implies w_ij > w_ik",
    right="Inside a row, strictly. Scores of different rows can't be compared: a constant added to a row changes no weight.",
)
def monotone(rows_compared: str = "same") -> Measured:
    """w_j / w_k = exp(s_j - s_k)."""
    s = generator("monotone").standard_normal((5000, 10)) * 3
    w = softmax(s)
    if rows_compared == "same":
        wrong = int(((s[:, :-1] > s[:, 1:]) != (w[:, :-1] > w[:, 1:])).sum())
    else:
        wrong = int(((s[:-1] > s[1:]) != (w[:-1] > w[1:])).sum())
    above = softmax(np.array([[5.0, 4.0], [1.0, -5.0]]))[:, 0]
    shifted = float(np.abs(softmax(s + 2.0**6) - w).max())
    return together(
        Measured(wrong == 0, f"{wrong} of 45000 pairs in the other order"),
        Measured(above[0] < above[1], f"(5, 4) gives its 5 weight {above[0]:.3f}, (1, -5) its 1 weight {above[1]:.3f}"),
        Measured(shifted < 1e-13, f"64 added to each score: weights move by {shifted:.0e}"),
    )


@claim(
    "A19",
    ASSUMING,
    "property",
    says="Softmax makes each position's attention to all positions sum to 1, an effective weighted distribution.",
    statement="w >= 0 and sum_j w_ij = 1",
    right="In exact arithmetic; rounded to (n + 2) u of the accumulation and u of what is stored. Not for a row without a "
    "visible key (NaN or 0, by convention), nor after dropout.",
    assumption="the row sees at least one key, and no dropout",
)
def sums_to_one(total: float = 1.0) -> Measured:
    """The computed sum of n positive terms is within (n - 1) u of the true one, the division adds u: Higham 2002, 4.2."""
    parts = []
    for dtype, u in ROUNDOFF.items():
        inner = u if dtype == torch.float64 else ROUNDOFF[torch.float32]
        worst = 0.0
        for n in (2, 17, 256):
            scores = torch.from_numpy(generator(f"sums to one {n}").standard_normal((400, n)) * 2).to(dtype)
            w = torch.softmax(scores, -1)
            # what is stored below the normal range of float16 loses up to 2^-25 a weight
            allowed = (n + 2) * inner + u + (n * 2.0**-25 if dtype == torch.float16 else 0.0)
            worst = max(worst, float((w.double().sum(-1) - total).abs().max()) / allowed)
        parts.append(Measured(worst <= 1.0, f"{str(dtype).removeprefix('torch.')} {worst:.2f}"))
    empty = torch.softmax(torch.full((3,), -torch.inf), -1)
    one = torch.ones(1, 1, 1, 1)
    out = float(F.scaled_dot_product_attention(one, one, one, attn_mask=torch.zeros(1, 1, dtype=torch.bool)))
    return together(
        Measured(True, "largest |sum - 1| over the bound"),
        *parts,
        Measured(bool(empty.isnan().all()), f"a row of -inf: torch.softmax gives nan, its attention {out:g}"),
    )


def problem(name: str, sizes: tuple[int, int, int, int] = (2, 3, 7, 9), dim: int = 8) -> tuple[Floats, Floats, Floats]:
    """Query, key and value of (B, H, L, S) and head size `dim`, from the name."""
    rng = generator(name)
    B, H, L, S = sizes
    return rng.standard_normal((B, H, L, dim)), rng.standard_normal((B, H, S, dim)), rng.standard_normal((B, H, S, dim))


@claim(
    "A20",
    TRUE,
    "property",
    says="The Value vectors of all positions are summed with the attention weights.",
    statement="o_i = sum_j w_ij v_j, in the convex hull of the v_j",
    right="True, so in each coordinate min_j v_j <= o_i <= max_j v_j, but for rounding.",
)
def convex(target: float = 1.0) -> Measured:
    """Weights that are positive and sum to 1 are a convex combination. In the oracle and in torch's attention."""
    outside = {"the oracle": -np.inf, "torch": -np.inf}
    for case in range(50):
        q, k, v = problem(f"convex {case}")
        query, key, value = (torch.from_numpy(x) for x in (3 * q, k, v))
        outputs = {
            "the oracle": oracle.attention(3 * q, k, v).output,
            "torch": F.scaled_dot_product_attention(query, key, value).numpy(),
        }
        low, high = v.min(axis=2, keepdims=True), v.max(axis=2, keepdims=True)
        for name, out in outputs.items():
            over = np.maximum(target * out - high, low - target * out).max()
            outside[name] = max(outside[name], float(over))
    slack = 16 * (9 + 4) * 2.0**-53
    found = ", ".join(f"{name} {over:.2g}" for name, over in outside.items())
    return Measured(max(outside.values()) < slack, f"largest excess over the hull in 50 problems: {found}")


@claim(
    "A21",
    ASSUMING,
    "exact",
    says="W_v learns to reflect the sequence evenly through the words: each word contributes the same.",
    statement="o_i = mean_j v_j",
    right="True where all scores of a row are equal, as for q = 0 or equal keys. In general word j contributes w_ij, which "
    "W_v has no part in.",
    assumption="all scores of the row are equal (q = 0 or equal keys)",
)
def even(query: float = 0.0) -> Measured:
    """Equal scores give w_ij = 1/S."""
    q, k, v = problem("even")
    mean = v.mean(axis=2, keepdims=True)
    zero = float(np.abs(oracle.attention(query * q, k, v).output - mean).max())
    equal = float(np.abs(oracle.attention(q, np.ones_like(k), v).output - mean).max())
    w = oracle.attention(q, k, v).weights
    other = oracle.attention(q, k, 5 * v).weights
    return together(
        Measured(zero < 1e-14, f"q = 0: |o - mean| <= {zero:.0e}"),
        Measured(equal < 1e-14, f"equal keys: {equal:.0e}"),
        Measured(w.max() > 2 * w.min(), f"random q: weights {w.min():.4f} to {w.max():.3f} of 9 words"),
        Measured(bool((w == other).all()), "the same bits with 5 V"),
    )
