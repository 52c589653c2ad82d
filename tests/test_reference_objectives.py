"""The objectives: what is counted in the loss, which tokens are masked, how spans are cut and put back."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from attnlaws.reference.objectives import (
    IGNORED,
    Example,
    causal_loss,
    corrupt_spans,
    mask_tokens,
    mask_tokens_exactly,
    restore_spans,
    shift_right,
    span_mask,
    stack_examples,
    token_loss,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

quick = settings(max_examples=100, deadline=None, derandomize=True)
ALPHA = 1e-9


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- the loss --------------------------------------------------------------------------------------------------------------


@quick
@given(st.integers(1, 3), st.integers(2, 6), st.integers(1, 5), st.integers(0, 2**31 - 1))
def test_the_next_token_is_predicted(B: int, L: int, V: int, seed: int) -> None:
    """The mean over b and i of -log p[b, i](label[b, i + 1]), of labels that are not ignored, token 0 included."""
    logits = 3 * torch.randn(B, L, V, generator=generator(seed), dtype=torch.float64)
    labels = torch.randint(V, (B, L), generator=generator(seed))
    labels[torch.rand(B, L, generator=generator(seed)) < 0.3] = IGNORED
    terms = [
        math.log(sum(math.exp(z) for z in logits[b, i].tolist())) - float(logits[b, i, label])
        for b in range(B)
        for i, label in enumerate(labels[b, 1:].tolist())
        if label != IGNORED
    ]
    want = sum(terms) / len(terms) if terms else 0.0
    assert float(causal_loss(logits, labels)) == pytest.approx(want, abs=1e-13)


def test_no_shift_where_each_position_has_its_own_label() -> None:
    logits, labels = torch.randn(2, 3, 5, generator=generator()), torch.randint(5, (2, 3), generator=generator())
    labels[0, 0] = IGNORED
    chosen = [-torch.log_softmax(logits, -1)[b, i, labels[b, i]] for b, i in (labels != IGNORED).nonzero().tolist()]
    assert float(token_loss(logits, labels)) == pytest.approx(float(sum(chosen) / 5), rel=1e-6)
    assert float(token_loss(logits, torch.full((2, 3), IGNORED))) == 0


def test_losses_of_16_bits_are_taken_in_32() -> None:
    logits = 10 * torch.randn(2, 9, 50, generator=generator()).bfloat16()
    labels = torch.randint(50, (2, 9), generator=generator())
    assert causal_loss(logits, labels).dtype == torch.float32
    assert torch.equal(causal_loss(logits, labels), causal_loss(logits.float(), labels))


def test_decoders_read_what_they_predict_one_later() -> None:
    assert shift_right(torch.tensor([[5, 6, IGNORED, 7]]), 0, pad_id=9).tolist() == [[0, 5, 6, 9]]


# -- masked tokens ---------------------------------------------------------------------------------------------------------


def test_shares_of_masked_tokens() -> None:
    """Binomial at 1e-9: 15 % are chosen; of these 80 % masked, 10 % + 10 %/V unchanged. 14 %, 75 % or 10 % would be seen."""
    V, mask_id = 5, 5
    tokens = torch.randint(V, (400, 500), generator=generator(1))
    inputs, labels = mask_tokens(tokens, mask_id=mask_id, vocab_size=V, generator=generator(2))
    chosen = labels != IGNORED
    n, picked = tokens.numel(), int(chosen.sum())
    masked, same = int((inputs[chosen] == mask_id).sum()), int((inputs[chosen] == tokens[chosen]).sum())

    def p(count: int, total: int, share: float) -> float:
        return float(stats.binomtest(count, total, share).pvalue)

    assert p(picked, n, 0.15) > ALPHA > p(picked, n, 0.14)
    assert p(masked, picked, 0.8) > ALPHA > p(masked, picked, 0.75)
    assert p(same, picked, 0.1 + 0.1 / V) > ALPHA > p(same, picked, 0.1)


@quick
@given(st.integers(1, 3), st.integers(1, 30), st.integers(0, 2**31 - 1), st.booleans())
def test_special_tokens_are_never_masked(B: int, L: int, seed: int, exactly: bool) -> None:
    """Labels are the tokens where chosen and -100 elsewhere, and elsewhere the input is the token."""
    tokens = torch.randint(50, (B, L), generator=generator(seed))
    special = torch.rand(B, L, generator=generator(seed)) < 0.4
    mask = mask_tokens_exactly if exactly else mask_tokens
    inputs, labels = mask(
        tokens, mask_id=50, vocab_size=50, special=special, probability=0.7, generator=generator(seed)
    )
    chosen = labels != IGNORED
    assert not bool((chosen & special).any())
    assert torch.equal(labels[chosen], tokens[chosen])
    assert torch.equal(inputs[~chosen], tokens[~chosen])


@quick
@given(st.lists(st.integers(3, 60), min_size=1, max_size=3), st.integers(0, 2**31 - 1), st.integers(1, 20))
def test_berts_count_is_exact(lengths: list[int], seed: int, most: int) -> None:
    """max(1, round(0.15 n)) of n tokens, [CLS] and [SEP] counted, padding not, no more than max_predictions."""
    B, L = len(lengths), max(lengths) + 2
    padding = torch.arange(L)[None] >= torch.tensor(lengths)[:, None]
    special = torch.zeros(B, L, dtype=torch.bool)
    special[:, 0] = True
    for b, n in enumerate(lengths):
        special[b, n - 1] = True
    tokens = torch.randint(50, (B, L), generator=generator(seed))
    given_options = {"special": special, "padding": padding, "max_predictions": most, "generator": generator(seed)}
    _, labels = mask_tokens_exactly(tokens, mask_id=50, vocab_size=50, **given_options)
    for b, n in enumerate(lengths):
        assert int((labels[b] != IGNORED).sum()) == min(most, max(1, round(0.15 * n)), n - 2)
        assert not bool(((labels[b] != IGNORED) & (padding[b] | special[b])).any())


def test_the_exact_count_chooses_each_token_alike() -> None:
    """Of 10 tokens 2 are chosen (round half to even of 1.5): each in a fifth of 5000 rows, binomial at 1e-9."""
    tokens = torch.zeros(5000, 10, dtype=torch.long)
    _, labels = mask_tokens_exactly(tokens, mask_id=1, vocab_size=1, generator=generator(4))
    for count in (labels != IGNORED).sum(0).tolist():
        assert stats.binomtest(count, 5000, 0.2).pvalue > ALPHA


# -- spans -----------------------------------------------------------------------------------------------------------------


@quick
@given(
    st.integers(2, 100),
    st.sampled_from([0.15, 0.3, 0.5, 0.9]),
    st.sampled_from([1.0, 3.0, 10.0]),
    st.booleans(),
    st.integers(0, 2**31 - 1),
)
def test_spans_are_put_back(L: int, density: float, mean: float, final: bool, seed: int) -> None:
    """The text again; counts as said; each sentinel once in each, in order, and as many tokens as the text has."""
    tokens = torch.randint(100, (L,), generator=generator(seed))
    mask = span_mask(L, density=density, mean_span=mean, generator=generator(seed))
    example = corrupt_spans(tokens, mask, first_sentinel=199, final_sentinel=final)
    assert torch.equal(restore_spans(example, first_sentinel=199), tokens)
    noise = min(max(round(density * L), 1), L - 1)
    spans = min(max(1, round(noise / mean)), noise, L - noise)
    assert int(mask.sum()) == noise
    assert [t for t in example.inputs.tolist() if t >= 100] == [199 - k for k in range(spans)]
    assert [t for t in example.labels.tolist() if t >= 100] == [199 - k for k in range(spans + final)]
    assert len(example.inputs) + len(example.labels) == L + 2 * spans + final
    assert not bool(mask[0])
    assert bool(mask[-1])


def test_the_papers_example() -> None:
    """arXiv:1910.10683, figure 2: "Thank you for inviting me to your party last week", masked at "for inviting" and "last"."""
    words = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week"]
    mask = torch.tensor([w in ("for", "inviting", "last") for w in words])
    inputs, labels = corrupt_spans(torch.arange(10), mask, first_sentinel=99)
    assert inputs.tolist() == [0, 1, 99, 4, 5, 6, 7, 98, 9]
    assert labels.tolist() == [99, 2, 3, 98, 8, 97]


def test_span_lengths_have_their_law() -> None:
    """L = 64: 10 tokens in 3 spans. The first has length k with probability C(9 - k, 1) / C(9, 2); a gap likewise."""
    first, gaps = Counter[int](), Counter[int]()
    rng, n = generator(6), 3000
    for _ in range(n):
        runs = torch.unique_consecutive(span_mask(64, generator=rng), return_counts=True)[1].tolist()
        assert len(runs) == 6
        first[runs[1]] += 1
        gaps[runs[0]] += 1
    for k in range(1, 9):
        assert stats.binomtest(first[k], n, (9 - k) / 36).pvalue > ALPHA
    for k in (1, 5, 20):
        assert stats.binomtest(gaps[k], n, (53 - k) / math.comb(53, 2)).pvalue > ALPHA
    assert stats.binomtest(first[1], n, 1 / 8).pvalue < ALPHA  # were all lengths alike


def test_spans_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="begin with the sentinel"):
        restore_spans(Example(torch.tensor([1, 99]), torch.tensor([5])), first_sentinel=99)
    with pytest.raises(ValueError, match="1 sentinels"):
        restore_spans(Example(torch.tensor([1, 99]), torch.tensor([99, 5, 98, 6])), first_sentinel=99)
    with pytest.raises(ValueError, match="length"):
        span_mask(1)
    with pytest.raises(ValueError, match="mask"):
        corrupt_spans(torch.arange(3), torch.zeros(3), first_sentinel=9)


def test_sentinels_that_do_not_fit_are_refused() -> None:
    """Two spans in 6 tokens: 0 to 5, so that sentinels down to 6 fit, and with a final one from 8 on."""
    tokens, mask = torch.arange(6), torch.tensor([False, True, False, False, True, True])
    for first, final in ((8, True), (8, False)):
        example = corrupt_spans(tokens, mask, first_sentinel=first, final_sentinel=final)
        assert torch.equal(restore_spans(example, first_sentinel=first), tokens)
        with pytest.raises(ValueError, match="hold ids of sentinels, from 5 to first_sentinel = 7 for 2 spans"):
            corrupt_spans(tokens, mask, first_sentinel=7, final_sentinel=final)
    high = tokens + 50
    assert corrupt_spans(high, mask, first_sentinel=1, final_sentinel=False).labels.tolist() == [1, 51, 0, 54, 55]
    with pytest.raises(ValueError, match="first_sentinel = 1 is too low for 2 spans: the last would be -1"):
        corrupt_spans(high, mask, first_sentinel=1)


# -- batches ---------------------------------------------------------------------------------------------------------------


def test_examples_are_stacked_with_padding() -> None:
    examples = [
        Example(torch.tensor([5, 6, 9]), torch.tensor([9, 7])),
        Example(torch.tensor([4]), torch.tensor([9, 8, 3])),
    ]
    inputs, labels, attention_mask = stack_examples(examples, pad_id=1)
    assert inputs.tolist() == [[5, 6, 9], [4, 1, 1]]
    assert labels.tolist() == [[9, 7, IGNORED], [9, 8, 3]]
    assert attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert stack_examples(examples).inputs[1].tolist() == [4, 0, 0]
    with pytest.raises(ValueError, match="at least 1"):
        stack_examples([])
    with pytest.raises(ValueError, match=r"not \(1, 1\) and \(1,\)"):
        stack_examples([Example(torch.zeros(1, 1).long(), torch.zeros(1).long())])


def test_shapes_that_do_not_fit_are_refused() -> None:
    logits: Tensor = torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match=r"not \(2, 4\) of \(2, 3, 4\): one label for each token"):
        causal_loss(logits, torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"not \(2, 2\) of \(2, 3, 4\)"):
        causal_loss(logits, torch.zeros(2, 2, dtype=torch.long))
    with pytest.raises(ValueError, match=r"not \(2, 4\) of \(2, 3, 4\)"):
        token_loss(logits, torch.zeros(2, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"labels\[None\]"):
        shift_right(torch.zeros(3, dtype=torch.long), 0)
    with pytest.raises(ValueError, match="2 positions"):
        causal_loss(logits[:, :1], torch.zeros(2, 1, dtype=torch.long))
    for mask in (mask_tokens, mask_tokens_exactly):
        with pytest.raises(ValueError, match=r"tokens\[None\]"):
            mask(torch.zeros(3, dtype=torch.long), mask_id=1, vocab_size=2)
        with pytest.raises(ValueError, match="probability"):
            mask(torch.zeros(2, 3, dtype=torch.long), mask_id=1, vocab_size=2, probability=1.5)
    for padding in (torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 2, dtype=torch.bool)):
        with pytest.raises(ValueError, match="padding = attention_mask == 0"):
            mask_tokens_exactly(torch.zeros(2, 3, dtype=torch.long), mask_id=1, vocab_size=2, padding=padding)
    with pytest.raises(ValueError, match="max_predictions"):
        mask_tokens_exactly(torch.zeros(2, 3, dtype=torch.long), mask_id=1, vocab_size=2, max_predictions=-1)
    with pytest.raises(ValueError, match=r"torch\.isin"):
        mask_tokens(torch.zeros(2, 3, dtype=torch.long), mask_id=1, vocab_size=2, special=torch.zeros(2, 3))
