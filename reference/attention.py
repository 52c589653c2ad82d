"""Attention in PyTorch, on any device: once by its definition, once in chunks of keys as in FlashAttention.

Both keep the conventions of `torch.nn.functional.scaled_dot_product_attention`: a boolean mask is True where
a query may attend, a float mask is added, causal is j <= i whatever the lengths, a query that sees no key
returns 0. is_causal counts queries from the first key: behind a cache, where the queries are the last of the keys, it is
wrong, and a mask is needed (`masks.visible`). Scores, softmax and sums are in float32 for inputs of 16 or 32 bits and in
float64 for float64; probabilities and output are rounded to the inputs' dtype, as fused kernels do.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

Window = tuple[int | None, int | None]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    window: Window | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(softcap tanh(scale Q K^T / softcap) + mask) V                arXiv:1706.03762, arXiv:2408.00118

    query (B, H, L, D), key (B, Hkv, S, D), value (B, Hkv, S, Dv) -> (B, H, L, Dv). attn_mask broadcasts to
    (B, H, L, S) and holds together with is_causal and window (left, right): i - left <= j <= i + right, both
    ends included, None without end. With enable_gqa query head h reads key head h // (H / Hkv). scale is 1 / sqrt(D) where
    None. dropout_p is applied in every call: give 0 outside training. ValueError for what does not fit.
    """
    _check(query, key, value, attn_mask, softcap, window, dropout_p, enable_gqa)
    G = query.shape[1] // key.shape[1] if enable_gqa else 1
    scale = _default_scale(query) if scale is None else scale
    S = key.shape[2]
    scores = _scores(query, key, 0, S, G, attn_mask, is_causal, scale, softcap, window)  # (B, H, L, S)
    raised = torch.exp(scores - _peak(scores))  # a row that is -inf throughout becomes 0, not NaN
    total = raised.sum(dim=-1, keepdim=True)  # (B, H, L, 1)
    weights = raised / torch.where(total == 0, 1.0, total)
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    return _combine(weights, value, G, query.dtype).to(query.dtype)


def chunked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    window: Window | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    chunk: int | None = None,
) -> Tensor:
    """The same in one pass over chunks of keys, with a running maximum m, normaliser n and sum a per query:

        m' = max(m, max_j s[j])
        n' = n exp(m - m') + sum_j exp(s[j] - m')
        a' = a exp(m - m') + sum_j exp(s[j] - m') v[j]

    and a / n at the end. Beyond inputs and output the forward pass holds (B, H, L, chunk) numbers at a time;
    autograd keeps every chunk's for the backward pass. A chunk is 64 keys, or more where the queries are few.

    Sources: online softmax arXiv:1805.02867; Rabe and Staats arXiv:2112.05682; FlashAttention
    arXiv:2205.14135.
    """
    _check(query, key, value, attn_mask, softcap, window, dropout_p, enable_gqa)
    if chunk is None:
        chunk = max(64, 2048 // max(query.shape[2], 1))
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"chunk must be a count of keys, at least 1, not {chunk!r}")
    G = query.shape[1] // key.shape[1] if enable_gqa else 1
    scale = _default_scale(query) if scale is None else scale
    B, H, L, _ = query.shape
    S, Dv = value.shape[2:]
    dtype = _accumulator(query)
    m = torch.full(
        (B, H, L, 1), torch.finfo(dtype).min, dtype=dtype, device=query.device
    )  # finite: m - m' is never NaN
    n = torch.zeros((B, H, L, 1), dtype=dtype, device=query.device)
    a = torch.zeros((B, H, L, Dv), dtype=dtype, device=query.device)
    for start in range(0, max(S, 1), chunk):  # once for S = 0 too, so that the output has a gradient
        stop = min(start + chunk, S)
        scores = _scores(query, key, start, stop, G, attn_mask, is_causal, scale, softcap, window)  # (B, H, L, chunk)
        higher = torch.maximum(m, _peak(scores))
        shrink = torch.exp(m - higher)
        raised = torch.exp(scores - higher)
        n = n * shrink + raised.sum(dim=-1, keepdim=True)
        if dropout_p > 0:  # of the sum, not of the normaliser
            raised = F.dropout(raised, dropout_p)
        a = a * shrink + _combine(raised, value[:, :, start:stop], G, query.dtype)
        m = higher
    return (a / torch.where(n == 0, 1.0, n)).to(query.dtype)


