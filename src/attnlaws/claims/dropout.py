"""Claims on dropout."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from ..judge.softmax_law import softmax
from ..reference import heads
from .chance import Look, count_look, fails, generator, holds, mean_look, torch_seeded
from .claim import ASSUMING, TRUE, Measured, claim, together

RATE = 0.1


def dropped(rng: np.random.Generator, x: torch.Tensor) -> torch.Tensor:
    """torch's dropout at RATE, seeded from `rng`."""
    with torch_seeded(rng):
        return F.dropout(x, RATE)


@claim(
    "B3",
    ASSUMING,
    "statistical",
    says="The unmasked weights are normalised so that each row sums to 1.",
    statement="sum_j w_ij = 1",
    right="In training, after dropout of the weights, a row sums to 1 only on average: variance p / (1 - p) sum w^2.",
    assumption="evaluation: no dropout",
)
def rows_after_dropout(factor: float = 1.0) -> Measured:
    """w_j b_j / (1 - p) with b_j ~ Bernoulli(1 - p) has mean w_j and variance p w_j^2 / (1 - p). Srivastava et al. 2014."""
    w = softmax(generator("rows after dropout").standard_normal(48))
    variance = RATE / (1.0 - RATE) * float((w**2).sum()) * factor

    def sums(rng: np.random.Generator) -> Look:
        return mean_look(dropped(rng, torch.from_numpy(w).expand(40_000, 48)).sum(-1).numpy(), 1.0)

    def spread(rng: np.random.Generator) -> Look:
        rows = dropped(rng, torch.from_numpy(w).expand(40_000, 48)).sum(-1).numpy()
        return mean_look((rows - 1.0) ** 2, variance)

    kept = float(abs(w.sum() - 1.0))
    return together(
        Measured(kept < 1e-14, f"no dropout: |sum - 1| = {kept:.0e}"),
        holds("mean row sum, p = 0.1:", sums),
        holds("its variance:", spread),
    )


@claim(
    "B4",
    TRUE,
    "exact",
    says="Dropout is used in training only and is taken away afterwards.",
    statement="in evaluation the output equals that without dropout",
    right="True of nn.Dropout, bitwise, as is p = 0 in training. F.scaled_dot_product_attention knows no mode: its dropout_p "
    "also drops in evaluation.",
)
def evaluation(training: bool = False) -> Measured:
    """The reference's layer with p = 0.5, in evaluation, against the same weights with p = 0."""
    rng = generator("evaluation")
    with torch_seeded(rng):
        with_p = heads.MultiHeadAttention(8, 8, 10, 2, dropout=0.5).train(training)
        without = heads.MultiHeadAttention(8, 8, 10, 2, dropout=0.0)
        without.load_state_dict(with_p.state_dict())
        x = torch.randn(3, 10, 8)
        with torch.no_grad():
            same = torch.equal(with_p(x), without.eval()(x))
            zero = torch.equal(without.train()(x), without.eval()(x))
            noisy = torch.equal(with_p.train()(x), without(x))
            q = torch.randn(1, 1, 10, 8)
            stateless = torch.equal(
                F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), F.scaled_dot_product_attention(q, q, q)
            )
    return together(
        Measured(same, f"evaluation with p = 0.5 equals p = 0 bitwise: {same}"),
        Measured(zero, f"training with p = 0 equals evaluation: {zero}"),
        Measured(not noisy, f"training with p = 0.5 equals it: {noisy}"),
        Measured(not stateless, f"scaled_dot_product_attention with dropout_p = 0.5 equals it: {stateless}"),
    )


@claim(
    "B5",
    TRUE,
    "statistical",
    says="Attention dropout is used at two places: after the weights are computed, or after they are applied to V.",
    statement="dropping weights and dropping outputs are two different operations",
    right="True, and they can be told apart: with a dense V, dropped weights leave no output exactly 0, dropped outputs a "
    "share p. With V = I the zeros of dropped weights are those weights; survivors are w / (1 - p).",
)
def two_places(rate: float = RATE) -> Measured:
    """Zeros are Binomial(N, p) exactly."""
    w = torch.from_numpy(softmax(generator("weights to drop").standard_normal((64, 64))))
    v = torch.from_numpy(generator("dense values").standard_normal((64, 64)))
    survivors = dropped(generator("survivors"), w) @ torch.eye(64, dtype=torch.float64)
    off = float((survivors[survivors > 0] * (1 - RATE) / w[survivors > 0] - 1).abs().max())
    dense = int((dropped(generator("dropped weights"), w) @ v == 0).sum())

    def zeros(rng: np.random.Generator, of: str) -> Look:
        out = dropped(rng, w) @ torch.eye(64, dtype=torch.float64) if of == "weights" else dropped(rng, w @ v)
        return count_look(int((out == 0).sum()), out.numel(), rate)

    return together(
        Measured(off < 1e-14, f"survivors are w / (1 - p) to {off:.0e}"),
        holds("zeros, V = I, weights dropped:", lambda rng: zeros(rng, "weights")),
        Measured(dense == 0, f"V dense, weights dropped: {dense} zeros of 4096"),
        holds("zeros, V dense, outputs dropped:", lambda rng: zeros(rng, "outputs")),
        fails("the same against 0.2:", lambda rng: count_look(int((dropped(rng, w @ v) == 0).sum()), 4096, 0.2)),
    )
