"""What models are trained to predict: the next token (GPT), masked tokens (BERT), corrupted spans (T5).

Letters in shapes: B batch, L length, V vocabulary. Labels are -100 where nothing is to be predicted.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100


class Example(NamedTuple):
    """What the model sees, and what it is to predict."""

    inputs: Tensor
    labels: Tensor


def token_loss(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> Tensor:
    """The mean of -log softmax(logits)[label] in nats over the labels that are not ignored; 0 where all are.

    logits (B, L, V), labels (B, L): each position predicts its own label. Logits of 16 bits are taken to float32.
    """
    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise ValueError(
            f"labels must be (B, L) of logits (B, L, V), not {tuple(labels.shape)} of {tuple(logits.shape)}"
        )
    wide = logits if logits.dtype == torch.float64 else logits.float()
    total = F.cross_entropy(wide.flatten(0, 1), labels.flatten(), ignore_index=ignore_index, reduction="sum")
    return total / (labels != ignore_index).sum().clamp(min=1)  # (B, L, V) -> (B*L, V) above


def causal_loss(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> Tensor:
    """Language modelling: the logits at position i predict the label at i + 1, and the first label is no target.

    logits (B, L, V) and labels (B, L), which are the tokens, with `ignore_index` for padding. The mean in nats.
    With padding on the left the first token's label is to be ignored too: only padding stands before it. ValueError for
    fewer than 2 positions.
    """
    if labels.ndim == 2 and labels.shape[1] < 2:
        raise ValueError(f"labels must have 2 positions at least, one to predict from, not {labels.shape[1]}")
    return token_loss(logits[:, :-1], labels[:, 1:], ignore_index=ignore_index)


def mask_tokens(
    tokens: Tensor,
    *,
    mask_id: int,
    vocab_size: int,
    special: Tensor | None = None,
    probability: float = 0.15,
    generator: torch.Generator | None = None,
) -> Example:
    """BERT's masked language modelling, each token chosen on its own with `probability`: tokens (B, L) -> inputs, labels.

    Of the chosen, 80 % become `mask_id`, 10 % a token drawn from the whole vocabulary, 10 % stay. Labels are the tokens
    where chosen, -100 elsewhere. `special` (B, L) is True where a token is never chosen: [CLS], [SEP], padding.

    Source: arXiv:1810.04805, section 3.1; independent choices as in RoBERTa's dynamic masking, arXiv:1907.11692.
    """
    special = _special(tokens, special)
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must lie in [0, 1], not {probability}")
    chosen = (_uniform(tokens, generator) < probability) & ~special
    return _replace(tokens, chosen, mask_id, vocab_size, generator)


def mask_tokens_exactly(
    tokens: Tensor,
    *,
    mask_id: int,
    vocab_size: int,
    special: Tensor | None = None,
    padding: Tensor | None = None,
    probability: float = 0.15,
    max_predictions: int = 20,
    generator: torch.Generator | None = None,
) -> Example:
    """The same as the released BERT does it: a row of n tokens, special ones counted, gets max(1, round(0.15 n)) masks,
    `max_predictions` at most, or all that may be chosen if these are fewer. A half rounds to even, as in Python.

    `padding` (B, L) is True where there is no token at all: not chosen, and not counted.
    """
    special = _special(tokens, special)
    if padding is not None:
        special = special | padding
    lengths = torch.full((len(tokens),), tokens.shape[1]) if padding is None else (~padding).sum(dim=1).cpu()
    counts = [min(max_predictions, max(1, round(probability * int(n)))) for n in lengths]
    rank = (
        torch.where(special, 2.0, _uniform(tokens, generator)).argsort(dim=1).argsort(dim=1)
    )  # (B, L), 0 is chosen first
    chosen = (rank < torch.tensor(counts, device=tokens.device)[:, None]) & ~special
    return _replace(tokens, chosen, mask_id, vocab_size, generator)


def span_mask(
    length: int, *, density: float = 0.15, mean_span: float = 3.0, generator: torch.Generator | None = None
) -> Tensor:
    """T5's choice of tokens to corrupt: (L,) bool, on the generator's device.

    round(density L) tokens in round(that / mean_span) spans: the counts are fixed, and only the lengths of the spans
    and of the gaps between them are random, each a uniform composition. A gap comes first and a span last. Both are
    at least 1, and there is a gap for each span; a half rounds to even.

    Source: arXiv:1910.10683, section 3.1.4, and its code. ValueError for a length below 2 or a density outside (0, 1).
    """
    if length < 2 or not 0 < density < 1 or mean_span <= 0:
        raise ValueError(
            f"length must be from 2, density in (0, 1), mean_span above 0, not {length}, {density}, {mean_span}"
        )
    noise = min(max(round(density * length), 1), length - 1)
    spans = min(max(round(noise / mean_span), 1), noise, length - noise)
    gaps, runs = _composition(length - noise, spans, generator), _composition(noise, spans, generator)
    lengths = torch.stack([gaps, runs], dim=1).flatten()  # gap, span, gap, span, ...
    return torch.repeat_interleave(torch.arange(2 * spans, device=lengths.device) % 2 == 1, lengths)


def corrupt_spans(tokens: Tensor, mask: Tensor, *, first_sentinel: int, final_sentinel: bool = True) -> Example:
    """Each run of masked tokens becomes a sentinel in the input, and follows the same sentinel in the target.

    tokens (L,), mask (L,) bool -> inputs and labels of other lengths. The k-th sentinel is first_sentinel - k, as in
    T5's vocabulary. The target ends with one more sentinel, as in the paper (arXiv:1910.10683, figure 2), or not, as in
    its code, which adds an end of sequence instead.
    """
    if tokens.ndim != 1 or mask.shape != tokens.shape or mask.dtype != torch.bool:
        raise ValueError(f"tokens and mask must be (L,), mask bool, not {tuple(tokens.shape)} and {tuple(mask.shape)}")
    starts = mask & ~F.pad(mask, (1, -1))  # the token before, False at the first
    spans = int(starts.sum())
    sentinel = first_sentinel - (starts.cumsum(0) - 1)  # (L,), that of the last span begun
    inputs = torch.where(starts, sentinel, tokens)[starts | ~mask]
    doubled = torch.stack([sentinel, tokens], dim=1)  # (L, 2): a start gives both, the rest of a span its token
    labels = doubled[torch.stack([starts, mask], dim=1)]
    if final_sentinel:
        labels = torch.cat([labels, labels.new_tensor([first_sentinel - spans])])
    return Example(inputs, labels)


def restore_spans(example: Example, *, first_sentinel: int) -> Tensor:
    """The text (L,) again: each sentinel of the inputs replaced by what follows it in the labels.

    Sentinels are first_sentinel and below, down to the lowest one that the labels hold in order. ValueError where inputs
    and labels do not hold the same sentinels in order.
    """
    inputs, labels = example.inputs.tolist(), example.labels.tolist()
    spans: list[list[int]] = []
    for token in labels:
        if token == first_sentinel - len(spans):
            spans.append([])
        elif not spans:
            raise ValueError(f"labels must begin with the sentinel {first_sentinel}, not {token}")
        else:
            spans[-1].append(token)
    text: list[int] = []
    filled = 0
    for token in inputs:
        if filled < len(spans) and token == first_sentinel - filled:
            text += spans[filled]
            filled += 1
        else:
            text.append(token)
    if any(spans[filled:]):
        raise ValueError(f"inputs hold {filled} sentinels in order, but labels give tokens for {len(spans)}")
    return torch.tensor(text, dtype=example.inputs.dtype, device=example.inputs.device)


def shift_right(labels: Tensor, start_id: int, *, pad_id: int = 0) -> Tensor:
    """What a decoder reads to predict labels (B, L): start, then the labels but the last; ignored ones become pad_id."""
    shifted = torch.cat([torch.full_like(labels[:, :1], start_id), labels[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == IGNORED, pad_id)


def _special(tokens: Tensor, special: Tensor | None) -> Tensor:
    if tokens.ndim != 2:
        raise ValueError(f"tokens must be (B, L), not {tuple(tokens.shape)}")
    if special is None:
        return torch.zeros_like(tokens, dtype=torch.bool)
    if special.shape != tokens.shape or special.dtype != torch.bool:
        raise ValueError(f"special must be bool {tuple(tokens.shape)}, not {special.dtype} {tuple(special.shape)}")
    return special


def _replace(
    tokens: Tensor, chosen: Tensor, mask_id: int, vocab_size: int, generator: torch.Generator | None
) -> Example:
    fate = _uniform(tokens, generator)
    drawn = torch.randint(vocab_size, tokens.shape, generator=generator, device=tokens.device, dtype=tokens.dtype)
    inputs = torch.where(chosen & (fate < 0.8), mask_id, tokens)
    inputs = torch.where(chosen & (fate >= 0.9), drawn, inputs)
    return Example(inputs, tokens.masked_fill(~chosen, IGNORED))


def _uniform(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.rand(like.shape, generator=generator, device=like.device)


def _composition(total: int, parts: int, generator: torch.Generator | None) -> Tensor:
    """`parts` positive integers that sum to total, all such tuples equally likely: cuts at random places."""
    device = generator.device if generator is not None else None
    cuts = torch.randperm(total - 1, generator=generator, device=device)[: parts - 1].sort().values + 1
    edges = torch.cat([cuts.new_zeros(1), cuts, cuts.new_full((1,), total)])
    return edges.diff()
