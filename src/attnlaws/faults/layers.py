"""Named faults of layers: the oracle's layer with one step replaced.

Where the projections were found by name but the oracle's layer with them gives another output, a fault that gives the
module's own output says what the module does instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..reference import oracle
from ..targets.call import Array, BoolArray
from ..targets.layer import LayerTarget
from ..targets.layer_weights import Probe, Projections, Slot, candidates, oracle_layer


@dataclass(frozen=True)
class Layer:
    """What a fault works on: the projections, the parameters, the input, and who sees whom (L, L)."""

    p: Projections
    values: Mapping[str, Array]
    x: Array
    visible: BoolArray

    def but(self, **changes: Slot | float | None) -> Array:
        """The oracle's output with other projections or another scale."""
        return oracle_layer(replace(self.p, **changes), self.values, self.x, self.shown).output  # type: ignore[arg-type]

    @property
    def shown(self) -> BoolArray:
        """(B, L, L)."""
        return np.array(np.broadcast_to(self.visible, (self.x.shape[0], *self.visible.shape)))

    def flat(self, slot: Slot) -> Array:
        """x W^T + b (B, L, out)."""
        return np.asarray(self.x @ slot.matrix(self.values).T + slot.offset(self.values))

    def split(self, slot: Slot, heads: int, *, turned: bool = True) -> Array:
        """(B, H, L, D), by a view and a transposition, or by a view alone."""
        flat = self.flat(slot)
        batch, length = flat.shape[:2]
        if not turned:
            return flat.reshape(batch, heads, length, -1)
        return flat.reshape(batch, length, heads, -1).swapaxes(1, 2)

    def heads(self, *, turned: bool = True) -> tuple[Array, Array, Array]:
        """q, k, v."""
        p = self.p
        return (
            self.split(p.q, p.heads, turned=turned),
            self.split(p.k, p.kv_heads, turned=turned),
            self.split(p.v, p.kv_heads, turned=turned),
        )

    def attended(self, q: Array, k: Array, v: Array) -> Array:
        """The heads' outputs (B, H, L, D)."""
        found: Array = oracle.attention(q, k, v, visible=self.visible, scale=self.p.scale, empty_row="nan").output
        return found

    def ended(self, heads: Array, *, turned: bool = True) -> Array:
        """Merged, and through the output projection."""
        laid = heads.swapaxes(1, 2) if turned else heads
        merged = laid.reshape(self.x.shape[0], self.x.shape[1], -1)
        if self.p.o is None:
            return merged
        return np.asarray(merged @ self.p.o.matrix(self.values).T + self.p.o.offset(self.values))


@dataclass(frozen=True)
class LayerFault:
    """A name, what happens instead, the fix, and the output; None where it can't differ from the truth."""

    name: str
    sentence: str
    fix: str
    output: Callable[[Layer], Array | None]


