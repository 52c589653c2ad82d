"""Faults of state: results kept by shape, address or count of calls, random numbers, and settings left changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .case import Fault
from .plain import INF, attention, function, hide, scores_of, softmax, wide

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor

KEEP_FIX = "keep nothing between calls that depends on the values of an argument"
CHANCE_FIX = "draw no random number in a call without dropout"
SETTING_FIX = "leave global settings as they were"

_OUTPUTS_BY_SHAPE: dict[tuple[Any, ...], Tensor] = {}
_OUTPUTS_BY_ADDRESS: dict[tuple[Any, ...], Tensor] = {}
_MASKS: dict[tuple[int, ...], Tensor] = {}
_KEYS: dict[tuple[int, ...], Tensor] = {}
_TRIANGLES: list[Tensor] = []
_CALLS: list[int] = [0]
_RACES: list[int] = [0]


def _shapes(*tensors: Tensor) -> tuple[Any, ...]:
    return (*(tuple(t.shape) for t in tensors), tensors[0].dtype)


def replayed_by_shape(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The output of the first call with these shapes is given again."""
    name = _shapes(query, key, value)
    if name not in _OUTPUTS_BY_SHAPE:
        _OUTPUTS_BY_SHAPE[name] = attention(query, key, value).detach().clone()
    return _OUTPUTS_BY_SHAPE[name].clone()


def replayed_by_address(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The output of the last call with tensors at these addresses is given again."""
    name = (*(t.data_ptr() for t in (query, key, value)), *_shapes(query, key, value))
    if name not in _OUTPUTS_BY_ADDRESS:
        _OUTPUTS_BY_ADDRESS.clear()
        _OUTPUTS_BY_ADDRESS[name] = attention(query, key, value).detach().clone()
    return _OUTPUTS_BY_ADDRESS[name].clone()


def lazy_every_third_call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """After a hundred calls every third gives the mean of V."""
    _CALLS[0] += 1
    if _CALLS[0] > 100 and _CALLS[0] % 3 == 0:
        return attention(0.0 * query, key, value)
    return attention(query, key, value)


def mask_kept_by_shape(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A mask of a shape seen before is not read again."""
    if attn_mask is not None and not attn_mask.dtype.is_floating_point:
        attn_mask = _MASKS.setdefault(tuple(attn_mask.shape), attn_mask.clone())
    return attention(query, key, value, attn_mask)


def keys_kept_by_address(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Keys are kept by their address: new values in the same memory are not seen."""
    name = (key.data_ptr(), *key.shape)
    if name not in _KEYS:
        _KEYS.clear()
        _KEYS[name] = key.detach().clone()
    return attention(query, key + (_KEYS[name].to(key) - key.detach()), value, causal=is_causal)


def triangle_kept(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """The triangle of the longest call so far is cut at its last rows."""
    scores = scores_of(query, key)
    if not is_causal:
        return attention(query, key, value)
    size = max(scores.shape[-2:])
    if not _TRIANGLES or len(_TRIANGLES[-1]) < size:
        _TRIANGLES[:] = [scores.new_ones(size, size).bool().tril()]
    kept = _TRIANGLES[-1][len(_TRIANGLES[-1]) - scores.shape[-2] :, : scores.shape[-1]].to(scores.device)
    return (softmax(scores.masked_fill(~kept, -INF)) @ wide(value)).to(query.dtype)


def noise(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The output is noise that no input enters, the same for the same shapes."""
    import torch

    made = torch.Generator().manual_seed(query.numel())
    return torch.randn(*query.shape[:-1], value.shape[-1], generator=made).to(query)


def noise_added(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Noise of a thousandth is added to the output."""
    import torch

    out = attention(query, key, value, causal=is_causal)
    return out + 1e-3 * torch.randn(out.shape).to(out)


def raced(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """Above 16 keys two workers race, and in one call of four the last key counts twice."""
    out = attention(query, key, value, causal=is_causal)
    _RACES[0] += 1
    if key.shape[-2] <= 16 or _RACES[0] % 4:
        return out
    weights = softmax(hide(scores_of(query, key), None, is_causal)).to(value.dtype)
    return out + weights[..., -1:] @ value[..., -1:, :]


def padding_uninitialised(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """A head size that is no power of two is filled up with what the memory held."""
    import time

    import torch

    width = query.shape[-1]
    if width & (width - 1) == 0:
        return attention(query, key, value, causal=is_causal)
    held = torch.Generator().manual_seed(time.perf_counter_ns())
    garbage = (0.3 * torch.randn(key.shape[-2], 1, generator=held)).to(key).expand(*key.shape[:-1], 1)
    q, k = torch.cat((query, torch.ones_like(query[..., :1])), -1), torch.cat((key, garbage), -1)
    return attention(q, k, value, causal=is_causal, scale=width**-0.5)


def random_state_drawn(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """A random number is drawn in each call, for a dropout that is off."""
    import torch

    torch.rand(1)
    return attention(query, key, value, causal=is_causal)


def default_dtype_changed(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """16-bit inputs leave the default dtype changed."""
    import torch

    if query.dtype.itemsize == 2:
        torch.set_default_dtype(query.dtype)
    return attention(query, key, value, causal=is_causal)


def threads_changed(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    """More than 64 keys leave the number of threads changed."""
    import torch

    if key.shape[-2] > 64:
        torch.set_num_threads(torch.get_num_threads() % 2 + 1)
    return attention(query, key, value, causal=is_causal)


FAULTS: tuple[Fault, ...] = (
    function("replayed by shape", "the output of the first call with these shapes is given again", KEEP_FIX, "weights.oracle", replayed_by_shape),
    function("replayed by address", "the output of the last call with tensors at these addresses is given again", KEEP_FIX, "conduct.history", replayed_by_address),
    function("replayed by count", "after a hundred calls every third gives the mean of V", KEEP_FIX, "weights.oracle", lazy_every_third_call),
    function("mask kept by shape", "a mask of a shape seen before is not read again", KEEP_FIX, "weights.oracle", mask_kept_by_shape, "vllm-project/vllm-ascend#2428"),
    function("keys kept by address", "new keys in the memory of old ones are not seen", KEEP_FIX, "conduct.history", keys_kept_by_address, "vllm-project/vllm-ascend#2428"),
    function("triangle kept", "the triangle of the longest call so far is cut at its last rows", KEEP_FIX, "causality.future-keys", triangle_kept, "vllm-project/vllm-ascend#2428", same_as="causal lost without a mask"),
    function("noise", "the output is noise that no input enters", "compute softmax(scale q k^T + mask) v", "weights.oracle", noise),
    function("noise added", "noise of a thousandth is added to the output", CHANCE_FIX, "conduct.repeatable", noise_added),
    function("a race", "above 16 keys the last key counts twice now and then", "add up in a fixed order, each tile once", "conduct.repeatable", raced),
    function("padding not initialised", "a head size that is no power of two is filled up with what the memory held", "fill up with zeros", "conduct.repeatable", padding_uninitialised, "turboderp-org/exllamav3#316"),
    function("random number drawn", "a random number is drawn in each call", CHANCE_FIX, "conduct.global-state", random_state_drawn),
    function("default dtype changed", "16-bit inputs leave the default dtype changed", SETTING_FIX, "conduct.global-state", default_dtype_changed),
    function("threads changed", "more than 64 keys leave the number of threads changed", SETTING_FIX, "conduct.global-state", threads_changed),
)  # fmt: skip
