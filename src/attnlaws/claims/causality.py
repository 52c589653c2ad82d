"""Claims on the causal mask."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
import torch.nn.functional as F

from ..judge.softmax_law import softmax
from ..reference import heads, oracle
from .chance import Floats, generator, torch_seeded
from .claim import ASSUMING, TRUE, Measured, claim, together
from .weights import problem

LENGTH = 9


@claim(
    "A23",
    TRUE,
    "exact",
    says="GPT uses only the decoder, whose core is masked self-attention: it predicts from the text before.",
    statement="output i doesn't depend on tokens after i",
    right="True: the bits don't move when a later token changes, and d out_i / d x_j = 0 exactly for j > i.",
)
def later_tokens(shift: int = 0) -> Measured:
    """Multi-head attention of the reference. With shift = 1 also the token just before may not matter, which fails."""
    rng = generator("later tokens")
    with torch_seeded(rng):
        layer = heads.MultiHeadAttention(8, 8, LENGTH, 2).double()
    x = torch.from_numpy(rng.standard_normal((1, LENGTH, 8)))
    out = layer(x.requires_grad_()).sum(-1)[0]
    slopes = [torch.autograd.grad(out[i], x, retain_graph=True)[0][0] for i in range(LENGTH)]
    reach = torch.stack(slopes).abs().sum(-1)  # (L, L): how much input j moves output i
    leak = float(reach.triu(1 - shift).max())
    moved = 0
    with torch.no_grad():
        before = layer(x)
        for j in range(1, LENGTH):
            changed = x.clone()
            changed[:, j:] = 1e6
            moved += int((layer(changed)[:, : j + shift] != before[:, : j + shift]).sum())
    seen = int((reach.tril() > 0).sum())
    return together(
        Measured(leak == 0.0, f"largest |d out_i / d x_j| for j > i: {leak:g}"),
        Measured(seen == LENGTH * (LENGTH + 1) // 2, f"{seen} of {LENGTH * (LENGTH + 1) // 2} others are not 0"),
        Measured(moved == 0, f"{moved} outputs move when later tokens become 1e6"),
    )


@claim(
    "B1",
    TRUE,
    "exact",
    says="Causal attention uses, for any token, only the previous and the current inputs.",
    statement="row i of the weights has i positive entries, those of tokens 1..i",
    right="True: n (n + 1) / 2 positive weights for n tokens.",
)
def triangle(extra: int = 0) -> Measured:
    """The weights of the oracle and of torch's attention, read off with V = I."""
    wrong, counts = 0, []
    for n in range(1, 13):
        q, k, _ = problem(f"triangle {n}", (1, 1, n, n))
        allowed = np.tril(np.ones((n, n), dtype=bool), extra)
        query, key, unit = (torch.from_numpy(x) for x in (q, k, np.eye(n)[None, None]))
        shipped = F.scaled_dot_product_attention(query, key, unit, is_causal=True).numpy()[0, 0]
        for w in (oracle.attention(q, k, np.eye(n)[None, None], causal="top-left").weights[0, 0], shipped):
            wrong += int(((w > 0) != allowed).sum())
        counts.append(int((shipped > 0).sum()))
    return Measured(wrong == 0, f"positive weights for n = 1..12: {counts}; {wrong} not as in the triangle")


def renormalised(scores: torch.Tensor) -> torch.Tensor:
    """The recipe: softmax over the whole row, zero above the diagonal, divide by the row's sum."""
    kept = torch.softmax(scores, -1).tril()
    return kept / kept.sum(-1, keepdim=True)


def masked(scores: torch.Tensor, diagonal: int = 1) -> torch.Tensor:
    """-inf above the diagonal, then softmax."""
    above = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(diagonal)
    return torch.softmax(scores.masked_fill(above, -torch.inf), -1)


@claim(
    "B2",
    ASSUMING,
    "property",
    says="One way to the masked weights is softmax on the scores, zeros above the diagonal, and normalising the rows.",
    statement="it equals softmax with -inf above the diagonal",
    right="Equal in exact arithmetic. In floats a row is 0/0 once all its kept weights underflow: the gap to a masked score "
    "that rounds exp to 0 is 17.3 in float16, 92.9 in bfloat16, 104.0 in float32, 745.1 in float64.",
    assumption="the kept weights of no row underflow to 0",
)
def recipe(diagonal: int = 1) -> Measured:
    """(e_j / sum_all) / (sum_kept / sum_all) = e_j / sum_kept. The gaps are ln 2 times the exponent of half the least subnormal."""
    powers = [int(x) for x in generator("recipe").integers(1, 1000, 8)]
    whole, kept = sum(powers), powers[:5]
    exact = [Fraction(e, whole) / sum(Fraction(x, whole) for x in kept) == Fraction(e, sum(kept)) for e in kept]
    scores = torch.from_numpy(generator("recipe in floats").standard_normal((200, 8, 8)) * 2)
    off = float((renormalised(scores) - masked(scores, diagonal)).abs().max())
    late = torch.tensor([[0.0, 110.0], [0.0, 0.0]])
    broken, sound = renormalised(late)[0, 0], masked(late)[0, 0]
    gaps = {torch.float16: 25, torch.bfloat16: 134, torch.float32: 150, torch.float64: 1075}
    right = [
        float(torch.tensor(math.exp(-g * math.log(2) * (1 - 1e-4)), dtype=torch.float64).to(dtype)) > 0.0
        and float(torch.tensor(math.exp(-g * math.log(2) * (1 + 1e-4)), dtype=torch.float64).to(dtype)) == 0.0
        for dtype, g in gaps.items()
    ]
    found = ", ".join(f"{g * math.log(2):.1f} {str(dtype).removeprefix('torch.')}" for dtype, g in gaps.items())
    return together(
        Measured(all(exact), f"equal as fractions in {sum(exact)} of 5 weights"),
        Measured(off < 1e-14, f"float64: differ by {off:.0e}"),
        Measured(
            bool(broken.isnan()) and float(sound) == 1.0,
            f"float32, later score higher by 110: {broken:.0f}, with -inf {sound:g}",
        ),
        Measured(all(right), f"exp rounds to 0 beyond {found}"),
    )


