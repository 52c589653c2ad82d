"""What models are trained to predict: the next token (GPT, Llama), masked tokens (BERT), corrupted spans (T5).

    GPT, Llama    causal_loss(model(x), x)                                       which shifts x by one
    BERT          inputs, labels = mask_tokens(x, ...)
                  token_loss(model(inputs), labels)
    T5            inputs, labels, mask = stack_examples([corrupt_spans(line, span_mask(len(line)), ...) for line in lines])
                  token_loss(model(inputs, shift_right(labels, start_id), attention_mask=mask), labels)

Letters in shapes: B batch, L length, V vocabulary. Labels are -100 where nothing is to be predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

IGNORED = -100


class Example(NamedTuple):
    """What the model sees, and what it is to predict."""

    inputs: Tensor
    labels: Tensor


class Batch(NamedTuple):
    """Examples together: inputs (B, L), labels (B, M), and attention_mask (B, L), 1 for tokens and 0 for padding."""

    inputs: Tensor
    labels: Tensor
    attention_mask: Tensor


def token_loss(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> Tensor:
    """The mean of -log softmax(logits)[label] in nats over the labels that are not ignored; 0 where all are.

    logits (B, L, V), labels (B, L): each position predicts its own label. Logits of 16 bits are taken to float32. For BERT, for
    T5, and for next tokens shifted already. GPT and Llama: causal_loss.
    """
    _check_labels(logits, labels)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    total = F.cross_entropy(wide.flatten(0, 1), labels.flatten(), ignore_index=ignore_index, reduction="sum")
    return total / (labels != ignore_index).sum().clamp(min=1)  # (B, L, V) -> (B*L, V) above


def causal_loss(logits: Tensor, labels: Tensor, *, ignore_index: int = IGNORED) -> Tensor:
    """Language modelling: the logits at position i predict the label at i + 1, and the first label is no target.

    logits (B, L, V) and labels (B, L), which are the tokens, with `ignore_index` for padding. The mean in nats.
    The shift is made here: give the same tokens that the model read, causal_loss(model(x), x). Targets shifted already go to
    token_loss: here the model would learn the token after the next, without an error.
    With padding on the left the first token's label is to be ignored too: only padding stands before it. ValueError for
    fewer than 2 positions.
    """
    _check_labels(logits, labels)
    if labels.shape[1] < 2:
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
    where chosen, -100 elsewhere. `special` (B, L) is True where a token is never chosen: [CLS], [SEP], padding, as by
    torch.isin(tokens, torch.tensor([101, 102, 0])) in BERT's uncased vocabulary. Where None, any token may be chosen.

    Source: arXiv:1810.04805, section 3.1; independent choices as in RoBERTa's dynamic masking, arXiv:1907.11692.
    """
    special = _special(tokens, special, probability)
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

    `special` as in mask_tokens; `padding` (B, L) is True where there is no token at all: not chosen, and not counted.
    """
    special = _special(tokens, special, probability)
    if max_predictions < 0:
        raise ValueError(f"max_predictions must be at least 0, not {max_predictions}")
    if padding is not None:
        if padding.shape != tokens.shape or padding.dtype != torch.bool:
            raise ValueError(
                f"padding must be bool (B, L) = {tuple(tokens.shape)}, not {padding.dtype} {tuple(padding.shape)}: "
                "padding = attention_mask == 0"
            )
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
            f"length must be at least 2, density in (0, 1), mean_span above 0, not {length}, {density}, {mean_span}"
        )
    noise = min(max(round(density * length), 1), length - 1)
    spans = min(max(round(noise / mean_span), 1), noise, length - noise)
    gaps, runs = _composition(length - noise, spans, generator), _composition(noise, spans, generator)
    lengths = torch.stack([gaps, runs], dim=1).flatten()  # gap, span, gap, span, ...
    return torch.repeat_interleave(torch.arange(2 * spans, device=lengths.device) % 2 == 1, lengths)


def corrupt_spans(tokens: Tensor, mask: Tensor, *, first_sentinel: int, final_sentinel: bool = True) -> Example:
    """Each run of masked tokens becomes a sentinel in the input, and follows the same sentinel in the target.

    tokens (L,), mask (L,) bool -> inputs and labels of other lengths. The k-th sentinel is first_sentinel - k, as in
    T5's vocabulary: <extra_id_0> = 32099 in T5, not vocab_size - 1 = 32127. The target ends with one more sentinel, as in the
    paper (arXiv:1910.10683, figure 2), or not, as in its code, which adds an end of sequence instead. ValueError where ids from
    first_sentinel - spans to first_sentinel occur in tokens, or the last sentinel would be below 0.
    """
    if tokens.ndim != 1 or mask.shape != tokens.shape or mask.dtype != torch.bool:
        raise ValueError(f"tokens and mask must be (L,), mask bool, not {tuple(tokens.shape)} and {tuple(mask.shape)}")
    starts = mask & ~F.pad(mask, (1, -1))  # the token before, False at the first
    spans = int(starts.sum())
    last = first_sentinel - (spans if final_sentinel else spans - 1)
    if last < 0:
        raise ValueError(f"first_sentinel = {first_sentinel} is too low for {spans} spans: the last would be {last}")
    if bool(((tokens >= first_sentinel - spans) & (tokens <= first_sentinel)).any()):
        raise ValueError(
            f"tokens hold ids of sentinels, from {first_sentinel - spans} to first_sentinel = {first_sentinel} for {spans} "
            "spans: choose a first_sentinel above all other ids"
        )
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


def stack_examples(examples: Sequence[Example], pad_id: int = 0) -> Batch:
    """Examples of unlike lengths as one batch, filled up on the right: inputs with pad_id, labels with -100.

    Inputs and labels of each are (L,) and (M,), of any lengths; the batch has those of the longest. Give the model its
    attention_mask, so that padding is not seen. ValueError for no examples, and for inputs or labels that are not of one axis.
    """
    if not examples:
        raise ValueError("examples must be at least 1, not none")
    for example in examples:
        if example.inputs.ndim != 1 or example.labels.ndim != 1:
            raise ValueError(
                f"inputs and labels of each example must be (L,) and (M,), not {tuple(example.inputs.shape)} and "
                f"{tuple(example.labels.shape)}"
            )
    ones = [torch.ones_like(example.inputs, dtype=torch.long) for example in examples]
    return Batch(
        pad_sequence([example.inputs for example in examples], batch_first=True, padding_value=pad_id),
        pad_sequence([example.labels for example in examples], batch_first=True, padding_value=IGNORED),
        pad_sequence(ones, batch_first=True),
    )


def shift_right(labels: Tensor, start_id: int, *, pad_id: int = 0) -> Tensor:
    """What a decoder reads to predict labels (B, L): start, then the labels but the last; ignored ones become pad_id."""
    if labels.ndim != 2 or labels.shape[1] == 0:
        hint = ": add a batch axis, labels[None]" if labels.ndim == 1 else ""
        raise ValueError(f"labels must be (B, L) with L at least 1, not {tuple(labels.shape)}{hint}")
    shifted = torch.cat([torch.full_like(labels[:, :1], start_id), labels[:, :-1]], dim=1)
    return shifted.masked_fill(shifted == IGNORED, pad_id)


def _check_labels(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise ValueError(
            f"labels must be (B, L) of logits (B, L, V), not {tuple(labels.shape)} of {tuple(logits.shape)}: "
            "one label for each token that the model read"
        )


def _special(tokens: Tensor, special: Tensor | None, probability: float) -> Tensor:
    """The mask, all False where None; a ValueError for arguments that do not fit."""
    if tokens.ndim != 2:
        hint = ": add a batch axis, tokens[None]" if tokens.ndim == 1 else ""
        raise ValueError(f"tokens must be (B, L), not {tuple(tokens.shape)}{hint}")
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must lie in [0, 1], not {probability}")
    if special is None:
        return torch.zeros_like(tokens, dtype=torch.bool)
    if special.shape != tokens.shape or special.dtype != torch.bool:
        raise ValueError(
            f"special must be bool (B, L) = {tuple(tokens.shape)}, not {special.dtype} {tuple(special.shape)}: "
            "torch.isin(tokens, ids), ids a tensor of those that are never chosen"
        )
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
