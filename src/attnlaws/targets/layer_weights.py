"""The projections of an attention layer, found by name and shape, and held against the module's own output.

    y = concat_h(softmax(s (x Wq_h^T + bq_h)(x Wk_h^T + bk_h)^T) (x Wv_h^T + bv_h)) Wo^T + bo

A guess by names counts only where the float64 oracle's layer with these weights gives what the module gives.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..reference import oracle
from ..reference.oracle import Attended
from .call import Array, BoolArray, TargetRaised, WrongResult
from .layer import LayerTarget
from .signature import CannotAdapt

NAMES: dict[str, tuple[str, ...]] = {
    "q": ("q_proj", "w_query", "query", "to_q", "wq", "w_q", "q", "q_lin", "query_proj", "proj_q", "linear_q", "q_linear",
          "queries", "q_proj_weight", "fc_q", "query_projection"),
    "k": ("k_proj", "w_key", "key", "to_k", "wk", "w_k", "k", "k_lin", "key_proj", "proj_k", "linear_k", "k_linear",
          "keys", "k_proj_weight", "fc_k", "key_projection"),
    "v": ("v_proj", "w_value", "value", "to_v", "wv", "w_v", "v", "v_lin", "value_proj", "proj_v", "linear_v", "v_linear",
          "values", "v_proj_weight", "fc_v", "value_projection"),
    "qkv": ("c_attn", "qkv", "qkv_proj", "in_proj", "to_qkv", "wqkv", "w_qkv", "query_key_value", "in_proj_weight",
            "attn_qkv", "w_pack", "qkv_linear", "proj_qkv"),
    "o": ("o_proj", "out_proj", "c_proj", "wo", "w_o", "o", "dense", "proj", "to_out", "to_out.0", "out_lin", "output_proj",
          "out", "fc_out", "fc", "w_out", "w_concat", "out_linear", "output.dense", "proj_out", "linear_out", "output"),
}  # fmt: skip
HEADS = ("num_heads", "n_head", "n_heads", "num_attention_heads", "heads", "h", "nhead", "num_head", "n_heads_q")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "kv_heads", "num_groups", "n_groups")


@dataclass(frozen=True)
class Slot:
    """Where one matrix lies: rows of a parameter, which is (in, out) where `turned`, and the same rows of a bias."""

    weight: str
    rows: tuple[int, ...]
    turned: bool = False
    bias: str = ""

    def matrix(self, values: Mapping[str, Array]) -> Array:
        """(out, in)."""
        whole = values[self.weight].T if self.turned else values[self.weight]
        return np.asarray(whole[list(self.rows)])

    def offset(self, values: Mapping[str, Array]) -> Array:
        """(out,), zeros where there is no bias."""
        if not self.bias:
            return np.zeros(len(self.rows))
        return np.asarray(values[self.bias][list(self.rows)])

    def changed(self, values: dict[str, Array], matrix: Array, offset: Array) -> None:
        """Put other values in the place of this matrix and its bias."""
        whole = values[self.weight].copy()
        (whole.T if self.turned else whole)[list(self.rows)] = matrix
        values[self.weight] = whole
        if self.bias:
            values[self.bias] = values[self.bias].copy()
            values[self.bias][list(self.rows)] = offset


@dataclass(frozen=True)
class Projections:
    """The four matrices of a layer, its heads and its scale. `o` is None where the heads are not mixed afterwards."""

    q: Slot
    k: Slot
    v: Slot
    o: Slot | None
    heads: int
    kv_heads: int
    style: str
    scale: float

    @property
    def head_dim(self) -> int:
        """Rows of q for each head."""
        return len(self.q.rows) // self.heads

    @property
    def fused(self) -> bool:
        """Whether q, k and v share a parameter."""
        return self.q.weight == self.k.weight

    def __str__(self) -> str:
        heads = f"{self.heads} heads" if self.heads == self.kv_heads else f"{self.heads} heads on {self.kv_heads}"
        return f"{self.style}, {heads} of {self.head_dim}" + ("" if self.o else ", no output projection")


@dataclass(frozen=True)
class Computed:
    """What the oracle's layer computed: q, k, v (B, H, L, D), the attention, the merged heads, the output (B, L, E')."""

    q: Array
    k: Array
    v: Array
    attended: Attended
    merged: Array
    output: Array


def oracle_layer(p: Projections, values: Mapping[str, Array], x: Array, visible: BoolArray) -> Computed:
    """The layer in float64 on x (B, L, E); `visible` is (B, L, L)."""

    def split(slot: Slot, heads: int) -> Array:
        flat = x @ slot.matrix(values).T + slot.offset(values)  # (B, L, E) -> (B, L, H*D)
        return flat.reshape(*flat.shape[:2], heads, -1).swapaxes(1, 2)  # (B, L, H*D) -> (B, H, L, D)

    q, k, v = split(p.q, p.heads), split(p.k, p.kv_heads), split(p.v, p.kv_heads)
    attended = oracle.attention(q, k, v, visible=visible[:, None], scale=p.scale, empty_row="nan")
    merged = attended.output.swapaxes(1, 2).reshape(x.shape[0], x.shape[1], -1)
    output = merged if p.o is None else merged @ p.o.matrix(values).T + p.o.offset(values)
    return Computed(q, k, v, attended, merged, output)


def recognise(target: LayerTarget, declared: str | None = None, scale: str | None = None) -> LayerTarget:
    """The target with its projections, where a guess gives the module's own output, or is declared.

    A scale of 1 without a word of it in the module is declared: a forgotten scale looks the same.
    """
    found = list(candidates(target))
    if scale is not None:
        found = [replace(p, scale=1.0 if scale == "1" else p.head_dim**-0.5) for p in found]
    if declared is not None:
        found = [p for p in found if p.style.startswith(declared)]
        if not found:
            raise CannotAdapt(f"weights = {declared!r} is declared, but {target.name} has no such parameters")
    probe = Probe(target)
    for p in found:
        if probe.fits(p):
            return target.but(projections=p, recognised="reproduced")
    if not found:
        return target
    return target.but(projections=found[0], recognised="declared" if declared else "no")


class Probe:
    """The module's output on one input with other parameters, to hold guesses against."""

    def __init__(self, target: LayerTarget) -> None:
        from .redraw import redrawn

        instance = target.fresh(target.dtypes[-1])
        instance.set(redrawn(instance.parameters(), instance.trainable(), 5))
        length = target.only_length or min(target.longest, 6)
        rng = np.random.Generator(np.random.Philox(key=[9, 13]))
        self.x = rng.standard_normal((2, length, target.width)).astype(np.float32).astype(np.float64)
        self.values, self.pattern = instance.parameters(), target.dependence.pattern(length)
        try:
            self.output: Array | None = instance.run(self.x)
        except (TargetRaised, WrongResult):
            self.output = None

    def fits(self, p: Projections) -> bool:
        """Whether the oracle's layer with this guess gives the module's output, but for rounding in float32."""
        shown = np.broadcast_to(self.pattern, (self.x.shape[0], *self.pattern.shape))
        return self.gives(oracle_layer(p, self.values, self.x, shown).output)

    def gives(self, want: Array) -> bool:
        """Whether this is the module's output, but for rounding in float32."""
        if self.output is None or want.shape != self.output.shape or not np.isfinite(want).all():
            return False
        return bool(np.abs(want - self.output).max() <= 1e-5 * max(float(np.abs(want).max()), 1e-30))


