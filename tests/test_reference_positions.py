"""Sinusoids, rotations, linear biases and distance buckets against their definitions."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from attnlaws.reference.positions import Pairing, alibi_bias, alibi_slopes, relative_buckets, rotary, sinusoidal
from hypothesis import given, settings
from hypothesis import strategies as st

U64, U32 = 2.0**-53, 2.0**-24
quick = settings(max_examples=60, deadline=None, derandomize=True)


@quick
@given(st.integers(0, 9), st.integers(1, 9), st.sampled_from([10.0, 10_000.0]))
def test_sinusoids_are_their_definition(length: int, width: int, base: float) -> None:
    """In float64 the exponent is off by 3 roundings of up to log(base), the angle by as many of itself: below 64 u p."""
    table = sinusoidal(length, width, base=base, dtype=torch.float64)
    assert table.shape == (length, width)
    for p in range(length):
        for c in range(width):
            angle = p / base ** (2 * (c // 2) / width)
            want = math.sin(angle) if c % 2 == 0 else math.cos(angle)
            assert abs(float(table[p, c]) - want) <= 64 * U64 * (1 + p)


def test_sinusoids_of_16_bits_are_those_of_float32_rounded() -> None:
    assert torch.equal(sinusoidal(300, 7, dtype=torch.bfloat16), sinusoidal(300, 7).bfloat16())


def by_complex_numbers(x: torch.Tensor, p: int, base: float, pairing: Pairing) -> torch.Tensor:
    """The vector (D,) at position p: pair i, as a complex number, times exp(1j p base^(-2i/D))."""
    D = len(x)
    out = x.clone()
    for i in range(D // 2):
        a, b = (i, i + D // 2) if pairing == "half" else (2 * i, 2 * i + 1)
        turned = complex(x[a], x[b]) * cmath.exp(1j * p * base ** (-2 * i / D))
        out[a], out[b] = turned.real, turned.imag
    return out


@quick
@given(
    st.sampled_from(["half", "interleaved"]),
    st.sampled_from([2, 4, 6]),
    st.lists(st.integers(-50, 5000), min_size=3, max_size=3),
    st.booleans(),
    st.integers(0, 2**31 - 1),
)
def test_rotations_are_their_definition(pairing: Pairing, D: int, places: list[int], rows: bool, seed: int) -> None:
    """At any positions, the same for all rows or each its own."""
    x = torch.randn(2, 3, 3, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    positions = torch.tensor([places, places[::-1]] if rows else places)
    got = rotary(x, positions, base=100.0, pairing=pairing)
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(3)).tolist():
        p = int(positions[b, i] if rows else positions[i])
        want = by_complex_numbers(x[b, h, i], p, 100.0, pairing)
        assert float((got[b, h, i] - want).abs().max()) <= 64 * U64 * (1 + abs(p)) * float(x.abs().max())


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_scores_of_rotated_vectors_depend_on_the_difference(pairing: Pairing) -> None:
    """Norms stay, position 0 changes nothing, q at i + n and k at j + n have the score of i and j."""
    q, k = torch.randn(2, 1, 2, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    places = torch.arange(5)

    def scores(offset: int) -> torch.Tensor:
        turned = rotary(q, places + offset, pairing=pairing), rotary(k, places + offset, pairing=pairing)
        torch.testing.assert_close(turned[0].norm(dim=-1), q.norm(dim=-1), rtol=8 * U64, atol=0)
        return turned[0] @ turned[1].mT

    assert torch.equal(rotary(q, 0 * places, pairing=pairing), q)
    size = float((q.norm(dim=-1)[..., None] * k.norm(dim=-1)[..., None, :]).max())
    for offset in (1, 77, 4096):
        assert float((scores(offset) - scores(0)).abs().max()) <= 64 * U64 * (1 + offset) * size


def test_rotations_of_16_bits_have_angles_of_32() -> None:
    """At position 5000 an angle of 8 bits would be off by more than 10: the rotation is that of float32, rounded once."""
    x = torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    places = torch.arange(5000, 5004)
    assert torch.equal(rotary(x, places), rotary(x.float(), places).bfloat16())
    exact = rotary(x.double(), places)
    allowed = (4 * U32 * 5004 + 2.0**-8) * x.double().abs().max() * math.sqrt(2)
    assert float((rotary(x, places).double() - exact).abs().max()) <= float(allowed)


def test_alibi_slopes_are_the_papers() -> None:
    """8 heads: 1/2 to 1/256. 12: those of 8, and every second one of 16's."""
    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(1).tolist() == [2.0**-8]
    of_12 = alibi_slopes(12, dtype=torch.float64)
    assert of_12[:8].tolist() == [2.0**-n for n in range(1, 9)]
    assert of_12[8:].tolist() == [2.0 ** -(n + 0.5) for n in range(4)]
    for H in range(1, 40):
        slopes = alibi_slopes(H)
        assert slopes.shape == (H,)
        assert len(set(slopes.tolist())) == H