def _softmax_over(layer: Layer, axis: int) -> Array:
    q, k, v = layer.heads()
    k, v = (np.repeat(t, layer.p.heads // layer.p.kv_heads, axis=1) for t in (k, v))
    scores = np.where(layer.visible, layer.p.scale * (q @ k.swapaxes(-1, -2)), -np.inf)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - np.nanmax(scores, axis=axis, keepdims=True))
        weights = weights / weights.sum(axis=axis, keepdims=True)
    return layer.ended(weights @ v)


def _zeroed_after(layer: Layer) -> Array | None:
    if layer.visible.all():
        return None
    q, k, v = layer.heads()
    k, v = (np.repeat(t, layer.p.heads // layer.p.kv_heads, axis=1) for t in (k, v))
    scores = layer.p.scale * (q @ k.swapaxes(-1, -2))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return layer.ended(weights / weights.sum(-1, keepdims=True) * layer.visible @ v)


def _tiled(layer: Layer) -> Array | None:
    p = layer.p
    if p.kv_heads in (1, p.heads):
        return None
    q, k, v = layer.heads()
    return layer.ended(layer.attended(q, *(np.tile(t, (1, p.heads // p.kv_heads, 1, 1)) for t in (k, v))))


def _without_bias(*names: str) -> Callable[[Layer], Array | None]:
    def output(layer: Layer) -> Array | None:
        slots = {name: getattr(layer.p, name) for name in names}
        if not any(slot is not None and slot.bias for slot in slots.values()):
            return None
        return layer.but(**{name: replace(slot, bias="") for name, slot in slots.items() if slot is not None})

    return output


def _without_o(layer: Layer) -> Array | None:
    return None if layer.p.o is None else layer.but(o=None)


def _turned_o(layer: Layer) -> Array | None:
    p = layer.p
    if p.o is None or len(p.o.rows) != layer.values[p.o.weight].shape[1]:
        return None
    return layer.but(o=replace(p.o, turned=not p.o.turned))


def _viewed(layer: Layer) -> Array:
    return layer.ended(layer.attended(*layer.heads(turned=False)))


def _viewed_both(layer: Layer) -> Array:
    return layer.ended(layer.attended(*layer.heads(turned=False)), turned=False)


def _swapped(first: str, second: str) -> Callable[[Layer], Array | None]:
    def output(layer: Layer) -> Array | None:
        one, other = getattr(layer.p, first), getattr(layer.p, second)
        if layer.p.fused:  # the order in a fused matrix is a choice
            return None
        return layer.but(**{first: other, second: one}) if len(one.rows) == len(other.rows) else None

    return output


def _used_for(used: str, place: str) -> Callable[[Layer], Array | None]:
    def output(layer: Layer) -> Array | None:
        one, other = getattr(layer.p, used), getattr(layer.p, place)
        return layer.but(**{place: one}) if len(one.rows) == len(other.rows) else None

    return output


_DIVIDE = "divide the scores by sqrt(D), D the width of one head"
_TRANSPOSE = "view(B, L, H, D).transpose(1, 2) to split, transpose(1, 2).reshape(B, L, H * D) to merge"

LAYER_FAULTS = (
    LayerFault("scale of the width", "scores are divided by sqrt of the width of all heads", _DIVIDE, lambda m: m.but(scale=len(m.p.q.rows) ** -0.5)),
    LayerFault("scale of the input", "scores are divided by sqrt of the width of the input", _DIVIDE, lambda m: m.but(scale=m.x.shape[-1] ** -0.5)),
    LayerFault("no scale", "scores are not scaled", _DIVIDE, lambda m: m.but(scale=1.0)),
    LayerFault("scale squared", "scores are scaled twice", _DIVIDE, lambda m: m.but(scale=m.p.scale**2)),
    LayerFault("merge without transposition", "heads are merged by a view without a transposition", _TRANSPOSE, lambda m: m.ended(m.attended(*m.heads()), turned=False)),
    LayerFault("view before transposition", "heads are split by a view without a transposition", _TRANSPOSE, _viewed),
    LayerFault("views alone", "heads are split and merged by views without transpositions", _TRANSPOSE, _viewed_both),
    LayerFault("query for key", "the query projection gives the keys", "give the keys their own projection", _used_for("q", "k")),
    LayerFault("key for query", "the key projection gives the queries", "give the queries their own projection", _used_for("k", "q")),
    LayerFault("key for value", "the key projection gives the values", "give the values their own projection", _used_for("k", "v")),
    LayerFault("query for value", "the query projection gives the values", "give the values their own projection", _used_for("q", "v")),
    LayerFault("value for key", "the value projection gives the keys", "give the keys their own projection", _used_for("v", "k")),
    LayerFault("query and key swapped", "queries and keys are swapped", "softmax over the keys of q k^T", _swapped("q", "k")),
    LayerFault("key and value swapped", "keys and values are swapped", "split the fused projection as q, k, v", _swapped("k", "v")),
    LayerFault("query and value swapped", "queries and values are swapped", "split the fused projection as q, k, v", _swapped("q", "v")),
    LayerFault("no output bias", "the bias of the output projection is not added", "call the output projection as a whole", _without_bias("o")),
    LayerFault("no input biases", "the biases of q, k and v are not added", "call the projections as a whole", _without_bias("q", "k", "v")),
    LayerFault("no value bias", "the bias of v is not added", "call the projection as a whole", _without_bias("v")),
    LayerFault("no query bias", "the bias of q is not added", "call the projection as a whole", _without_bias("q")),
    LayerFault("no output projection", "the output projection is not applied", "apply it to the merged heads", _without_o),
    LayerFault("output projection transposed", "the output projection is applied transposed", "x @ W.T for a weight (out, in)", _turned_o),
    LayerFault("softmax over queries", "the softmax runs over the queries", "softmax(scores, dim=-1)", lambda m: _softmax_over(m, -2)),
    LayerFault("softmax over heads", "the softmax runs over the heads", "softmax(scores, dim=-1)", lambda m: _softmax_over(m, 1)),
    LayerFault("zeroed after softmax", "hidden keys are set to 0 after the softmax, and rows are not normalised again", "set the scores to -inf before the softmax", _zeroed_after),
    LayerFault("heads tiled", "grouped key heads are tiled: query head h reads key head h % Hkv", "repeat_interleave the key heads", _tiled),
)  # fmt: skip


def diagnose_layer(target: LayerTarget) -> tuple[Projections, LayerFault] | None:
    """The projections and the fault with which the oracle's layer gives the module's output, or None."""
    probe = Probe(target)
    if probe.output is None:
        return None
    length = probe.x.shape[1]
    patterns = {
        pattern.tobytes(): pattern for pattern in (target.dependence.pattern(length), np.tri(length, dtype=bool))
    }
    for p in candidates(target):
        for pattern in patterns.values():
            fault = next((f for f in LAYER_FAULTS if _gives(f, Layer(p, probe.values, probe.x, pattern), probe)), None)
            if fault is not None:
                return p, fault
    return None


def _gives(fault: LayerFault, layer: Layer, probe: Probe) -> bool:
    try:
        output = fault.output(layer)
    except ValueError:  # sizes that this fault can't have
        return False
    return output is not None and probe.gives(output)
