"""Faults of what comes back: its shape and dtype, the weights beside it, what gradients reach it, and paths that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .case import Fault
from .plain import INF, attention, function, hide, scores_of, softmax, wide

if TYPE_CHECKING:
    from torch import Tensor

SHAPE_FIX = "return (B, H, L, Dv) in the dtype of q"
WEIGHTS_FIX = "return the weights that met V"
GRADIENT_FIX = "let the gradients be those of the output"
PATH_FIX = "compute the same on every path"


def not_cast_back(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """16-bit inputs give a float32 output."""
    return attention(wide(query), wide(key), wide(value), causal=is_causal)


def squeezed(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """A batch of one loses its axis."""
    return attention(query, key, value, causal=is_causal).squeeze(0)


def heads_squeezed(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """A single head loses its axis."""
    return attention(query, key, value, causal=is_causal).squeeze(1)


def of_query_size(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The output has the shape of q, whatever Dv is."""
    out = attention(query, key, value, causal=is_causal)
    made = query.new_zeros(query.shape)
    shared = min(out.shape[-1], made.shape[-1])
    made[..., :shared] = out[..., :shared]
    return made


def transposed_with_mask(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """With a mask the output comes as (B, L, H, Dv)."""
    out = attention(query, key, value, attn_mask)
    return out if attn_mask is None or out.dim() != 4 else out.transpose(1, 2)


def causal_lost_with_weights(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, need_weights: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Asking for the weights takes a path without the triangle."""
    if not need_weights:
        return attention(query, key, value, causal=is_causal)
    weights = softmax(scores_of(query, key))
    return (weights @ wide(value)).to(query.dtype), weights.to(query.dtype)


def weights_before_mask(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> tuple[Tensor, Tensor]:
    """The weights that come back are those before the mask."""
    weights = softmax(scores_of(query, key))
    return attention(query, key, value, attn_mask, is_causal), weights.to(query.dtype)


def weights_after_dropout(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> tuple[Tensor, Tensor]:
    """Every tenth of the weights that come back is dropped and the rest scaled up; the output has all of them."""
    weights = softmax(hide(scores_of(query, key), None, is_causal)).to(query.dtype)
    kept = weights.new_ones(weights.numel())
    kept[::10] = 0.0
    return attention(query, key, value, causal=is_causal), weights * kept.view(weights.shape) / 0.9


def scores_as_weights(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> tuple[Tensor, Tensor]:
    """The weights that come back are the scores."""
    return attention(query, key, value, causal=is_causal), scores_of(query, key).to(query.dtype)


def key_detached(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """No gradient reaches the keys."""
    return attention(query, key.detach(), value, causal=is_causal)


def weights_detached(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The weights are detached: only the values get a gradient."""
    return attention(query.detach(), key.detach(), value, causal=is_causal)


def gradient_of_dense(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The causal output has the gradients of the one without the flag."""
    dense = attention(query, key, value)
    return dense + (attention(query, key, value, causal=is_causal) - dense).detach()


def last_key_dropped_without_gradients(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The last key is left out where no gradients are recorded."""
    if query.requires_grad or key.shape[-2] < 2:
        return attention(query, key, value, causal=is_causal)
    return attention(query, key[..., :-1, :], value[..., :-1, :], causal=is_causal)


def dropout_while_recording(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Where gradients are recorded, the first key is dropped and the others scaled up."""
    scores = hide(scores_of(query, key), None, is_causal)
    weights = softmax(scores)
    if query.requires_grad and key.shape[-2] > 4:
        kept = weights.new_ones(weights.shape[-1])
        kept[0] = 0.0
        weights = weights * kept / 0.9
    return (weights @ wide(value)).to(query.dtype)


def indivisible_heads_rounded(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, enable_gqa: bool = False
) -> Tensor:
    """A number of heads that is no multiple of Hkv is answered: the last heads share the last key head."""
    heads, kv = query.shape[1], key.shape[1]
    group = max(heads // kv, 1)
    order = [min(head // group, kv - 1) for head in range(heads)]
    return attention(query, key[:, order], value[:, order], causal=is_causal)


def mask_bytes_reread(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A float32 mask beside 16-bit queries is read as 16-bit numbers."""
    if attn_mask is not None and str(attn_mask.dtype) == "torch.float32" and query.dtype.itemsize == 2:
        attn_mask = attn_mask.contiguous().view(query.dtype)[..., : key.shape[-2]].nan_to_num(0.0)
    return attention(query, key, value, attn_mask)


def padding_ignored(query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Padded keys are attended."""
    return attention(query, key, value)


def empty_row_poisons(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """The NaN of a row without a key spreads over its head."""
    weights = hide(scores_of(query, key), attn_mask).softmax(-1)
    return ((weights + 0.0 * weights.sum(-2, keepdim=True)) @ wide(value)).to(query.dtype)


def empty_row_by_path(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A row without a key is NaN up to 16 keys, and zero above."""
    scores = hide(scores_of(query, key), attn_mask)
    weights = scores.softmax(-1) if scores.shape[-1] <= 16 else softmax(scores)
    return (weights @ wide(value)).to(query.dtype)


def empty_row_keeps_another(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A row without a key shows what the buffer held, the row before."""
    out = attention(query, key, value, attn_mask)
    empty = (hide(scores_of(query, key), attn_mask) == -INF).all(-1, keepdim=True)
    return out.roll(1, -2).where(empty, out)


FAULTS: tuple[Fault, ...] = (
    function("output in float32", "16-bit inputs give a float32 output", SHAPE_FIX, "layout.result", not_cast_back, "huggingface/diffusers#10891"),
    function("batch of one squeezed", "a batch of one loses its axis", SHAPE_FIX, "layout.result", squeezed, "pytorch/pytorch#130196"),
    function("single head squeezed", "a single head loses its axis", SHAPE_FIX, "layout.result", heads_squeezed, "pytorch/pytorch#130196"),
    function("output of the size of q", "the output has the shape of q, whatever Dv is", SHAPE_FIX, "layout.result", of_query_size, "pytorch/pytorch#176767"),
    function("output transposed with a mask", "with a mask the output comes as (B, L, H, Dv)", SHAPE_FIX, "layout.result", transposed_with_mask, "huggingface/diffusers#10303"),
    function("causal lost with weights", "asking for the weights takes a path without the triangle", PATH_FIX, "weights.match-output", causal_lost_with_weights, "keras-team/keras#23038"),
    function("weights before the mask", "the weights that come back are those before the mask", WEIGHTS_FIX, "weights.match-output", weights_before_mask),
    function("weights after dropout", "the weights that come back are after dropout, the output is not", WEIGHTS_FIX, "weights.match-output", weights_after_dropout, "pytorch/pytorch#27968"),
    function("scores for weights", "the weights that come back are the scores", WEIGHTS_FIX, "weights.match-output", scores_as_weights),
    function("keys detached", "no gradient reaches the keys", GRADIENT_FIX, "gradients.oracle", key_detached, same_as="no dk"),
    function("weights detached", "only the values get a gradient", GRADIENT_FIX, "gradients.oracle", weights_detached),
    function("gradients without the triangle", "the causal output has the gradients of the one without the flag", GRADIENT_FIX, "causality.jacobian", gradient_of_dense, same_as="backward never causal"),
    function("last key dropped without gradients", "the last key is left out where no gradients are recorded", PATH_FIX, "conduct.no-grad", last_key_dropped_without_gradients),
    function("key dropped while recording", "where gradients are recorded the first key is dropped and the others scaled up", PATH_FIX, "conduct.no-grad", dropout_while_recording),
    function("indivisible heads answered", "a number of heads that is no multiple of Hkv is answered", "raise where H is no multiple of Hkv", "heads.indivisible", indivisible_heads_rounded),
    function("mask bytes read anew", "a float32 mask beside 16-bit queries is read as 16-bit numbers", "convert the mask to the dtype of the scores", "masks.bool-is-additive", mask_bytes_reread, "pytorch/pytorch#191612"),
    function("padding ignored", "padded keys are attended", "hide the keys that the padding mask names", "masks.padding-is-absence", padding_ignored, "turboderp-org/exllama#101", same_as="boolean mask ignored"),
    function("empty row poisons its head", "the NaN of a row without a key spreads over its head", "give such a row zeros, and leave the others alone", "masks.empty-row", empty_row_poisons, "ml-explore/mlx#2608"),
    function("empty row by path", "a row without a key is NaN on one path and zero on another", "give such a row the same on every path", "masks.empty-row", empty_row_by_path, "pytorch/pytorch#190486"),
    function("empty row keeps another", "a row without a key shows the row before", "give such a row zeros", "masks.empty-row", empty_row_keeps_another),
)  # fmt: skip
