"""Right attention functions with options, each in the words and conventions of a library: no law may fail for one of them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from right_attention import Right, dot_scores, numpy_softmax, softmax_zero, triangle, wide

Tensor = torch.Tensor
Array = np.ndarray[Any, np.dtype[Any]]
INF = math.inf

RIGHT_OPTIONS: list[Right] = []


def right(note: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a right function."""

    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        RIGHT_OPTIONS.append(Right(f.__name__, f, note))
        return f

    return register


def away(s: Tensor, bottom: bool = False) -> Tensor:
    """j - i (- (Lk - Lq) from the bottom right) for scores (..., Lq, Lk)."""
    queries, keys = s.shape[-2:]
    offset = keys - queries if bottom else 0
    return torch.arange(keys)[None, :] - torch.arange(queries)[:, None] - offset


# windows ----------------------------------------------------------------------------------------------------


@right("flash-attn's words: (B, L, H, D), bottom right, window (left, right), cap, slopes, grouped, log-sum-exp")
def flash_words(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """What flash_attn_func documents."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if q.shape[1] % k.shape[1]:
        raise ValueError("the number of query heads must be a multiple of that of kv heads")
    group = q.shape[1] // k.shape[1]
    s = dot_scores(q, k.repeat_interleave(group, 1), softmax_scale)
    s = softcap * torch.tanh(s / softcap) if softcap else s
    j = away(s, bottom=True)
    if alibi_slopes is not None:
        s = s - alibi_slopes[:, None, None].to(s.dtype) * j.abs()
    left, right_end = window_size
    s = s.masked_fill(j > 0, -INF) if causal else s
    s = s.masked_fill(j < -left, -INF) if left >= 0 else s
    s = s.masked_fill(j > right_end, -INF) if right_end >= 0 else s
    out = (softmax_zero(s) @ wide(v).repeat_interleave(group, 1)).to(q.dtype).transpose(1, 2)
    return (out, s.logsumexp(-1)) if return_softmax_lse else out


@right("a sliding window of n keys with the query's own, top left, causal by a flag; Mistral")
def mistral_window(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, sliding_window: int | None = None
) -> Tensor:
    """i - n < j, and j <= i where causal."""
    s = dot_scores(query, key)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    s = s.masked_fill(away(s) <= -sliding_window, -INF) if sliding_window is not None else s
    return (softmax_zero(s) @ wide(value)).to(query.dtype)


@right("a window of n - 1 keys on each side, as Keras' sliding_window; True = attend")
def keras_window(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, sliding_window: int | None = None
) -> Tensor:
    """|i - j| < n."""
    s = dot_scores(query, key)
    s = s if mask is None else s.masked_fill(~mask, -INF)
    s = s.masked_fill(away(s).abs() >= sliding_window, -INF) if sliding_window is not None else s
    return (softmax_zero(s) @ wide(value)).to(query.dtype)


@right("JAX's words: (B, L, H, D), a window of one number or two, bias and mask apart, uniform empty rows")
def jax_words(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, mask: Tensor | None = None, *,
    scale: float | None = None, is_causal: bool = False, local_window_size: int | tuple[int, int] | None = None,
) -> Tensor:  # fmt: skip
    """One where for everything that hides, with a large finite number."""
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    s = dot_scores(q, k, scale)
    s = s if bias is None else s + bias.to(s.dtype)
    shown = torch.ones(s.shape[-2:], dtype=torch.bool)
    shown = shown & triangle(s) if is_causal else shown
    if local_window_size is not None:
        left, right_end = (local_window_size,) * 2 if isinstance(local_window_size, int) else local_window_size
        shown = shown & (away(s) >= -left) & (away(s) <= right_end)
    shown = shown if mask is None else shown & mask
    s = torch.where(shown, s, torch.finfo(s.dtype).min * 0.7)
    return (torch.softmax(s, -1) @ wide(v)).to(query.dtype).transpose(1, 2)


@right("ONNX's words: left_window_size and right_window_size, -1 without end; softcap before the mask; empty rows zero")
def onnx_words(
    Q: Tensor, K: Tensor, V: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None,
    softcap: float = 0.0, left_window_size: int = -1, right_window_size: int = -1,
) -> Tensor:  # fmt: skip
    """The Attention operator."""
    s = dot_scores(Q, K, scale)
    s = softcap * torch.tanh(s / softcap) if softcap else s
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -INF) if attn_mask.dtype == torch.bool else s + attn_mask.to(s.dtype)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    s = s.masked_fill(away(s) < -left_window_size, -INF) if left_window_size >= 0 else s
    s = s.masked_fill(away(s) > right_window_size, -INF) if right_window_size >= 0 else s
    return (softmax_zero(s) @ wide(V)).to(Q.dtype)


@right("FlashInfer's words: window_left, logits_soft_cap, always (output, log-sum-exp to the base 2)")
def flashinfer_words(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, sm_scale: float | None = None, logits_soft_cap: float = 0.0,
    window_left: int = -1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Bottom right; a left end only."""
    s = dot_scores(q, k, sm_scale)
    s = logits_soft_cap * torch.tanh(s / logits_soft_cap) if logits_soft_cap else s
    j = away(s, bottom=True)
    s = s.masked_fill(j > 0, -INF) if causal else s
    s = s.masked_fill(j < -window_left, -INF) if window_left >= 0 else s
    return (softmax_zero(s) @ wide(v)).to(q.dtype), s.logsumexp(-1) / math.log(2.0)


@right("a window for causal calls only, else ValueError")
def window_needs_causal(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, window_size: int | None = None
) -> Tensor:
    """n keys before the query's own."""
    if window_size is not None and not is_causal:
        raise ValueError("a window needs is_causal=True")
    s = dot_scores(query, key)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    s = s.masked_fill(away(s) < -window_size, -INF) if window_size is not None else s
    return (softmax_zero(s) @ wide(value)).to(query.dtype)


# slopes, sinks, caps ----------------------------------------------------------------------------------------


@right("ALiBi slopes times j - i, causal by a flag, NumPy")
def press_slopes(q: Array, k: Array, v: Array, causal: bool = False, alibi_slopes: Array | None = None) -> Array:
    """The bias of the paper, in float64."""
    s = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    j = np.arange(s.shape[-1])[None, :] - np.arange(s.shape[-2])[:, None]
    s = s if alibi_slopes is None else s + alibi_slopes.astype(float)[:, None, None] * j
    s = np.where(j <= 0, s, -np.inf) if causal else s
    return (numpy_softmax(s) @ v.astype(float)).astype(q.dtype)


@right("sinks as a further column of the scores, additive mask, as gpt-oss")
def sinks_as_column(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, sinks: Tensor | None = None
) -> Tensor:
    """The column is dropped after the softmax."""
    s = dot_scores(query, key)
    s = s if attention_mask is None else s + attention_mask.to(s.dtype)
    if sinks is None:
        return (torch.softmax(s, -1) @ wide(value)).to(query.dtype)
    column = sinks.to(s.dtype)[:, None, None].expand(*s.shape[:-1], 1)
    w = torch.softmax(torch.cat((s, column), -1), -1)[..., :-1]
    return (w @ wide(value)).to(query.dtype)


@right("sinks by the log-sum-exp: the output times sigmoid(lse - sink); causal by a flag")
def sinks_by_sigmoid(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, sinks: Tensor | None = None
) -> Tensor:
    """1 / (1 + exp(sink - lse)) is what the sink leaves."""
    s = dot_scores(query, key)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    out = torch.softmax(s, -1) @ wide(value)
    if sinks is not None:
        out = out * torch.sigmoid(s.logsumexp(-1) - sinks.to(s.dtype)[:, None])[..., None]
    return out.to(query.dtype)


@right("a soft cap where None is off, every step in the dtype of the inputs")
def softcap_naive(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, softcap: float | None = None
) -> Tensor:
    """Gemma 2, eager."""
    s = query @ key.mT * query.shape[-1] ** -0.5
    s = torch.tanh(s / softcap) * softcap if softcap is not None else s
    s = s if attention_mask is None else s + attention_mask
    return torch.softmax(s, -1, dtype=torch.float32).to(query.dtype) @ value


# masks together, dropout, packed ----------------------------------------------------------------------------


@right("a mask (True = attend) and key padding (True = pad) together, causal too; empty rows zero")
def mask_and_padding(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:  # fmt: skip
    """Everything that hides is met."""
    s = dot_scores(query, key)
    s = s if attn_mask is None else s.masked_fill(~attn_mask, -INF)
    s = s if key_padding_mask is None else s.masked_fill(key_padding_mask[:, None, None, :], -INF)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    return (softmax_zero(s) @ wide(value)).to(query.dtype)


@right("two finite fills in turn, -1e9 for the mask and -inf for the future: an empty row is a mean over the past")
def fills_in_turn(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Nothing of the future is ever seen."""
    s = dot_scores(query, key)
    s = s if attn_mask is None else s.masked_fill(~attn_mask, -1e9)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    return (torch.softmax(s, -1) @ wide(value)).to(query.dtype)


@right("the annotated transformer: dropout is a module or None; -1e9 where mask == 0; returns the weights too")
def annotated(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: Any = None
) -> tuple[Tensor, Tensor]:
    """attention() as the tutorial writes it."""
    s = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    s = s if mask is None else s.masked_fill(mask == 0, -1e9 if s.dtype != torch.float16 else -6e4)
    p = s.softmax(dim=-1)
    p = dropout(p) if dropout is not None else p
    return p @ value, p


@right("dropout of the weights in training only, causal by a flag")
def dropout_in_training(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, dropout_p: float = 0.0, training: bool = True
) -> Tensor:
    """F.dropout after the softmax."""
    s = dot_scores(query, key)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    return (F.dropout(torch.softmax(s, -1), dropout_p, training) @ wide(value)).to(query.dtype)


@right("NumPy dropout by its own mask, always on where asked")
def dropout_numpy(q: Array, k: Array, v: Array, dropout: float = 0.0) -> Array:
    """Inverted dropout."""
    w = numpy_softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype))
    if dropout:
        w = w * (np.random.random(w.shape) >= dropout) / np.asarray(1 - dropout, w.dtype)
    return (w @ v).astype(q.dtype)


@right("torch's own, with the log-sum-exp where asked and dropout")
def sdpa_with_lse(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, dropout_p: float = 0.0, return_lse: bool = False
) -> Any:
    """The log-sum-exp from the scores."""
    out = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p, is_causal=is_causal)
    if not return_lse:
        return out
    s = dot_scores(query, key)
    return out, (s.masked_fill(~triangle(s), -INF) if is_causal else s).logsumexp(-1)


@right("a mask of -inf or of booleans, NaN where a row sees no key, the log-sum-exp where asked; JAX")
def masked_with_lse(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, return_lse: bool = False
) -> Any:
    """Halves of the keys may leave a row without one: its output is NaN, its log-sum-exp -inf."""
    s = dot_scores(query, key)
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -INF) if attn_mask.dtype == torch.bool else s + attn_mask
    out = (torch.softmax(s, -1) @ wide(value)).to(query.dtype)
    return (out, s.logsumexp(-1)) if return_lse else out


@right("packed sequences one after another in a loop, causal bottom right; (T, H, D)")
def packed_by_loop(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    softmax_scale: float | None = None, causal: bool = False,
) -> Tensor:  # fmt: skip
    """flash_attn_varlen_func; rows past the last offset stay zero."""
    parts = []
    for n in range(len(cu_seqlens_q) - 1):
        a, b, c, d = (int(x) for x in (*cu_seqlens_q[n : n + 2], *cu_seqlens_k[n : n + 2]))
        if a == b:
            continue
        s = dot_scores(q[a:b].transpose(0, 1), k[c:d].transpose(0, 1), softmax_scale)
        s = s.masked_fill(away(s, bottom=True) > 0, -INF) if causal else s
        parts.append((softmax_zero(s) @ wide(v[c:d]).transpose(0, 1)).transpose(0, 1).to(q.dtype))
    tail = q.new_zeros(q.shape[0] - int(cu_seqlens_q[-1]), q.shape[1], v.shape[2])
    return torch.cat([*parts, tail])


@right(
    "sequence first, (L, B, H, D), as Transformer Engine; bool masks True = ignore, additive ones too; weights where asked"
)
def sequence_first(
    query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, attn_mask: Tensor | None = None,
    need_weights: bool = False, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The causal flag and the weights exclude each other."""
    if is_causal and need_weights:
        raise ValueError("need_weights is not there for is_causal")
    s = torch.einsum("lbhd,sbhd->bhls", wide(query), wide(key)) / query.shape[-1] ** 0.5
    if attn_mask is not None:
        s = s.masked_fill(attn_mask, -INF) if attn_mask.dtype == torch.bool else s + attn_mask.to(s.dtype)
    s = s if key_padding_mask is None else s.masked_fill(key_padding_mask[:, None, None], -INF)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    w = torch.softmax(s, -1)
    out = torch.einsum("bhls,sbhd->lbhd", w, wide(value)).to(query.dtype)
    return out, w.to(query.dtype) if need_weights else None


@right("causal bottom right for Lq <= Lk, else ValueError")
def bottom_right_or_refused(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> Tensor:
    """No row is ever empty."""
    if causal and query.shape[-2] > key.shape[-2]:
        raise ValueError("causal needs Lq <= Lk")
    s = dot_scores(query, key)
    s = s.masked_fill(away(s, bottom=True) > 0, -INF) if causal else s
    return (torch.softmax(s, -1) @ wide(value)).to(query.dtype)
