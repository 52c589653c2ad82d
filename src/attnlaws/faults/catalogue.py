"""The catalogue of faults: attention with one step replaced, each with a name, a sentence and its fix.

The pipeline is scale, score, bias, mask, softmax, combine. A fault gives the output that an implementation with this one
fault would give on a call, or None where it can't differ from the truth there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .case import Array, Bools, Case, Fault, attend, softmax


def _causal_of(case: Case) -> Bools:
    """The causal triangle (L, S); all True where the call is not causal."""
    return np.ones(case.shape[2:], dtype=bool) if case.triangle is None else case.triangle


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
    return attend(case, visible=np.broadcast_to(_causal_of(case), case.visible.shape), bias=0.0)


def _width(case: Case) -> int:
    return int(case.call.query.shape[-1])


def _filled(fill: float) -> Callable[[Case], Array | None]:
    """A finite number in the place of masked scores."""

    def output(case: Case) -> Array | None:
        shown = case.visible & _causal_of(case)
        if shown.all():
            return None
        everywhere = np.ones_like(shown)
        return attend(case, visible=everywhere, scores=lambda raw: np.where(shown, raw, fill))

    return output


def _weights(case: Case, shown: Bools) -> Array:
    key = case.grouped(case.call.key)
    raw = case.scale * np.matmul(case.call.query, key.swapaxes(-1, -2)) + case.bias
    return softmax(np.where(shown, raw, -np.inf))


def _after_softmax(case: Case) -> Array | None:
    """Weights zeroed after the softmax, and not renormalised."""
    shown = case.visible & _causal_of(case)
    if shown.all():
        return None
    return np.asarray(
        np.matmul(np.where(shown, _weights(case, np.ones_like(shown)), 0.0), case.grouped(case.call.value))
    )


def _keys_dropped(which: slice) -> Callable[[Case], Array | None]:
    def output(case: Case) -> Array | None:
        shown = case.visible & _causal_of(case)
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
        shown = np.pad(case.visible & _causal_of(case), ((0, 0), (0, 0), (0, 0), (0, missing)), constant_values=True)
        return attend(case, key=key, value=value, visible=shown)

    return output


def _denominator(extra: Callable[[Array], Array]) -> Callable[[Case], Array | None]:
    def output(case: Case) -> Array | None:
        shown = case.visible & _causal_of(case)
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
    return np.asarray(np.matmul(softmax(np.where(case.visible & _causal_of(case), raw, -np.inf)), case.call.value))


def _over(axis: int) -> Callable[[Case], Array | None]:
    return lambda case: attend(case, axis=axis)


def _reduced_like(dtype_step: float) -> Callable[[Case], Array | None]:
    """Weights rounded to a coarse grid before they meet V."""

    def output(case: Case) -> Array | None:
        weights = _weights(case, case.visible & _causal_of(case))
        return np.asarray(np.matmul(np.rint(weights / dtype_step) * dtype_step, case.grouped(case.call.value)))

    return output


def _plain(make: Callable[[Case], Array]) -> Callable[[Case], Array | None]:
    return lambda case: make(case)


def _empty(case: Case) -> Array:
    return np.zeros((*case.call.query.shape[:3], case.call.value.shape[3]))


SCALE_FIX = "multiply q k^T by 1/sqrt(D), D the size of one head"
CAUSAL_FIX = "let query i see key j where j <= i (+ S - L for the bottom-right alignment)"
MASK_FIX = "put -inf in the place of masked scores before the softmax"


def _fault(name: str, sentence: str, fix: str, output: Callable[[Case], Array | None], *sources: str) -> Fault:
    return Fault(name, sentence, fix, sources, output)


FAULTS: tuple[Fault, ...] = (
    _fault("no scale", "the scores are not scaled", SCALE_FIX, _default(lambda c: 1.0)),
    _fault("scale 1/D", "the scores are divided by D instead of sqrt(D)", SCALE_FIX, _default(lambda c: 1.0 / _width(c))),
    _fault("scale reversed", "the scores are multiplied by sqrt(D)", SCALE_FIX, _default(lambda c: _width(c) ** 0.5)),
    _fault("scale of D + 1", "the scale is 1/sqrt(D + 1)", SCALE_FIX, _default(lambda c: (_width(c) + 1.0) ** -0.5)),
    _fault(
        "scale of the model width", "the scale is 1/sqrt(H D), of the whole embedding", SCALE_FIX,
        _default(lambda c: (_width(c) * c.call.query.shape[1]) ** -0.5),
    ),
    _fault(
        "scale of the value size", "the scale is 1/sqrt(Dv)", SCALE_FIX, _default(lambda c: c.call.value.shape[-1] ** -0.5)
    ),
    _fault(
        "scale argument ignored", "the scale that is given is ignored", "use the scale argument where it is not None",
        _scaled(lambda c: c.default_scale if c.call.scale is not None else None),
    ),
    _fault(
        "scale argument on top", "the scale that is given is applied on top of 1/sqrt(D)", "let the argument replace the default",
        _scaled(lambda c: c.scale * c.default_scale if c.call.scale is not None else None),
    ),
    _fault("scale squared", "the scale is applied twice", "scale queries or scores, not both", _scaled(lambda c: c.scale**2)),
    _fault(
        "mask scaled", "the additive mask is multiplied by the scale too", "add the mask after scaling",
        lambda c: None if c.call.bias is None else attend(c, scores=lambda raw: raw + (c.scale - 1.0) * np.asarray(c.bias)),
    ),
    _fault("base 2", "the exponential is 2^s", "multiply the scores by log2(e) before exp2", lambda c: attend(c, scores=lambda raw: np.log(2.0) * (raw + c.bias), bias=0.0)),
    _fault("causal ignored", "the causal flag is ignored", CAUSAL_FIX, lambda c: None if c.triangle is None else attend(c, visible=c.visible)),
    _fault("causal sees next", "each query also sees the key after it", CAUSAL_FIX, _causal(lambda c: c.offset + 1)),
    _fault("causal hides self", "no query sees its own key", CAUSAL_FIX, _causal(lambda c: c.offset - 1)),
    _fault(
        "causal the other way", "the causal triangle is aligned with the other corner", CAUSAL_FIX,
        _causal(lambda c: None if c.call.query.shape[2] == c.call.key.shape[2] else c.call.key.shape[2] - c.call.query.shape[2] - c.offset),
    ),
    _fault(
        "causal transposed", "each query sees the keys from its own on", CAUSAL_FIX,
        lambda c: None if c.triangle is None else attend(c, visible=c.visible & ~np.tri(_causal_of(c).shape[0], _causal_of(c).shape[1], -1, dtype=bool)),
    ),
    _fault("causal fill of zero", "future scores are set to 0, not to -inf", MASK_FIX, _filled(0.0)),
    _fault("mask ignored", "the mask is ignored", MASK_FIX, _mask_ignored),
    _fault("boolean mask ignored", "the boolean mask is ignored", MASK_FIX, _boolean(lambda c: attend(c, visible=np.broadcast_to(_causal_of(c), c.visible.shape)))),
    _fault("mask inverted", "the mask hides what it should show", "exchange True and False", _boolean(lambda c: attend(c, visible=~c.visible & _causal_of(c)))),
    _fault(
        "mask added as numbers", "the boolean mask is added to the scores as 1 and 0", MASK_FIX,
        _boolean(lambda c: attend(c, visible=np.broadcast_to(_causal_of(c), c.visible.shape), scores=lambda raw: raw + c.visible)),
    ),
    _fault(
        "mask multiplied", "the scores are multiplied by the mask", MASK_FIX,
        _boolean(lambda c: attend(c, visible=np.broadcast_to(_causal_of(c), c.visible.shape), scores=lambda raw: raw * c.visible)),
    ),
    _fault("mask after softmax", "weights are masked after the softmax and not renormalised", MASK_FIX, _after_softmax),
    _fault("fill of -10", "masked scores are set to -10", MASK_FIX, _filled(-10.0)),
    _fault("fill of -1e4", "masked scores are set to -1e4, which low scores reach", MASK_FIX, _filled(-1e4)),
    _fault(
        "mask of the first sample", "the mask of the first sample is used for all", "index the mask with the batch",
        _masked(lambda c: attend(c, visible=np.broadcast_to(c.visible[:1], c.visible.shape) & _causal_of(c))),
    ),
    _fault("softmax over queries", "the softmax runs over the queries", "take the softmax over the keys, the last axis", _over(-2)),
    _fault("softmax over heads", "the softmax runs over the heads", "take the softmax over the keys, the last axis", _over(1)),
    _fault("softmax over the batch", "the softmax runs over the batch", "take the softmax over the keys, the last axis", _over(0)),
    _fault("last key dropped", "the last key is left out", "loop over all keys, the last partial tile too", _keys_dropped(slice(-1, None))),
    _fault("first key dropped", "the first key is left out", "start at key 0", _keys_dropped(slice(0, 1))),
    *(
        _fault(
            f"padding to {tile} counted", f"keys of zeros that fill a tile of {tile} are counted in the softmax",
            "mask the scores past the last key", _padded(tile),
        )
        for tile in (4, 8, 16, 32, 64, 128)
    ),
    _fault("one added to the denominator", "the softmax is off by one: 1 / (1 + sum exp s)", "divide by the sum of the exponentials", _denominator(lambda peak: np.exp(-peak))),
    _fault("epsilon in the denominator", "one is added to the sum of exp(s - max)", "divide by the sum of the exponentials", _denominator(np.ones_like)),
    _fault("heads tiled", "query head h reads key head h mod Hkv", "repeat_interleave the key heads: h // (H / Hkv)", _tiled),
    _fault("value of head 0", "all heads read the values of the first", "index the values with the head", _first_head),
    _fault("merge without transpose", "heads and positions are exchanged in the output", "transpose heads and length before the view", _merged_without_transpose),
    _fault("queries and keys exchanged", "the scores are k q^T", "multiply q by k transposed", _exchanged),
    _fault("soft cap 50", "the scores are capped by 50 tanh(s / 50)", "leave the scores as they are", lambda c: attend(c, scores=lambda raw: 50 * np.tanh(raw / 50))),
    _fault("soft cap 30", "the scores are capped by 30 tanh(s / 30)", "leave the scores as they are", lambda c: attend(c, scores=lambda raw: 30 * np.tanh(raw / 30))),
    _fault("3-bit weights", "the weights are rounded to eighths", "keep the weights in the working precision", _reduced_like(0.125)),
    _fault("zeros", "the output is zero", "write the output", _plain(_empty)),
    _fault("uniform weights", "all visible keys weigh the same", "use q k^T", lambda c: attend(c, scores=np.zeros_like)),
    _fault("sum in the place of a mean", "the weights are not normalised: exp(s) v", "divide by the sum of the exponentials", lambda c: np.asarray(
        np.matmul(np.where(c.visible & _causal_of(c), np.exp(np.clip(c.scale * np.matmul(c.call.query, c.grouped(c.call.key).swapaxes(-1, -2)) + c.bias, None, 700.0)), 0.0), c.grouped(c.call.value)))),
)  # fmt: skip


def names() -> list[str]:
    """The names of all faults."""
    return [fault.name for fault in FAULTS]
