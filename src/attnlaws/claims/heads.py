"""Claims on heads: stacking, splitting, merging, and the low rank of a head's value map."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from ..reference import definition, heads, oracle
from .chance import Floats, generator, product, rank_of, torch_seeded
from .claim import ASSUMING, FALSE, TRUE, Measured, claim, together
from .weights import problem


def integers(name: str, *shape: int) -> Floats:
    """Small integers, so that sums of products are exact in float64."""
    return generator(name).integers(-9, 10, shape).astype(np.float64)


def merged(outputs: Floats, weight: Floats) -> Floats:
    """Concat(o_1, ..., o_H) W_o for outputs (H, L, D) and W_o (H D, E)."""
    value: Floats = np.concatenate(list(outputs), axis=-1) @ weight
    return value


def summed(outputs: Floats, weight: Floats) -> Floats:
    """sum_h o_h W_o[h], W_o[h] the rows h D to (h + 1) D of W_o."""
    H, _, D = outputs.shape
    value: Floats = np.einsum("hld,hde->le", outputs, weight.reshape(H, D, -1))
    return value


@claim(
    "A22",
    TRUE,
    "exact",
    says="The heads' outputs are concatenated along the feature dimension and multiplied by W_o.",
    statement="Concat(o_1, ..., o_H) W_o = sum_h o_h W_o[h]",
    right="True as an identity of block matrices: each head adds its own vector.",
)
def concatenated(order: int = 1) -> Measured:
    """Vaswani et al. 2017, section 3.2.2, on integers, hence exact; and nn.MultiheadAttention's own merge."""
    o, w = integers("concatenated o", 4, 7, 3)[::order], integers("concatenated w", 12, 10)
    exact = bool((merged(o, w) == summed(integers("concatenated o", 4, 7, 3), w)).all())
    rng = generator("merge of torch")
    with torch_seeded(rng):
        layer = torch.nn.MultiheadAttention(12, 4, bias=False, batch_first=True, dtype=torch.float64)
    x = torch.from_numpy(rng.standard_normal((1, 7, 12)))
    with torch.no_grad():
        out, weights = layer(x, x, x, average_attn_weights=False)
        v = (x[0] @ layer.in_proj_weight[24:].T).view(7, 4, 3).transpose(0, 1)  # (H, L, D)
        off = float(np.abs(summed((weights[0] @ v).numpy(), layer.out_proj.weight.numpy().T) - out[0].numpy()).max())
    return together(
        Measured(exact, f"on integers equal bitwise: {exact}"),
        Measured(off < 1e-14, f"nn.MultiheadAttention's output is the sum over heads to {off:.0e}"),
    )


@claim(
    "B6",
    FALSE,
    "exact",
    says="The columns are the embedding given by d_out = 4. With two heads and an embedding dimension of 2 the final one is "
    "2 x 2 = 4.",
    statement="two heads with d_out = 4 give 4 columns each, and 4 together",
    right="Two conventions are mixed. With d_out = 4 a head, stacking two gives 8; with d_out = 4 in all, each has 2.",
)
def two_conventions(columns: int = 8) -> Measured:
    """The shapes of the reference's layers."""
    x = torch.zeros(1, 3, 5)
    single = [heads.CausalAttention(5, 4, 3) for _ in range(2)]
    joined = int(torch.cat([head(x) for head in single], -1).shape[-1])
    stacked = heads.StackedHeads(5, 4, 3, num_heads=2, out_proj=False)
    parts = [int(head(x).shape[-1]) for head in stacked.heads]
    return together(
        Measured(joined == columns and joined != 4, f"two heads of d_out = 4 give {joined} columns"),
        Measured(parts == [2, 2] and stacked(x).shape[-1] == 4, f"d_out = 4 in all gives {parts[0]} + {parts[1]}"),
    )


