"""The catalogue of faults: attention with one step replaced, each with a name, a sentence and its fix.

The pipeline is scale, score, bias, mask, softmax, combine. A fault gives the output that an implementation with this one
fault would give on a call, or None where it can't differ from the truth there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..targets.call import Call

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Case:
    """One call taken apart: query (B, H, L, D), key and value as given (Hkv heads), the parts of its mask, its scale."""

    call: Call
    scale: float
    default_scale: float
    triangle: Bools | None
    offset: int

    @property
    def visible(self) -> Bools:
        """The mask of the call alone, (B, H, L, S); all True without one."""
        shape = (*self.call.query.shape[:3], self.call.key.shape[2])
        if self.call.visible is None:
            return np.ones(shape, dtype=bool)
        return np.asarray(np.broadcast_to(self.call.visible, shape), dtype=bool)

    @property
    def causal(self) -> Bools:
        """The causal triangle (L, S); all True where the call is not causal."""
        if self.triangle is not None:
            return self.triangle
        return np.ones((self.call.query.shape[2], self.call.key.shape[2]), dtype=bool)

    @property
    def bias(self) -> Array | float:
        """The additive mask, or 0."""
        return 0.0 if self.call.bias is None else self.call.bias

    def grouped(self, array: Array) -> Array:
        """Key or value heads repeated for their query heads."""
        return np.repeat(array, self.call.query.shape[1] // array.shape[1], axis=1)


@dataclass(frozen=True)
class Fault:
    """A named way to be wrong: what happens instead, and what to change."""

    name: str
    sentence: str
    fix: str
    output: Callable[[Case], Array | None]


def _softmax(scores: Array, axis: int = -1) -> Array:
    """The softmax; NaN in a row without a finite score: what it gives is a convention, and tells nothing."""
    with np.errstate(all="ignore"):
        peak = scores.max(axis, keepdims=True)
        weights = np.exp(scores - np.where(np.isfinite(peak), peak, 0.0))
        total = weights.sum(axis, keepdims=True)
        return np.asarray(np.where(total > 0, weights / total, np.nan))


def attend(
    case: Case, *, scale: float | None = None, visible: Bools | None = None, scores: Callable[[Array], Array] | None = None,
    key: Array | None = None, value: Array | None = None, axis: int = -1,
    bias: Array | float | None = None,
) -> Array:  # fmt: skip
    """softmax(scale q k^T + bias, where visible) v with some steps replaced."""
    key = case.grouped(case.call.key) if key is None else key
    value = case.grouped(case.call.value) if value is None else value
    shown = (case.visible & case.causal) if visible is None else visible
    raw = (case.scale if scale is None else scale) * np.matmul(case.call.query, key.swapaxes(-1, -2))
    raw = raw if scores is None else scores(raw)
    return np.asarray(
        np.matmul(_softmax(np.where(shown, raw + (case.bias if bias is None else bias), -np.inf), axis), value)
    )


def _scaled(factor: Callable[[Case], float | None]) -> Callable[[Case], Array | None]:
    def output(case: Case) -> Array | None:
        scale = factor(case)
        return None if scale is None or scale == case.scale else attend(case, scale=scale)

    return output


def _default(change: Callable[[Case], float]) -> Callable[[Case], Array | None]:
    """A fault of the default scale: it shows only where none is given."""
    return _scaled(lambda case: change(case) if case.call.scale is None else None)


def _causal(diagonal: Callable[[Case], int | None]) -> Callable[[Case], Array | None]:
    def output(case: Case) -> Array | None:
        shift = diagonal(case)
        if case.triangle is None or shift is None:
            return None
        queries, keys = case.triangle.shape
        return attend(case, visible=case.visible & np.tri(queries, keys, shift, dtype=bool))

    return output


def _masked(change: Callable[[Case], Array | None]) -> Callable[[Case], Array | None]:
    return lambda case: None if case.call.visible is None else change(case)


def _boolean(change: Callable[[Case], Array | None]) -> Callable[[Case], Array | None]:
    """A fault in the reading of boolean masks: additive ones are read well."""
    return lambda case: None if case.call.visible is None or case.call.route == "additive" else change(case)


def _mask_ignored(case: Case) -> Array | None:
    if case.call.visible is None and case.call.bias is None:
        return None
    return attend(case, visible=np.broadcast_to(case.causal, case.visible.shape), bias=0.0)


def _width(case: Case) -> int:
    return int(case.call.query.shape[-1])


def _filled(fill: float) -> Callable[[Case], Array | None]:
    """A finite number in the place of masked scores."""

    def output(case: Case) -> Array | None:
        shown = case.visible & case.causal
        if shown.all():
            return None
        everywhere = np.ones_like(shown)
        return attend(case, visible=everywhere, scores=lambda raw: np.where(shown, raw, fill))

    return output


def _weights(case: Case, shown: Bools) -> Array:
    key = case.grouped(case.call.key)
    raw = case.scale * np.matmul(case.call.query, key.swapaxes(-1, -2)) + case.bias
    return _softmax(np.where(shown, raw, -np.inf))


def _after_softmax(case: Case) -> Array | None:
    """Weights zeroed after the softmax, and not renormalised."""
    shown = case.visible & case.causal
    if shown.all():
        return None
    return np.asarray(
        np.matmul(np.where(shown, _weights(case, np.ones_like(shown)), 0.0), case.grouped(case.call.value))
    )


def _keys_dropped(which: slice) -> Callable[[Case], Array | None]:
    def output(case: Case) -> Array | None:
        shown = case.visible & case.causal
        shown = shown.copy()
        shown[..., which] = False
        return attend(case, visible=shown)

    return output


def _padded(tile: int) -> Callable[[Case], Array | None]:
    """Zero keys that fill the last tile are counted in the softmax."""

    def output(case: Case) -> Array | None:
        missing = -case.call.key.shape[2] % tile
        if not missing or case.call.bias is not None:
            return None
        key, value = (
            np.pad(case.grouped(x), ((0, 0), (0, 0), (0, missing), (0, 0))) for x in (case.call.key, case.call.value)
        )
        shown = np.pad(case.visible & case.causal, ((0, 0), (0, 0), (0, 0), (0, missing)), constant_values=True)
        return attend(case, key=key, value=value, visible=shown)

    return output


def _denominator(extra: Callable[[Array], Array]) -> Callable[[Case], Array | None]:
    def output(case: Case) -> Array | None:
        shown = case.visible & case.causal
        key = case.grouped(case.call.key)
        raw = np.where(shown, case.scale * np.matmul(case.call.query, key.swapaxes(-1, -2)) + case.bias, -np.inf)
        with np.errstate(all="ignore"):
            peak = raw.max(-1, keepdims=True)
            weights = np.exp(raw - peak)
            weights = weights / (weights.sum(-1, keepdims=True) + extra(peak))
        return np.asarray(np.matmul(np.nan_to_num(weights), case.grouped(case.call.value)))

    return output


def _tiled(case: Case) -> Array | None:
    heads, kv = case.call.query.shape[1], case.call.key.shape[1]
    if kv in (1, heads):
        return None
    order = np.arange(heads) % kv
    return attend(case, key=case.call.key[:, order], value=case.call.value[:, order])


def _first_head(case: Case) -> Array | None:
    if case.call.value.shape[1] == 1:
        return None
    return attend(
        case, value=np.broadcast_to(case.grouped(case.call.value)[:, :1], case.grouped(case.call.value).shape)
    )


def _merged_without_transpose(case: Case) -> Array | None:
    out = attend(case)
    batch, heads, queries, width = out.shape
    return None if heads == 1 or queries == 1 else out.reshape(batch, queries, heads, width).swapaxes(1, 2).copy()


def _exchanged(case: Case) -> Array | None:
    """Queries in the place of keys and keys in the place of queries."""
    queries, keys = case.call.query.shape[2], case.call.key.shape[2]
    if queries != keys or case.call.key.shape[1] != case.call.query.shape[1]:
        return None
    raw = case.scale * np.matmul(case.call.key, case.call.query.swapaxes(-1, -2)) + case.bias
    return np.asarray(np.matmul(_softmax(np.where(case.visible & case.causal, raw, -np.inf)), case.call.value))


def _over(axis: int) -> Callable[[Case], Array | None]:
    return lambda case: attend(case, axis=axis)


def _reduced_like(dtype_step: float) -> Callable[[Case], Array | None]:
    """Weights rounded to a coarse grid before they meet V."""

    def output(case: Case) -> Array | None:
        weights = _weights(case, case.visible & case.causal)
        return np.asarray(np.matmul(np.rint(weights / dtype_step) * dtype_step, case.grouped(case.call.value)))

    return output


def _plain(make: Callable[[Case], Array]) -> Callable[[Case], Array | None]:
    return lambda case: make(case)


def _empty(case: Case) -> Array:
    return np.zeros((*case.call.query.shape[:3], case.call.value.shape[3]))


SCALE_FIX = "multiply q k^T by 1/sqrt(D), D the size of one head"
CAUSAL_FIX = "let query i see key j where j <= i (+ S - L for the bottom-right alignment)"
MASK_FIX = "put -inf in the place of masked scores before the softmax"

FAULTS: tuple[Fault, ...] = (
    Fault("no scale", "the scores are not scaled", SCALE_FIX, _default(lambda c: 1.0)),
    Fault("scale 1/D", "the scores are divided by D instead of sqrt(D)", SCALE_FIX, _default(lambda c: 1.0 / _width(c))),
    Fault("scale reversed", "the scores are multiplied by sqrt(D)", SCALE_FIX, _default(lambda c: _width(c) ** 0.5)),
    Fault("scale of D + 1", "the scale is 1/sqrt(D + 1)", SCALE_FIX, _default(lambda c: (_width(c) + 1.0) ** -0.5)),
    Fault(
        "scale of the model width", "the scale is 1/sqrt(H D), of the whole embedding", SCALE_FIX,
        _default(lambda c: (_width(c) * c.call.query.shape[1]) ** -0.5),
    ),
    Fault(
        "scale of the value size", "the scale is 1/sqrt(Dv)", SCALE_FIX, _default(lambda c: c.call.value.shape[-1] ** -0.5)
    ),
    Fault(
        "scale argument ignored", "the scale that is given is ignored", "use the scale argument where it is not None",
        _scaled(lambda c: c.default_scale if c.call.scale is not None else None),
    ),
    Fault(
        "scale argument on top", "the scale that is given is applied on top of 1/sqrt(D)", "let the argument replace the default",
        _scaled(lambda c: c.scale * c.default_scale if c.call.scale is not None else None),
    ),
    Fault("scale squared", "the scale is applied twice", "scale queries or scores, not both", _scaled(lambda c: c.scale**2)),
    Fault(
        "mask scaled", "the additive mask is multiplied by the scale too", "add the mask after scaling",
        lambda c: None if c.call.bias is None else attend(c, scores=lambda raw: raw + (c.scale - 1.0) * np.asarray(c.bias)),
    ),
    Fault("base 2", "the exponential is 2^s", "multiply the scores by log2(e) before exp2", lambda c: attend(c, scores=lambda raw: np.log(2.0) * (raw + c.bias), bias=0.0)),
    Fault("causal ignored", "the causal flag is ignored", CAUSAL_FIX, lambda c: None if c.triangle is None else attend(c, visible=c.visible)),
    Fault("causal sees next", "each query also sees the key after it", CAUSAL_FIX, _causal(lambda c: c.offset + 1)),
    Fault("causal hides self", "no query sees its own key", CAUSAL_FIX, _causal(lambda c: c.offset - 1)),
    Fault(
        "causal the other way", "the causal triangle is aligned with the other corner", CAUSAL_FIX,
        _causal(lambda c: None if c.call.query.shape[2] == c.call.key.shape[2] else c.call.key.shape[2] - c.call.query.shape[2] - c.offset),
    ),
    Fault(
        "causal transposed", "each query sees the keys from its own on", CAUSAL_FIX,
        lambda c: None if c.triangle is None else attend(c, visible=c.visible & ~np.tri(c.causal.shape[0], c.causal.shape[1], -1, dtype=bool)),
    ),
    Fault("causal fill of zero", "future scores are set to 0, not to -inf", MASK_FIX, _filled(0.0)),
    Fault("mask ignored", "the mask is ignored", MASK_FIX, _mask_ignored),
    Fault("boolean mask ignored", "the boolean mask is ignored", MASK_FIX, _boolean(lambda c: attend(c, visible=np.broadcast_to(c.causal, c.visible.shape)))),
    Fault("mask inverted", "the mask hides what it should show", "exchange True and False", _boolean(lambda c: attend(c, visible=~c.visible & c.causal))),
    Fault(
        "mask added as numbers", "the boolean mask is added to the scores as 1 and 0", MASK_FIX,
        _boolean(lambda c: attend(c, visible=np.broadcast_to(c.causal, c.visible.shape), scores=lambda raw: raw + c.visible)),
    ),
    Fault(
        "mask multiplied", "the scores are multiplied by the mask", MASK_FIX,
        _boolean(lambda c: attend(c, visible=np.broadcast_to(c.causal, c.visible.shape), scores=lambda raw: raw * c.visible)),
    ),
    Fault("mask after softmax", "weights are masked after the softmax and not renormalised", MASK_FIX, _after_softmax),
    Fault("fill of -10", "masked scores are set to -10", MASK_FIX, _filled(-10.0)),
    Fault("fill of -1e4", "masked scores are set to -1e4, which low scores reach", MASK_FIX, _filled(-1e4)),
    Fault(
        "mask of the first sample", "the mask of the first sample is used for all", "index the mask with the batch",
        _masked(lambda c: attend(c, visible=np.broadcast_to(c.visible[:1], c.visible.shape) & c.causal)),
    ),
    Fault("softmax over queries", "the softmax runs over the queries", "take the softmax over the keys, the last axis", _over(-2)),
    Fault("softmax over heads", "the softmax runs over the heads", "take the softmax over the keys, the last axis", _over(1)),
    Fault("softmax over the batch", "the softmax runs over the batch", "take the softmax over the keys, the last axis", _over(0)),
    Fault("last key dropped", "the last key is left out", "loop over all keys, the last partial tile too", _keys_dropped(slice(-1, None))),
    Fault("first key dropped", "the first key is left out", "start at key 0", _keys_dropped(slice(0, 1))),
    *(
        Fault(
            f"padding to {tile} counted", f"keys of zeros that fill a tile of {tile} are counted in the softmax",
            "mask the scores past the last key", _padded(tile),
        )
        for tile in (4, 8, 16, 32, 64, 128)
    ),
    Fault("one added to the denominator", "the softmax is off by one: 1 / (1 + sum exp s)", "divide by the sum of the exponentials", _denominator(lambda peak: np.exp(-peak))),
    Fault("epsilon in the denominator", "one is added to the sum of exp(s - max)", "divide by the sum of the exponentials", _denominator(np.ones_like)),
    Fault("heads tiled", "query head h reads key head h mod Hkv", "repeat_interleave the key heads: h // (H / Hkv)", _tiled),
    Fault("value of head 0", "all heads read the values of the first", "index the values with the head", _first_head),
    Fault("merge without transpose", "heads and positions are exchanged in the output", "transpose heads and length before the view", _merged_without_transpose),
    Fault("queries and keys exchanged", "the scores are k q^T", "multiply q by k transposed", _exchanged),
    Fault("soft cap 50", "the scores are capped by 50 tanh(s / 50)", "leave the scores as they are", lambda c: attend(c, scores=lambda raw: 50 * np.tanh(raw / 50))),
    Fault("soft cap 30", "the scores are capped by 30 tanh(s / 30)", "leave the scores as they are", lambda c: attend(c, scores=lambda raw: 30 * np.tanh(raw / 30))),
    Fault("3-bit weights", "the weights are rounded to eighths", "keep the weights in the working precision", _reduced_like(0.125)),
    Fault("zeros", "the output is zero", "write the output", _plain(_empty)),
    Fault("uniform weights", "all visible keys weigh the same", "use q k^T", lambda c: attend(c, scores=np.zeros_like)),
    Fault("sum in the place of a mean", "the weights are not normalised: exp(s) v", "divide by the sum of the exponentials", lambda c: np.asarray(
        np.matmul(np.where(c.visible & c.causal, np.exp(np.clip(c.scale * np.matmul(c.call.query, c.grouped(c.call.key).swapaxes(-1, -2)) + c.bias, None, 700.0)), 0.0), c.grouped(c.call.value)))),
)  # fmt: skip


def names() -> list[str]:
    """The names of all faults."""
    return [fault.name for fault in FAULTS]
