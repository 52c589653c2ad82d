"""Claims on the number of GPT-3's parameters. Brown et al. 2020, table 2.1: d = 12288, 96 layers, 96 heads of 128.

Shapes are counted on torch's modules on the meta device, which holds no numbers.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn

from ..reference import heads
from .claim import ASSUMING, FALSE, TRUE, Measured, claim, together

WIDTH, LAYERS, HEADS, HEAD, VOCABULARY, CONTEXT = 12288, 96, 96, 128, 50257, 2048


def matrix(inputs: int, outputs: int) -> int:
    """The parameters of a linear map without bias."""
    return count(nn.Linear(inputs, outputs, bias=False, device="meta"))


def count(*modules: nn.Module) -> int:
    """The parameters of the modules."""
    return sum(p.numel() for module in modules for p in module.parameters())


@lru_cache(maxsize=1)
def table() -> dict[str, int]:
    """The eight matrices of the walk-through's table, counted one head, layer and matrix at a time."""
    per_head = HEADS * LAYERS
    return {
        "embedding": matrix(VOCABULARY, WIDTH),
        "key": matrix(WIDTH, HEAD) * per_head,
        "query": matrix(WIDTH, HEAD) * per_head,
        "value": matrix(WIDTH, HEAD) * per_head,
        "output": matrix(HEAD, WIDTH) * per_head,
        "up": matrix(WIDTH, 4 * WIDTH) * LAYERS,
        "down": matrix(4 * WIDTH, WIDTH) * LAYERS,
        "unembedding": matrix(WIDTH, VOCABULARY),
    }


@lru_cache(maxsize=1)
def like_gpt2() -> int:
    """The same sizes as GPT-2 is built: biases, LayerNorms, learned positions, the unembedding tied to the embedding."""
    d = WIDTH
    block = [
        nn.LayerNorm(d, device="meta"),
        nn.Linear(d, 3 * d, device="meta"),
        nn.Linear(d, d, device="meta"),
        nn.LayerNorm(d, device="meta"),
        nn.Linear(d, 4 * d, device="meta"),
        nn.Linear(4 * d, d, device="meta"),
    ]
    ends = [nn.Embedding(n, d, _weight=torch.empty(n, d, device="meta")) for n in (VOCABULARY, CONTEXT)]
    return LAYERS * count(*block) + count(*ends, nn.LayerNorm(d, device="meta"))


@claim(
    "C1",
    ASSUMING,
    "exact",
    says="GPT-3 has more than 175 billion parameters in all.",
    statement="the sum of the table is above 175e9",
    right="175,181,291,520 by the table. Built as GPT-2 is, tied and with biases, norms and positions, the same sizes give "
    "174,604,259,328.",
    assumption="embedding and unembedding are untied, and only the matrices of the table are counted",
)
def total(expected: int = 175_181_291_520) -> Measured:
    """12 d^2 a layer and 2 V d: see `table` and `like_gpt2`."""
    found, tied = sum(table().values()), like_gpt2()
    return together(
        Measured(found == expected and found > 175e9, f"table {found:,}"),
        Measured(tied == 174_604_259_328 and tied < 175e9, f"as GPT-2 {tied:,}"),
    )


@claim(
    "C2",
    FALSE,
    "exact",
    says="The embedding matrix has 122888 * 50257 parameters.",
    statement="the embedding is 122888 wide",
    right="A slip of the pen: 12288 = 96 * 128, and 12288 * 50257 = 617,558,016. The product as printed would be 6,175,982,216.",
)
def embedding(width: int = 12288) -> Measured:
    """Vocabulary times width."""
    found = table()["embedding"]
    return together(
        Measured(found == width * VOCABULARY, f"12288 * 50257 = {found:,}"),
        Measured(found != 122888 * VOCABULARY, f"122888 * 50257 = {122888 * VOCABULARY:,}"),
        Measured(width == HEADS * HEAD, f"96 * 128 = {HEADS * HEAD}"),
    )


@claim(
    "C7",
    TRUE,
    "exact",
    says="A query is 128 long, so W_Q has 12288 * 128 parameters; a key is 128 long too.",
    statement="W_Q and W_K of a head have 12288 * 128 parameters",
    right="True: 1,572,864 each a head; 14,495,514,624 over 96 heads and 96 layers.",
)
def query_matrix(head: int = 128) -> Measured:
    """One linear map without bias."""
    found = matrix(WIDTH, HEAD)
    whole = table()["query"]
    return together(
        Measured(found == WIDTH * head == 1_572_864, f"{found:,} a head"),
        Measured(whole == found * 96 * 96, f"{whole:,} in all"),
    )


