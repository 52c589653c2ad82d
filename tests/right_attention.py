"""Right attention functions, each in its own style and convention: no law may fail for one of them."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Array = np.ndarray[Any, np.dtype[Any]]

INF = math.inf


@dataclass(frozen=True)
class Right:
    """A right attention function and the conventions that it speaks."""

    name: str
    function: Callable[..., Any]
    note: str


RIGHT: list[Right] = []


def right(note: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a right function."""

    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        RIGHT.append(Right(f.__name__, f, note))
        return f

    return register


def wide(t: Tensor) -> Tensor:
    """The tensor in the dtype of the computation: float32, or float64 as it is."""
    return t if t.dtype == torch.float64 else t.float()


def triangle(s: Tensor, diagonal: int = 0) -> Tensor:
    """True where query i may see key j <= i + diagonal."""
    return torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril(diagonal)


def dot_scores(q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """q k^T times the scale, in the dtype of the computation."""
    return wide(q) @ wide(k).transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)


def softmax_zero(s: Tensor) -> Tensor:
    """Softmax over the keys, a row of -inf gives zeros, forward and backward."""
    empty = (s == -INF).all(-1, keepdim=True)
    return torch.softmax(s.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)


# NumPy ------------------------------------------------------------------------------------------------------


def numpy_softmax(s: Array) -> Array:
    """Softmax over the last axis."""
    p = np.exp(s - s.max(-1, keepdims=True))
    w: Array = p / p.sum(-1, keepdims=True)
    return w


@right("NumPy, (L, D), no options")
def textbook_numpy_2d(q: Array, k: Array, v: Array) -> Array:
    """softmax(q k^T / sqrt(d)) v for one sequence and one head."""
    return numpy_softmax(q @ k.T / np.sqrt(q.shape[-1]).astype(q.dtype)) @ v


