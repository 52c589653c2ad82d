"""Claims on the corruption of BERT's and T5's training texts."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from .chance import Look, count_look, fails, generator, holds
from .claim import TRUE, Measured, claim, together

Tokens = NDArray[np.int64]
IGNORED = -100


def mask_tokens(rng: np.random.Generator, tokens: Tokens, vocabulary: int, mask: int) -> tuple[Tokens, Tokens]:
    """Input and labels of masked language modelling: each token is chosen with probability 0.15; of the chosen 80 %
    become `mask`, 10 % a random token, 10 % stay. Labels are IGNORED elsewhere. Devlin et al. 2018, section 3.1.
    """
    chosen = rng.random(tokens.shape) < 0.15
    fate = rng.random(tokens.shape)
    changed = np.where(chosen & (fate < 0.8), mask, tokens)
    changed = np.where(chosen & (fate >= 0.9), rng.integers(0, vocabulary, tokens.shape), changed)
    return changed, np.where(chosen, tokens, IGNORED)


@claim(
    "A24",
    TRUE,
    "statistical",
    says="One of BERT's core pretraining tasks is masked language modelling.",
    statement="15 % of the tokens are predicted; of them 80 % are masked, 10 % random, 10 % unchanged",
    right="True. A random token may be the old one, so a share 0.1 + 0.1 / V is seen unchanged. Where each token is chosen with "
    "probability 0.15 the count is binomial; the original BERT chooses a fixed count, which no test of that share can tell.",
)
def masking(share: float = 0.15) -> Measured:
    """Binomial(N, 0.15) chosen; of the chosen a share 0.8 masked and 0.1 + 0.1/V unchanged. A vocabulary of 5 shows 1/V."""
    vocabulary, mask, n = 5, 5, 200_000

    def shares(rng: np.random.Generator, kind: str, predicted: float) -> Look:
        tokens = rng.integers(0, vocabulary, n)
        changed, labels = mask_tokens(rng, tokens, vocabulary, mask)
        chosen = labels != IGNORED
        if kind == "chosen":
            return count_look(int(chosen.sum()), n, predicted)
        hit = changed[chosen] == (mask if kind == "masked" else tokens[chosen])
        return count_look(int(hit.sum()), int(chosen.sum()), predicted)

    tokens = generator("masking").integers(0, vocabulary, n)
    changed, labels = mask_tokens(generator("masking", 1), tokens, vocabulary, mask)
    outside = int((changed != tokens)[labels == IGNORED].sum())
    wrong = int((labels != tokens)[labels != IGNORED].sum())
    return together(
        holds("chosen:", lambda rng: shares(rng, "chosen", share)),
        holds("masked:", lambda rng: shares(rng, "masked", 0.8)),
        holds("unchanged:", lambda rng: shares(rng, "unchanged", 0.1 + 0.1 / vocabulary)),
        fails("unchanged against 0.1:", lambda rng: shares(rng, "unchanged", 0.1)),
        Measured(outside == 0 and wrong == 0, f"{outside} tokens changed outside, {wrong} labels wrong"),
    )


def spans(rng: np.random.Generator, length: int) -> list[tuple[int, int]]:
    """The corrupted spans [start, stop): round(0.15 L) tokens in round(that / 3) spans, whose lengths and gaps are
    uniform compositions, a gap first. Raffel et al. 2019, section 3.1.4, and the T5 code's random_spans_noise_mask.
    """
    noise = min(max(round(0.15 * length), 1), length - 1)
    count = max(1, round(noise / 3))

    def parts(total: int) -> NDArray[np.int64]:
        cuts = np.sort(rng.choice(total - 1, count - 1, replace=False)) + 1
        return np.diff(np.concatenate(([0], cuts, [total])))

    ends = np.cumsum(np.stack([parts(length - noise), parts(noise)], axis=1).ravel())
    return [(int(ends[2 * i]), int(ends[2 * i + 1])) for i in range(count)]


def corrupt(tokens: list[int], cut: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Input and target: span i becomes the sentinel -1 - i in the input, and follows it in the target."""
    source, target, at = [], [], 0
    for i, (start, stop) in enumerate(cut):
        source += [*tokens[at:start], -1 - i]
        target += [-1 - i, *tokens[start:stop]]
        at = stop
    return source + tokens[at:], [*target, -1 - len(cut)]


def splice(source: list[int], target: list[int]) -> list[int]:
    """The source with each sentinel replaced by what follows it in the target."""
    pieces: dict[int, list[int]] = {}
    current = 0
    for token in target:
        if token < 0:
            current = token
            pieces[current] = []
        else:
            pieces[current].append(token)
    return [t for token in source for t in (pieces[token] if token < 0 else [token])]


@claim(
    "A25",
    TRUE,
    "statistical",
    says="T5: spans of the input are masked at random, each is replaced by a special token, and the model learns to "
    "produce the spans.",
    statement="putting the target's spans back in place of the sentinels gives the original text",
    right="True. Only positions are random: the counts are round(0.15 L) tokens in round(noise / 3) spans. Masking isn't "
    "uniform over positions: the first token never, the last always.",
)
def span_corruption(cells: int = 9) -> Measured:
    """The first of S spans of N tokens has length k with probability C(N-k-1, S-2) / C(N-1, S-1); L = 64: N = 10, S = 3."""
    rng = generator("span corruption")
    broken, sizes, first, last = 0, Counter[tuple[int, int]](), 0, 0
    for _ in range(1000):
        cut = spans(rng, 64)
        tokens = [int(t) for t in rng.integers(0, 1000, 64)]
        broken += splice(*corrupt(tokens, cut)) != tokens
        sizes[sum(b - a for a, b in cut), len(cut)] += 1
        first += cut[0][0] == 0
        last += cut[-1][1] == 64
    predicted = math.comb(8, 1) / math.comb(cells, 2)

    def ones(rng: np.random.Generator) -> Look:
        cuts = [spans(rng, 64)[0] for _ in range(5000)]
        return count_look(sum(b - a == 1 for a, b in cuts), 5000, predicted)

    return together(
        Measured(broken == 0, f"{broken} of 1000 texts of 64 tokens not restored"),
        Measured(list(sizes) == [(10, 3)], f"(tokens, spans) always {list(sizes)}"),
        Measured(first == 0 and last == 1000, f"first token masked {first} times, last {last}"),
        holds("first span of length 1:", ones),
    )