@claim(
    "C11",
    FALSE,
    "exact",
    says="Too large a context window makes the number of parameters too large.",
    statement="parameters grow with the context",
    right="Attention's weights don't depend on it. Only learned positions do: 2048 * 12288 = 25,165,824, or 0.0144 %. What "
    "grows is the n^2 scores.",
)
def context(ratio: float = 1.0) -> Measured:
    """The reference's layer at two contexts; a score matrix has n^2 entries a head and layer."""
    short, long = (count(heads.MultiHeadAttention(32, 32, n, 4)) for n in (16, 512))
    positions = CONTEXT * WIDTH
    share = positions / like_gpt2()
    return together(
        Measured(long == short * ratio, f"context 16: {short:,} parameters, 512: {long:,}"),
        Measured(positions == 25_165_824 and share < 2e-4, f"positions {positions:,} = {share:.4%}"),
        Measured((512 // 16) ** 2 == 1024, f"scores {512 * 512:,} against {16 * 16}"),
    )


@claim(
    "C14",
    TRUE,
    "exact",
    says="The value layer needs 12288 * 128 * 2 parameters.",
    statement="W_V and W_O[h] of a head have 2 * 12288 * 128 together",
    right="True for one head: 3,145,728.",
)
def value_matrices(matrices: int = 2) -> Measured:
    """From 12288 down to 128 and up again."""
    found = matrix(WIDTH, HEAD) + matrix(HEAD, WIDTH)
    return Measured(found == WIDTH * HEAD * matrices == 3_145_728, f"{found:,}")


@claim(
    "C16",
    TRUE,
    "exact",
    says="This is why Q, K and V are multiplied by n_heads in the table of parameters.",
    statement="the heads' matrices of one layer have n_heads times the parameters of one",
    right="True: 12288 * 128 * 96 = 12288^2, so the heads together are one square matrix.",
)
def all_heads(number: int = 96) -> Measured:
    """H d_k = d, so H matrices of d x d_k make one of d x d."""
    one, square = matrix(WIDTH, HEAD), matrix(WIDTH, WIDTH)
    return Measured(
        one * number == square, f"{one:,} * {number} = {one * number:,}; a 12288 x 12288 map has {square:,}"
    )


@claim(
    "C18",
    ASSUMING,
    "exact",
    says="So simple a structure, the MLPs, holds 2/3 of the parameters.",
    statement="the MLPs' share is 2/3",
    right="8 d^2 of 12 d^2 in a block, exactly 2/3; 0.66197 of the table, 0.66415 of the model as GPT-2 is built.",
    assumption="only the matrices of the blocks are counted",
)
def two_thirds(width_factor: int = 4) -> Measured:
    """Up and down are 2 * 4 d^2, query, key, value and output 4 d^2."""
    rows = table()
    mlp = rows["up"] + rows["down"]
    attention = rows["key"] + rows["query"] + rows["value"] + rows["output"]
    return together(
        Measured(3 * mlp == 2 * (mlp + attention), f"{mlp:,} of {mlp + attention:,} in blocks"),
        Measured(mlp == 2 * width_factor * WIDTH**2 * LAYERS, "8 d^2 a layer"),
        Measured(round(mlp / sum(rows.values()), 5) == 0.66197, f"{mlp / sum(rows.values()):.5f} of the table"),
        Measured(round(mlp / like_gpt2(), 4) == 0.6642, f"{mlp / like_gpt2():.5f} as GPT-2"),
    )


@claim(
    "C19",
    TRUE,
    "exact",
    says="The blocks are stacked 96 times (n_layers in the table).",
    statement="GPT-3 has 96 layers",
    right="True, and the only number that gives 175 billion, rounded, at this width.",
)
def layers(number: int = 96) -> Measured:
    """2 V d + 12 d^2 L, rounded to billions, for each L. Brown et al. 2020, table 2.1."""
    rows = table()
    ends = rows["embedding"] + rows["unembedding"]
    block = (sum(rows.values()) - ends) // LAYERS
    sizes = {n: (ends + n * block) / 1e9 for n in range(1, 200)}
    fitting = [n for n, size in sizes.items() if round(size) == 175]
    found = ", ".join(f"{sizes[n]:.1f} ({n})" for n in (95, 96, 97))
    return Measured(fitting == [number], f"billions by layers: {found}; 175 for {fitting}")
