"""Attention functions that are wrong on purpose: each has one bug, most of them a bug that somebody reported.

`attend` is a small correct attention: bool mask True = attend, causal top left, an empty row is zero,
flag and mask intersect. Most of the wrong functions replace one of its steps; those about tiles, strides,
state or the backward pass are functions of their own. The triggers are as rare as in the reports.

`WRONG` holds what is wrong in the forward pass or in the support of the Jacobian; `WRONG_BACKWARD` holds
right forward passes whose gradients only a comparison with the true gradient can catch.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Array = np.ndarray[Any, np.dtype[Any]]
Mask = Tensor | None
Triple = tuple[Tensor, Tensor, Tensor]

UNREPORTED = "no public report"
INF = math.inf


@dataclass(frozen=True)
class Wrong:
    """A wrong attention function, the law that should catch it, and where the bug was seen."""

    name: str
    function: Callable[..., Any]
    law: str
    source: str


WRONG: list[Wrong] = []
WRONG_BACKWARD: list[Wrong] = []


# the correct base -----------------------------------------------------------------------------------------


def wide(t: Tensor) -> Tensor:
    """The tensor in the dtype of the computation: float32, or float64 as it is."""
    return t if t.dtype == torch.float64 else t.float()


def triangle(s: Tensor, diagonal: int = 0) -> Tensor:
    """The causal triangle (Lq, Lk) for scores (..., Lq, Lk)."""
    return torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).tril(diagonal)


def to_scale(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """The scale given, else 1/sqrt(D)."""
    return q.shape[-1] ** -0.5 if scale is None else scale


def group(q: Tensor, k: Tensor) -> int:
    """How many query heads share a kv head."""
    if q.shape[-3] % k.shape[-3]:
        raise ValueError(f"{q.shape[-3]} query heads can not share {k.shape[-3]} kv heads")
    return q.shape[-3] // k.shape[-3]


def share_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(B, Hkv, Lk, D) -> (B, H, Lk, D): query head h reads kv head h // (H / Hkv)."""
    n = group(q, k)
    return k.repeat_interleave(n, -3), v.repeat_interleave(n, -3)


def dot_scores(q: Tensor, k: Tensor, c: float) -> Tensor:
    """(..., Lq, D), (..., Lk, D) -> (..., Lq, Lk)."""
    return (q @ k.transpose(-1, -2)) * c


def apply_mask(s: Tensor, attn_mask: Mask) -> Tensor:
    """A bool mask hides where it is False; a float mask is added."""
    if attn_mask is None:
        return s
    return torch.where(attn_mask, s, -INF) if attn_mask.dtype == torch.bool else s + attn_mask.to(s.dtype)


