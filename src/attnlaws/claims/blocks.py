"""Claims on the residual stream and the MLP of a block."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from .chance import generator, torch_seeded
from .claim import TRUE, Measured, claim, together
from .heads import integers


@claim(
    "C12",
    TRUE,
    "exact",
    says="The weighted V is then added to the original token's embedding.",
    statement="x -> x + attention(x)",
    right="True: a residual connection. With the output map at 0 a block is the identity, bitwise.",
)
def residual(keeps: float = 1.0) -> Measured:
    """nn.TransformerEncoderLayer, norm first, with its MLP's output at 0: He et al. 2015 for residual connections."""
    rng = generator("residual")
    with torch_seeded(rng):
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, norm_first=True, batch_first=True, dtype=torch.float64)
        x = torch.randn(2, 5, 8, dtype=torch.float64)
    with torch.no_grad():
        layer.linear2.weight.zero_()
        layer.linear2.bias.zero_()
        y = layer.norm1(x)
        attended = layer.self_attn(y, y, y, need_weights=False)[0]
        off = float((layer(x) - (keeps * x + attended)).abs().max())
        layer.self_attn.out_proj.weight.zero_()
        layer.self_attn.out_proj.bias.zero_()
        same = torch.equal(layer(x), keeps * x)
    return together(
        Measured(off < 1e-14, f"a block of torch minus (x + attention) is {off:.0e}"),
        Measured(float(attended.abs().max()) > 0.1, f"attention adds up to {float(attended.abs().max()):.2f}"),
        Measured(same, f"output map 0: out equals x bitwise: {same}"),
    )


@claim(
    "C20",
    TRUE,
    "exact",
    says="In the MLPs, unlike in attention, each token is computed on its own, so in parallel.",
    statement="output i of the MLP depends on token i only",
    right="True: its Jacobian is block diagonal, exactly, and it commutes with permutations of the tokens.",
)
def on_its_own(module: str = "mlp") -> Measured:
    """d out_i / d x_j = 0 for i != j, of an MLP; of attention it isn't 0."""
    rng = generator("on its own")
    with torch_seeded(rng):
        mlp = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 6)).double()
        attention = nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64)
        x = torch.randn(1, 5, 6, dtype=torch.float64)

    def crossing(kind: str) -> float:
        z = x.clone().requires_grad_()
        out = (mlp(z) if kind == "mlp" else attention(z, z, z, need_weights=False)[0]).sum(-1)[0]
        reach = [torch.autograd.grad(out[i], z, retain_graph=True)[0][0].abs().sum(-1) for i in range(5)]
        return float((torch.stack(reach) * (1 - torch.eye(5))).max())

    shuffled = torch.from_numpy(rng.permutation(5))
    with torch.no_grad():
        off = float((mlp(x[:, shuffled]) - mlp(x)[:, shuffled]).abs().max())
    return together(
        Measured(crossing(module) == 0.0, f"largest derivative across tokens: {crossing(module):g}"),
        Measured(crossing("attention") > 1e-3, f"of attention {crossing('attention'):.2f}"),
        Measured(off < 1e-14, f"permuted tokens: outputs differ by {off:.0e}"),
    )


@claim(
    "C21",
    TRUE,
    "exact",
    says="Rows of the first linear layer are directions in the embedding space, activations say how well a vector agrees, "
    "columns of the second are what is added then.",
    statement="MLP(x) = sum_i f(row_i . x) column_i",
    right="True, but for biases. GPT-3 has 4 d = 49,152 such neurons a layer.",
)
def rows_and_columns(by: str = "columns") -> Measured:
    """W_2 f(W_1 x) summed one neuron at a time, on integers with ReLU, hence exact. Geva et al. 2020 for the reading."""
    up, down = integers("rows", 8, 8), integers("columns", 8, 8)
    x = integers("token", 5, 8)
    with torch.no_grad():
        first, second = nn.Linear(8, 8, bias=False).double(), nn.Linear(8, 8, bias=False).double()
        first.weight.copy_(torch.from_numpy(up))
        second.weight.copy_(torch.from_numpy(down))
        whole = second(torch.relu(first(torch.from_numpy(x)))).numpy()
    neurons = sum(np.maximum(x @ up[i], 0.0)[:, None] * (down[:, i] if by == "columns" else down[i]) for i in range(8))
    exact = bool((neurons == whole).all())
    unit = up[0] / np.linalg.norm(up[0])
    others = generator("directions").standard_normal((1000, 8))
    best = float((others / np.linalg.norm(others, axis=1, keepdims=True) @ up[0]).max())
    return together(
        Measured(exact, f"the sum over neurons, by {by}, equals the MLP bitwise: {exact}"),
        Measured(
            best < unit @ up[0],
            f"row 0 gives {unit @ up[0]:.2f} in its own direction, at most {best:.2f} in 1000 others",
        ),
        Measured(4 * 12288 == 49_152, f"4 * 12288 = {4 * 12288:,}"),
    )