def test_alibi_biases_fall_with_the_distance_back() -> None:
    """The last query stands at the last key, also where there are more keys."""
    bias = alibi_bias(torch.tensor([0.5, 0.25]), 2, 3)
    assert bias[0].tolist() == [[-0.5, 0.0, 0.5], [-1.0, -0.5, 0.0]]
    assert torch.equal(bias[1], bias[0] / 2)


@quick
@given(st.booleans(), st.integers(2, 20), st.integers(1, 60))
def test_buckets_are_their_formula(bidirectional: bool, half: int, beyond: int) -> None:
    """Each distance by the formula in float64, but where the logarithm is within rounding of a whole number."""
    buckets = 2 * half
    N = half if bidirectional else buckets
    e = N // 2
    max_distance = e + beyond
    relative = torch.arange(-max_distance - 5, max_distance + 6)
    got = relative_buckets(relative, bidirectional=bidirectional, num_buckets=buckets, max_distance=max_distance)
    for r, bucket in zip(relative.tolist(), got.tolist(), strict=True):
        n = abs(r) if bidirectional else max(0, -r)
        later = N if bidirectional and r > 0 else 0
        if n < e:
            assert bucket == n + later
            continue
        step = math.log(n / e) / math.log(max_distance / e) * (N - e)
        nearest = {math.floor(step - 1e-9), math.floor(step + 1e-9)}
        assert bucket - later in {min(e + s, N - 1) for s in nearest}


def test_buckets_at_their_limits() -> None:
    """32 buckets to 128, both ways: 8, 16, 32, 64 are 8 times 1, 2, 4, 8, where exactly two buckets more begin."""
    at = torch.tensor([8, 15, 16, 31, 32, 63, 64, 127, 128, 1000])
    back = relative_buckets(-at, bidirectional=True)
    assert back.tolist() == [8, 9, 10, 11, 12, 13, 14, 15, 15, 15]
    assert torch.equal(relative_buckets(at, bidirectional=True), back + 16)
    one_way = relative_buckets(torch.arange(-200, 200), bidirectional=False)
    assert one_way[200:].unique().tolist() == [0]
    assert bool((one_way.diff() <= 0).all())
    assert one_way.unique().tolist() == list(range(32))


def test_buckets_are_transformers() -> None:
    """For the sizes of all released T5s, where a logarithm in float32 happens to fall to the right side."""
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5", reason="transformers is not installed")
    relative = torch.arange(-3000, 3000)
    for bidirectional in (True, False):
        theirs = modeling.T5Attention._relative_position_bucket(relative, bidirectional, 32, 128)
        assert torch.equal(relative_buckets(relative, bidirectional=bidirectional), theirs)


def test_one_row_of_positions_is_for_all() -> None:
    x, places = torch.randn(2, 3, 4, 6), torch.tensor([5, 0, 2, 9])
    assert torch.equal(rotary(x, places), rotary(x, places[None]))
    assert torch.equal(rotary(x, places), rotary(x, places.expand(2, 4)))


def test_what_does_not_fit_is_said() -> None:
    x = torch.randn(1, 1, 3, 4)
    with pytest.raises(ValueError, match="even D"):
        rotary(torch.randn(1, 1, 3, 5), torch.arange(3))
    with pytest.raises(ValueError, match="positions must be"):
        rotary(x, torch.arange(4))
    with pytest.raises(ValueError, match="pairing must be"):
        rotary(x, torch.arange(3), pairing="other")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_heads"):
        alibi_slopes(0)
    with pytest.raises(ValueError, match="num_buckets"):
        relative_buckets(torch.arange(3), bidirectional=True, num_buckets=3)
    with pytest.raises(ValueError, match="max_distance"):
        relative_buckets(torch.arange(3), bidirectional=False, max_distance=16)
    with pytest.raises(ValueError, match="width"):
        sinusoidal(3, 0)
