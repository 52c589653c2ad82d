"""Faults of the options: windows, ALiBi slopes, sinks, soft caps, padding beside a mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .case import Array, Bools, Case, Fault, attend, scores_of, softmax

WINDOW_FIX = "show query i the keys i - left to i + right, both ends included, met with causality and mask"
ALIBI_FIX = "add slope_h * (j - i) to the scaled scores of head h"
SINK_FIX = "add exp(sink_h - max) to the denominator of each row of head h"
CAP_FIX = "cap the scaled scores by cap tanh(s / cap), before bias and mask"
PADDING_FIX = "meet the padding with the mask: a key must be allowed by both"


def _windowed(change: Callable[[Case], Array | None]) -> Callable[[Case], Array | None]:
    return lambda case: None if case.band is None else change(case)


def _band(case: Case, left: int = 0, right: int = 0) -> Bools:
    """The window with its ends moved: positive further away."""
    assert case.call.window is not None
    first, last = case.call.window
    queries, keys = case.shape[2:]
    away = np.arange(keys)[None, :] - np.arange(queries)[:, None] - _anchor(case)
    shown = np.ones((queries, keys), dtype=bool)
    if first is not None:
        shown &= away >= -(first + left)
    if last is not None:
        shown &= away <= last + right
    return shown


def _anchor(case: Case) -> int:
    """S - L where the window is aligned with the last keys, else 0: read off its first row's last key."""
    assert case.call.window is not None
    assert case.band is not None
    queries, keys = case.shape[2:]
    left, right = case.call.window
    for offset in (0, keys - queries):
        away = np.arange(keys)[None, :] - np.arange(queries)[:, None] - offset
        shown = (away >= -(keys + queries if left is None else left)) & (
            away <= (keys + queries if right is None else right)
        )
        if np.array_equal(shown, case.band):
            return offset
    return 0


def _moved(left: int, right: int) -> Callable[[Case], Array | None]:
    return _windowed(lambda c: attend(c, visible=c.pairs(window=_band(c, left, right))))


def _no_window(case: Case) -> Bools:
    return np.ones(case.shape[2:], dtype=bool)


def _window_in_tiles(case: Case) -> Array | None:
    """Whole tiles of 16 keys are shown where one key of them is."""
    if case.band is None or case.shape[3] <= 16:
        return None
    padded = np.pad(case.band, ((0, 0), (0, -case.shape[3] % 16)))
    tiles = np.repeat(padded.reshape(case.shape[2], -1, 16).any(-1), 16, axis=1)[:, : case.shape[3]]
    return attend(case, visible=case.pairs(window=tiles))


def _first_tile_empty(case: Case) -> Array | None:
    """A first tile of 16 keys outside of the window makes the row zero: (-inf) - (-inf) is NaN, then cleaned."""
    if case.band is None or case.shape[3] <= 16:
        return None
    lost = ~case.pairs()[..., :16].any(-1, keepdims=True)
    return np.asarray(np.where(lost, 0.0, attend(case))) if lost.any() else None


def _capped(change: Callable[[Case, float], Array]) -> Callable[[Case], Array | None]:
    return lambda case: None if case.call.softcap is None else change(case, float(case.call.softcap))


def _after_bias(case: Case, cap: float) -> Array:
    """The cap acts on scores, bias and mask together: -inf becomes -cap, a finite score."""
    made = np.where(case.pairs(), scores_of(case, cap=0.0), -np.inf)
    weights = softmax(cap * np.tanh(made / cap), sinks=case.call.sinks)
    return np.asarray(np.matmul(weights, case.grouped(case.call.value)))


def _before_scale(case: Case, cap: float) -> Array:
    return attend(case, cap=0.0, scores=lambda raw: case.scale * cap * np.tanh(raw / case.scale / cap))


def _sloped(change: Callable[[Case, Array], Array | None]) -> Callable[[Case], Array | None]:
    return lambda case: None if case.call.slopes is None else change(case, case.call.slopes)


def _with_slopes(case: Case, slopes: Array, distance: Array | None = None) -> Array:
    away = case.distance if distance is None else distance
    assert away is not None
    return attend(case, slopes=slopes[None, :, None, None] * away)


def _one_head(case: Case, slopes: Array) -> Array | None:
    return None if len(slopes) == 1 else _with_slopes(case, np.broadcast_to(slopes[:1], slopes.shape))


def _sunk(change: Callable[[Case, Array], Array | None]) -> Callable[[Case], Array | None]:
    return lambda case: None if case.call.sinks is None else change(case, case.call.sinks)


def _unshifted(case: Case, sinks: Array) -> Array:
    """exp(sink) is added to a sum of exp(s - max)."""
    made = np.where(case.pairs(), scores_of(case), -np.inf)
    with np.errstate(all="ignore"):
        weights = np.exp(made - made.max(-1, keepdims=True))
        weights = weights / (weights.sum(-1, keepdims=True) + np.exp(sinks)[:, None, None])
    return np.asarray(np.matmul(weights, case.grouped(case.call.value)))


def _none(sinks: Array) -> Array:
    return np.full_like(sinks, -np.inf)


def _padded(change: Callable[[Case], Array | None]) -> Callable[[Case], Array | None]:
    """A change where the call has padding and a mask; one of finite numbers alone is a mask too."""

    def output(case: Case) -> Array | None:
        call = case.call
        return None if call.padding is None or (call.visible is None and call.bias is None) else change(case)

    return output


def _everyone(case: Case) -> Bools:
    return np.ones((case.shape[0], case.shape[3]), dtype=bool)


def _union(case: Case) -> Array:
    assert case.call.padding is not None
    either = case.visible | case.call.padding[:, None, None, :]
    return attend(case, visible=case.pairs(mask=either, padding=_everyone(case)))


