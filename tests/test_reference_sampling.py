"""Temperature, top-k and top-p: exact sets, exact shares, and draws that have the shares they should."""

from __future__ import annotations

import math

import pytest
import torch
from attnlaws.reference.sampling import probabilities, sample
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

quick = settings(max_examples=150, deadline=None, derandomize=True)
U32 = 2.0**-24


def dyadic(*shares: float) -> Tensor:
    return torch.tensor(shares, dtype=torch.float64).log()


@st.composite
def rows(draw: st.DrawFn) -> Tensor:
    """Logits with ties, in float32."""
    values = draw(st.lists(st.sampled_from([-3.0, -0.5, 0.0, 0.25, 2.0, 40.0, -math.inf]), min_size=1, max_size=8))
    if max(values) == -math.inf:
        values[-1] = 0.0
    return torch.tensor(values)


@quick
@given(rows(), st.sampled_from([1e-30, 0.01, 0.7, 1.0, 3.0, 1e6]))
def test_temperature_divides_the_logits(logits: Tensor, temperature: float) -> None:
    """Softmax in float64; within 8 roundings of the exponents' size, 0 where the logit is -inf, order and ties kept."""
    got = probabilities(logits, temperature=temperature)
    wide = logits.double()
    exact = torch.softmax((wide - wide.max()) / temperature, -1)
    size = (
        ((wide - wide.max()) / temperature).abs().clamp(max=110)
    )  # beyond, float32 gives 0 and so nearly does float64
    assert bool(((got.double() - exact).abs() <= 8 * U32 * (1 + size) * exact + 1e-37).all())
    assert bool((got[logits == -math.inf] == 0).all())
    ranked = got[logits.argsort()]
    assert bool((ranked.diff() >= 0).all())


@quick
@given(rows())
def test_temperature_0_is_the_first_largest(logits: Tensor) -> None:
    got = probabilities(logits, temperature=0, top_k=3, top_p=0.2)
    first = logits.tolist().index(max(logits.tolist()))
    assert got.tolist() == [float(i == first) for i in range(len(got))]


@quick
@given(rows(), st.integers(1, 9))
def test_exactly_k_are_kept(logits: Tensor, k: int) -> None:
    """The k largest, among equal ones the lower index, with the shares they have among themselves."""
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))[:k]
    got = probabilities(logits, top_k=k)
    only = torch.full_like(logits, -math.inf)
    only[order] = logits[order]
    torch.testing.assert_close(got, torch.softmax(only, -1), rtol=8 * U32, atol=0)
    assert bool((got[[i for i in range(len(logits)) if i not in order]] == 0).all())


@pytest.mark.parametrize(
    ("p", "kept"),
    [(1.0, 4), (0.99, 4), (0.875, 3), (0.8750001, 4), (0.75, 2), (0.7500001, 3), (0.5, 1), (0.6, 2), (1e-9, 1)],
)
def test_the_smallest_set_that_reaches_p(p: float, kept: int) -> None:
    """Shares 1/2, 1/4, 1/8, 1/8, in another order: exact sums, so that reaching p exactly is enough."""
    logits = dyadic(0.125, 0.5, 0.125, 0.25)
    order = [1, 3, 0, 2][:kept]
    want = torch.zeros(4, dtype=torch.float64)
    want[order] = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64)[:kept]
    torch.testing.assert_close(probabilities(logits, top_p=p), want / want.sum(), rtol=1e-14, atol=0)


@quick
@given(st.integers(0, 2**31 - 1), st.integers(2, 40), st.floats(0.01, 0.99))
def test_no_smaller_set_reaches_p(seed: int, V: int, p: float) -> None:
    logits = torch.randn(V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    whole = torch.softmax(logits, -1)
    kept = probabilities(logits, top_p=p) > 0
    assert float(whole[kept].sum()) >= p - 1e-12
    assert float(whole[kept].sum() - whole[kept].min()) < p + 1e-12
    assert float(whole[kept].min()) >= float(whole[~kept].max()) if bool((~kept).any()) else True


def test_top_p_is_taken_of_what_top_k_left() -> None:
    """Of 1/2, 1/4, 1/8, 1/8 the first two are 2/3 and 1/3: 0.6 is reached by the first."""
    got = probabilities(dyadic(0.5, 0.25, 0.125, 0.125), top_k=2, top_p=0.6)
    assert got.tolist() == [1, 0, 0, 0]
    both = probabilities(dyadic(0.5, 0.25, 0.125, 0.125), top_k=2, top_p=0.7)
    torch.testing.assert_close(both, torch.tensor([2 / 3, 1 / 3, 0, 0], dtype=torch.float64), rtol=1e-14, atol=0)


def test_rows_are_apart_and_16_bits_become_32() -> None:
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0)).bfloat16()
    got = probabilities(logits, temperature=0.5, top_k=4, top_p=0.9)
    assert got.dtype == torch.float32
    for b in range(2):
        for i in range(3):
            assert torch.equal(got[b, i], probabilities(logits[b, i], temperature=0.5, top_k=4, top_p=0.9))


def test_draws_have_their_shares() -> None:
    """Counts of 20,000 draws are binomial: two-sided at 1e-9 for each token. At a temperature of 1.1 they would not be."""
    logits, n = torch.tensor([1.0, 0.0, -1.0, 3.0, 2.0]), 20_000
    options = {"temperature": 0.8, "top_k": 4, "top_p": 0.97}
    drawn = sample(logits.expand(n, 5), generator=torch.Generator().manual_seed(5), **options)
    counts = torch.bincount(drawn, minlength=5).tolist()

    def least_p(shares: list[float]) -> float:
        return min(stats.binomtest(c, n, p).pvalue for c, p in zip(counts, shares, strict=True))

    assert least_p(probabilities(logits, **options).tolist()) > 1e-9
    assert least_p(probabilities(logits, **{**options, "temperature": 0.9}).tolist()) < 1e-9
    assert bool((probabilities(logits, **options)[drawn] > 0).all())


def test_the_generator_decides() -> None:
    logits = torch.randn(50, 9, generator=torch.Generator().manual_seed(0))
    first, again, other = (sample(logits, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert sample(logits[0]).shape == ()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 2.0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        probabilities(torch.zeros(3), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="logits"):
        probabilities(torch.tensor([0.0, bad]))
    with pytest.raises(ValueError, match="logits"):
        probabilities(torch.full((2,), -math.inf))
    with pytest.raises(ValueError, match="logits"):
        probabilities(torch.zeros(2, 0))
    with pytest.raises(ValueError, match="logits"):
        probabilities(torch.zeros(2, dtype=torch.long))
