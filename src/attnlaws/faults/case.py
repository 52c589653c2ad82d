"""One call taken apart into the steps of attention, and attention made of these steps, each of which a fault may replace.

The pipeline is scale, soft cap, bias (mask values and ALiBi), mask (given, causal, window), softmax (with sinks), combine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..targets.call import Call

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Case:
    """One call taken apart under the conventions of a target.

    query (B, H, L, D), key and value as given (Hkv heads). `triangle` is the causal one (L, S), `band` the window (L, S),
    None where the call asks for none; `offset` is S - L where queries are aligned with the last keys, else 0;
    `distance` (L, S) is what the ALiBi slopes multiply.
    """

    call: Call
    scale: float
    default_scale: float
    triangle: Bools | None
    offset: int
    band: Bools | None = None
    distance: Array | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, L, S."""
        batch, heads, queries, _ = self.call.query.shape
        return batch, heads, queries, self.call.key.shape[2]

    @property
    def width(self) -> int:
        """D, the size of one head."""
        return int(self.call.query.shape[-1])

    @property
    def visible(self) -> Bools:
        """The mask of the call alone, (B, H, L, S); all True without one."""
        if self.call.visible is None:
            return np.ones(self.shape, dtype=bool)
        return np.asarray(np.broadcast_to(self.call.visible, self.shape), dtype=bool)

    def pairs(
        self, *, mask: Bools | None = None, causal: Bools | None = None, window: Bools | None = None,
        padding: Bools | None = None,
    ) -> Bools:  # fmt: skip
        """Which pairs may attend, (B, H, L, S), with the mask, the triangle, the window or the padding (B, S) replaced."""
        shown = self.visible if mask is None else np.broadcast_to(mask, self.shape)
        for own, other in ((self.triangle, causal), (self.band, window)):
            part = own if other is None else other
            shown = shown if part is None else shown & part
        row = self.call.padding if padding is None else padding
        return np.asarray(shown if row is None else shown & row[:, None, None, :])

    def everything(self) -> Bools:
        """All pairs."""
        return np.ones(self.shape, dtype=bool)

    @property
    def has_mask(self) -> bool:
        """Whether the call gives a mask, boolean or additive."""
        return self.call.visible is not None or self.call.bias is not None

    @property
    def has_boolean_mask(self) -> bool:
        """Whether the call gives a boolean mask."""
        return self.call.visible is not None and self.call.route != "additive"

    def with_call(self, **changes: Any) -> Case:
        """This case with other arguments in its call."""
        return replace(self, call=self.call.but(**changes))

    @property
    def bias(self) -> Array | float:
        """The additive mask, or 0."""
        return 0.0 if self.call.bias is None else self.call.bias

    def slopes(self) -> Array | float:
        """The ALiBi bias slope * distance (1, H, L, S), or 0."""
        if self.call.slopes is None or self.distance is None:
            return 0.0
        return np.asarray(self.call.slopes[None, :, None, None] * self.distance)

    def grouped(self, array: Array) -> Array:
        """Key or value heads repeated for their query heads: head h reads h // (H / Hkv)."""
        return np.repeat(array, self.call.query.shape[1] // array.shape[1], axis=1)


Output = Callable[[Case], Array | None]
Gradients = tuple[Array, Array, Array]


@dataclass(frozen=True)
class Fault:
    """A named way to be wrong: what happens instead, what to change, and who reported it.

    Exactly one of three is given. `output`: what an implementation with this one fault gives on a case, None where it can't
    differ from the truth there. `gradients`: likewise (dq, dk, dv) for an upstream gradient, the output being right.
    `function`: a small attention function of torch tensors, for what is no step: strides, memory, state, tiles.
    """

    name: str
    sentence: str
    fix: str
    sources: tuple[str, ...] = ()
    output: Output | None = None
    gradients: Callable[[Case, Array], Gradients | None] | None = None
    function: Callable[..., Any] | None = None
    #: conventions that must be declared, where another choice of theirs would make the fault right
    conventions: Mapping[str, str] = field(default_factory=dict)
    #: the law that meets the fault first; for `function` its break says what is wrong, in its own words
    law: str = ""
    #: the fault is one of options: its function takes a window, a soft cap, slopes, sinks and key padding
    options: bool = False
    #: a fault that nothing can tell from it within one process: its name is right too
    same_as: str = ""


def softmax(scores: Array, axis: int = -1, sinks: Array | None = None) -> Array:
    """The softmax; NaN in a row without a finite score: what it gives is a convention, and tells nothing.

    `sinks` (H,) are logits that join the denominator only.
    """
    with np.errstate(all="ignore"):
        peak = scores.max(axis, keepdims=True)
        if sinks is not None:
            peak = np.maximum(peak, sinks[:, None, None])
        peak = np.where(np.isfinite(peak), peak, 0.0)
        weights = np.exp(scores - peak)
        total = weights.sum(axis, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sinks[:, None, None] - peak)
        return np.asarray(np.where(total > 0, weights / total, np.nan))


def scores_of(
    case: Case, *, scale: float | None = None, key: Array | None = None, bias: Array | float | None = None,
    slopes: Array | float | None = None, change: Callable[[Array], Array] | None = None, cap: float | None = None,
) -> Array:  # fmt: skip
    """cap tanh(scale q k^T / cap) + slopes + bias, (B, H, L, S), with some steps replaced; `change` acts on scale q k^T.

    A `cap` of 0 caps nothing.
    """
    key = case.grouped(case.call.key) if key is None else key
    raw = (case.scale if scale is None else scale) * np.matmul(case.call.query, key.swapaxes(-1, -2))
    raw = raw if change is None else change(raw)
    cap = case.call.softcap if cap is None else cap
    raw = cap * np.tanh(raw / cap) if cap else raw
    return np.asarray(raw + (case.slopes() if slopes is None else slopes) + (case.bias if bias is None else bias))


def attend(
    case: Case, *, scale: float | None = None, visible: Bools | None = None, scores: Callable[[Array], Array] | None = None,
    key: Array | None = None, value: Array | None = None, axis: int = -1, bias: Array | float | None = None,
    slopes: Array | float | None = None, cap: float | None = None, sinks: Array | None = None, fill: float = -np.inf,
) -> Array:  # fmt: skip
    """Attention (B, H, L, Dv) with some steps replaced. `visible` are the pairs that may attend, `scores` changes
    scale q k^T, `sinks` an array of -inf stands for none, `fill` is what masked scores are set to.
    """
    value = case.grouped(case.call.value) if value is None else value
    shown = case.pairs() if visible is None else visible
    made = scores_of(case, scale=scale, key=key, bias=bias, slopes=slopes, change=scores, cap=cap)
    sinks = case.call.sinks if sinks is None else sinks
    return np.asarray(np.matmul(softmax(np.where(shown, made, fill), axis, sinks), value))


def weights_of(case: Case, shown: Bools | None = None) -> Array:
    """The weights (B, H, L, S) where `shown`, by default where the case allows."""
    shown = case.pairs() if shown is None else shown
    return softmax(np.where(shown, scores_of(case), -np.inf), sinks=case.call.sinks)


def mixed(case: Case, weights: Array) -> Array:
    """Weights (B, H, L, S) times the values: the output (B, H, L, Dv)."""
    return np.asarray(np.matmul(weights, case.grouped(case.call.value)))
