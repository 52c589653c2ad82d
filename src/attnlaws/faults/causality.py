"""Faults of the causal flag: ignored, shifted, aligned with another corner, lost beside a mask."""

from __future__ import annotations

import numpy as np

from .case import Array, Bools, Case, Fault, attend
from .steps import BOTH_FIX, CAUSAL_FIX, MASK_FIX, below, causal, fault, free, lengths, positions, where


def _other_corner(case: Case) -> Bools | None:
    queries, keys = lengths(case)
    return None if queries == keys else below(case, keys - queries - case.offset)


def _by_length(case: Case) -> Bools | None:
    """Bottom right up to 8 queries, top left above."""
    queries, keys = lengths(case)
    return below(case, keys - queries if queries <= 8 else 0)


def _halfway(case: Case) -> Bools | None:
    queries, keys = lengths(case)
    return below(case, max(keys - queries, 0) // 2)


def _cache_excluded(case: Case) -> Bools | None:
    queries, keys = lengths(case)
    extra = keys - queries
    return below(case, extra) & (np.arange(keys) >= extra) if extra > 0 else None


def _diagonal_lost(case: Case) -> Bools | None:
    """Rows 64, 128, ... don't see their own key."""
    i, j = positions(case)
    lost = (j == i + case.offset) & (i % 64 == 0) & (i > 0)
    return below(case, case.offset) & ~lost if lost.any() else None


def _tile_visible(case: Case) -> Bools | None:
    """After the first, tiles of 64 on the diagonal are wholly visible."""
    i, j = positions(case)
    tile = ((i + case.offset) // 64 == j // 64) & (i + case.offset >= 64)
    return below(case, case.offset) | tile if tile.any() else None


def _by_tiles(case: Case) -> Bools:
    """The triangle of whole tiles of 16."""
    i, j = positions(case)
    return np.asarray(j // 16 <= (i + case.offset) // 16)


def _first_blind(case: Case) -> Bools | None:
    """Past 64 keys, key 0 is seen by row 0 only."""
    i, j = positions(case)
    return below(case, case.offset) & ~((j == 0) & (i > 0)) if case.shape[3] > 64 else None


def _unasked_window(case: Case) -> Bools | None:
    """A window of 48 keys in causal calls."""
    return below(case, case.offset) & ~below(case, case.offset - 48) if case.shape[3] > 48 else None


def _union(case: Case) -> Array | None:
    """A pair attends where the boolean mask or the triangle allows it."""
    if case.triangle is None or not case.has_boolean_mask:
        return None
    return attend(case, visible=case.pairs(mask=case.visible | case.triangle, causal=free(case)))


def _multiplied(case: Case) -> Array | None:
    """Scores are multiplied by the triangle."""
    triangle = case.triangle
    if triangle is None:
        return None
    return attend(case, visible=case.pairs(causal=free(case)), scores=lambda raw: raw * triangle)


def _mask_lost(case: Case) -> Array | None:
    if case.triangle is None or not case.has_mask:
        return None
    return attend(case, visible=case.pairs(mask=case.everything()), bias=0.0)


def _by_groups(case: Case) -> Bools | None:
    """The other corner where heads are grouped."""
    return _other_corner(case) if case.call.key.shape[1] != case.shape[1] else None


FAULTS: tuple[Fault, ...] = (
    fault("causal lost with a bias", "the causal flag is ignored where finite values are added", BOTH_FIX, where(lambda c: c.call.bias is not None, causal(free)), "huggingface/transformers#30123", mask_and_causal="intersection"),
    fault("causal lost with a mask", "the causal flag is ignored where there is a mask", BOTH_FIX, where(lambda c: c.has_mask, causal(free)), "keras-team/keras#23038", mask_and_causal="intersection"),
    fault("causal lost without a mask", "the causal flag is ignored where there is no mask", CAUSAL_FIX, where(lambda c: not c.has_mask, causal(free)), "facebookresearch/xformers#103"),
    fault("causal lost in a rectangle", "the causal flag is ignored where the lengths differ", CAUSAL_FIX, where(lambda c: c.shape[2] != c.shape[3], causal(free)), "ROCm/aotriton#55", alignment="top-left"),
    fault("causal lost for one query", "the causal flag is ignored for a single query", CAUSAL_FIX, where(lambda c: c.shape[2] == 1, causal(free)), single_query="as aligned"),
    fault("mask lost with causal", "the mask is ignored under the causal flag", BOTH_FIX, _mask_lost, "AI-Hypercomputer/maxtext#878"),
    fault("causal or mask", "a pair attends where the mask or the triangle allows it", BOTH_FIX, _union),
    fault("causal ignored", "the causal flag is ignored", CAUSAL_FIX, causal(free), "huggingface/transformers#48745"),
    fault("causal sees next", "each query also sees the key after it", CAUSAL_FIX, causal(lambda c: below(c, c.offset + 1))),
    fault("causal hides self", "no query sees its own key", CAUSAL_FIX, causal(lambda c: below(c, c.offset - 1))),
    fault("causal the other way", "the causal triangle is aligned with the other corner", CAUSAL_FIX, causal(_other_corner), "ml-explore/mlx#2835", "pytorch/pytorch#103082", alignment="top-left"),
    fault("causal aligned by length", "the triangle is aligned bottom right up to 8 queries, top left above", CAUSAL_FIX, causal(_by_length), "Dao-AILab/flash-attention#517"),
    fault("causal aligned by groups", "the triangle is aligned with the other corner where heads are grouped", CAUSAL_FIX, causal(_by_groups), "Dao-AILab/flash-attention#517"),
    fault("causal halfway", "the triangle is moved by half of S - L", CAUSAL_FIX, causal(_halfway)),
    fault("causal transposed", "each query sees the keys from its own on", CAUSAL_FIX, causal(lambda c: ~below(c, -1))),
    fault("causal hides the cache", "with more keys than queries the first S - L keys are never seen", CAUSAL_FIX, causal(_cache_excluded), "huggingface/candle#3299"),
    fault("causal by tiles", "a tile of 16 on the diagonal is wholly visible", CAUSAL_FIX, causal(_by_tiles)),
    fault("diagonal tile visible", "after the first, tiles of 64 on the diagonal are wholly visible", CAUSAL_FIX, causal(_tile_visible), law="causality.cutoff"),
    fault("diagonal lost at tile edges", "queries 64, 128, ... don't see their own key", CAUSAL_FIX, causal(_diagonal_lost)),
    fault("first key lost past 64", "past 64 keys, key 0 is seen by query 0 only", CAUSAL_FIX, causal(_first_blind)),
    fault("causal window of 48", "causal calls see the last 48 keys only, unasked", "apply a window only where one is asked for", causal(_unasked_window), "huggingface/transformers#38045"),
    fault("causal multiplied", "the scores are multiplied by the triangle: the future keeps exp(0)", MASK_FIX, _multiplied, "openxla/xla#11444"),
)  # fmt: skip
