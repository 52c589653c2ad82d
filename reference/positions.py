"""Where a token stands: sinusoids, rotations of queries and keys, linear biases, buckets of distances.

Letters in shapes: B batch, H heads, L queries or tokens, S keys, D head size, E width.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

Pairing = Literal["half", "interleaved"]


def sinusoidal(
    length: int,
    width: int,
    *,
    base: float = 10_000.0,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """PE[p, 2i] = sin(p / base^(2i/E)), PE[p, 2i+1] = cos of the same          arXiv:1706.03762, section 3.5

    Gives (L, E). An odd width ends with a sine that has no cosine. ValueError for a length below 0 or a width below 1.
    """
    if length < 0 or width < 1:
        raise ValueError(f"length must be at least 0 and width at least 1, not {length} and {width}")
    wide = _at_least_float32(dtype)
    p = torch.arange(length, dtype=wide, device=device)[:, None]
    angle = p * _frequencies(width, base, wide, device)  # (L, 1) * (E/2,), rounded up -> (L, E/2)
    table = torch.empty(length, width, dtype=wide, device=device)
    table[:, 0::2] = torch.sin(angle)
    table[:, 1::2] = torch.cos(angle[:, : width // 2])
    return table.to(dtype)


def rotary(x: Tensor, positions: Tensor, *, base: float = 10_000.0, pairing: Pairing = "half") -> Tensor:
    """RoPE: the pair i of x at position p is turned by the angle p / base^(2i/D)          arXiv:2104.09864, section 3.2.2

    x is (B, H, L, D) with D even, positions (L,), (1, L) or (B, L), any numbers, and the result like x. Scores of rotated
    queries and keys depend on the difference of their positions alone. "half" pairs component i with i + D/2
    (GPT-NeoX, Llama in transformers), "interleaved" 2i with 2i + 1 (the paper, GPT-J, Llama as published). Angles and
    products are in float32 at least. ValueError for an odd D, positions of another shape, or an unknown pairing.
    """
    if x.ndim != 4 or x.shape[-1] % 2:
        raise ValueError(f"x must be (B, H, L, D) with an even D, not {tuple(x.shape)}")
    B, _, L, D = x.shape
    if positions.shape not in ((L,), (1, L), (B, L)):
        raise ValueError(f"positions must be (L,), (1, L) or (B, L) = {(B, L)}, not {tuple(positions.shape)}")
    wide = _at_least_float32(x.dtype)
    angle = positions.to(wide)[..., None] * _frequencies(D, base, wide, x.device)  # (L, D/2) or (1 or B, L, D/2)
    if positions.ndim == 2:
        angle = angle[:, None]  # (1 or B, 1, L, D/2): all heads alike
    cos, sin = torch.cos(angle), torch.sin(angle)
    if pairing == "half":
        first, second = x.to(wide).chunk(2, dim=-1)  # (B, H, L, D/2) each
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    elif pairing == "interleaved":
        first, second = x.to(wide)[..., 0::2], x.to(wide)[..., 1::2]  # (B, H, L, D/2) each
        pairs = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1)
        turned = pairs.flatten(-2)  # (B, H, L, D/2, 2) -> (B, H, L, D)
    else:
        raise ValueError(f"pairing must be 'half' or 'interleaved', not {pairing!r}")
    return turned.to(x.dtype)


def alibi_slopes(
    num_heads: int, *, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The H slopes: 2^(-8/H), 2^(-16/H), ..., 2^-8 for a power of two          arXiv:2108.12409, section 3 and its code

    For another H, the slopes of the power of two P below it, then every second one of those of 2P, from the first.
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, not {num_heads}")

    def geometric(n: int) -> list[float]:
        return [2.0 ** (-8.0 * (h + 1) / n) for h in range(n)]

    power = 2 ** (num_heads.bit_length() - 1)
    slopes = geometric(power) + geometric(2 * power)[0::2][: num_heads - power]
    return torch.tensor(slopes, device=device, dtype=dtype)


def alibi_bias(slopes: Tensor, queries: int, keys: int) -> Tensor:
    """slope (j - i), to be added to the scores: (H,) -> (H, L, S). The last query stands at the last key."""
    i = torch.arange(keys - queries, keys, device=slopes.device)[:, None]
    j = torch.arange(keys, device=slopes.device)[None, :]
    return slopes[:, None, None] * (j - i).to(slopes.dtype)


def relative_buckets(
    relative: Tensor, *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128
) -> Tensor:
    """T5's bucket of each distance, key position minus query position; integers of any shape, the result alike.

        n                                                               n < e = N // 2
        e + floor(log(n / e) / log(max_distance / e) * (N - e))         from there, N - 1 at most

    For an encoder N = num_buckets // 2, n = the distance either way, and keys after the query have N more; for a decoder
    N = num_buckets, n = the distance back, and keys after the query are in bucket 0. Source: arXiv:1910.10683, section 2.1, and its code. The
    limits are found in integers, where a rounded logarithm may fall to either side. ValueError for fewer than 2
    buckets a direction or a max_distance that is not above e.
    """
    N = num_buckets // 2 if bidirectional else num_buckets
    if N < 2:
        raise ValueError(f"num_buckets must leave 2 for each direction, not {num_buckets}")
    if max_distance <= N // 2:
        raise ValueError(f"max_distance must be above {N // 2}, the number of exact buckets, not {max_distance}")
    distance = relative.abs() if bidirectional else (-relative).clamp(min=0)
    limits = torch.tensor(_bucket_limits(N, max_distance), device=relative.device, dtype=torch.long)
    bucket = torch.bucketize(distance.long(), limits, right=True)
    return bucket + N * (relative > 0).long() if bidirectional else bucket


@lru_cache(maxsize=64)
def _bucket_limits(N: int, max_distance: int) -> tuple[int, ...]:
    """The smallest distance of each bucket from 1 on: bucket e + k from n with (n/e)^m >= (max_distance/e)^k, m = N - e."""
    e = N // 2
    m = N - e
    limits, n = list(range(1, e + 1)), e
    for k in range(1, m):
        while n**m * e**k < max_distance**k * e**m:
            n += 1
        limits.append(n)
    return tuple(limits)


def _frequencies(width: int, base: float, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    """base^(-2i/width) for each i with 2i < width."""
    exponents = torch.arange(0, width, 2, dtype=dtype, device=device) / width
    return torch.exp(-math.log(base) * exponents)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