def hide(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """The scores with -inf at each pair that the mask or the causal triangle hides."""
    s = apply_mask(s, attn_mask)
    return torch.where(triangle(s), s, -INF) if is_causal else s


def softmax_rows(s: Tensor) -> Tensor:
    """Softmax over the keys; a row without a visible key is zero."""
    empty = (s == -INF).all(-1, keepdim=True)
    return torch.softmax(s.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)


def mix(w: Tensor, v: Tensor) -> Tensor:
    """(..., Lq, Lk), (..., Lk, Dv) -> (..., Lq, Dv)."""
    return w @ v


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Mask = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    share: Callable[..., tuple[Tensor, Tensor]] = share_heads,
    factor: Callable[..., float] = to_scale,
    scores: Callable[..., Tensor] = dot_scores,
    mask: Callable[..., Tensor] = hide,
    weights: Callable[..., Tensor] = softmax_rows,
    combine: Callable[..., Tensor] = mix,
    finish: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Attention in six steps, each replaceable; `finish` replaces weights and combine together."""
    k, v = share(query, key, value) if enable_gqa else (key, value)
    s = scores(wide(query), wide(k), factor(query, k, v, scale))
    s = mask(s, attn_mask, is_causal)
    out = combine(weights(s), wide(v)) if finish is None else finish(s, wide(v))
    return out.to(query.dtype)


def with_step(name: str, f: Callable[..., Any]) -> Callable[..., Tensor]:
    """`attend` with one step replaced, under the name of the replacement."""

    def function(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Mask = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        return attend(query, key, value, attn_mask, is_causal, scale, enable_gqa, **{name: f})

    function.__name__, function.__qualname__, function.__doc__ = f.__name__, f.__qualname__, f.__doc__
    return function


def wrong(law: str, source: str, step: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a wrong function, or `attend` with the decorated step."""

    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        function = with_step(step, f) if step else f
        WRONG.append(Wrong(f.__name__, function, law, source))
        return function

    return register


# softmax: axis, normaliser, stability ---------------------------------------------------------------------


@wrong("weights.row-stochastic", "nerdai/llms-from-scratch-rs#30", "weights")
def softmax_over_queries(s: Tensor) -> Tensor:
    """Softmax over the queries instead of the keys; nerdai/llms-from-scratch-rs#30."""
    return torch.softmax(s, -2).nan_to_num(0.0)


@wrong("weights.row-stochastic", "FudanNLP/fastNLP#254", "weights")
def softmax_axis_one(s: Tensor) -> Tensor:
    """Axis 1 whatever the rank, so over heads in 4-D; FudanNLP/fastNLP#254."""
    return torch.softmax(s, 1).nan_to_num(0.0)


@wrong("weights.row-stochastic", "PetrochukM/PyTorch-NLP#2", "weights")
def softmax_over_batch(s: Tensor) -> Tensor:
    """Softmax over the first axis; PetrochukM/PyTorch-NLP#2."""
    return torch.softmax(s, 0).nan_to_num(0.0)


@wrong("weights.row-stochastic", "catalyst-team/catalyst#285", "weights")
def every_weight_one(s: Tensor) -> Tensor:
    """Softmax over an axis of size one: a sum of values, not a mean; catalyst-team/catalyst#285."""
    return torch.softmax(s.unsqueeze(-1), -1).squeeze(-1).masked_fill(s == -INF, 0.0)


@wrong("weights.row-stochastic", UNREPORTED, "weights")
def denominator_one_percent(s: Tensor) -> Tensor:
    """The denominator is one per cent too large; no public report."""
    return softmax_rows(s) / 1.01


@wrong("weights.row-stochastic", UNREPORTED, "weights")
def softmax_plus_one(s: Tensor) -> Tensor:
    """exp(s) / (1 + sum exp(s)), a hidden zero logit; no public report."""
    return softmax_rows(F.pad(s, (0, 1)))[..., :-1]


@wrong("weights.row-stochastic", "66RING/tiny-flash-attention#12", "weights")
def padded_keys_counted(s: Tensor) -> Tensor:
    """Zero keys that fill the last tile of 16 are counted in the softmax; 66RING/tiny-flash-attention#12."""
    n = s.shape[-1]
    return softmax_rows(F.pad(s, (0, -n % 16)))[..., :n]


@wrong("weights.row-stochastic", UNREPORTED, "weights")
def lone_query_badly_normalised(s: Tensor) -> Tensor:
    """The decode path (Lq = 1) is off by the factor Lk / (Lk + 1); no public report."""
    w = softmax_rows(s)
    return w * w.shape[-1] / (w.shape[-1] + 1) if s.shape[-2] == 1 else w


@wrong("weights.row-stochastic", "thu-ml/SageAttention#26", "finish")
def rows_past_key_length_unwritten(s: Tensor, v: Tensor) -> Tensor:
    """With Lq > Lk the rows after Lk are never written; thu-ml/SageAttention#26."""
    rows = torch.arange(s.shape[-2], device=s.device).unsqueeze(-1)
    return (softmax_rows(s) @ v).masked_fill(rows >= s.shape[-1], 0.0)


@wrong("weights.row-stochastic", UNREPORTED, "weights")
def three_bit_probabilities(s: Tensor) -> Tensor:
    """The probabilities are rounded to eighths; no public report."""
    w = softmax_rows(s)
    return w + ((w * 8).round() / 8 - w).detach()


@wrong("weights.oracle", UNREPORTED, "weights")
def bfloat16_probabilities(s: Tensor) -> Tensor:
    """The probabilities of a float32 attention pass through bfloat16; no public report."""
    return softmax_rows(s).bfloat16().to(s.dtype)


@wrong("weights.oracle", UNREPORTED, "scores")
def bfloat16_scores(q: Tensor, k: Tensor, c: float) -> Tensor:
    """The scores of a float32 attention pass through bfloat16; no public report."""
    return dot_scores(q, k, c).bfloat16().to(q.dtype)


@wrong("weights.oracle", UNREPORTED, "finish")
def bfloat16_accumulator(s: Tensor, v: Tensor) -> Tensor:
    """The output of a float32 attention is accumulated in bfloat16 over tiles of 16; no public report."""
    w, out = softmax_rows(s), torch.zeros(*s.shape[:-1], v.shape[-1], dtype=torch.bfloat16, device=s.device)
    for a in range(0, s.shape[-1], 16):
        out = out + (w[..., a : a + 16] @ v[..., a : a + 16, :]).bfloat16()
    return out.to(s.dtype)


@wrong("scores.magnitude", UNREPORTED, "weights")
def no_max_subtraction(s: Tensor) -> Tensor:
    """exp(s) without the row maximum; no public report."""
    p = s.exp()
    return p / p.sum(-1, keepdim=True).clamp_min(1e-30)


@wrong("scores.magnitude", "HabanaAI/vllm-fork#275", "weights")
def dummy_maximum(s: Tensor) -> Tensor:
    """A constant 10 stands for the row maximum; HabanaAI/vllm-fork#275."""
    p = (s - 10.0).exp()
    return p / p.sum(-1, keepdim=True).clamp_min(1e-30)


@wrong("scores.magnitude", UNREPORTED, "weights")
def one_maximum_for_all(s: Tensor) -> Tensor:
    """The maximum of the whole tensor stands for each row's, so that low rows vanish; no public report."""
    if s.numel() == 0:
        return softmax_rows(s)
    p = (s - s.amax().clamp_min(-1e30)).exp()
    return p / p.sum(-1, keepdim=True).clamp_min(1e-30)


@wrong("scores.magnitude", "pytorch/pytorch#62897")
def no_maximum_in_vector_path(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """bfloat16 with at least 16 keys takes a path without max subtraction; pytorch/pytorch#62897."""

    def exponentials(s: Tensor) -> Tensor:
        p = s.exp()
        return p / p.sum(-1, keepdim=True).clamp_min(1e-30)

    fast = query.dtype == torch.bfloat16 and key.shape[-2] >= 16
    return attend(query, key, value, attn_mask, is_causal, weights=exponentials if fast else softmax_rows)


@wrong("scores.magnitude", UNREPORTED, "mask")
def scores_clamped(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """The scores are clamped to [-50, 50] against overflow; no public report."""
    return hide(s.clamp(-50.0, 50.0), attn_mask, is_causal)


@wrong("scores.default-scale", UNREPORTED)
def half_inside_bfloat16(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """bfloat16 inputs are computed in float16 and overflow; no public report."""
    if query.dtype != torch.bfloat16:
        return attend(query, key, value, attn_mask, is_causal)
    q, k, v = query.half(), key.half(), value.half()
    return attend(q, k, v, attn_mask, is_causal).to(query.dtype)


@wrong("weights.shift", UNREPORTED, "mask")
def hidden_softcap(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """50 * tanh(s / 50), never asked for; no public report."""
    return hide(50.0 * torch.tanh(s / 50.0), attn_mask, is_causal)


@wrong("weights.shift", UNREPORTED, "scores")
def keys_normalised(q: Tensor, k: Tensor, c: float) -> Tensor:
    """Keys longer than sqrt(4 D) are cut to that length; no public report."""
    limit = 2.0 * math.sqrt(k.shape[-1])
    return dot_scores(q, k * (limit / k.norm(dim=-1, keepdim=True).clamp_min(limit)), c)


# tiles and the online softmax -----------------------------------------------------------------------------


def online(
    s: Tensor, v: Tensor, tile: int, start: float = -INF, guard: bool = True, fault: str = "", row: int = -1
) -> Tensor:
    """Softmax and sum over tiles of keys, with a running maximum; `fault` leaves out one rescaling."""
    m = torch.full_like(s[..., :1].sum(-1, keepdim=True), start)
    z, out = torch.zeros_like(m), torch.zeros(*s.shape[:-1], v.shape[-1], dtype=s.dtype, device=s.device)
    rows = torch.arange(s.shape[-2], device=s.device).unsqueeze(-1)
    for a in range(0, s.shape[-1], tile):
        part = s[..., a : a + tile]
        new = torch.maximum(m, part.amax(-1, keepdim=True))
        top = torch.where(new == -INF, 0.0, new) if guard else new
        p, r = (part - top).exp(), (m - top).exp()
        hit = (rows % tile == row % tile) if row >= 0 else rows >= 0
        z = z * (torch.where(hit, 1.0, r) if fault == "sum" else r) + p.sum(-1, keepdim=True)
        out = out * (torch.where(hit, 1.0, r) if fault == "output" else r) + p @ v[..., a : a + tile, :]
        m = new
    return out / (torch.where(z == 0, 1.0, z) if guard else z)


@wrong("weights.oracle", UNREPORTED, "finish")
def online_output_not_rescaled_in_last_row(s: Tensor, v: Tensor) -> Tensor:
    """Tiles of 16: in the last row of a tile the output is not rescaled; no public report."""
    return online(s, v, 16, fault="output", row=15)


@wrong("weights.row-stochastic", UNREPORTED, "finish")
def online_sum_not_rescaled(s: Tensor, v: Tensor) -> Tensor:
    """Tiles of 64: the denominator is not rescaled to the new maximum; no public report."""
    return online(s, v, 64, fault="sum")


@wrong("masks.padding-is-absence", "pytorch/pytorch#127055", "finish")
def first_tile_masked_gives_nan(s: Tensor, v: Tensor) -> Tensor:
    """A first tile of 64 keys that is wholly masked gives (-inf) - (-inf); pytorch/pytorch#127055."""
    if s.shape[-1] <= 64:
        return softmax_rows(s) @ v
    return online(s, v, 64, guard=False)


@wrong("scores.magnitude", UNREPORTED, "finish")
def running_maximum_from_zero(s: Tensor, v: Tensor) -> Tensor:
    """The running maximum starts at 0, so rows of very low scores vanish; no public report."""
    return online(s, v, 16, start=0.0)


@wrong("weights.argmax", "66RING/tiny-flash-attention#12", "mask")
def lone_last_key_dropped(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """A last tile of 64 with one key (Lk % 64 == 1) is never visited; 66RING/tiny-flash-attention#12."""
    s, n = hide(s, attn_mask, is_causal), s.shape[-1]
    last = torch.arange(n, device=s.device) == n - 1
    return s.masked_fill(last, -INF) if n > 1 and n % 64 == 1 else s


@wrong("weights.argmax", UNREPORTED, "mask")
def last_key_of_odd_length_dropped(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Keys are read in pairs, the odd last one is lost; no public report."""
    s, n = hide(s, attn_mask, is_causal), s.shape[-1]
    return s.masked_fill(torch.arange(n, device=s.device) >= max(n // 2 * 2, 1), -INF)


@wrong("weights.argmax", "meta-recsys/generative-recommenders#173", "mask")
def dense_path_drops_last_key(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Only the causal path was tested, the dense one stops early; meta-recsys/generative-recommenders#173."""
    s, n = hide(s, attn_mask, is_causal), s.shape[-1]
    return s if is_causal or n == 1 else s.masked_fill(torch.arange(n, device=s.device) == n - 1, -INF)


@wrong("weights.argmax", "thu-ml/SageAttention#26", "mask")
def keys_past_query_length_dropped(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """The loop over keys runs to the query length, when Lk > Lq > 1; thu-ml/SageAttention#26."""
    s, (m, n) = hide(s, attn_mask, is_causal), s.shape[-2:]
    return s.masked_fill(torch.arange(n, device=s.device) >= m, -INF) if n > m > 1 else s


@wrong("weights.uniform", UNREPORTED, "mask")
def best_32_keys_only(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Only the 32 highest scores of a row are kept; no public report."""
    s = hide(s, attn_mask, is_causal)
    if s.shape[-1] <= 32:
        return s
    return torch.full_like(s, -INF).scatter(-1, s.topk(32).indices, s.topk(32).values)


@wrong("weights.oracle", "flashinfer-ai/flashinfer#1993", "scores")
def only_64_dimensions(q: Tensor, k: Tensor, c: float) -> Tensor:
    """With a head size above 64 the scores see the first 64 dimensions; flashinfer-ai/flashinfer#1993."""
    return dot_scores(q[..., :64], k[..., :64], c)


@wrong("weights.oracle", "66RING/tiny-flash-attention#12", "scores")
def head_size_read_by_four(q: Tensor, k: Tensor, c: float) -> Tensor:
    """The dimensions after the last multiple of four are not read; 66RING/tiny-flash-attention#12."""
    d = q.shape[-1] if q.shape[-1] < 4 else q.shape[-1] // 4 * 4
    return dot_scores(q[..., :d], k[..., :d], c)


@wrong("weights.key-permutation", "pytorch/pytorch#195320", "scores")
def keys_not_transposed_when_square(q: Tensor, k: Tensor, c: float) -> Tensor:
    """Where Lk == D the keys are taken as already transposed; pytorch/pytorch#195320."""
    return (q @ k) * c if k.shape[-1] == k.shape[-2] else dot_scores(q, k, c)


# scale ----------------------------------------------------------------------------------------------------


@wrong("scores.default-scale", UNREPORTED, "factor")
def scale_missing(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """No scale by default; no public report."""
    return 1.0 if scale is None else scale


@wrong("scores.default-scale", UNREPORTED, "factor")
def scale_one_over_d(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """1/D instead of 1/sqrt(D); no public report."""
    return 1 / q.shape[-1] if scale is None else scale


@wrong("scores.default-scale", UNREPORTED, "factor")
def scale_of_d_plus_one(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """1/sqrt(D + 1); no public report."""
    return (q.shape[-1] + 1) ** -0.5 if scale is None else scale


@wrong("scores.default-scale", "AI-Hypercomputer/maxtext#1370", "factor")
def scale_reversed(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """A negative exponent and a division too: multiplied by sqrt(D); AI-Hypercomputer/maxtext#1370."""
    return q.shape[-1] ** 0.5 if scale is None else scale


@wrong("scores.default-scale", "lucidrains/vit-pytorch#65", "factor")
def scale_of_model_width(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """1/sqrt(H * D), the model width instead of the head size; lucidrains/vit-pytorch#65."""
    return (q.shape[-3] * q.shape[-1]) ** -0.5 if scale is None else scale


@wrong("scores.default-scale", UNREPORTED, "factor")
def scale_of_value_size(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """1/sqrt(Dv), which shows where Dv != D; no public report."""
    return v.shape[-1] ** -0.5 if scale is None else scale


@wrong("scores.default-scale", UNREPORTED, "factor")
def scale_of_padded_size(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """1/sqrt of the head size after padding to a multiple of 8; no public report."""
    return (-(-q.shape[-1] // 8) * 8) ** -0.5 if scale is None else scale


@wrong("scores.default-scale", UNREPORTED, "weights")
def exponential_base_two(s: Tensor) -> Tensor:
    """exp2 without the factor log2(e); no public report."""
    return softmax_rows(s * math.log(2.0))


@wrong("scores.scale-argument", "tenstorrent/tt-metal#33304", "factor")
def scale_argument_ignored(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """The scale argument is ignored; tenstorrent/tt-metal#33304."""
    return float(q.shape[-1] ** -0.5)


@wrong("weights.oracle", UNREPORTED, "factor")
def scale_argument_on_top(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """The scale argument multiplies the default; no public report."""
    return float(q.shape[-1] ** -0.5 * (1.0 if scale is None else scale))


@wrong("scores.scale-argument", UNREPORTED, "factor")
def scale_zero_is_default(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """`scale or default`: a scale of zero is not taken; no public report."""
    return scale or q.shape[-1] ** -0.5


@wrong("scores.scale-argument", UNREPORTED, "factor")
def scale_argument_squared(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """A scale that was given multiplies both q and k; no public report."""
    return float(q.shape[-1] ** -0.5 if scale is None else scale * scale)


@wrong("scores.scale-argument", "pytorch/pytorch#174049")
def scale_ignored_without_mask(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, scale: float | None = None
) -> Tensor:
    """The rewritten path without a mask takes the default scale; pytorch/pytorch#174049."""
    return attend(query, key, value, attn_mask, scale=None if attn_mask is None else scale)


@wrong("weights.oracle", "tenstorrent/tt-metal#42891")
def scale_on_mask_too(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Mask = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax((q k + mask) * scale): a finite mask is scaled too; tenstorrent/tt-metal#42891."""
    c = to_scale(query, key, value, scale)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = torch.where(attn_mask == -INF, attn_mask, attn_mask * c)
    return attend(query, key, value, attn_mask, is_causal, c)


# causality ------------------------------------------------------------------------------------------------


def hide_with(keep: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """The mask step with another causal pattern than the triangle."""

    def step(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
        s = apply_mask(s, attn_mask)
        return torch.where(keep(s), s, -INF) if is_causal else s

    return step


@wrong("causality.future-keys", UNREPORTED, "mask")
def causal_sees_next(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """The triangle is one too far right: position i sees i + 1; no public report."""
    return hide_with(lambda s: triangle(s, 1))(s, attn_mask, is_causal)


@wrong("causality.past-matters", UNREPORTED, "mask")
def causal_hides_self(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """The triangle is one too far left: after the first row, position i does not see i; no public report."""
    first = triangle(s) & (torch.arange(s.shape[-2], device=s.device) == 0).unsqueeze(-1)
    return hide_with(lambda s: triangle(s, -1) | first)(s, attn_mask, is_causal)


@wrong("causality.past-matters", UNREPORTED, "mask")
def diagonal_lost_at_tile_edge(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Rows 64, 128, ... do not see themselves; no public report."""
    i, j = torch.arange(s.shape[-2]).unsqueeze(-1), torch.arange(s.shape[-1])
    lost = (i == j) & (i % 64 == 0) & (i > 0)
    return hide_with(lambda s: triangle(s) & ~lost.to(s.device))(s, attn_mask, is_causal)


@wrong("causality.cutoff", UNREPORTED, "mask")
def diagonal_tile_unmasked(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """After the first, tiles of 64 on the diagonal are taken as wholly visible; no public report."""
    i, j = torch.arange(s.shape[-2]).unsqueeze(-1), torch.arange(s.shape[-1])
    tile = (i // 64 == j // 64) & (i >= 64)
    return hide_with(lambda s: triangle(s) | tile.to(s.device))(s, attn_mask, is_causal)


@wrong("causality.past-matters", "huggingface/transformers#38045", "mask")
def window_though_disabled(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """A window of 48 keys that nobody switched on; huggingface/transformers#38045."""
    return hide_with(lambda s: triangle(s) & ~triangle(s, -48))(s, attn_mask, is_causal)


@wrong("causality.past-matters", "huggingface/candle#3299", "mask")
def cached_keys_excluded(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """With Lq < Lk and causal, the first Lk - Lq keys are always masked; huggingface/candle#3299."""
    extra = max(s.shape[-1] - s.shape[-2], 0)
    cached = torch.arange(s.shape[-1], device=s.device) < extra
    return hide_with(lambda s: triangle(s, extra) & ~cached)(s, attn_mask, is_causal)


@wrong("causality.future-keys", "huggingface/transformers#48745", "mask")
def causal_flag_ignored(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """is_causal is accepted and ignored; huggingface/transformers#48745."""
    return hide(s, attn_mask, False)


@wrong("causality.future-keys", "facebookresearch/xformers#103", "mask")
def causal_only_with_mask(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """The triangle is only merged into a mask that exists; facebookresearch/xformers#103."""
    return hide(s, attn_mask, is_causal and attn_mask is not None)


@wrong("causality.flag-and-mask", "keras-team/keras#23038", "mask")
def causal_lost_with_mask(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Causal together with any mask: nothing applies the triangle; keras-team/keras#23038."""
    return hide(s, attn_mask, is_causal and attn_mask is None)


@wrong("causality.flag-and-mask", "huggingface/transformers#30123", "mask")
def causal_lost_with_bias(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Causal together with a float bias: nothing applies the triangle; huggingface/transformers#30123."""
    lost = attn_mask is not None and attn_mask.dtype != torch.bool
    return hide(s, attn_mask, is_causal and not lost)


@wrong("causality.flag-and-mask", "AI-Hypercomputer/maxtext#878", "mask")
def mask_lost_with_causal(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """is_causal makes the mask be ignored; AI-Hypercomputer/maxtext#878."""
    return hide(s, None if is_causal else attn_mask, is_causal)


@wrong("causality.flag-and-mask", UNREPORTED, "mask")
def causal_or_mask(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Causal with a bool mask is the union, not the intersection; no public report."""
    if is_causal and attn_mask is not None and attn_mask.dtype == torch.bool:
        return hide(s, attn_mask | triangle(s), False)
    return hide(s, attn_mask, is_causal)


@wrong("causality.future-keys", "ROCm/aotriton#55", "mask")
def causal_off_when_rectangular(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Causal with Lq != Lk is switched off; ROCm/aotriton#55."""
    return hide(s, attn_mask, is_causal and s.shape[-2] == s.shape[-1])


@wrong("layout.ranks", "keras-team/keras#23038", "mask")
def causal_off_in_rank_three(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Only the 4-D path applies the triangle; keras-team/keras#23038."""
    return hide(s, attn_mask, is_causal and s.dim() == 4)


@wrong("causality.flag-is-triangle", "Dao-AILab/flash-attention#517", "mask")
def causal_alignment_by_length(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Bottom right up to 8 queries, top left above: two meanings; Dao-AILab/flash-attention#517."""
    extra = s.shape[-1] - s.shape[-2]
    return hide_with(lambda s: triangle(s, extra if s.shape[-2] <= 8 else 0))(s, attn_mask, is_causal)


@wrong("causality.flag-is-triangle", UNREPORTED, "mask")
def causal_shifted_halfway(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """The triangle moves by half of Lk - Lq, neither top left nor bottom right; no public report."""
    extra = max(s.shape[-1] - s.shape[-2], 0)
    return hide_with(lambda s: triangle(s, extra // 2))(s, attn_mask, is_causal)


@wrong("causality.future-keys", "openxla/xla#11444", "mask")
def causal_multiplied(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """The scores are multiplied by the triangle, so a future key keeps exp(0); openxla/xla#11444."""
    s = apply_mask(s, attn_mask)
    return s * triangle(s) if is_causal else s


@wrong("causality.cutoff", UNREPORTED, "mask")
def first_key_blind_past_64(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Past 64 keys a causal call sees key 0 in row 0 only; no public report."""
    s = hide(s, attn_mask, is_causal)
    blind = (torch.arange(s.shape[-1]) == 0) & (torch.arange(s.shape[-2]).unsqueeze(-1) > 0)
    return s.masked_fill(blind.to(s.device), -INF) if is_causal and s.shape[-1] > 64 else s


@wrong("causality.cutoff", UNREPORTED, "factor")
def scale_grows_with_length(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> float:
    """log(Lk)/log(32)-scaled scores past 32 keys, never asked for; no public report."""
    n = max(k.shape[-2], 32)
    return to_scale(q, k, v, scale) * math.log(n) / math.log(32)


@wrong("causality.future-keys", UNREPORTED, "scores")
def eight_bit_keys(q: Tensor, k: Tensor, c: float) -> Tensor:
    """Keys in int8 with one scale for all positions: the future sets the rounding; no public report."""
    if k.numel() == 0:
        return dot_scores(q, k, c)
    unit = (k.detach().abs().amax((-1, -2), keepdim=True) / 127).clamp_min(1e-30)
    return dot_scores(q, k + ((k / unit).round() * unit - k).detach(), c)


@wrong("causality.jacobian", UNREPORTED)
def gradient_of_unmasked(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The causal result with the gradient of the dense one (straight-through); no public report."""
    dense = attend(query, key, value)
    return dense + (attend(query, key, value, None, is_causal) - dense).detach()


@wrong("causality.jacobian", UNREPORTED, "scores")
def key_detached(q: Tensor, k: Tensor, c: float) -> Tensor:
    """The keys are detached and never get a gradient; no public report."""
    return dot_scores(q, k.detach(), c)


# heads ----------------------------------------------------------------------------------------------------


@wrong("layout.result", "jsbaan/transformer-from-scratch#6")
def merge_without_transpose(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """(B, H, L, D) is reshaped to (B, L, H, D) instead of transposed; jsbaan/transformer-from-scratch#6."""
    out = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal)
    return out.reshape(q.shape[0], q.shape[1], q.shape[2], v.shape[3])


@wrong("heads.split", "reczoo/FuxiCTR#30")
def split_without_transpose(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, softmax_scale: float | None = None
) -> Tensor:
    """(B, L, H, D) is viewed as (B, H, L, D), and back: chunks of tokens are heads; reczoo/FuxiCTR#30."""

    def heads(t: Tensor) -> Tensor:
        return t.reshape(t.shape[0], t.shape[2], t.shape[1], t.shape[3])

    out = attend(heads(q), heads(k), heads(v), is_causal=causal, scale=softmax_scale)
    return out.reshape(q.shape[0], q.shape[1], q.shape[2], v.shape[3])


@wrong("weights.oracle", "649453932/Chinese-Text-Classification-Pytorch#10")
def flattened_heads_viewed_back(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(H * B, L, D) is viewed back as (B, H, L, D); 649453932/Chinese-Text-Classification-Pytorch#10."""

    def flat(t: Tensor) -> Tensor:
        return t.transpose(0, 1).reshape(-1, *t.shape[2:])

    out = attend(flat(query), flat(key), flat(value))
    return out.view(*query.shape[:-1], value.shape[-1])


@wrong("heads.split", UNREPORTED)
def layout_guessed_from_sizes(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """More heads than queries and keys is taken for the other layout; no public report."""
    if query.dim() == 4 and query.shape[1] > query.shape[2] and query.shape[1:3] == key.shape[1:3]:
        q, k, v = (t.transpose(1, 2) for t in (query, key, value))
        return attend(q, k, v, is_causal=is_causal).transpose(1, 2)
    return attend(query, key, value, is_causal=is_causal)


@wrong("heads.independence", UNREPORTED, "combine")
def values_of_first_head(w: Tensor, v: Tensor) -> Tensor:
    """Every head reads the values of head 0; no public report."""
    return w @ (v[..., :1, :, :].expand_as(v) if v.dim() > 2 else v)


@wrong("heads.independence", UNREPORTED, "mask")
def last_head_hears_the_one_before(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """From three heads on, a thousandth of the scores before is added to the last head; no public report."""
    if s.dim() > 2 and s.shape[-3] > 2:
        s = torch.cat((s[..., :-1, :, :], s[..., -1:, :, :] + 1e-3 * s[..., -2:-1, :, :]), -3)
    return hide(s, attn_mask, is_causal)


@wrong("heads.permutation", UNREPORTED, "mask")
def temperature_by_head(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Head h has its own temperature 1 + h / 100; no public report."""
    if s.dim() > 2:
        s = s * (1 + torch.arange(s.shape[-3], device=s.device, dtype=s.dtype) / 100).view(-1, 1, 1)
    return hide(s, attn_mask, is_causal)


@wrong("weights.oracle", UNREPORTED, "combine")
def last_two_heads_exchanged(w: Tensor, v: Tensor) -> Tensor:
    """With an odd number of heads above one, the last two outputs are exchanged; no public report."""
    out, h = w @ v, w.shape[-3] if w.dim() > 2 else 1
    return torch.cat((out[..., :-2, :, :], out[..., -2:, :, :].flip(-3)), -3) if h > 1 and h % 2 else out


@wrong("heads.grouped", "onnx/onnx#7274", "share")
def kv_heads_tiled(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """kv heads are tiled (0, 1, 0, 1) instead of repeated (0, 0, 1, 1); onnx/onnx#7274."""
    return torch.cat([k] * group(q, k), -3), torch.cat([v] * group(q, k), -3)


@wrong("heads.grouped", "apple/axlearn#842", "share")
def only_values_tiled(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys are repeated, values tiled, half a refactoring; the tiling is apple/axlearn#842."""
    n = group(q, k)
    return k.repeat_interleave(n, -3), torch.cat([v] * n, -3)


@wrong("heads.grouped", "NVIDIA/Megatron-LM#531", "share")
def kv_heads_viewed_permuted(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Heads are repeated in (B, L, H, D) and viewed as (B, H, L, D); NVIDIA/Megatron-LM#531."""
    n = group(q, k)

    def repeat(t: Tensor) -> Tensor:
        return t.transpose(1, 2).repeat_interleave(n, 2).reshape(t.shape[0], -1, *t.shape[2:])

    return (repeat(k), repeat(v)) if n > 1 else (k, v)


@wrong("heads.grouped", "state-spaces/mamba#462", "share")
def kv_heads_not_repeated(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """kv heads are not repeated, the first one serves all; not repeating is state-spaces/mamba#462."""
    return (k, v) if group(q, k) == 1 else (k[..., :1, :, :], v[..., :1, :, :])


@wrong("heads.indivisible", UNREPORTED, "share")
def indivisible_heads_rounded(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """H % Hkv != 0 gives an answer, the last heads share the last kv head; no public report."""
    h, n = torch.arange(q.shape[-3]), max(q.shape[-3] // k.shape[-3], 1)
    index = (h // n).clamp_max(k.shape[-3] - 1).to(q.device)
    return k.index_select(-3, index), v.index_select(-3, index)


# batch ----------------------------------------------------------------------------------------------------


@wrong("batch.slices", UNREPORTED)
def last_sample_reads_first_values(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """With an odd batch above one, the last sample reads the values of the first; no public report."""
    b = value.shape[0]
    v = torch.cat((value[:-1], value[:1])) if b > 1 and b % 2 else value
    return attend(query, key, v, attn_mask, is_causal)


@wrong("batch.slices", UNREPORTED, "mask")
def mask_of_first_sample(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """The mask of the first sample serves the whole batch; no public report."""
    return hide(s, attn_mask[:1] if attn_mask is not None and attn_mask.dim() == 4 else attn_mask, is_causal)


@wrong("batch.slices", "keras-team/keras#20488", "mask")
def mask_by_head_when_sizes_agree(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Where B == H a mask (B, 1, Lq, Lk) goes over heads as (1, H, ...); cf. keras-team/keras#20488."""
    b, h = s.shape[:2]
    if attn_mask is not None and attn_mask.dim() == s.dim() == 4 and attn_mask.shape[1] == 1 and b == h:
        attn_mask = attn_mask.transpose(0, 1)
    return hide(s, attn_mask, is_causal)


@wrong("causality.cutoff", "NVIDIA/FasterTransformer#524", "mask")
def score_offset_overflow(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Offsets into the scores wrap at 2^16 (2^31 in the report); NVIDIA/FasterTransformer#524."""
    if s.numel() > 1 << 16:
        s = s.reshape(-1)[torch.arange(s.numel(), device=s.device) % (1 << 16)].view(s.shape)
    return hide(s, attn_mask, is_causal)


# masks ----------------------------------------------------------------------------------------------------


def fill(s: Tensor, attn_mask: Mask, is_causal: bool, value: float) -> Tensor:
    """The mask step with a finite number for a hidden pair."""
    hidden = hide(torch.zeros_like(s), attn_mask, is_causal)
    return torch.where(hidden == -INF, value, s + hidden)


@wrong("weights.masked-are-zero", "karpathy/minGPT#75", "mask")
def fill_minus_ten_thousand(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """-1e4 for a hidden pair, seen where the visible scores are lower; karpathy/minGPT#75."""
    return fill(s, attn_mask, is_causal, -1e4)


@wrong("weights.masked-are-zero", "lucidrains/nGPT-pytorch#11", "mask")
def fill_minus_ten(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """-10 for a hidden pair, which leaks; lucidrains/nGPT-pytorch#11."""
    return fill(s, attn_mask, is_causal, -10.0)


@wrong("weights.masked-are-zero", "microsoft/onnxruntime#14363", "mask")
def sentinels_added(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Mask and triangle add -1e4 each to the score; microsoft/onnxruntime#14363."""
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        s, attn_mask = s + attn_mask.to(s.dtype).clamp_min(-1e4), None
    s = s if attn_mask is None else s - 1e4 * (~attn_mask)
    return s - 1e4 * (~triangle(s)) if is_causal else s


@wrong("weights.masked-are-zero", "openxla/xla#11444", "mask")
def mask_multiplied(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Scores times bool mask: a hidden key keeps weight exp(0); openxla/xla#11444."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        s, attn_mask = s * attn_mask, None
    return hide(s, attn_mask, is_causal)


@wrong("weights.masked-are-zero", UNREPORTED, "mask")
def mask_row_of_first_query(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """The mask row of the first query serves all queries; no public report."""
    return hide(s, None if attn_mask is None else attn_mask[..., :1, :], is_causal)


@wrong("masks.bool-is-additive", "huggingface/diffusers#14342", "mask")
def bool_mask_added(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """A bool mask goes to the slot of the bias: True adds 1; huggingface/diffusers#14342."""
    return hide(s if attn_mask is None else s + attn_mask.to(s.dtype), None, is_causal)


@wrong("masks.bool-is-additive", "mlwithme/TransformerTranslation#6", "mask")
def polarity_by_rank(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """A bool mask of rank 2 hides where True, of rank 4 where False; mlwithme/TransformerTranslation#6."""
    if attn_mask is not None and attn_mask.dtype == torch.bool and attn_mask.dim() == 2:
        attn_mask = ~attn_mask
    return hide(s, attn_mask, is_causal)


@wrong("masks.bool-is-additive", "pytorch/pytorch#191612")
def mask_bytes_reinterpreted(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """A float32 mask with 16-bit q is read as 16-bit numbers; pytorch/pytorch#191612."""
    if attn_mask is not None and attn_mask.dtype == torch.float32 and query.element_size() == 2:
        attn_mask = attn_mask.contiguous().view(query.dtype)[..., : key.shape[-2]].nan_to_num(0.0)
    return attend(query, key, value, attn_mask, is_causal)


@wrong("layout.strides", "huggingface/accelerate#4177", "mask")
def mask_replaced_by_causal(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Any mask is thrown away and is_causal set instead; huggingface/accelerate#4177."""
    return hide(s, None, is_causal or attn_mask is not None)


@wrong("masks.sensitivity", "OpenNMT/OpenNMT-py#2589", "mask")
def mask_ignored(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """The mask is accepted and ignored; OpenNMT/OpenNMT-py#2589."""
    return hide(s, None, is_causal)


@wrong("masks.padding-is-absence", UNREPORTED, "mask")
def mask_ignored_in_decode(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """With one query the mask is taken as not needed; no public report."""
    return hide(s, None if s.shape[-2] == 1 else attn_mask, is_causal)


@wrong("masks.padding-is-absence", UNREPORTED, "mask")
def mask_skipped_if_first_sample_full(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """The shortcut for a mask without padding looks at the first sample only; no public report."""
    plain = attn_mask is not None and attn_mask.dtype == torch.bool and attn_mask.dim() == 4
    if plain and attn_mask is not None and bool(attn_mask[0].all()):
        attn_mask = None
    return hide(s, attn_mask, is_causal)


@wrong("masks.padding-is-absence", "turboderp-org/exllama#101")
def key_padding_ignored(q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Mask = None) -> Tensor:
    """Padded keys (True) are attended; turboderp-org/exllama#101."""
    return attend(q, k, v)


@wrong("masks.padding-is-absence", "vllm-project/vllm-omni#5865")
def key_padding_zeroes_queries(q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Mask = None) -> Tensor:
    """The padding of the keys (True) also zeroes query rows; vllm-project/vllm-omni#5865."""
    if key_padding_mask is None:
        return attend(q, k, v)
    out, n = attend(q, k, v, ~key_padding_mask[:, None, None, :]), min(q.shape[-2], k.shape[-2])
    lost = F.pad(key_padding_mask[:, :n], (0, q.shape[-2] - n), value=True)
    return out.masked_fill(lost[:, None, :, None], 0.0)


@wrong("masks.padding-is-absence", "pytorch/pytorch#63271")
def key_padding_on_rows_and_columns(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Mask = None, key_padding_mask: Mask = None
) -> Tensor:
    """With a mask (True = attend) padding (True = pad) hides query rows too: NaN; pytorch/pytorch#63271."""
    if key_padding_mask is None or attn_mask is None:
        keep = None if key_padding_mask is None else ~key_padding_mask[:, None, None, :]
        return attend(q, k, v, attn_mask if keep is None else keep)
    keep = ~key_padding_mask[:, None, None, :]
    if q.shape[-2] == k.shape[-2]:
        keep = keep & keep.transpose(-1, -2)
    return attend(q, k, v, attn_mask & keep, weights=lambda s: torch.softmax(s, -1))


@wrong("masks.padding-is-absence", UNREPORTED, "mask")
def mask_transposed_when_square(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """Where Lq == Lk the mask is read transposed; no public report."""
    square = attn_mask is not None and attn_mask.dim() >= 2 and attn_mask.shape[-1] == attn_mask.shape[-2]
    return hide(s, attn_mask.transpose(-1, -2) if square and attn_mask is not None else attn_mask, is_causal)


@wrong("masks.softmax-then-renormalise", UNREPORTED)
def masked_after_softmax(q: Tensor, k: Tensor, v: Tensor, mask: Mask = None) -> Tensor:
    """Hidden weights (mask True) are zeroed after the softmax, the rest is unchanged; no public report."""
    w = softmax_rows(dot_scores(wide(q), wide(k), q.shape[-1] ** -0.5))
    return ((w if mask is None else w.masked_fill(mask, 0.0)) @ wide(v)).to(q.dtype)


@wrong("masks.softmax-then-renormalise", UNREPORTED)
def renormalised_with_epsilon(q: Tensor, k: Tensor, v: Tensor, mask: Mask = None) -> Tensor:
    """Hidden weights (mask True) are zeroed and the rest divided by their sum + 1e-3; no public report."""
    w = softmax_rows(dot_scores(wide(q), wide(k), q.shape[-1] ** -0.5))
    if mask is not None:
        w = w.masked_fill(mask, 0.0)
        w = w / (w.sum(-1, keepdim=True) + 1e-3)
    return (w @ wide(v)).to(q.dtype)


@wrong("masks.softmax-then-renormalise", UNREPORTED)
def renormalised_by_hidden_keys(q: Tensor, k: Tensor, v: Tensor, mask: Mask = None) -> Tensor:
    """Hidden weights (mask True) are zeroed, the rest multiplied by Lk / visible; no public report."""
    w = softmax_rows(dot_scores(wide(q), wide(k), q.shape[-1] ** -0.5))
    if mask is not None:
        w = w.masked_fill(mask, 0.0) * (mask.shape[-1] / (~mask).sum(-1, keepdim=True).clamp_min(1))
    return (w @ wide(v)).to(q.dtype)


@wrong("masks.empty-row", "ml-explore/mlx#2608", "weights")
def empty_row_poisons_its_head(s: Tensor) -> Tensor:
    """The NaN of an empty row spreads to the rows beside it; padded batches poisoned, ml-explore/mlx#2608."""
    w = torch.softmax(s, -1)
    return w + 0.0 * w.sum(-2, keepdim=True)


@wrong("masks.empty-row", "pytorch/pytorch#190486", "weights")
def empty_row_by_path(s: Tensor) -> Tensor:
    """An empty row is NaN up to 16 keys and zero above, two paths; pytorch/pytorch#190486."""
    return torch.softmax(s, -1) if s.shape[-1] <= 16 else softmax_rows(s)


@wrong("masks.empty-row", "huggingface/transformers#27114", "mask")
def two_minima_overflow(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """finfo.min twice is -inf: an empty row attends what is hidden once; huggingface/transformers#27114."""
    lowest, bias = torch.finfo(s.dtype).min, torch.zeros_like(s)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        bias, attn_mask = bias.masked_fill(~attn_mask, lowest), None
    if is_causal:
        bias = bias + torch.zeros_like(s).masked_fill(~triangle(s), lowest)
    return apply_mask(s, attn_mask) + bias


@wrong("masks.empty-row", UNREPORTED, "finish")
def empty_row_keeps_row_before(s: Tensor, v: Tensor) -> Tensor:
    """An empty row shows what the buffer held, the row before; no public report."""
    empty, out = (s == -INF).all(-1, keepdim=True), softmax_rows(s) @ v
    return torch.where(empty, out.roll(1, -2), out)


@wrong("weights.oracle", "Kyubyong/transformer#69", "scores")
def keys_of_zero_sum_masked(q: Tensor, k: Tensor, c: float) -> Tensor:
    """A key whose entries sum to zero is taken for padding; Kyubyong/transformer#69."""
    padding = (k.sum(-1) == 0) & ~(k.sum(-1) == 0).all(-1, keepdim=True)
    return dot_scores(q, k, c).masked_fill(padding.unsqueeze(-2), -INF)


# weights, values, rows ------------------------------------------------------------------------------------


@wrong("weights.hull", UNREPORTED, "finish")
def output_zeros(s: Tensor, v: Tensor) -> Tensor:
    """The output is zero; no public report."""
    return 0.0 * (softmax_rows(s) @ v)


@wrong("weights.argmax", UNREPORTED, "weights")
def output_mean(s: Tensor) -> Tensor:
    """The mean of the visible values, whatever q and k are; no public report."""
    return softmax_rows(torch.where(s == -INF, s, 0.0 * s))


@wrong("weights.hull", UNREPORTED, "combine")
def residual_added(w: Tensor, v: Tensor) -> Tensor:
    """One thousandth of the value at the query's own position is added; no public report."""
    n = min(w.shape[-2], v.shape[-2])
    own = F.pad(v[..., :n, :], (0, 0, 0, w.shape[-2] - n))
    return w @ v + 1e-3 * own


@wrong("weights.value-linear", UNREPORTED, "combine")
def values_clamped(w: Tensor, v: Tensor) -> Tensor:
    """Values are clamped to [-8, 8]; no public report."""
    return w @ v.clamp(-8.0, 8.0)


@wrong("weights.oracle", UNREPORTED, "combine")
def values_from_eight_bits(w: Tensor, v: Tensor) -> Tensor:
    """Values pass through float8 e4m3 and saturate; no public report."""
    return w @ (v + (v.clamp(-448, 448).to(torch.float8_e4m3fn).to(v.dtype) - v).detach())


@wrong("weights.key-permutation", UNREPORTED, "mask")
def hidden_recency(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """A bias of j / 100 for key j, never asked for; no public report."""
    return hide(s + 0.01 * torch.arange(s.shape[-1], device=s.device), attn_mask, is_causal)


@wrong("weights.key-permutation", UNREPORTED, "combine")
def values_rolled_after_lone_tile(w: Tensor, v: Tensor) -> Tensor:
    """Where Lk % 64 == 1 the last two values change places; no public report."""
    if v.shape[-2] > 1 and v.shape[-2] % 64 == 1:
        v = torch.cat((v[..., :-2, :], v[..., -2:, :].flip(-2)), -2)
    return w @ v


@wrong("weights.duplicate-keys", UNREPORTED, "scores")
def equal_neighbours_merged(q: Tensor, k: Tensor, c: float) -> Tensor:
    """A key equal to the key before is skipped; no public report."""
    same = F.pad((k[..., 1:, :] == k[..., :-1, :]).all(-1), (1, 0))
    return dot_scores(q, k, c).masked_fill(same.unsqueeze(-2), -INF)


@wrong("weights.query-rows", UNREPORTED, "scores")
def queries_centred(q: Tensor, k: Tensor, c: float) -> Tensor:
    """The mean query is subtracted from each query; no public report."""
    return dot_scores(q - q.mean(-2, keepdim=True), k, c)


@wrong("weights.query-rows", UNREPORTED, "scores")
def queries_and_keys_exchanged(q: Tensor, k: Tensor, c: float) -> Tensor:
    """Where Lq == Lk the scores are k q^T; no public report."""
    return dot_scores(k, q, c) if q.shape == k.shape else dot_scores(q, k, c)


@wrong("weights.query-rows", UNREPORTED, "finish")
def partial_query_tile_clamped(s: Tensor, v: Tensor) -> Tensor:
    """Past 64 queries, the last row of a partial tile repeats the row before; no public report."""
    out, n = softmax_rows(s) @ v, s.shape[-2]
    return torch.cat((out[..., :-1, :], out[..., -2:-1, :]), -2) if n > 65 and n % 64 else out


@wrong("weights.match-output", "keras-team/keras#23038")
def causal_lost_when_weights_asked(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, need_weights: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Asking for the weights takes a path without the triangle; keras-team/keras#23038."""
    if not need_weights:
        return attend(query, key, value, is_causal=is_causal)
    w = softmax_rows(dot_scores(wide(query), wide(key), query.shape[-1] ** -0.5))
    return (w @ wide(value)).to(query.dtype), w.to(query.dtype)


@wrong("weights.match-output", UNREPORTED)
def weights_before_mask(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> tuple[Tensor, Tensor]:
    """The weights returned are those before the mask; no public report."""
    w = softmax_rows(dot_scores(wide(query), wide(key), query.shape[-1] ** -0.5))
    return attend(query, key, value, attn_mask, is_causal), w.to(query.dtype)


@wrong("weights.match-output", "pytorch/pytorch#27968")
def weights_after_dropout(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> tuple[Tensor, Tensor]:
    """The weights returned went through dropout, the output did not; cf. pytorch/pytorch#27968."""
    s = hide(dot_scores(wide(query), wide(key), query.shape[-1] ** -0.5), None, is_causal)
    w = softmax_rows(s)
    return (w @ wide(value)).to(query.dtype), F.dropout(w, 0.1).to(query.dtype)


# result, strides ------------------------------------------------------------------------------------------


@wrong("layout.result", "huggingface/diffusers#10891")
def result_not_cast_back(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """16-bit inputs give a float32 result; huggingface/diffusers#10891."""
    return attend(wide(query), wide(key), wide(value), attn_mask, is_causal)


@wrong("layout.result", "pytorch/pytorch#130196")
def squeezed_when_alone(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """A batch of one loses an axis; pytorch/pytorch#130196."""
    return attend(query, key, value, attn_mask, is_causal).squeeze(0)


@wrong("layout.result", "pytorch/pytorch#176767")
def result_of_query_size(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """The result is allocated like q, so Dv != D is cut or not filled; pytorch/pytorch#176767."""
    out, d = attend(query, key, value, attn_mask, is_causal), query.shape[-1]
    return F.pad(out[..., :d], (0, max(d - out.shape[-1], 0)))


@wrong("layout.result", "huggingface/diffusers#10303")
def result_transposed_with_mask(query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None) -> Tensor:
    """With a mask the result comes as (B, L, H, D); cf. huggingface/diffusers#10303."""
    out = attend(query, key, value, attn_mask)
    return out if attn_mask is None or out.dim() != 4 else out.transpose(1, 2)


@wrong("layout.result", UNREPORTED)
def value_returned_for_one_key(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """One query and one key: the value itself is returned, not a copy; no public report."""
    one = query.shape[-2] == key.shape[-2] == 1 and query.shape[:-1] == value.shape[:-1]
    return value if one else attend(query, key, value, is_causal=is_causal)


def from_storage(t: Tensor, index: Tensor) -> Tensor:
    """The numbers at these places of t's memory (zero outside of it), with the gradient of t."""
    n = t.untyped_storage().nbytes() // t.element_size()
    memory = F.pad(t.detach().as_strided((n,), (1,), 0), (0, 1))
    read = memory[index.reshape(-1).clamp_max(n)].view(t.shape)
    return t + (read - t.detach())


def as_if_contiguous(t: Tensor) -> Tensor:
    """The tensor read as if its strides were contiguous."""
    if t.is_contiguous() or t.numel() == 0:
        return t
    return from_storage(t, int(t.storage_offset()) + torch.arange(t.numel(), device=t.device))


@wrong("layout.strides", "pytorch/pytorch#163597")
def query_strides_ignored_when_short(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """Up to 8 queries the strides of q are not looked at; pytorch/pytorch#163597."""
    return attend(as_if_contiguous(query) if query.shape[-2] <= 8 else query, key, value, attn_mask, is_causal)


@wrong("layout.strides", "pytorch/pytorch#181133")
def strides_ignored_in_fused_kernel(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """Up to 8 queries of size 64, 96 or 128, all strides are taken as contiguous; pytorch/pytorch#181133."""
    if query.shape[-2] <= 8 and query.shape[-1] in (64, 96, 128):
        query, key, value = (as_if_contiguous(t) for t in (query, key, value))
    return attend(query, key, value, attn_mask, is_causal)


@wrong("layout.strides", "pytorch/pytorch#112577")
def expanded_keys_read_on(query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None) -> Tensor:
    """One query with a mask: an expanded (stride 0) key is read as if copied; pytorch/pytorch#112577."""
    strides = [a for a, n in zip(key.stride(), key.shape, strict=True) if n > 1]
    if attn_mask is not None and query.shape[-2] == 1 and 0 in strides:
        key = as_if_contiguous(key)
    return attend(query, key, value, attn_mask)


@wrong("layout.strides", "pytorch/pytorch#191984")
def storage_offset_ignored(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """A value that starts inside a larger buffer is read from its start; cf. pytorch/pytorch#191984."""
    if value.storage_offset():
        value = from_storage(value, offsets(value) - int(value.storage_offset()))
    return attend(query, key, value, attn_mask, is_causal)


def offsets(t: Tensor) -> Tensor:
    """Where each element lies in the memory of t."""
    index = torch.full(t.shape, int(t.storage_offset()), device=t.device)
    for axis, (n, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
        index = index + (torch.arange(n, device=t.device) * stride).view(-1, *[1] * (t.dim() - axis - 1))
    return index


@wrong("layout.strides", "thu-ml/SageAttention#386")
def fused_view_offset_overflow(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """Offsets into a view wrap at 2^12 (2^31 in the report); thu-ml/SageAttention#386."""
    k = key if key.is_contiguous() else from_storage(key, offsets(key) % (1 << 12))
    return attend(query, k, value, attn_mask, is_causal)


@wrong("layout.strides", UNREPORTED)
def numpy_view_read_from_base(q: Array, k: Array, v: Array) -> Array:
    """A NumPy view of a whole array is read from its base, order lost; no public report."""
    base = v.base if isinstance(v.base, np.ndarray) and v.base.size == v.size else v
    s = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    out: Array = p / p.sum(-1, keepdims=True) @ base.reshape(v.shape)
    return out


# conduct: inputs, state, chance ---------------------------------------------------------------------------


@wrong("conduct.inputs-untouched", UNREPORTED)
def query_scaled_in_place(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Mask = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """q *= scale on the caller's tensor, when a scale is given; no public report."""
    if scale is None:
        return attend(query, key, value, attn_mask, is_causal)
    query.data.mul_(scale)
    return attend(query, key, value, attn_mask, is_causal, 1.0)


@wrong("conduct.inputs-untouched", "huggingface/transformers#25164")
def mask_filled_in_place(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """The triangle is written into the caller's float mask; cf. huggingface/transformers#25164."""
    if is_causal and attn_mask is not None and attn_mask.dtype != torch.bool:
        keep = triangle(query @ key.transpose(-1, -2))
        attn_mask.data.masked_fill_(~keep, -INF)
    return attend(query, key, value, attn_mask, is_causal)


_RINGS: dict[Any, list[Tensor]] = {}


@wrong("conduct.history", UNREPORTED)
def results_in_a_ring(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Three buffers of a shape take turns: the third call later overwrites a result that is still held; no public report."""
    out = attend(query, key, value)
    if out.requires_grad or torch.compiler.is_compiling():
        return out
    ring = _RINGS.setdefault((out.shape, out.dtype), [torch.empty_like(out) for _ in range(3)])
    ring.append(ring.pop(0))
    return ring[-1].copy_(out)


@wrong("conduct.inputs-untouched", UNREPORTED)
def query_buffer_reused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Without gradients the result is written over q; no public report."""
    out = attend(query, key, value)
    free = query.is_contiguous() and out.shape == query.shape and not out.requires_grad
    if not free:
        return out
    return query.copy_(out)


@wrong("conduct.inputs-untouched", UNREPORTED)
def values_cleaned_in_place(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    """NumPy, mask True = attend: values that nobody sees are zeroed in place; no public report."""
    s = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        s = np.where(mask, s, -np.inf)
        seen = np.broadcast_to(mask, s.shape).any(-2)
        v[~np.broadcast_to(seen, v.shape[:-1])] = 0
    p = np.exp(s - np.maximum(s.max(-1, keepdims=True), np.finfo(s.dtype).min))
    z = p.sum(-1, keepdims=True)
    out: Array = p / np.where(z == 0, 1, z).astype(p.dtype) @ v
    return out


@wrong("conduct.repeatable", "karpathy/nanoGPT#240")
def dropout_never_off(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """Dropout of 10 % that nobody asked for; karpathy/nanoGPT#240."""
    return attend(query, key, value, attn_mask, is_causal, combine=lambda w, v: F.dropout(w, 0.1) @ v)


@wrong("conduct.repeatable", "turboderp-org/exllamav3#316")
def padding_uninitialised(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None, is_causal: bool = False
) -> Tensor:
    """A head size that is no power of two is padded with garbage; turboderp-org/exllamav3#316."""
    d = query.shape[-1]
    if d & (d - 1) == 0:
        return attend(query, key, value, attn_mask, is_causal)
    noise = np.random.default_rng(time.perf_counter_ns()).normal(0, 0.3, (key.shape[-2], 1))
    garbage = torch.as_tensor(noise).to(key).expand(*key.shape[:-1], 1)
    q, k = F.pad(query, (0, 1), value=1.0), torch.cat((key, garbage), -1)
    return attend(q, k, value, attn_mask, is_causal, d**-0.5)


@wrong("conduct.repeatable", UNREPORTED, "combine")
def noise_in_long_rows(w: Tensor, v: Tensor) -> Tensor:
    """Above 128 keys two workers race, and now and then the last tile is counted twice; no public report."""
    out = w @ v
    if v.shape[-2] <= 128 or time.perf_counter_ns() // 1000 % 2:
        return out
    return out + w[..., -1:] @ v[..., -1:, :]


_MASKS: dict[tuple[int, ...], Tensor] = {}


@wrong("masks.padding-is-absence", "vllm-project/vllm-ascend#2428")
def mask_cached_by_shape(query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None) -> Tensor:
    """A mask of a shape seen before is not read again; vllm-project/vllm-ascend#2428."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = _MASKS.setdefault(tuple(attn_mask.shape), attn_mask.clone())
    return attend(query, key, value, attn_mask)


_KEYS: dict[tuple[int, ...], Tensor] = {}


@wrong("weights.argmax", "vllm-project/vllm-ascend#2428")
def keys_cached_by_pointer(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Keys are remembered by address, so a refilled buffer is stale; cf. vllm-project/vllm-ascend#2428."""
    name = (key.data_ptr(), *key.shape)
    if name not in _KEYS:
        _KEYS.clear()
        _KEYS[name] = key.detach().clone()
    return attend(query, key + (_KEYS[name].to(key) - key.detach()), value, is_causal=is_causal)


_TRIANGLES: list[Tensor] = []


@wrong("causality.future-keys", "vllm-project/vllm-ascend#2428", "mask")
def triangle_of_longest_call(s: Tensor, attn_mask: Mask, is_causal: bool) -> Tensor:
    """The triangle of the longest call so far is cut at its last rows; cf. vllm-project/vllm-ascend#2428."""
    size = max(s.shape[-2:])
    if not is_causal:
        return hide(s, attn_mask, False)
    if not _TRIANGLES or len(_TRIANGLES[-1]) < size:
        _TRIANGLES[:] = [torch.ones(size, size, dtype=torch.bool).tril()]
    old = _TRIANGLES[-1].to(s.device)
    return torch.where(old[len(old) - s.shape[-2] :, : s.shape[-1]], apply_mask(s, attn_mask), -INF)


# other signatures -----------------------------------------------------------------------------------------


def bshd(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """`attend` in the layout (B, L, H, D), grouped heads by their number."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return attend(q, k, v, enable_gqa=q.shape[1] != k.shape[1], **options).transpose(1, 2)


@wrong("scores.scale-argument", "tenstorrent/tt-metal#33304")
def bshd_scale_ignored(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, softmax_scale: float | None = None
) -> Tensor:
    """(B, L, H, D): softmax_scale is ignored if causal; cf. tenstorrent/tt-metal#33304."""
    return bshd(q, k, v, is_causal=causal, scale=None if causal else softmax_scale)


@wrong("weights.oracle", "Dao-AILab/flash-attention#517")
def bshd_alignment_by_side(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, softmax_scale: float | None = None
) -> Tensor:
    """(B, L, H, D): bottom right, but top left with grouped heads; Dao-AILab/flash-attention#517."""
    extra = k.shape[1] - q.shape[1] if q.shape[2] == k.shape[2] else 0
    step = hide_with(lambda s: triangle(s, extra))
    return bshd(q, k, v, is_causal=causal, scale=softmax_scale, mask=step)


@wrong("heads.grouped", "ekzhang/jax-js#180")
def bshd_kv_heads_tiled(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """(B, L, H, D): kv heads tiled (0, 1, 0, 1); ekzhang/jax-js#180."""

    def tile(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([k] * group(q, k), -3), torch.cat([v] * group(q, k), -3)

    return bshd(q, k, v, is_causal=causal, share=tile)


@wrong("scores.default-scale", "FrancescoSaverioZuppichini/ViT#1")
def bshd_scale_of_width(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """(B, L, H, D): 1/sqrt(H * D); FrancescoSaverioZuppichini/ViT#1."""
    return bshd(q, k, v, is_causal=causal, scale=(q.shape[2] * q.shape[3]) ** -0.5)


@wrong("weights.row-stochastic", "nerdai/llms-from-scratch-rs#30")
def textbook_axis_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(B, L, D), softmax over dim=1; wrong dim as in nerdai/llms-from-scratch-rs#30."""
    return torch.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1]), dim=1) @ v


@wrong("scores.default-scale", "Graylab/DL4Proteins-notebooks#12")
def textbook_scale_of_width(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(B, L, D), scaled by the width of four heads; Graylab/DL4Proteins-notebooks#12."""
    return torch.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(4 * q.shape[-1]), dim=-1) @ v


@wrong("scores.magnitude", "baichuan-inc/Baichuan-13B#140")
def textbook_without_maximum(q: Array, k: Array, v: Array) -> Array:
    """NumPy, (..., L, D): exp without the maximum overflows; cf. baichuan-inc/Baichuan-13B#140."""
    p = np.exp(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype))
    out: Array = p / p.sum(-1, keepdims=True) @ v
    return out


@wrong("weights.masked-are-zero", "karpathy/minGPT#75")
def numpy_small_sentinel(q: Array, k: Array, v: Array, mask: Array | None = None) -> Array:
    """NumPy, mask True = masked, which adds -1e4; karpathy/minGPT#75."""
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
    s = s if mask is None else s + np.asarray(-1e4, q.dtype) * mask
    p = np.exp(s - s.max(-1, keepdims=True))
    out: Array = p / p.sum(-1, keepdims=True) @ v
    return out


@wrong("causality.future-keys", UNREPORTED)
def numpy_triangle_of_ones(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
    """NumPy: np.triu(ones, 2) for the future, one diagonal too far; no public report."""
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
    s = np.where(np.triu(np.ones(s.shape[-2:], bool), 2), -np.inf, s) if causal else s
    p = np.exp(s - s.max(-1, keepdims=True)).astype(q.dtype)
    out: Array = p / p.sum(-1, keepdims=True) @ v
    return out


# custom backward ------------------------------------------------------------------------------------------


def true_backward(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, c: float, g: Tensor) -> Triple:
    """dq, dk, dv of softmax(c q k^T, hidden) v for the upstream gradient g."""
    p = softmax_rows(dot_scores(q, k, c).masked_fill(hidden, -INF))
    dp = g @ v.transpose(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * c
    return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g


class Custom(torch.autograd.Function):
    """Attention with a right forward pass and a backward pass given as a rule."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, c: float, rule: Any) -> Tensor:
        """softmax(c q k^T, hidden) v."""
        ctx.save_for_backward(q, k, v, hidden)
        ctx.c, ctx.rule = c, rule
        w = softmax_rows(dot_scores(wide(q), wide(k), c).masked_fill(hidden, -INF))
        return (w @ wide(v)).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        """What the rule says."""
        q, k, v, hidden = ctx.saved_tensors
        grads = ctx.rule(wide(q), wide(k), wide(v), hidden, ctx.c, g.to(wide(q).dtype))
        return (*(d.to(t.dtype) for d, t in zip(grads, (q, k, v), strict=True)), None, None, None)


def custom(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, rule: Callable[..., Triple]) -> Tensor:
    """Attention whose backward pass is the rule."""
    full = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    hidden = ~full.tril() if is_causal else ~full
    out: Tensor = Custom.apply(q, k, v, hidden, q.shape[-1] ** -0.5, rule)  # type: ignore[no-untyped-call]
    return out


def wrong_backward(
    source: str, law: str = "gradients.oracle"
) -> Callable[[Callable[..., Triple]], Callable[..., Tensor]]:
    """Register attention with the decorated backward rule."""

    def register(rule: Callable[..., Triple]) -> Callable[..., Tensor]:
        def function(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
            return custom(query, key, value, is_causal, rule)

        function.__name__, function.__qualname__ = rule.__name__, rule.__qualname__
        function.__doc__ = rule.__doc__
        catalogue = WRONG if law == "causality.jacobian" else WRONG_BACKWARD
        catalogue.append(Wrong(rule.__name__, function, law, source))
        return function

    return register


@wrong_backward("triton-lang/triton#4541", "causality.jacobian")
def backward_never_causal(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, c: float, g: Tensor) -> Triple:
    """The backward pass ignores the flag and is dense; triton-lang/triton#4541 (there: causal)."""
    return true_backward(q, k, v, torch.zeros_like(hidden), c, g)


@wrong_backward("Dao-AILab/flash-attention#355")
def backward_by_storage(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, c: float, g: Tensor) -> Triple:
    """A strided upstream gradient is read as if contiguous; Dao-AILab/flash-attention#355."""
    return true_backward(q, k, v, hidden, c, as_if_contiguous(g))


@wrong_backward("ooples/AiDotNet.Tensors#49", "gradients.oracle")
def backward_without_keys(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, c: float, g: Tensor) -> Triple:
    """The gradient of the keys is zero; wrong gradients as in ooples/AiDotNet.Tensors#49."""
    dq, dk, dv = true_backward(q, k, v, hidden, c, g)
    return dq, torch.zeros_like(dk), dv


@wrong_backward("triton-lang/triton#4541")
def backward_always_causal(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, c: float, g: Tensor) -> Triple:
    """The backward pass is causal whatever the flag says; triton-lang/triton#4541."""
    return true_backward(q, k, v, ~torch.ones_like(hidden).tril(), c, g)


@wrong_backward("ooples/AiDotNet.Tensors#49")
def backward_without_scale(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, c: float, g: Tensor) -> Triple:
    """dq and dk lack the scale; wrong gradients as in ooples/AiDotNet.Tensors#49."""
    dq, dk, dv = true_backward(q, k, v, hidden, c, g)
    return dq / c, dk / c, dv


@wrong_backward(UNREPORTED)
def backward_without_delta(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, c: float, g: Tensor) -> Triple:
    """dS = P * dP: the row sum of dP * P is not subtracted; no public report."""
    p = softmax_rows(dot_scores(q, k, c).masked_fill(hidden, -INF))
    ds = p * (g @ v.transpose(-1, -2)) * c
    return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g


@wrong_backward(UNREPORTED)
def backward_last_query_lost(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor, c: float, g: Tensor) -> Triple:
    """Where Lq % 64 == 1 the last query gives no gradient to keys and values; no public report."""
    n = q.shape[-2]
    lost = torch.cat((g[..., :-1, :], torch.zeros_like(g[..., -1:, :])), -2) if n > 1 and n % 64 == 1 else g
    _, dk, dv = true_backward(q, k, v, hidden, c, lost)
    return true_backward(q, k, v, hidden, c, g)[0], dk, dv


def mask_without_gradient(query: Tensor, key: Tensor, value: Tensor, attn_mask: Mask = None) -> Tensor:
    """A float mask never gets its gradient; the mask alone requiring one failed in pytorch/pytorch#188302."""
    return attend(query, key, value, None if attn_mask is None else attn_mask.detach())


WRONG_BACKWARD.append(
    Wrong("mask_without_gradient", mask_without_gradient, "gradients.oracle", "pytorch/pytorch#188302")
)