@claim(
    "B13",
    TRUE,
    "exact",
    says="tril makes a mask with zeros above the diagonal.",
    statement="tril(x)_ij = x_ij for j <= i and 0 for j > i",
    right="True; the diagonal is kept, so each token sees itself.",
)
def lower(diagonal: int = 0) -> Measured:
    """torch.tril of a matrix of ones."""
    found = torch.ones(6, 6).tril()
    wrong = sum(int(found[i, j] != (1.0 if j <= i + diagonal else 0.0)) for i in range(6) for j in range(6))
    return Measured(
        wrong == 0, f"{wrong} of 36 entries wrong; sum {found.sum():g} = 6 * 7 / 2, trace {found.trace():g}"
    )


@claim(
    "B14",
    ASSUMING,
    "exact",
    says="softmax turns its input into a distribution; values of -inf get probability zero.",
    statement="softmax gives p >= 0 with sum 1, and p_j = 0 exactly where s_j = -inf",
    right="Exactly 0. A row of -inf throughout gives NaN.",
    assumption="at least one score is finite",
)
def minus_infinity(zero: float = 0.0) -> Measured:
    """exp(-inf - m) = 0 for finite m; -inf - (-inf) is not a number."""
    rng = generator("minus infinity")
    found, totals = [], []
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        scores = torch.from_numpy(rng.standard_normal((100, 12))).to(dtype)
        hidden = torch.from_numpy(rng.random((100, 12)) < 0.5)
        hidden[:, 0] = False
        p = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
        found.append(bool((p[hidden] == zero).all()))
        totals.append(float((p.double().sum(-1) - 1).abs().max()))
    empty = torch.softmax(torch.full((4,), -torch.inf), -1)
    return together(
        Measured(all(found), "exactly 0 in float64, float32, bfloat16, float16"),
        Measured(totals[0] < 1e-14, f"sums to 1 within {totals[0]:.0e} in float64, {totals[2]:.1g} in bfloat16"),
        Measured(bool(empty.isnan().all()), f"all -inf: {empty.tolist()}"),
    )


@claim(
    "C10",
    ASSUMING,
    "property",
    says="The matrix of QV has to become upper triangular: its lower left is set to a very small negative number before "
    "softmax.",
    statement="filling the lower left with -c, c large, and softmax give causal weights",
    right="It is Q K^T, and a large negative number; -inf is safe. With queries as rows it is the upper right. A fill of "
    "-1e4 leaks where the true scores lie below about -9900, and -1e9 is -inf in float16.",
    assumption="keys are rows, queries columns, softmax runs over columns, and the fill is -inf",
)
def fill(rows: str = "keys") -> Measured:
    """The transposed drawing is the transpose of the usual one; a finite fill is one more score."""
    scores = generator("fill").standard_normal((6, 6)) * 3  # rows are queries
    usual = softmax(np.where(np.tril(np.ones((6, 6), dtype=bool)), scores, -np.inf))
    drawn = scores.T if rows == "keys" else scores
    hidden = np.where(np.triu(np.ones((6, 6), dtype=bool)), drawn, -np.inf)
    columns: Floats = softmax(hidden.T).T if rows == "keys" else softmax(hidden)
    off = float(np.abs((columns.T if rows == "keys" else columns) - usual).max())
    low = torch.softmax(torch.tensor([-9950.0, -1e4], dtype=torch.float32), 0)[1]
    lower_still = torch.softmax(torch.tensor([-10100.0, -1e4], dtype=torch.float32), 0)[1]
    safe = torch.softmax(torch.tensor([-9800.0, -1e4], dtype=torch.float32), 0)[1]
    half = torch.tensor(-1e9).half()
    return together(
        Measured(off < 1e-14, f"lower left filled, {rows} as rows: differs from causal by {off:.1g}"),
        Measured(
            bool(low > 0) and bool(lower_still == 1) and bool(safe == 0),
            f"fill -1e4: the future gets {safe:g} at a true score of -9800, {low:.1g} at -9950, {lower_still:g} at -10100",
        ),
        Measured(bool(half == -torch.inf), f"-1e9 in float16 is {half:g}"),
    )
