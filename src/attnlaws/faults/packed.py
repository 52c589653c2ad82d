"""Faults of packed sequences: rows of all sequences one after another, told apart by offsets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .case import Fault

if TYPE_CHECKING:
    from torch import Tensor

Pairs = Callable[["Tensor", "Tensor", "Tensor", "Tensor"], "Tensor"]
FIX = "let a query see the keys between the two offsets of its own sequence, and no other row"


def packed(pairs: Pairs, *, read_tail: bool = False) -> Callable[..., Any]:
    """Attention over packed rows (T, H, D). `pairs(sequence of each query, of each key, place of each in its sequence)`
    says which may attend; rows past the last offset belong to no sequence.
    """

    def attention(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
        causal: bool = False,
    ) -> Tensor:  # fmt: skip
        import torch

        rows, columns = _sequences(cu_seqlens_q, q.shape[0]), _sequences(cu_seqlens_k, k.shape[0])
        places = _places(cu_seqlens_q, q.shape[0]), _places(cu_seqlens_k, k.shape[0])
        shown = pairs(rows, columns, *places)
        if causal:
            shown = shown & (places[1][None, :] <= places[0][:, None])
        wide = q if q.dtype == torch.float64 else q.float()
        key, value = k.to(wide.dtype), v.to(wide.dtype)
        if not read_tail:
            real = columns >= 0
            key, value = (torch.where(real[:, None, None], x, 0.0) for x in (key, value))
        scores = torch.einsum("ihd,jhd->hij", wide, key) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~shown, -math.inf)
        weights = scores.softmax(-1).nan_to_num(0.0)
        return torch.einsum("hij,jhd->ihd", weights, value).to(q.dtype)

    return attention


def _sequences(offsets: Tensor, total: int) -> Tensor:
    """The sequence of each row, -1 past the last offset."""
    import torch

    at = torch.arange(total, device=offsets.device)
    found = torch.searchsorted(offsets.contiguous(), at.to(offsets.dtype), right=True) - 1
    return torch.where(at < offsets[-1], found, -1)


def _places(offsets: Tensor, total: int) -> Tensor:
    """The place of each row in its sequence."""
    import torch

    sequence = _sequences(offsets, total).clamp_min(0)
    return torch.arange(total, device=offsets.device) - offsets[sequence]


def own(rows: Tensor, columns: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """A query sees the keys of its own sequence: the right rule."""
    return (rows[:, None] == columns[None, :]) & (columns >= 0)[None, :]


def _next_first(rows: Tensor, columns: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Also the first key of the next sequence."""
    return own(rows, columns, i, j) | ((columns[None, :] == rows[:, None] + 1) & (j == 0)[None, :])


def _everything(rows: Tensor, columns: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (rows[:, None] >= 0) & (columns >= 0)[None, :]


def _last_lost(rows: Tensor, columns: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Where a sequence has several keys, its last is not seen."""
    following = columns.roll(-1)
    last = (following != columns) & (j > 0)
    return own(rows, columns, i, j) & ~last[None, :]


def _by_query_offsets(rows: Tensor, columns: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Keys past as many as the sequence has queries are not seen."""
    counts = (rows[:, None] == rows[None, :]).sum(-1)
    return own(rows, columns, i, j) & (j[None, :] < counts[:, None])


def _with_tail(rows: Tensor, columns: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """The last sequence reads on past the last offset."""
    last = rows[:, None] == columns.max()
    return own(rows, columns, i, j) | (last & (columns < 0)[None, :])


FAULTS: tuple[Fault, ...] = (
    Fault("packed sequences see each other", "the offsets are ignored: all packed rows are one sequence", FIX,
          ("huggingface/nanoVLM#204",), function=packed(_everything), law="batch.slices"),
    Fault("packed sequence sees the next key", "a packed sequence also sees the first key of the next", FIX,
          function=packed(_next_first), law="masks.varlen"),
    Fault("packed sequence loses its last key", "the last key of each packed sequence is not seen", FIX,
          function=packed(_last_lost), law="masks.varlen"),
    Fault("packed keys cut at the queries", "a packed sequence sees as many keys as it has queries", FIX,
          function=packed(_by_query_offsets), law="masks.varlen"),
    Fault("packed tail read", "rows past the last offset are read", FIX, function=packed(_with_tail, read_tail=True), law="masks.varlen"),
)  # fmt: skip