# -- guesses ---------------------------------------------------------------------------------------------------------


def candidates(target: LayerTarget) -> Iterator[Projections]:
    """Guesses from the names and shapes of the parameters, the likelier first."""
    module, width = target.module, target.width
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    for prefix in _prefixes(shapes):
        named = _by_role(shapes, prefix)
        o_names = [*named["o"], ""]
        for o_name in o_names:
            for heads, kv_heads, scale in _heads(module):
                for q, k, v, style in _inputs(module, shapes, named, width, heads, kv_heads):
                    merged = len(q.rows) // heads * heads
                    o = _output(module, shapes, o_name, merged, target.width_out or width)
                    if (o is None) is not (o_name == "") or (o is None and merged != target.width_out):
                        continue
                    size = merged // heads
                    if len(v.rows) != kv_heads * size or len(k.rows) != kv_heads * size:
                        continue
                    yield Projections(q, k, v, o, heads, kv_heads, style, size**-0.5 if scale is None else scale)


def _prefixes(shapes: Mapping[str, Any]) -> list[str]:
    """The modules that hold parameters, the outermost first."""
    found = {""}
    for name in shapes:
        parts = name.split(".")
        found.update(".".join(parts[:n]) + "." for n in range(1, len(parts)))
    return sorted(found, key=lambda p: (p.count("."), p))


def _by_role(shapes: Mapping[str, tuple[int, ...]], prefix: str) -> dict[str, list[str]]:
    """The matrices under a prefix whose name is that of a role."""
    found: dict[str, list[str]] = {role: [] for role in NAMES}
    for name, shape in shapes.items():
        if len(shape) != 2 or not name.startswith(prefix):
            continue
        short = re.sub(r"(\.weight|\.kernel)$", "", name[len(prefix) :]).lower()
        for role, names in NAMES.items():
            if short in names or (role == "o" and short.split(".")[-1] in names) or _deep(prefix, short, names):
                found[role].append(name)
    return found


def _deep(prefix: str, short: str, names: tuple[str, ...]) -> bool:
    """self.query, attention.query: one level down, seen from the outermost module."""
    return prefix == "" and short.count(".") == 1 and short.split(".")[-1] in names