def _scores(
    query: Tensor,
    key: Tensor,
    start: int,
    stop: int,
    G: int,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float,
    softcap: float | None,
    window: Window | None,
) -> Tensor:
    """The scores (B, H, L, stop - start) of keys start to stop, -inf where masked."""
    dtype = _accumulator(query)
    B, H, L, _ = query.shape
    S = key.shape[2]
    k = _for_each_query_head(key[:, :, start:stop], G).to(dtype)  # (B, Hkv, S, D) -> (B, H, S, D)
    x = scale * (query.to(dtype) @ k.transpose(-2, -1))
    if softcap is not None:
        x = softcap * torch.tanh(x / softcap)

    i = torch.arange(L, device=query.device)[:, None]
    j = torch.arange(start, stop, device=query.device)[None, :]
    masked = [j > i] if is_causal else []
    if window is not None:
        left, right = window
        masked += [j < i - left] if left is not None else []
        masked += [j > i + right] if right is not None else []
    if attn_mask is not None:
        mask = attn_mask.expand(B, H, L, S)[..., start:stop]
        if mask.dtype == torch.bool:
            masked.append(~mask)
        else:
            masked.append(mask == -math.inf)
            x = x + mask.to(dtype)
    for where in masked:
        x = x.masked_fill(where, -math.inf)
    return x


def _peak(scores: Tensor) -> Tensor:
    """The row maximum (B, H, L, 1), finite where the row is -inf. The result does not depend on it."""
    lowest = torch.finfo(scores.dtype).min
    if scores.shape[-1] == 0:
        return scores.new_full((*scores.shape[:-1], 1), lowest)
    return scores.detach().amax(dim=-1, keepdim=True).clamp_min(lowest)


def _combine(weights: Tensor, value: Tensor, G: int, dtype: torch.dtype) -> Tensor:
    """weights (B, H, L, S), rounded to dtype, @ value (B, Hkv, S, Dv) -> (B, H, L, Dv), not rounded."""
    v = _for_each_query_head(value, G).to(weights.dtype)  # (B, Hkv, S, Dv) -> (B, H, S, Dv)
    return weights.to(dtype).to(weights.dtype) @ v


def _for_each_query_head(x: Tensor, G: int) -> Tensor:
    """Each key or value head G times in a row, (B, Hkv, S, D) -> (B, Hkv G, S, D); the same tensor where G = 1."""
    return x if G == 1 else x.repeat_interleave(G, dim=1)


def _accumulator(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _default_scale(query: Tensor) -> float:
    D = query.shape[-1]
    return 1 / math.sqrt(D) if D else 1.0


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    softcap: float | None,
    window: Window | None,
    dropout_p: float,
    enable_gqa: bool,
) -> None:
    """A ValueError that says what does not fit."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim != 4:
            raise ValueError(f"{name} must have 4 axes (B, H, L, D), not shape {tuple(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"{name} must be of a floating dtype, not {x.dtype}")
        if x.dtype != query.dtype or x.device != query.device:
            raise ValueError(f"{name} is {x.dtype} on {x.device} but query is {query.dtype} on {query.device}")
    B, H, L, D = query.shape
    Hkv, S = key.shape[1:3]
    axes = "axes are (B, H, L, D): transpose(1, 2) if yours are (B, L, H, D)"
    if key.shape[0] != B or value.shape[0] != B:
        raise ValueError(f"query, key and value have batches of {B}, {key.shape[0]} and {value.shape[0]}")
    if key.shape[3] != D:
        raise ValueError(f"query and key have head sizes {D} and {key.shape[3]}, which must be the same")
    if value.shape[1:3] != key.shape[1:3]:
        raise ValueError(f"key {tuple(key.shape)} and value {tuple(value.shape)} must agree on heads and length")
    if enable_gqa:
        if Hkv == 0 or H % Hkv != 0:
            raise ValueError(f"{H} query heads can not be shared out over {Hkv} key heads; {axes}")
    elif Hkv != H:
        raise ValueError(f"{H} query heads and {Hkv} key heads differ; enable_gqa=True lets heads share keys; {axes}")
    if attn_mask is not None:
        if attn_mask.dtype not in (torch.bool, query.dtype):
            raise ValueError(f"attn_mask must be bool or the query's {query.dtype}, not {attn_mask.dtype}")
        if attn_mask.device != query.device:
            raise ValueError(f"attn_mask is on {attn_mask.device} but query is on {query.device}")
        sizes = tuple(attn_mask.shape)
        if len(sizes) > 4 or any(
            a not in (1, b) for a, b in zip(reversed(sizes), reversed((B, H, L, S)), strict=False)
        ):
            raise ValueError(f"attn_mask of shape {sizes} does not broadcast to (B, H, L, S) = {(B, H, L, S)}")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be above 0, or None for no cap, not {softcap}")
    if window is not None:
        if not isinstance(window, tuple | list) or len(window) != 2:
            raise ValueError(f"window must be a pair (left, right), not {window!r}")
        for end in window:
            if end is not None and (isinstance(end, bool) or not isinstance(end, int) or end < 0):
                raise ValueError(f"window ends are included, and None (without end) or an int, at least 0, not {end!r}")
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"dropout_p must lie in [0, 1], not {dropout_p}")
