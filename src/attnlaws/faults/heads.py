"""Faults of heads and batch: grouped heads, the axes of heads and positions, one head or sample for another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .case import Array, Case, Fault, attend, mixed, weights_of
from .steps import GROUP_FIX, fault, finished, lengths, rescored, where

AXES_FIX = "transpose heads and length before the view"
HEAD_FIX = "index every operand with the head"
BATCH_FIX = "index every operand with the batch"


def _is_grouped(case: Case) -> bool:
    return bool(case.call.key.shape[1] != case.shape[1])


def _tiled(case: Case, array: Array) -> Array:
    """Query head h reads head h mod Hkv."""
    return np.asarray(array[:, np.arange(case.shape[1]) % array.shape[1]])


def _viewed(case: Case, array: Array) -> Array:
    """Heads repeated in (B, S, H, D) and viewed as (B, H, S, D)."""
    repeated = case.grouped(array).swapaxes(1, 2)
    return repeated.reshape(array.shape[0], case.shape[1], *array.shape[2:])


def _first_head(array: Array, heads: int) -> Array:
    return np.broadcast_to(array[:, :1], (array.shape[0], heads, *array.shape[2:]))


def _merged(case: Case, out: Array) -> Array | None:
    """(B, H, L, Dv) is viewed as (B, L, H, Dv)."""
    batch, heads, queries, width = out.shape
    if heads == 1 or queries == 1:
        return None
    return out.reshape(batch, queries, heads, width).swapaxes(1, 2).copy()


def _split(case: Case) -> Array | None:
    """(B, L, H, D) is viewed as (B, H, L, D), and back: chunks of tokens are heads."""
    if case.shape[1] == 1 or max(lengths(case)) == 1:
        return None

    def heads(array: Array) -> Array:
        return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(array.shape)

    call = case.call
    out = attend(case.with_call(query=heads(call.query), key=heads(call.key), value=heads(call.value)))
    batch, number, queries, width = out.shape
    return out.reshape(batch, queries, number, width).swapaxes(1, 2)


def _flattened(case: Case, out: Array) -> Array | None:
    """(H B, L, Dv) is viewed back as (B, H, L, Dv)."""
    if out.shape[0] == 1 or out.shape[1] == 1:
        return None
    return np.ascontiguousarray(out.swapaxes(0, 1)).reshape(out.shape)


def _guessed(case: Case) -> Array | None:
    """More heads than positions is taken for the other layout."""
    call, (_, heads, queries, keys) = case.call, case.shape
    if heads <= queries or queries != keys or call.key.shape[1] != heads or case.has_mask:
        return None
    if call.slopes is not None or call.sinks is not None or case.band is not None:
        return None
    q, k, v = (x.swapaxes(1, 2) for x in (call.query, call.key, call.value))
    triangle = None if case.triangle is None else np.tri(heads, heads, dtype=np.bool_)
    other = replace(case, call=call.but(query=q, key=k, value=v), triangle=triangle)
    return attend(other).swapaxes(1, 2)


def _hears_the_one_before(case: Case, raw: Array) -> Array:
    """A thousandth of the scores before is added to the last head."""
    raw = raw.copy()
    raw[:, -1] += 1e-3 * raw[:, -2]
    return raw


def _last_two_exchanged(case: Case, out: Array) -> Array | None:
    heads = out.shape[1]
    if heads == 1 or heads % 2 == 0:
        return None
    return out[:, [*range(heads - 2), heads - 1, heads - 2]]


def _weights_of_first(case: Case) -> Array:
    return mixed(case, np.broadcast_to(weights_of(case)[:, :1], case.shape))


def _last_sample(case: Case) -> Array:
    """The last sample reads the values of the first."""
    return attend(case.with_call(value=np.concatenate((case.call.value[:-1], case.call.value[:1]))))


def _first_sample(case: Case) -> Array:
    key, value = (np.broadcast_to(x[:1], x.shape) for x in (case.call.key, case.call.value))
    return attend(case.with_call(key=key, value=value))


FAULTS: tuple[Fault, ...] = (
    fault("heads tiled", "query head h reads key head h mod Hkv", GROUP_FIX, where(_is_grouped, lambda c: attend(c, key=_tiled(c, c.call.key), value=_tiled(c, c.call.value))), "apple/axlearn#842", "ekzhang/jax-js#180", "onnx/onnx#7274"),
    fault("values tiled", "keys are repeated for their query heads, values tiled", GROUP_FIX, where(_is_grouped, lambda c: attend(c, value=_tiled(c, c.call.value))), "apple/axlearn#842"),
    fault("keys tiled", "values are repeated for their query heads, keys tiled", GROUP_FIX, where(_is_grouped, lambda c: attend(c, key=_tiled(c, c.call.key))), "apple/axlearn#842"),
    fault("grouped heads viewed", "grouped heads are repeated in (B, S, H, D) and viewed as (B, H, S, D)", GROUP_FIX, where(_is_grouped, lambda c: attend(c, key=_viewed(c, c.call.key), value=_viewed(c, c.call.value))), "NVIDIA/Megatron-LM#531"),
    fault("grouped heads read the first", "all query heads read key head 0 where heads are grouped", GROUP_FIX, where(_is_grouped, lambda c: attend(c, key=_first_head(c.call.key, c.shape[1]), value=_first_head(c.call.value, c.shape[1]))), "state-spaces/mamba#462"),
    fault("value of head 0", "all heads read the values of the first", HEAD_FIX, where(lambda c: c.call.value.shape[1] > 1, lambda c: attend(c, value=_first_head(c.call.value, c.shape[1])))),
    fault("weights of head 0", "all heads use the weights of the first", HEAD_FIX, where(lambda c: c.shape[1] > 1, _weights_of_first)),
    fault("merge without transpose", "heads and positions are exchanged in the output", AXES_FIX, finished(_merged), "jsbaan/transformer-from-scratch#6", "ajhalthor/Transformer-Neural-Network#4"),
    fault("split without transpose", "chunks of positions are taken for heads, on the way in and back", AXES_FIX, _split, "reczoo/FuxiCTR#30", alignment="top-left", mask_means="attend"),
    fault("flat heads viewed back", "(H B, L, Dv) is viewed back as (B, H, L, Dv)", "view back as (H, B, L, Dv) and transpose", finished(_flattened), "649453932/Chinese-Text-Classification-Pytorch#10"),
    fault("layout guessed", "more heads than positions is taken for the other layout, heads and length exchanged", "ask for one layout, and guess nothing", _guessed),
    fault("last head hears the one before", "a thousandth of the scores before is added to those of the last head", HEAD_FIX, where(lambda c: c.shape[1] > 2, rescored(_hears_the_one_before))),
    fault("last heads exchanged", "an odd number of heads has its last two exchanged", HEAD_FIX, finished(_last_two_exchanged)),
    fault("last sample reads the first", "the last sample of an odd batch reads the values of the first", BATCH_FIX, where(lambda c: c.shape[0] > 1 and c.shape[0] % 2 == 1, _last_sample)),
    fault("keys of the first sample", "all samples read the keys and values of the first", BATCH_FIX, where(lambda c: c.shape[0] > 1, _first_sample)),
)  # fmt: skip