def _heads(module: Any) -> Iterator[tuple[int, int, float | None]]:
    """Heads, key heads and scale by the usual attributes; else some numbers of heads are tried.

    None is 1 / sqrt(D). Another scale is taken from the module's own attribute, as T5 says 1; 1 / sqrt(E) never is, for
    that is a fault.
    """
    holders = [*module.modules()]
    holders += [h.config for h in holders if hasattr(h, "config")]
    heads = _first(holders, HEADS)
    scale = next((float(s) for h in holders for n in ("scaling", "scale", "softmax_scale", "sm_scale")
                  if isinstance(s := getattr(h, n, None), float)), None)  # fmt: skip
    width = {int(p.shape[-1]) for p in module.parameters() if p.ndim == 2}
    if scale is not None and any(abs(scale - w**-0.5) < 1e-9 for w in width):
        scale = None
    for h in [heads] if heads else [4, 2, 8, 1, 3, 6, 12, 16, 5]:
        kv = _first(holders, KV_HEADS)
        for kv_heads in dict.fromkeys([kv or h, h, 1]):
            if h % kv_heads == 0:
                for s in dict.fromkeys([scale, None]):
                    yield h, kv_heads, s


def _first(holders: list[Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        for holder in holders:
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _bias_of(shapes: Mapping[str, tuple[int, ...]], weight: str, rows: int) -> str:
    for name in (re.sub(r"weight$", "bias", weight), weight.replace("_weight", "_bias")):
        if name != weight and shapes.get(name) == (rows,):
            return name
    return ""


def _turned(module: Any, weight: str) -> bool:
    """Whether a parameter is kept as (in, out), as transformers' Conv1D keeps it."""
    owner = module.get_submodule(weight.rpartition(".")[0])
    return type(owner).__name__ == "Conv1D"


def _slot(module: Any, shapes: Mapping[str, tuple[int, ...]], name: str, width: int) -> Iterator[Slot]:
    """A parameter as a matrix from `width`: as (out, in), or as (in, out) where it is a bare parameter or a Conv1D."""
    out, into = shapes[name]
    turned = _turned(module, name)
    bare = not name.endswith(".weight") and not name.endswith("proj_weight")
    for flipped in [True] if turned else [False, True] if bare else [False]:
        rows, columns = (into, out) if flipped else (out, into)
        if columns == width:
            yield Slot(name, tuple(range(rows)), flipped, _bias_of(shapes, name, rows))


def _inputs(
    module: Any, shapes: Mapping[str, tuple[int, ...]], named: dict[str, list[str]], width: int, heads: int, kv: int
) -> Iterator[tuple[Slot, Slot, Slot, str]]:
    """q, k and v: each its own parameter, or parts of a fused one."""
    for q_name, k_name, v_name in zip(named["q"], named["k"], named["v"], strict=False):
        for q in _slot(module, shapes, q_name, width):
            for k in _slot(module, shapes, k_name, width):
                for v in _slot(module, shapes, v_name, width):
                    if len(q.rows) % heads == 0:
                        yield q, k, v, "separate"
    for name in named["qkv"]:
        for whole in _slot(module, shapes, name, width):
            rows = len(whole.rows)
            if rows % (heads + 2 * kv):
                continue
            size = rows // (heads + 2 * kv)
            fused = "in_proj_weight" if name.endswith("in_proj_weight") else "fused"
            for order in itertools.permutations("qkv"):  # CodeGen keeps q | v | k: an order is no fault
                cut = _one_after_the_other(order, {"q": heads * size, "k": kv * size, "v": kv * size})
                yield (*_cut(whole, cut), f"{fused}, {' | '.join(order)}")
            for style, parts in _interleaved(heads, kv, size):
                yield (*_cut(whole, parts), f"fused, interleaved {style}")


def _one_after_the_other(order: tuple[str, ...], sizes: Mapping[str, int]) -> list[NDArray[np.intp]]:
    """The rows of q, k and v where they stand in this order."""
    ends = np.cumsum([0, *(sizes[name] for name in order)])
    rows = {name: np.arange(ends[n], ends[n + 1]) for n, name in enumerate(order)}
    return [rows[name] for name in "qkv"]


def _interleaved(heads: int, kv: int, size: int) -> Iterator[tuple[str, list[NDArray[np.intp]]]]:
    """(H, 3, D): each head its q, k, v; (D, 3, H) and (H, D, 3) as some do; (Hkv, G + 2, D) for grouped heads."""
    if heads == kv:
        at = np.arange(3 * heads * size)
        yield "(H, 3, D)", [at.reshape(heads, 3, size)[:, n].ravel() for n in range(3)]
        yield "(H, D, 3)", [at.reshape(heads, size, 3)[:, :, n].ravel() for n in range(3)]
        yield "(D, 3, H)", [at.reshape(size, 3, heads)[:, n].T.ravel() for n in range(3)]
        return
    group = heads // kv
    by = np.arange((heads + 2 * kv) * size).reshape(kv, group + 2, size)
    yield "(Hkv, G + 2, D)", [by[:, :group].ravel(), by[:, group].ravel(), by[:, group + 1].ravel()]


def _cut(whole: Slot, parts: list[NDArray[np.intp]]) -> tuple[Slot, Slot, Slot]:
    q, k, v = (replace(whole, rows=tuple(int(n) for n in part)) for part in parts)
    return q, k, v


def _output(module: Any, shapes: Mapping[str, tuple[int, ...]], name: str, merged: int, out: int) -> Slot | None:
    """The matrix after the heads, from their concatenation to the output."""
    if not name:
        return None
    return next((slot for slot in _slot(module, shapes, name, merged) if len(slot.rows) == out), None)
