"""Corruption: masked language modelling as BERT has it, spans as T5 has them."""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from attnlaws.judge.chance import Finding, Floats, size_for_rate
from attnlaws.judge.counts import draws, rate
from attnlaws.laws.part_law import PartTrial, part_law
from attnlaws.targets.part import Bools, Ints

V, MASK, IGNORED, LENGTH = 5000, 4999, -100, 128
EMPTY = np.array([], dtype=np.float64)


def _batch(rng: np.random.Generator, rows: int) -> tuple[Ints, Bools]:
    """Tokens (B, L), none of them the mask, the first and the last of each row special."""
    special_tokens = np.zeros((rows, LENGTH), dtype=bool)
    special_tokens[:, [0, -1]] = True
    return rng.integers(5, MASK, (rows, LENGTH)), special_tokens


@part_law(
    "corruption.labels",
    "labels are the chosen tokens and -100 elsewhere; special tokens are never chosen",
    part="masking",
)
def test_labels(trial: PartTrial) -> None:
    """labels = tokens where chosen, inputs = tokens where not chosen: exact. Devlin et al. 2018, section 3.1."""
    tokens, fixed = _batch(trial.rng, 64)
    inputs, labels = trial.part(tokens, fixed, trial.seed(), mask_id=MASK, vocab_size=V)
    chosen = labels != IGNORED
    trial.require(not bool((chosen & fixed).any()), "a special token is chosen")
    trial.require(bool((labels[chosen] == tokens[chosen]).all()), "a label is not the token that was there")
    trial.require(bool((inputs[~chosen] == tokens[~chosen]).all()), "a token that was not chosen is changed")


@part_law("corruption.mask-rate", "15 % of the tokens are chosen: each by itself, or an exact number a row", part="masking",
          basis=("corruption.labels",))  # fmt: skip
def test_mask_rate(trial: PartTrial) -> None:
    """Independent choices: Bin(N, 0.15). The released BERT instead chooses max(1, round(0.15 n)) in each row, 20 at most: an exact
    count, to which a binomial test would be blind. Which of the two it is, the first rows tell.
    """
    tokens, fixed = _batch(trial.rng, 32)
    _, labels = trial.part(tokens, fixed, trial.seed(), mask_id=MASK, vocab_size=V)
    counts = (labels != IGNORED).sum(1)
    if len(set(counts.tolist())) == 1:
        wanted = (min(20, max(1, round(0.15 * LENGTH))), max(1, round(0.15 * (LENGTH - 2))))
        trial.require(
            int(counts[0]) in wanted, f"{int(counts[0])} tokens of {LENGTH} are chosen in each row, not {wanted[0]}"
        )
        return

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        rows = -(-size_for_rate(0.15, stage) // (LENGTH - 2))
        given, special_tokens = _batch(rng, rows)
        _, found = trial.part(given, special_tokens, trial.seed(rng), mask_id=MASK, vocab_size=V)
        chosen = int((found != IGNORED).sum())
        return [rate("share of tokens chosen", chosen, rows * (LENGTH - 2), 0.15, stage=stage)]

    trial.evidence.chance("corruption.mask-rate", trial.problem.seed, sample)


@part_law("corruption.mask-split", "of the chosen 80 % are masked, 10 % random, 10 % as they were", part="masking",
          basis=("corruption.labels",))  # fmt: skip
def test_mask_split(trial: PartTrial) -> None:
    """Multinomial(0.8, 0.1 (1 - 1/V), 0.1 (1 + 1/V)): a random token may be the one that was there."""

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        tokens, fixed = _batch(rng, (1200, 1800)[stage])
        inputs, labels = trial.part(tokens, fixed, trial.seed(rng), mask_id=MASK, vocab_size=V)
        chosen = labels != IGNORED
        masked, same = (inputs == MASK) & chosen, (inputs == tokens) & chosen
        fates = np.array([masked.sum(), (chosen & ~masked & ~same).sum(), same.sum()])
        law = np.array([0.8 + 0.1 / V, 0.1 * (1 - 2 / V), 0.1 * (1 + 1 / V)])
        return [draws("masked, random, same: share masked", fates, law, EMPTY, stage=stage)]

    trial.evidence.chance("corruption.mask-split", trial.problem.seed, sample)


@part_law("corruption.spans", "spans and the rest rebuild the text; counts are round(0.15 L) tokens in round(that / 3) spans",
          part="spans")  # fmt: skip
def test_spans(trial: PartTrial) -> None:
    """Counts are fixed, not random: noise = round(0.15 L), spans = max(1, round(noise / 3)). Raffel et al. 2019, section 3.1.4.

    Replacing each sentinel of the inputs by what follows it in the labels gives the text again.
    """
    first = 30_000
    for length in (20, 64, 128):
        tokens = trial.rng.integers(5, 20_000, length)
        inputs, labels = trial.part(tokens, trial.seed(), first_sentinel=first)
        noise = max(1, round(0.15 * length))
        spans = max(1, round(noise / 3))
        sentinels = [first - k for k in range(spans)]
        trial.require(
            [int(t) for t in inputs if t > 20_000] == sentinels, f"the inputs don't hold {spans} sentinels in order"
        )
        kept = [int(t) for t in labels if t > 20_000]
        trial.require(
            kept[:spans] == sentinels and len(kept) <= spans + 1, "the labels don't hold the same sentinels in order"
        )
        pieces: dict[int, list[int]] = {}
        for token in labels.tolist():
            if token > 20_000:
                pieces[token] = []
            else:
                pieces[kept[len(pieces) - 1]].append(token)
        text = [t for token in inputs.tolist() for t in (pieces[token] if token > 20_000 else [token])]
        trial.require(text == tokens.tolist(), "inputs and labels together are not the text")
        trial.require(sum(map(len, pieces.values())) == noise, f"not {noise} tokens of {length} are in spans")


@part_law("corruption.span-lengths", "all ways to cut the noise into spans are equally likely", part="spans",
          basis=("corruption.spans",))  # fmt: skip
def test_span_lengths(trial: PartTrial) -> None:
    """N noise tokens in S spans: P(first span has k) = C(N - k - 1, S - 2) / C(N - 1, S - 1), as of a uniform composition."""
    length, first = 128, 30_000
    noise, spans = 19, 6

    def choose(n: int, k: int) -> float:
        return float(special.comb(n, k))

    law: Floats = np.array([choose(noise - k - 1, spans - 2) / choose(noise - 1, spans - 1) for k in range(1, noise)])

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        counts = np.zeros(noise - 1, dtype=np.int64)
        for _ in range((1500, 2500)[stage]):
            _, labels = trial.part(rng.integers(5, 20_000, length), trial.seed(rng), first_sentinel=first)
            marks = np.flatnonzero(labels > 20_000)
            counts[min(int(marks[1] - marks[0] - 1), noise - 1) - 1] += 1
        return [
            draws("length of the first span: share of the commonest", counts, law / math.fsum(law), EMPTY, stage=stage)
        ]

    trial.evidence.chance("corruption.span-lengths", trial.problem.seed, sample)