#: the conventions of `as_options`, which a fault must not be taken for
OWN = {"window": "left and right", "window_anchor": "bottom-right", "alibi": "-|i - j|", "alignment": "bottom-right"}

_FAULTS: tuple[Fault, ...] = (
    Fault("window ignored", "the window is ignored", WINDOW_FIX, (),
          _windowed(lambda c: attend(c, visible=c.pairs(window=_no_window(c))))),
    Fault("window one key short", "the window shows one key less on the left", WINDOW_FIX, (), _moved(-1, 0)),
    Fault("window one key long", "the window shows one key more on the left", WINDOW_FIX, ("huggingface/transformers#26792", "ml-explore/mlx-lm#390"), _moved(1, 0)),
    Fault("window right end ignored", "the right end of the window is ignored", WINDOW_FIX, (), _moved(0, 10**6)),
    Fault("window right end excluded", "the last key on the right of the window is not shown", WINDOW_FIX,
          ("huggingface/transformers#47010",), _moved(0, -1)),
    Fault("window one key more on the right", "the window shows one key more on the right", WINDOW_FIX, (), _moved(0, 1)),
    Fault("window lost with causal", "the window is ignored where the call is causal", WINDOW_FIX, (),
          _windowed(lambda c: None if c.triangle is None else attend(c, visible=c.pairs(window=_no_window(c))))),
    Fault("causal lost with window", "the causal flag is ignored where the call has a window", WINDOW_FIX, (),
          _windowed(lambda c: None if c.triangle is None else attend(c, visible=c.pairs(causal=_no_window(c))))),
    Fault("mask lost with window", "the mask is ignored where the call has a window", WINDOW_FIX, (),
          _windowed(lambda c: None if c.call.visible is None else attend(c, visible=c.pairs(mask=c.everything())))),
    Fault("window in whole tiles", "the window is widened to whole tiles of 16 keys", WINDOW_FIX, (), _window_in_tiles),
    Fault("first tile outside of the window", "a row whose first 16 keys lie outside of the window is zero",
          "skip tiles that are wholly masked, or guard the running maximum against -inf", (), _first_tile_empty),
    Fault("soft cap ignored", "the soft cap is ignored", CAP_FIX, ("EricLBuehler/mistral.rs#1930", "vllm-project/vllm-metal#666"), _capped(lambda c, cap: attend(c, cap=0.0))),
    Fault("soft cap after the mask", "the soft cap acts on scores and mask together, so that masked keys keep weight",
          CAP_FIX, ("onnx/onnx#7867",), _capped(_after_bias)),
    Fault("soft cap before the scale", "the soft cap acts on q k^T before the scale", CAP_FIX, (), _capped(_before_scale)),
    Fault("soft cap without its factor", "the scores are tanh(s / cap), not multiplied by the cap", CAP_FIX, (),
          _capped(lambda c, cap: attend(c, cap=0.0, scores=lambda raw: np.tanh(raw / cap)))),
    Fault("soft cap as a clamp", "the scores are cut off at the cap", CAP_FIX, (),
          _capped(lambda c, cap: attend(c, cap=0.0, scores=lambda raw: np.clip(raw, -cap, cap)))),
    Fault("slopes ignored", "the ALiBi slopes are ignored", ALIBI_FIX, (), _sloped(lambda c, m: attend(c, slopes=0.0))),
    Fault("slopes reversed", "the ALiBi slopes favour distant keys", ALIBI_FIX, (), _sloped(lambda c, m: _with_slopes(c, -m))),
    Fault("slope of head 0", "all heads take the ALiBi slope of the first", ALIBI_FIX, (), _sloped(_one_head)),
    Fault("slopes in reverse order", "head h takes the ALiBi slope of head H - 1 - h", ALIBI_FIX, (),
          _sloped(lambda c, m: None if len(m) == 1 else _with_slopes(c, m[::-1]))),
    Fault("slopes scaled", "the ALiBi bias is multiplied by the scale", ALIBI_FIX, (), _sloped(lambda c, m: _with_slopes(c, c.scale * m))),
    Fault("slopes lost with a mask", "the ALiBi slopes are ignored where the call has a mask", ALIBI_FIX, (),
          _sloped(lambda c, m: None if c.call.visible is None else attend(c, slopes=0.0))),
    Fault("sinks ignored", "the sinks are ignored", SINK_FIX, (), _sunk(lambda c, z: attend(c, sinks=_none(z)))),
    Fault("sink of head 0", "all heads take the sink of the first", SINK_FIX, (),
          _sunk(lambda c, z: None if len(z) == 1 else attend(c, sinks=np.broadcast_to(z[:1], z.shape)))),
    Fault("sinks scaled", "the sinks are multiplied by the scale", SINK_FIX, (), _sunk(lambda c, z: attend(c, sinks=c.scale * z))),
    Fault("sink not shifted", "exp(sink) is added to a sum of exp(s - max)", SINK_FIX, (), _sunk(_unshifted)),
    Fault("padding lost with a mask", "the key padding is ignored where the call has a mask", PADDING_FIX, (),
          _padded(lambda c: attend(c, visible=c.pairs(padding=_everyone(c))))),
    Fault("padding or mask", "a key is seen where the padding or the mask allows it", PADDING_FIX, (), _padded(_union)),
    Fault("mask lost with padding", "the mask is ignored where the call has key padding", PADDING_FIX, (),
          _padded(lambda c: attend(c, visible=c.pairs(mask=c.everything())))),
)  # fmt: skip

FAULTS: tuple[Fault, ...] = tuple(replace(fault, options=True, conventions=OWN) for fault in _FAULTS)
