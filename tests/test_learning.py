"""Small models learn sources of known entropy: they come near the floor, and none that keeps the rules goes under it.

The floor of a text is -log p of what is predicted, by the true conditional p. For any predictor q that sees only what it may,
the product of q / p over independent texts has an expectation of 1 at most, so sum(log q - log p) exceeds log(1 / alpha) with
probability alpha at most (Markov's inequality), however q was trained. A model that sees what it should predict exceeds it by far.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations, pairwise

import pytest
import torch
from attnlaws.reference import gpt as gpt_module
from attnlaws.reference.bert import Bert, BertConfig
from attnlaws.reference.gpt import GPT, GPTConfig
from attnlaws.reference.masks import visible
from attnlaws.reference.objectives import (
    IGNORED,
    causal_loss,
    corrupt_spans,
    mask_tokens,
    shift_right,
    span_mask,
    token_loss,
)
from attnlaws.reference.t5 import T5, T5Config
from torch import Tensor, nn

LIMIT = math.log(1e9)  # alpha = 1e-9
V = 4


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def transitions(order: int, seed: int) -> Tensor:
    """p(next | the last `order` tokens), (V,) * order + (V,), far from uniform."""
    return torch.softmax(2.5 * torch.randn(*(V,) * order, V, generator=generator(seed), dtype=torch.float64), -1)


def texts(p: Tensor, B: int, L: int, rng: torch.Generator) -> Tensor:
    """(B, L) of the source; its first tokens are uniform."""
    order = p.ndim - 1
    x = torch.randint(V, (B, L), generator=rng)
    for t in range(order, L):
        row = p[tuple(x[:, t - order : t].unbind(1))]  # (B, V)
        x[:, t] = torch.multinomial(row, 1, generator=rng)[:, 0]
    return x


def train(model: nn.Module, loss: Callable[[], Tensor], steps: int) -> None:
    """Adam, the rate going down to 0 along a cosine."""
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
        schedule.step()
    model.eval()


def log_q(logits: Tensor, labels: Tensor) -> Tensor:
    """log of what the model gives each label, (B, L); 0 where there is none."""
    chances = torch.log_softmax(logits.detach().double(), -1)
    found = chances.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return found.masked_fill(labels == IGNORED, 0.0)


# -- the next token --------------------------------------------------------------------------------------------------------


def trained_gpt(p: Tensor, L: int, steps: int) -> GPT:
    config = GPTConfig(vocab_size=V, context_length=L, d_model=32, num_layers=2, num_heads=2, d_ff=64)
    model = GPT(config, generator(1))
    for module in model.modules():  # no dropout: a few steps have to do
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for block in model.h:
        block.attn.attention_dropout = 0.0
    rng = generator(2)

    def loss() -> Tensor:
        x = texts(p, 32, L, rng)
        return causal_loss(model(x), x)

    train(model, loss, steps)
    return model


def beyond(model: GPT, p: Tensor, L: int) -> tuple[float, float]:
    """sum(log q - log p) over 400 new texts, and the same a token."""
    x = texts(p, 400, L, generator(3))
    log_p = p[x[:, :-2], x[:, 1:-1], x[:, 2:]].log()
    # the second token is uniform, and no model can know more
    gained = log_q(model(x)[:, :-1], x[:, 1:]).sum() - log_p.sum() + len(x) * math.log(V)
    return float(gained), float(gained) / (len(x) * (L - 1))


def known_from_two(p: Tensor) -> float:
    """I(next; the last but one | the last) in nats: what a model loses that sees the last token alone."""
    state = torch.full((V, V), 1 / V**2, dtype=torch.float64)
    for _ in range(200):
        state = torch.einsum("ab,abc->bc", state, p)
    joint = state[..., None] * p
    one = joint.sum(0) / joint.sum((0, 2))[:, None]
    return float((joint * (p / one).log()).sum())


def test_gpt_reaches_the_entropy_of_its_source() -> None:
    """A source of order 2: within a tenth of what the last but one token tells, and not under the floor."""
    p, L = transitions(2, seed=0), 20
    gained, a_token = beyond(trained_gpt(p, L, steps=260), p, L)
    assert gained <= LIMIT
    assert -a_token < known_from_two(p) / 10


def no_mask(queries: int, keys: int, *, causal: bool, device: torch.device, **_: object) -> Tensor:
    return visible(queries, keys, causal=False, device=device)


def one_later(queries: int, keys: int, *, causal: bool, device: torch.device, **_: object) -> Tensor:
    return torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device).tril(1)


@pytest.mark.parametrize("mask", [no_mask, one_later])
def test_a_gpt_that_peeks_goes_under(mask: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt_module, "visible", mask)
    p, L = transitions(2, seed=0), 20
    gained, _ = beyond(trained_gpt(p, L, steps=150), p, L)
    assert gained > 10 * LIMIT


# -- masked tokens ---------------------------------------------------------------------------------------------------------


def masked_floor(p: Tensor, inputs: Tensor, place: int) -> Tensor:
    """p(token | inputs, its place is chosen), (V,): forward and backward sums over the chain, seen through the corruption.

    A token is seen as [MASK] = V with probability 0.15 * 0.8, as any token with 0.15 * 0.1 / V, else as itself.
    """
    L = len(inputs)
    chosen = torch.full((V + 1, V), 0.1 / V, dtype=torch.float64)  # p(seen | token, chosen)
    chosen[:V] += 0.1 * torch.eye(V, dtype=torch.float64)
    chosen[V] = 0.8
    anyhow = 0.15 * chosen + 0.85 * torch.eye(V + 1, V, dtype=torch.float64)
    before = torch.full((V,), 1 / V, dtype=torch.float64)
    for t in range(place):
        before = (before * anyhow[inputs[t]]) @ p
    after = torch.ones(V, dtype=torch.float64)
    for t in range(L - 1, place, -1):
        after = p @ (anyhow[inputs[t]] * after)
    joint = before * chosen[inputs[place]] * after
    return joint / joint.sum()


def masked_gain(p: Tensor, L: int, leak: bool, steps: int) -> tuple[float, float, float]:
    """sum(log q - log p) over one chosen token of each of 1000 new texts; a token; and what its neighbours tell."""
    config = BertConfig(
        vocab_size=V + 1,
        context_length=L,
        d_model=32,
        num_layers=2,
        num_heads=2,
        d_ff=64,
        dropout=0,
        attention_dropout=0,
    )
    model, rng = Bert(config, generator(1)), generator(2)

    def batch(B: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        x = texts(p, B, L, rng)
        inputs, labels = mask_tokens(x, mask_id=V, vocab_size=V, generator=rng)
        return (x if leak else inputs), inputs, labels

    def loss() -> Tensor:
        shown, _, labels = batch(64, rng)
        return token_loss(model(shown), labels)

    train(model, loss, steps)
    shown, inputs, labels = batch(1000, generator(3))
    found = log_q(model(shown), labels)
    gained = alone = 0.0
    used = [b for b in range(1000) if bool((labels[b] != IGNORED).any())]
    for b in used:
        place = int((labels[b] != IGNORED).nonzero()[0, 0])
        token = int(labels[b, place])
        floor = float(masked_floor(p, inputs[b], place)[token].log())
        gained += float(found[b, place]) - floor
        alone += floor + math.log(V)
    return gained, gained / len(used), alone / len(used)


def test_bert_reaches_the_entropy_between_neighbours() -> None:
    """A source of order 1: within a tenth of what the other tokens tell of a masked one, and not under the floor."""
    gained, a_token, told = masked_gain(transitions(1, seed=2), 12, leak=False, steps=500)
    assert gained <= LIMIT
    assert -a_token < told / 10


def test_a_bert_whose_text_is_not_masked_goes_under() -> None:
    gained, _, _ = masked_gain(transitions(1, seed=2), 12, leak=True, steps=150)
    assert gained > 10 * LIMIT


# -- spans -----------------------------------------------------------------------------------------------------------------


def span_floor(p: Tensor, text: Tensor, mask: Tensor) -> float:
    """log p(target | input). All compositions of the masked tokens into spans are equally likely beforehand; a span of n tokens
    between a and b has probability p^(n+1)[a, b], the last, which ends the text, 1. So

        p(target | input) = prod_spans prod p[x_t, x_t+1] / sum_compositions prod_spans p^(n+1)[a, b]
    """
    x = text.tolist()
    runs = torch.unique_consecutive(mask, return_counts=True)[1].tolist()
    edges = [0, *torch.tensor(runs).cumsum(0).tolist()]
    spans = [(edges[i], edges[i + 1]) for i in range(1, len(edges) - 1, 2)]  # [start, stop)
    L = len(x)
    path = sum(float(p[x[t - 1], x[t]].log()) for a, b in spans for t in range(a, min(b + 1, L)))
    noise, powers = sum(b - a for a, b in spans), [torch.linalg.matrix_power(p, n) for n in range(L + 2)]
    total = 0.0
    for cuts in combinations(range(1, noise), len(spans) - 1):
        lengths = [b - a for a, b in pairwise((0, *cuts, noise))]
        total += math.prod(
            float(powers[n + 1][x[a - 1], x[b]]) for n, (a, b) in zip(lengths, spans, strict=True) if b < L
        )
    return path - math.log(total)


def span_gain(p: Tensor, L: int, leak: bool, steps: int) -> tuple[float, float, float]:
    """sum(log q - log p) over the targets of 400 new texts; a text; and what the input tells."""
    config = T5Config(
        vocab_size=V + 5, d_model=32, d_head=16, num_heads=2, d_ff=64, num_layers=2, num_buckets=16, max_distance=20,
        dropout=0.0, start_id=V,
    )  # fmt: skip
    model, rng = T5(config, generator(1)), generator(2)
    drawn = torch.stack([span_mask(L, density=0.3, mean_span=2.0, generator=rng) for _ in range(500)])
    every = drawn.unique(dim=0)  # all that there are, and all are equally likely
    # what becomes of a text, in terms of its places: 0 to L - 1, and sentinels as they are, L higher
    places = [corrupt_spans(torch.arange(L), mask, first_sentinel=L + V + 4) for mask in every]
    read, written = torch.stack([e.inputs for e in places]), torch.stack([e.labels for e in places])

    def batch(B: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, k = texts(p, B, L, rng), torch.randint(len(every), (B,), generator=rng)
        lookup = torch.cat([x, torch.arange(V + 5).expand(B, -1)], dim=1)  # (B, L + V + 5)
        return x, every[k], lookup.gather(1, read[k]), lookup.gather(1, written[k])

    def logits(source: Tensor, target: Tensor) -> Tensor:
        found: Tensor = model(source, target if leak else shift_right(target, V))
        return found

    def loss() -> Tensor:
        _, _, source, target = batch(32, rng)
        return token_loss(logits(source, target), target)

    train(model, loss, steps)
    x, masks, source, target = batch(400, generator(3))
    floors = [span_floor(p, text, mask) for text, mask in zip(x, masks, strict=True)]
    gained = float(log_q(logits(source, target), target).sum()) - sum(floors)
    noise, spans = int(masks[0].sum()), int((target[0] > V).sum()) - 1
    blind = noise * math.log(V) + math.log(math.comb(noise - 1, spans - 1))
    return gained, gained / len(x), sum(floors) / len(x) + blind


def test_t5_reaches_the_entropy_of_its_spans() -> None:
    """A source of order 1: within a fifth of what the input tells of the target, and not under the floor."""
    gained, a_text, told = span_gain(transitions(1, seed=2), 10, leak=False, steps=600)
    assert gained <= LIMIT
    assert -a_text < told / 5


def test_a_t5_that_reads_what_it_writes_goes_under() -> None:
    """The target is given as it is, not moved right by one."""
    gained, _, _ = span_gain(transitions(1, seed=2), 10, leak=True, steps=100)
    assert gained > 10 * LIMIT


def test_the_floors_are_probabilities() -> None:
    """Of all tokens at a masked place, and of all targets that an input can have, they sum to 1."""
    p = transitions(1, seed=2)
    inputs = torch.tensor([0, V, 2, V, 1])
    by_hand = torch.zeros(V, dtype=torch.float64)
    for x in torch.cartesian_prod(*[torch.arange(V)] * 5).tolist():
        chance = 1 / V
        for a, b in pairwise(x):
            chance *= float(p[a, b])
        for t, (token, seen) in enumerate(zip(x, inputs.tolist(), strict=True)):
            same = 0.1 / V + 0.1 * (seen == token)
            chosen = 0.8 if seen == V else same
            chance *= chosen if t == 3 else 0.15 * chosen + 0.85 * (seen == token)
        by_hand[x[3]] += chance
    torch.testing.assert_close(masked_floor(p, inputs, 3), by_hand / by_hand.sum())

    total = 0.0  # inputs: 1 <X> 2 3 <Y>, with 3 tokens in the 2 spans
    for first in (1, 2):
        mask = torch.tensor([False] + [True] * first + [False] * 2 + [True] * (3 - first))
        for hidden in torch.cartesian_prod(*[torch.arange(V)] * 3).tolist():
            text = torch.tensor([1, *hidden[:first], 2, 3, *hidden[first:]])
            total += math.exp(span_floor(p, text, mask))
    assert total == pytest.approx(1, abs=1e-12)