@claim(
    "B7",
    TRUE,
    "property",
    says="Instead of stacking single heads one can project once with a larger W_q and split the result into Q1 and Q2.",
    statement="x [W_q1 | W_q2] split in two equals (x W_q1, x W_q2); so do the outputs",
    right="True. The blocks are columns of W_q (rows of nn.Linear.weight). The view must be (B, L, H, D): (B, L, D, H) mixes "
    "the heads.",
)
def split(view: str = "heads first") -> Measured:
    """The reference's stacked layer, and the same weights as one layer with views."""
    x, w1, w2 = integers("split x", 5, 6), integers("split w1", 6, 4), integers("split w2", 6, 4)
    q = x @ np.concatenate([w1, w2], axis=1)
    parts = q.reshape(5, 2, 4) if view == "heads first" else q.reshape(5, 4, 2).swapaxes(1, 2)
    exact = bool((parts[:, 0] == x @ w1).all() and (parts[:, 1] == x @ w2).all())
    rng = generator("split")
    with torch_seeded(rng):
        stacked = heads.StackedHeads(6, 8, 5, num_heads=2).double()
    y = torch.from_numpy(rng.standard_normal((3, 5, 6)))
    with torch.no_grad():
        off = float((heads.split_weights(stacked)(y) - stacked(y)).abs().max())
    mixed = bool((q.reshape(5, 4, 2)[..., 0] == x @ w1).all())
    return together(
        Measured(exact, f"Q1, Q2 on integers equal bitwise: {exact}"),
        Measured(off < 1e-14, f"outputs of the two layers differ by {off:.0e}"),
        Measured(not mixed, f"the view (L, D, H) gives Q1: {mixed}"),
    )


@claim(
    "B8",
    ASSUMING,
    "exact",
    says="head_dim = d_out / num_heads.",
    statement="each of H heads has d_out / H columns",
    right="Where H doesn't divide d_out there is no such split; a layer must say so.",
    assumption="num_heads divides d_out",
)
def head_size(columns: int = 4) -> Measured:
    """The reference's layer and nn.MultiheadAttention."""
    layer = heads.MultiHeadAttention(5, 12, 3, num_heads=3)

    def refuses(build: Callable[[], object]) -> bool:
        try:
            build()
        except (ValueError, AssertionError):
            return True
        return False

    mine = refuses(lambda: heads.MultiHeadAttention(5, 10, 3, num_heads=3))
    torchs = refuses(lambda: torch.nn.MultiheadAttention(10, 3))
    return together(
        Measured(layer.head_size == columns, f"12 / 3 = {layer.head_size}"),
        Measured(mine and torchs, f"10 / 3 is refused by the reference: {mine}, by nn.MultiheadAttention: {torchs}"),
    )


@claim(
    "B9",
    TRUE,
    "property",
    says="Matrix multiplication instead of for loops makes the computation more efficient.",
    statement="attention by matrix products takes less time than by loops, with the same result",
    right="True in practice: more than ten times faster at 2 heads, 24 tokens, head size 16.",
)
def faster(times: float = 10.0) -> Measured:
    """The oracle against the definition as loops; the least of three runs each."""
    q, k, v = problem("faster", (1, 2, 24, 24), 16)

    def least(run: Callable[[], object]) -> float:
        took = []
        for _ in range(3):
            start = time.perf_counter()
            run()
            took.append(time.perf_counter() - start)
        return min(took)

    looped = least(lambda: definition.attention(q, k, v))
    fast = least(lambda: oracle.attention(q, k, v))
    off = float(np.abs(definition.attention(q, k, v).output - oracle.attention(q, k, v).output).max())
    ratio = looped / fast
    words = f"more than {times:g} times faster" if ratio > times else f"{ratio:.1f} times faster"
    return together(Measured(ratio > times, words), Measured(off < 1e-14, f"results differ by {off:.0e}"))


