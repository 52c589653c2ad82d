"""Wrong positions, norms and losses, each with the law that it must break, and right ones in other styles."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnlaws.targets import part as parts
from attnlaws.targets.part import Part

WRONG: list[tuple[str, str, Callable[[], Part]]] = []
RIGHT: list[tuple[str, Callable[[], Part]]] = []


# -- rotations ---------------------------------------------------------------------------------------------------------


def rotate(
    x: Tensor,
    p: Tensor,
    *,
    base: float = 1e4,
    step: float = 2.0,
    sign: float = 1.0,
    pairing: str = "half",
    mixed: bool = False,
) -> Tensor:
    """RoPE with its pieces to be replaced: the exponent's step, the sense of the turn, tables of one pairing with the other."""
    d = x.shape[-1]
    angle = p.float()[:, None] * base ** (-step * torch.arange(d // 2) / d)
    cos, sin = angle.cos(), sign * angle.sin()
    if pairing == "half":
        one, two = x.chunk(2, -1)
        turned = torch.cat([one * cos - two * sin, two * cos + one * sin], -1)
        if mixed:  # the half rotation with a table for neighbours
            cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
            turned = x * cos + torch.cat([-two, one], -1) * sin
        return turned
    return torch.stack([x[..., 0::2] * cos - x[..., 1::2] * sin, x[..., 1::2] * cos + x[..., 0::2] * sin], -1).flatten(
        -2
    )


def _rotation(law: str, name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    WRONG.append((f"rope: {name}", law, lambda: parts.torch_rotation(name, function)))


def _half_alone(x: Tensor, p: Tensor) -> Tensor:
    return torch.cat([rotate(x, p)[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]], -1)


_rotation("rope.definition", "base 1,000", lambda x, p: rotate(x, p, base=1e3))
_rotation("rope.definition", "exponent i/D", lambda x, p: rotate(x, p, step=1.0))
_rotation("rope.definition", "turned the other way", lambda x, p: rotate(x, p, sign=-1.0))
_rotation("rope.definition", "positions from 1", lambda x, p: rotate(x, p + 1))
_rotation("rope.origin", "positions from 1, at the origin", lambda x, p: rotate(x, p + 1))
_rotation("rope.definition", "positions in bfloat16", lambda x, p: rotate(x, p.bfloat16().float()))
_rotation("rope.definition", "positions cut at 4095", lambda x, p: rotate(x, p.clamp(max=4095)))
_rotation("rope.definition", "positions counted anew", lambda x, p: rotate(x, torch.arange(len(p))))
_rotation("rope.definition", "positions ignored", lambda x, p: x)
_rotation("rope.definition", "one position for all", lambda x, p: rotate(x, p[:1].expand(len(p))))
_rotation("rope.definition", "tables of the other pairing", lambda x, p: rotate(x, p, mixed=True))
_rotation("rope.norm", "the first half turned alone", _half_alone)
_rotation("rope.norm", "added, not turned", lambda x, p: x + rotate(torch.ones_like(x), p))
_rotation("rope.relative", "an angle of the square of the position", lambda x, p: rotate(x, p * p))
_rotation(
    "rope.definition",
    "frequencies in bfloat16",
    lambda x, p: rotate(x, p, base=float(torch.tensor(1e4).bfloat16()) * 1.01),
)

RIGHT += [
    ("rope by complex numbers", lambda: parts.torch_rotation("complex", _complex)),
    ("rope with a table", lambda: parts.torch_rotation("table", _table)),
    ("rope, neighbours", lambda: parts.torch_rotation("neighbours", lambda x, p: rotate(x, p, pairing="interleaved"))),
    ("rope, other base", lambda: parts.torch_rotation("base", lambda x, p: rotate(x, p, base=1e6), 1e6)),
]


def _complex(x: Tensor, p: Tensor) -> Tensor:
    d = x.shape[-1]
    angle = p.float()[:, None] * 1e4 ** (-torch.arange(0, d, 2) / d)
    turn = torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)


def _table(x: Tensor, p: Tensor) -> Tensor:
    d = x.shape[-1]
    frequencies = 1.0 / (1e4 ** (torch.arange(0, d, 2).float() / d))
    table = torch.outer(torch.arange(8200).float(), frequencies)
    both = torch.cat([table, table], -1)[p]
    one, two = x.chunk(2, -1)
    return x * both.cos() + torch.cat([-two, one], -1) * both.sin()


# -- slopes, buckets, sinusoids ------------------------------------------------------------------------------------------


def _slopes(name: str, function: Callable[[int], Any]) -> None:
    WRONG.append((f"alibi: {name}", "alibi.slopes", lambda: parts.torch_slopes(name, function)))


def _geometric(h: int) -> Tensor:
    return 2.0 ** (-8.0 * torch.arange(1, h + 1) / h)


_slopes("from 2^0", lambda h: 2.0 ** (-8.0 * torch.arange(h) / h))
_slopes("linear", lambda h: torch.arange(1, h + 1) / h)
_slopes("of eight heads whatever H", lambda h: 2.0 ** -torch.arange(1.0, h + 1))
_slopes("repeated for other H", lambda h: _geometric(2 ** int(math.log2(h))).repeat(2)[:h])
_slopes("as for a power of two for other H", lambda h: _geometric(h) if h & (h - 1) == 0 else _geometric(h) * 1.05)
RIGHT += [("alibi as transformers' MPT", lambda: parts.torch_slopes("mpt", _mpt))]


def _mpt(h: int) -> Tensor:
    above = 2 ** math.ceil(math.log2(h))
    slopes = _geometric(above)
    return slopes if above == h else torch.cat([slopes[1::2], slopes[0::2]])[:h]


def _buckets(name: str, function: Callable[..., Tensor]) -> None:
    WRONG.append((f"buckets: {name}", "buckets.definition", lambda: parts.torch_buckets(name, function)))


def bucket(
    d: Tensor, *, bidirectional: bool, num_buckets: int, max_distance: int, base: bool = False, strict: bool = True
) -> Tensor:
    """T5's, by a rounded logarithm as in the released code."""
    found = torch.zeros_like(d)
    if bidirectional:
        num_buckets //= 2
        found = found + (d > 0).long() * num_buckets
        d = d.abs()
    else:
        d = -torch.minimum(d, torch.zeros_like(d))
    exact = num_buckets // 2
    far = exact + (torch.log(d.float() / exact) / math.log(max_distance / exact) * (num_buckets - exact)).long()
    far = far.clamp(max=num_buckets - 1) if strict else far
    return found + torch.where(d < exact, d, far)


RIGHT += [("buckets as transformers' T5", lambda: parts.torch_buckets("t5", bucket))]
_buckets("sides swapped", lambda d, **o: bucket(-d, **o))
_buckets("always both directions", lambda d, bidirectional, **o: bucket(d, bidirectional=True, **o))
_buckets("the last bucket overrun", lambda d, **o: bucket(d, strict=False, **o))
_buckets("max_distance ignored", lambda d, max_distance, **o: bucket(d, max_distance=128, **o))
_buckets("one side for an encoder", lambda d, bidirectional, **o: bucket(-d.abs(), bidirectional=False, **o))
_buckets("no logarithm", lambda d, bidirectional, num_buckets, max_distance: d.abs().clamp(max=num_buckets - 1))


def _sinusoids(name: str, function: Callable[[int, int], Tensor]) -> None:
    WRONG.append((f"sinusoids: {name}", "sinusoids.definition", lambda: parts.torch_sinusoids(name, function)))


def sinusoid(length: int, width: int, base: float = 1e4, step: float = 1.0, first: int = 0) -> Tensor:
    table = torch.zeros(length, width)
    angle = torch.arange(first, first + length)[:, None] * base ** (-step * torch.arange(0, width, 2) / width)
    table[:, 0::2] = angle.sin()
    table[:, 1::2] = angle[:, : width // 2].cos()
    return table


def _odd_crash(length: int, width: int) -> Tensor:
    table = torch.zeros(length, width)
    angle = torch.arange(length)[:, None] * 1e4 ** (-torch.arange(0, width, 2) / width)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return table


_sinusoids("base 1,000", lambda n, w: sinusoid(n, w, base=1e3))
_sinusoids("exponent twice", lambda n, w: sinusoid(n, w, step=2.0))
_sinusoids("positions from 1", lambda n, w: sinusoid(n, w, first=1))
_sinusoids("sines alone", lambda n, w: sinusoid(n, w).clone().index_fill_(1, torch.arange(1, w, 2), 0.0))
_sinusoids("an odd width crashes", _odd_crash)
RIGHT += [("sinusoids, one half after the other", lambda: parts.torch_sinusoids("halves", _halves))]


def _halves(length: int, width: int) -> Tensor:
    if width % 2:
        raise ValueError(f"width must be even, not {width}")
    angle = torch.arange(length)[:, None] * torch.exp(-math.log(1e4) * torch.arange(width // 2) / (width // 2 - 1))
    return torch.cat([angle.sin(), angle.cos()], -1)


# -- norms -------------------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    """A norm with its pieces to be replaced."""

    def __init__(self, function: Callable[[Tensor, float], Tensor], eps: float = 1e-5) -> None:
        super().__init__()
        self.function, self.eps = function, eps

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.eps)


def _norm(law: str, name: str, function: Callable[[Tensor, float], Tensor], kind: str = "layer norm") -> None:
    WRONG.append((f"{kind}: {name}", law, lambda: parts.torch_norm(name, lambda _: Norm(function), kind)))


def centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def _over_all(x: Tensor, eps: float) -> Tensor:
    return (x - x.mean()) / (x.var(unbiased=False) + eps).sqrt()


_norm("norm.definition", "the unbiased variance", lambda x, e: centred(x) / (x.var(-1, keepdim=True) + e).sqrt())
_norm(
    "norm.definition",
    "epsilon outside the root",
    lambda x, e: centred(x) / (x.var(-1, unbiased=False, keepdim=True).sqrt() + e),
)
_norm("norm.definition", "epsilon left out", lambda x, e: centred(x) / x.var(-1, unbiased=False, keepdim=True).sqrt())
_norm(
    "norm.constant",
    "epsilon left out, a constant row",
    lambda x, e: centred(x) / x.var(-1, unbiased=False, keepdim=True).sqrt(),
)
_norm("norm.definition", "not centred", lambda x, e: x / (x.var(-1, unbiased=False, keepdim=True) + e).sqrt())
_norm(
    "norm.definition",
    "divided by the variance",
    lambda x, e: centred(x) / (x.var(-1, unbiased=False, keepdim=True) + e),
)
_norm("norm.rows", "over the whole batch", _over_all)
_norm(
    "norm.definition",
    "the sum for the mean",
    lambda x, e: x / (x.square().sum(-1, keepdim=True) + e).sqrt(),
    "rms norm",
)
_norm(
    "norm.definition",
    "centred",
    lambda x, e: centred(x) / (x.var(-1, unbiased=False, keepdim=True) + e).sqrt(),
    "rms norm",
)
_norm("norm.definition", "the mean of sizes", lambda x, e: x / (x.abs().mean(-1, keepdim=True) + e), "rms norm")
RIGHT += [
    ("layer norm by hand", lambda: parts.torch_norm("hand", lambda _: Norm(
        lambda x, e: centred(x) * torch.rsqrt(centred(x).square().mean(-1, keepdim=True) + e)))),
    ("layer norm with epsilon 1e-12", lambda: parts.torch_norm("1e-12", lambda n: nn.LayerNorm(n, eps=1e-12))),
    ("torch's RMSNorm", lambda: parts.torch_norm("rms", lambda n: nn.RMSNorm(n, eps=1e-6), "rms norm")),
]  # fmt: skip


# -- the loss ----------------------------------------------------------------------------------------------------------


def _loss(name: str, function: Callable[[Tensor, Tensor], Any]) -> None:
    WRONG.append((f"loss: {name}", "loss.definition", lambda: parts.torch_loss(name, function)))


def entropy(z: Tensor, t: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(z.flatten(0, 1), t.flatten(), **options)


_loss("not shifted", lambda z, t: entropy(z, t))
_loss("shifted the wrong way", lambda z, t: entropy(z[:, 1:], t[:, :-1]))
_loss("shifted twice", lambda z, t: entropy(z[:, :-2], t[:, 2:]) if t.shape[1] > 2 else entropy(z[:, :-1], t[:, 1:]))
_loss("token 0 ignored", lambda z, t: entropy(z[:, :-1], t[:, 1:].masked_fill(t[:, 1:] == -100, 0), ignore_index=0))
_loss(
    "ignored labels counted in the mean", lambda z, t: entropy(z[:, :-1], t[:, 1:], reduction="sum") / t[:, 1:].numel()
)
_loss("the sum", lambda z, t: entropy(z[:, :-1], t[:, 1:], reduction="sum"))
_loss("a mean of the means of rows", lambda z, t: torch.stack([
    F.cross_entropy(a[:-1], b[1:]) for a, b in zip(z, t, strict=True)]).mean())  # fmt: skip
_loss("softmax before", lambda z, t: entropy(torch.softmax(z[:, :-1], -1), t[:, 1:]))
_loss("in bits", lambda z, t: entropy(z[:, :-1], t[:, 1:]) / math.log(2))
_loss(
    "the last token left out",
    lambda z, t: entropy(z[:, :-2], t[:, 1:-1]) if t.shape[1] > 2 else entropy(z[:, :-1], t[:, 1:]),
)
RIGHT += [
    ("loss by gathering", lambda: parts.torch_loss("gather", _gathered)),
]


def _gathered(z: Tensor, t: Tensor) -> Tensor:
    labels = t[:, 1:]
    real = labels != -100
    logs = torch.log_softmax(z[:, :-1], -1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return -(logs * real).sum() / real.sum()