@right("NumPy, (B, L, D), bool mask True = attend, empty row = mean over all keys")
def textbook_numpy_3d(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    """One head, with a mask filled with the lowest finite number."""
    s = np.einsum("bid,bjd->bij", q, k) / np.sqrt(q.shape[-1]).astype(q.dtype)
    s = s if mask is None else np.where(mask, s, np.finfo(s.dtype).min)
    return numpy_softmax(s) @ v


@right("NumPy, (B, H, L, D), bool mask True = attend, causal top left, empty row = zeros")
def numpy_4d(
    q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False, scale: float | None = None
) -> Array:
    """Many heads, computed in float64."""
    c = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    s = c * np.einsum("bhid,bhjd->bhij", q.astype(np.float64), k.astype(np.float64))
    s = s if mask is None else np.where(mask, s, -np.inf)
    s = np.where(np.tri(s.shape[-2], s.shape[-1]) > 0, s, -np.inf) if causal else s
    p = np.exp(s - np.maximum(s.max(-1, keepdims=True), np.finfo(np.float64).min))
    w: Array = p / np.maximum(p.sum(-1, keepdims=True), 1e-300)
    return (w @ v.astype(np.float64)).astype(q.dtype)


@right("NumPy, (B, H, L, D), from the definition by loops over batch, head and query")
def definition_by_loops(q: Array, k: Array, v: Array) -> Array:
    """Each output row from its own sum."""
    out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    for b, h, i in np.ndindex(*q.shape[:-1]):
        s = [float(np.dot(q[b, h, i].astype(float), key.astype(float))) / math.sqrt(q.shape[-1]) for key in k[b, h]]
        p = [math.exp(x - max(s)) for x in s]
        out[b, h, i] = sum(x * value.astype(float) for x, value in zip(p, v[b, h], strict=True)) / sum(p)
    return out


# how a hidden pair is written -----------------------------------------------------------------------------


@right("(B, L, H, D) by einsum, causal top left")
def einsum_bshd(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, softmax_scale: float | None = None) -> Tensor:
    """flash-attn's layout and names."""
    c = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    s = torch.einsum("bihd,bjhd->bhij", wide(q), wide(k)) * c
    s = s.masked_fill(~triangle(s), -INF) if causal else s
    return torch.einsum("bhij,bjhd->bihd", torch.softmax(s, -1), wide(v)).to(q.dtype)


@right("masked_fill with -inf, bool mask True = attend, empty row = NaN")
def fill_minus_infinity(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """The common tutorial form."""
    s = dot_scores(query, key)
    s = s if attn_mask is None else s.masked_fill(~attn_mask, -INF)
    return (torch.softmax(s, -1) @ wide(value)).to(query.dtype)


@right("fill with finfo.min, bool mask True = attend, causal top left, empty row = mean over all keys")
def fill_finfo_min(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Never NaN; an empty row is uniform."""
    s = dot_scores(query, key)
    low = torch.finfo(s.dtype).min
    s = s if attn_mask is None else s.masked_fill(~attn_mask, low)
    s = s.masked_fill(~triangle(s), low) if is_causal else s
    return (torch.softmax(s, -1) @ wide(value)).to(query.dtype)


@right("fill with -1e9 where mask == 0 (bool or 0/1, never a bias), empty row = mean over all keys")
def fill_minus_billion(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The annotated transformer's number: no real score is as low."""
    s = dot_scores(q, k)
    s = s if mask is None else s.masked_fill(mask == 0, -1e9)
    return (torch.softmax(s, -1) @ wide(v)).to(q.dtype)


@right("hidden weights are zeroed after exp, before the sum; True = attend; empty row = zeros")
def where_after_exponential(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """exp, zero, divide by the sum of what is left."""
    s = dot_scores(query, key)
    keep = torch.ones_like(s, dtype=torch.bool) if attn_mask is None else attn_mask.expand_as(s)
    keep = keep & triangle(s) if is_causal else keep
    top = s.masked_fill(~keep, -INF).amax(-1, keepdim=True)
    p = torch.where(keep, (s - top.masked_fill(top == -INF, 0.0)).masked_fill(~keep, 0.0).exp(), 0.0)
    z = p.sum(-1, keepdim=True)
    return (p / torch.where(z == 0, 1.0, z) @ wide(value)).to(query.dtype)


@right("bool mask True = masked, empty row = NaN")
def true_is_masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The polarity of nn.MultiheadAttention."""
    s = dot_scores(q, k)
    s = s if mask is None else s.masked_fill(mask, -INF)
    return (torch.softmax(s, -1) @ wide(v)).to(q.dtype)


@right("key_padding_mask (B, Lk) True = pad, a sample of padding only = zeros")
def key_padding(q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Padding only, for all queries of a sample."""
    s = dot_scores(q, k)
    s = s if key_padding_mask is None else s.masked_fill(key_padding_mask[:, None, None, :], -INF)
    return (softmax_zero(s) @ wide(v)).to(q.dtype)


@right("additive float mask only, empty row (-inf) = NaN")
def additive_only(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """The bias is added to the scaled scores."""
    s = dot_scores(q, k)
    s = s if bias is None else s + bias.to(s.dtype)
    return (torch.softmax(s, -1) @ wide(v)).to(q.dtype)


@right("int mask, 0 = masked and 1 = attend, empty row = zeros")
def int_mask(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Tokenizer style: attention_mask == 0 is padding."""
    s = dot_scores(q, k)
    s = s if mask is None else s.masked_fill(mask == 0, -INF)
    return (softmax_zero(s) @ wide(v)).to(q.dtype)


@right("numeric mask, non-zero of either sign = masked (microsoft/Swin-Transformer#42), empty row = zeros")
def sign_of_mask_irrelevant(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mask is a difference of region numbers: its sign means nothing."""
    s = dot_scores(q, k)
    s = s if mask is None else s.masked_fill(mask != 0, -INF)
    return (softmax_zero(s) @ wide(v)).to(q.dtype)


@right("an empty row is computed as if unmasked; True = attend, or a bias")
def empty_row_as_unmasked(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A row that sees nothing sees everything."""
    s = dot_scores(query, key)
    if attn_mask is not None:
        hidden = s.masked_fill(~attn_mask, -INF) if attn_mask.dtype == torch.bool else s + attn_mask.to(s.dtype)
        s = torch.where((hidden == -INF).all(-1, keepdim=True), s, hidden)
    return (torch.softmax(s, -1) @ wide(value)).to(query.dtype)


# causality ------------------------------------------------------------------------------------------------


@right("always causal, no flag, top left")
def always_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of a decoder, nothing to switch."""
    s = dot_scores(q, k)
    return (torch.softmax(s.masked_fill(~triangle(s), -INF), -1) @ wide(v)).to(q.dtype)


@right("causal bottom right: the last query sees all keys; empty row (Lq > Lk) = zeros")
def causal_bottom_right(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """flash-attn's alignment."""
    s, extra = dot_scores(q, k), k.shape[-2] - q.shape[-2]
    s = s.masked_fill(~triangle(s, extra), -INF) if causal else s
    return (softmax_zero(s) @ wide(v)).to(q.dtype)


@right("causal for Lq == Lk only, else ValueError")
def causal_square_only(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """No alignment is chosen where there is a choice."""
    if is_causal and query.shape[-2] != key.shape[-2]:
        raise ValueError("causal attention needs as many queries as keys")
    s = dot_scores(query, key)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    return (torch.softmax(s, -1) @ wide(value)).to(query.dtype)


@right("the causal mask adds 1 to each allowed score, a shift of the row (tinygrad/tinygrad#2425)")
def causal_plus_one(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Softmax does not see the 1."""
    s = dot_scores(query, key)
    if is_causal:
        s = s + torch.ones_like(s).masked_fill(~triangle(s), -INF)
    return (torch.softmax(s, -1) @ wide(value)).to(query.dtype)


@right("a mask with is_causal is a ValueError, as in torch; True = attend, or a bias; empty row = zeros")
def mask_or_causal(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """One or the other."""
    if is_causal and attn_mask is not None:
        raise ValueError("give a mask or is_causal, not both")
    s = dot_scores(query, key)
    mask = triangle(s) if is_causal else attn_mask
    if mask is not None:
        s = s.masked_fill(~mask, -INF) if mask.dtype == torch.bool else s + mask.to(s.dtype)
    return (softmax_zero(s) @ wide(value)).to(query.dtype)


# what comes back ------------------------------------------------------------------------------------------


@right("returns (output, weights); True = attend; causal top left; empty row = zeros")
def with_weights(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> tuple[Tensor, Tensor]:
    """The output and the weights that made it."""
    s = dot_scores(query, key)
    s = s if attn_mask is None else s.masked_fill(~attn_mask, -INF)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    w = softmax_zero(s)
    return (w @ wide(value)).to(query.dtype), w.to(query.dtype)


@right("HF style: (B, H, L, D) in, ((B, L, H, D), weights) out, additive mask, empty row = NaN")
def hf_eager(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """An attention function of transformers' AttentionInterface; dropout is taken only if module.training."""
    n = query.shape[1] // key.shape[1]
    k, v = key.repeat_interleave(n, 1), value.repeat_interleave(n, 1)
    s = dot_scores(query, k, scaling)
    s = s if attention_mask is None else s + attention_mask.to(s.dtype)
    w = torch.softmax(s, -1).to(query.dtype)
    w = F.dropout(w, dropout, training=bool(getattr(module, "training", False)))
    return (w @ v).transpose(1, 2).contiguous(), w


@right("the result is a view with the strides of (B, L, H, D)")
def strided_result(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Shape (B, H, L, D), not contiguous, as torch's CPU flash."""
    s = dot_scores(query, key)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    out = (torch.softmax(s, -1) @ wide(value)).to(query.dtype)
    return out.transpose(-2, -3).contiguous().transpose(-2, -3) if out.dim() > 2 else out


# where the scale goes -------------------------------------------------------------------------------------


@right("the scale is multiplied into q beforehand")
def scale_on_query(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
    """(c q) k^T."""
    c = query.shape[-1] ** -0.5 if scale is None else scale
    return (torch.softmax(wide(query) * c @ wide(key).mT, -1) @ wide(value)).to(query.dtype)


@right("sqrt(scale) is multiplied into q and into k, the sign into q")
def scale_on_both(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
    """(sqrt(c) q) (sqrt(c) k)^T, as ONNX does it."""
    c = query.shape[-1] ** -0.5 if scale is None else scale
    root = math.sqrt(abs(c))
    s = (wide(query) * math.copysign(root, c)) @ (wide(key) * root).mT
    return (torch.softmax(s, -1) @ wide(value)).to(query.dtype)


@right("scale is required, as in MLX")
def scale_required(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """No default."""
    return (torch.softmax(dot_scores(q, k, scale), -1) @ wide(v)).to(q.dtype)


@right("exp2 with log2(e) folded into the scale, as the GPU kernels")
def base_two(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
    """2^(s log2 e) = e^s."""
    c = query.shape[-1] ** -0.5 if scale is None else scale
    s = dot_scores(query, key, c * math.log2(math.e))
    p = torch.exp2(s - s.amax(-1, keepdim=True))
    return (p @ wide(value) / p.sum(-1, keepdim=True)).to(query.dtype)


# tiles ----------------------------------------------------------------------------------------------------


def online(s: Tensor, v: Tensor, starts: list[int], tile: int) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp over the key tiles at `starts`, visited in that order."""
    m = torch.full((*s.shape[:-1], 1), -INF, dtype=s.dtype)
    z, out = torch.zeros_like(m), torch.zeros(*s.shape[:-1], v.shape[-1], dtype=s.dtype)
    for a in starts:
        part = s[..., a : a + tile]
        new = torch.maximum(m, part.amax(-1, keepdim=True))
        top = new.masked_fill(new == -INF, 0.0)
        p, r = (part - top).exp(), (m - top).exp()
        z, out, m = z * r + p.sum(-1, keepdim=True), out * r + p @ v[..., a : a + tile, :], new
    empty = z == 0
    return out / z.masked_fill(empty, 1.0), (m + z.masked_fill(empty, 1.0).log()).masked_fill(empty, -INF)


@right("online softmax over tiles of 16 keys, causal top left, True = attend, empty row = zeros")
def online_forward(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """FlashAttention's recurrence on the CPU."""
    s = dot_scores(query, key)
    s = s if attn_mask is None else s.masked_fill(~attn_mask, -INF)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    return online(s, wide(value), list(range(0, s.shape[-1], 16)), 16)[0].to(query.dtype)


@right("online softmax over tiles of 7 keys from the last to the first, causal top left")
def online_reversed(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """FlashAttention 3 visits the tiles in this order."""
    s = dot_scores(query, key)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    return online(s, wide(value), list(range(0, s.shape[-1], 7))[::-1], 7)[0].to(query.dtype)


@right("three parts of the keys, merged by log-sum-exp; causal top left; True = attend; empty row = zeros")
def split_keys(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Flash decoding: each part alone, then one weighted sum."""
    s = dot_scores(query, key)
    s = s if attn_mask is None else s.masked_fill(~attn_mask, -INF)
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    n = max(-(-s.shape[-1] // 3), 1)
    parts = [online(s, wide(value), [a], n) for a in range(0, s.shape[-1], n)]
    share = softmax_zero(torch.cat([lse for _, lse in parts], -1))
    return sum((share[..., i : i + 1] * o for i, (o, _) in enumerate(parts)), torch.zeros(())).to(query.dtype)


@right("two kernels: above 8 queries the sum over keys runs in two halves (cf. ml-explore/mlx#3573)")
def two_kernels(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The rounding depends on the number of queries, the result does not."""
    w, v, n = torch.softmax(dot_scores(query, key), -1), wide(value), key.shape[-2] // 2
    out = w @ v if query.shape[-2] <= 8 else w[..., n:] @ v[..., n:, :] + w[..., :n] @ v[..., :n, :]
    return out.to(query.dtype)


# heads ----------------------------------------------------------------------------------------------------


@right("grouped heads found by their number, repeat_interleave; indivisible = ValueError; causal top left")
def grouped_by_repeat(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """Query head h reads kv head h // (H / Hkv)."""
    if q.shape[1] % k.shape[1]:
        raise ValueError("the number of query heads must be a multiple of that of kv heads")
    n = q.shape[1] // k.shape[1]
    s = dot_scores(q, k.repeat_interleave(n, 1))
    s = s.masked_fill(~triangle(s), -INF) if causal else s
    return (torch.softmax(s, -1) @ wide(v).repeat_interleave(n, 1)).to(q.dtype)


@right("grouped heads in five axes, nothing repeated; indivisible = ValueError")
def grouped_in_five_axes(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """(B, Hkv, G, L, D): the group is an axis of its own."""
    if q.shape[1] % k.shape[1]:
        raise ValueError("the number of query heads must be a multiple of that of kv heads")
    c = q.shape[-1] ** -0.5 if scale is None else scale
    five = wide(q).reshape(q.shape[0], k.shape[1], -1, *q.shape[2:])
    w = torch.softmax(c * torch.einsum("bngid,bnjd->bngij", five, wide(k)), -1)
    return torch.einsum("bngij,bnjd->bngid", w, wide(v)).flatten(1, 2).to(q.dtype)


@right("(B, H) flattened into one axis for bmm; True = attend; empty row = NaN")
def flattened_heads(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """(B * H, L, D) and back."""
    q, k, v = (wide(t).flatten(0, 1) for t in (query, key, value))
    s = torch.bmm(q, k.transpose(1, 2)) * q.shape[-1] ** -0.5
    if attn_mask is not None:
        shape = (*query.shape[:2], *s.shape[1:])
        s = s.masked_fill(~attn_mask.expand(shape).flatten(0, 1), -INF)
    out = torch.bmm(torch.softmax(s, -1), v)
    return out.reshape(*query.shape[:-1], value.shape[-1]).to(query.dtype)


# precision ------------------------------------------------------------------------------------------------


@right("each intermediate in the dtype of the inputs, 16 bits too; True = attend; empty row = NaN")
def naive_storage_dtype(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """The profile `naive`; q is scaled first, so that float16 scores do not overflow."""
    s = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    s = s if attn_mask is None else s.masked_fill(~attn_mask, -INF)
    return torch.softmax(s, -1) @ value


@right("float32 inside, whatever the inputs, float64 too, as in JAX")
def float32_inside(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """A note on the card, not a break."""
    s = query.float() @ key.float().mT * query.shape[-1] ** -0.5
    s = s.masked_fill(~triangle(s), -INF) if is_causal else s
    return (torch.softmax(s, -1) @ value.float()).to(query.dtype)


@right("weights as exp(log_softmax)")
def by_log_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """exp(s - logsumexp(s))."""
    return (torch.log_softmax(dot_scores(query, key), -1).exp() @ wide(value)).to(query.dtype)


# how it is called -----------------------------------------------------------------------------------------


@right("keyword-only options; True = attend; causal top left; empty row = zeros")
def keyword_only(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    sm_scale: float | None = None,
) -> Tensor:
    """Options can not be given by position."""
    s = dot_scores(q, k, sm_scale)
    s = s if mask is None else s.masked_fill(~mask, -INF)
    s = s.masked_fill(~triangle(s), -INF) if causal else s
    return (softmax_zero(s) @ wide(v)).to(q.dtype)


@right("torch itself without its scale; a mask with is_causal is an error; empty row = zeros")
def torch_sdpa(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """No scale: torch 2.13's CPU kernel gives NaN for causal attention with a scale of zero or below."""
    return F.scaled_dot_product_attention(query, key, value, attn_mask, is_causal=is_causal)


class Attention:
    """An object that is called; it keeps its scale."""

    def __init__(self, scale: float | None = None) -> None:
        self.scale = scale

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
        """softmax(c q k^T) v."""
        s = dot_scores(query, key, self.scale)
        s = s.masked_fill(~triangle(s), -INF) if is_causal else s
        return (torch.softmax(s, -1) @ wide(value)).to(query.dtype)


class Flash(torch.autograd.Function):
    """Attention with its own backward pass, which recomputes the weights."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, c: float) -> Tensor:
        """softmax(c q k^T, hidden) v."""
        ctx.save_for_backward(q, k, v, hidden)
        ctx.c = c
        return (torch.softmax(dot_scores(q, k, c).masked_fill(hidden, -INF), -1) @ wide(v)).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        """dv = P^T g, dS = P (dP - rowsum(dP P)), dq = c dS k, dk = c dS^T q."""
        q, k, v, hidden = ctx.saved_tensors
        p, g = torch.softmax(dot_scores(q, k, ctx.c).masked_fill(hidden, -INF), -1), wide(g)
        dp = g @ wide(v).mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * ctx.c
        return (ds @ wide(k)).to(q.dtype), (ds.mT @ wide(q)).to(k.dtype), (p.mT @ g).to(v.dtype), None, None


@right("a custom autograd.Function with a right backward pass, causal top left")
def own_backward(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Forward and backward by hand."""
    full = triangle(query @ key.mT)
    hidden = ~full if is_causal else torch.zeros_like(full)
    c = query.shape[-1] ** -0.5
    out: Tensor = Flash.apply(query, key, value, hidden, c)  # type: ignore[no-untyped-call]
    return out


RIGHT += [
    Right("class_instance", Attention(), "an object with __call__, causal top left"),
    Right(
        "partial_causal",
        functools.partial(einsum_bshd, causal=True),
        "a partial, causal unless told otherwise",
    ),
    Right("lambda_sdpa", lambda q, k, v: F.scaled_dot_product_attention(q, k, v), "a lambda without options"),
]


@right("an additive fill of the least finite number: a row that is all masked is nearly the mean of V")
def additive_finfo_min(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """A (B, S) mask of 1 and 0, as transformers' models take it, turned into an additive one."""
    s = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if attention_mask is not None:
        if attention_mask.shape != (query.shape[0], key.shape[2]):
            raise ValueError("attention_mask must be (batch, key_length)")
        s = s + (1.0 - attention_mask)[:, None, None, :] * torch.finfo(s.dtype).min
    return torch.softmax(s, -1) @ value


@right("float32 only, head sizes that are multiples of 8 only")
def restricted_kernel(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Refuses what it doesn't take with clear errors."""
    if query.shape[-1] % 8 or value.shape[-1] % 8:
        raise ValueError("head_dim must be a multiple of 8")
    if query.dtype != torch.float32:
        raise TypeError("float32 only")
    return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