@claim(
    "B15",
    ASSUMING,
    "exact",
    says="view resets the shape of a tensor.",
    statement="x.view(shape) has the new shape and the same elements in the same order",
    right="It shares the memory, and is refused where strides don't allow it, as after transpose; reshape copies then.",
    assumption="the strides allow it (a contiguous tensor)",
)
def view(contiguous: bool = True) -> Measured:
    """torch.Tensor.view on a matrix and on its transpose."""
    x = torch.arange(24).view(4, 6)
    source = x if contiguous else x.t()
    try:
        seen = source.view(2, 12)
        shares = seen.data_ptr() == source.data_ptr() and torch.equal(seen.flatten(), torch.arange(24))
    except RuntimeError:
        shares = False
    try:
        x.t().view(2, 12)
        refused = False
    except RuntimeError:
        refused = True
    copied = x.t().reshape(2, 12)
    return together(
        Measured(shares, f"a view of a contiguous tensor, the same memory and order: {shares}"),
        Measured(refused, f"a view of its transpose is refused: {refused}"),
        Measured(copied.data_ptr() != x.data_ptr(), "reshape copies it"),
    )


@claim(
    "C13",
    TRUE,
    "exact",
    says="V would be a 12288 x 12288 map, but a low-rank transformation is used: two matrices of 12288 x 128.",
    statement="the value map of a head is W_V W_O[h], of rank at most d_k",
    right="True for one head: 150,994,944 numbers against 3,145,728, 48 times fewer. All 96 heads together have "
    "2 d^2 = 301,989,888 and can have full rank.",
)
def low_rank(rank: int = 16) -> Measured:
    """rank(A B) <= the inner size; here d = 192, 12 heads of 16."""
    rng = generator("low rank")
    d, H, D = 192, 12, 16
    values, out = rng.standard_normal((H, d, D)), rng.standard_normal((H, D, d))
    one = rank_of(product(values[0], out[0]))
    whole = rank_of(product(values, out).sum(axis=0))
    full, two = 12288**2, 2 * 12288 * 128
    return together(
        Measured(one == rank, f"d = 192, 12 heads of 16: one head has rank {one}"),
        Measured(whole == d, f"their sum {whole}"),
        Measured(full == 48 * two, f"GPT-3: {full:,} against {two:,}, {full / two:g} times"),
        Measured(96 * two == 2 * full, f"all heads {96 * two:,}"),
    )


@claim(
    "C15",
    TRUE,
    "exact",
    says="GPT-3 uses 96 attention heads in parallel, and what they give is added to the embedding together.",
    statement="the change of the embedding is sum_h o_h W_O[h]",
    right="True: it is the same as concatenation and one output matrix.",
)
def added(count: int = 96) -> Measured:
    """96 heads on integers, one after another, against Concat W_O."""
    o, w = integers("added o", 96, 5, 4), integers("added w", 384, 20)
    total = np.zeros((5, 20))
    for h in range(count):
        total += o[h] @ w[4 * h : 4 * h + 4]
    exact = bool((total == merged(o, w)).all())
    return Measured(
        exact, f"sum over {count} heads equals the merge of 96 bitwise: {exact}; entry (0, 0) is {total[0, 0]:g}"
    )


@claim(
    "C17",
    TRUE,
    "exact",
    says="The 96 output matrices are usually put together into one very large matrix, called the output matrix.",
    statement="stacking W_O[1], ..., W_O[H] by rows gives the W_O of Concat(o) W_O",
    right="True: 96 matrices of 128 x 12288, one below the other, make one of 12288 x 12288.",
)
def stacked_outputs(axis: int = 0) -> Measured:
    """Small integers with the shapes of 96 heads."""
    parts = [integers(f"stacked {h}", 2, 192) for h in range(96)]
    o = integers("stacked o", 96, 5, 2)
    if axis != 0:
        return Measured(False, f"stacked by columns: {np.concatenate(parts, axis=axis).shape}")
    whole = np.concatenate(parts, axis=axis)
    exact = bool((merged(o, whole) == sum(o[h] @ parts[h] for h in range(96))).all())
    return together(
        Measured(whole.shape == (192, 192), f"96 matrices of {parts[0].shape} make one of {whole.shape}"),
        Measured(exact, f"the same output bitwise: {exact}"),
        Measured(96 * 128 == 12288, f"96 * 128 = {96 * 128}"),
    )
