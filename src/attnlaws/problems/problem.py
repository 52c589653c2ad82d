"""A problem: a dozen numbers and words that fix one call of an attention function for good."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MASKS = ("none", "random", "padding-right", "padding-left", "banded", "first-half")
EMPTY_MASKS = ("empty-row", "empty-sample", "empty-all")
REGIMES = ("normal", "flat", "peaked", "tied", "integer", "offset", "heavy", "needle", "huge")
CASE_FORMAT = 1


class CorruptCase(ValueError):
    """A stored case that can't be read; the message says what is wrong with it."""


def check_fields(cls: Any, data: Any, also: Mapping[str, tuple[type, ...]] | None = None) -> None:
    """Raise CorruptCase unless the data of a case file are fields of a problem class, each of the type of its default.

    `also` names the types of fields that take others.
    """
    if not isinstance(data, dict):
        raise CorruptCase(f"a problem is an object of fields, not {type(data).__name__}")
    known = {f.name: f for f in dataclasses.fields(cls)}
    for name, value in data.items():
        if name not in known:
            raise CorruptCase(f"unknown field {name!r} in the problem; known: {', '.join(known)}")
        default = known[name].default
        expected = (also or {}).get(name, (type(default),))
        if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
            raise CorruptCase(f"{name} = {value!r} has the wrong type, expected {type(default).__name__}")


@dataclass(frozen=True, order=True)
class Problem:
    """Sizes, mask structure, options, regime of values and a seed. Goes to JSON and back.

    B = batch, H = heads, Hkv = kv_heads, L = queries, S = keys, D = head_dim, Dv = value_dim. `left` and `right` are the
    numbers of a window, -1 without end (a window of one number has it in `left`); `softcap` is 0 where there is none;
    `padding` is a key padding mask beside the mask.
    """

    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    queries: int = 1
    keys: int = 1
    head_dim: int = 1
    value_dim: int = 1
    dtype: str = "float32"
    causal: bool = False
    mask: str = "none"
    route: str = "bool"
    mask_shape: str = "LS"
    bias: bool = False
    scale: float | None = None
    regime: str = "normal"
    seed: int = 0
    left: int = -1
    right: int = -1
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    padding: bool = False

    def __post_init__(self) -> None:
        if min(self.batch, self.heads, self.kv_heads, self.queries, self.keys, self.head_dim, self.value_dim) < 0:
            raise CorruptCase(f"a size is negative in {self}")
        if self.kv_heads == 0 or self.heads % self.kv_heads:
            raise CorruptCase(f"heads={self.heads} is no multiple of kv_heads={self.kv_heads}")
        if self.mask not in MASKS + EMPTY_MASKS or self.regime not in REGIMES:
            raise CorruptCase(f"unknown mask {self.mask!r} or regime {self.regime!r}")

    @property
    def window(self) -> bool:
        """Whether the problem asks for a window."""
        return self.left >= 0 or self.right >= 0

    @property
    def options(self) -> frozenset[str]:
        """The options that the problem asks for, by the names of `Wants.options`."""
        asked = {
            "window": self.window,
            "softcap": bool(self.softcap),
            "alibi": self.alibi,
            "sinks": self.sinks,
            "padding": self.padding,
        }
        return frozenset(name for name, on in asked.items() if on)

    def without(self, option: str) -> Problem:
        """This problem without one of its options."""
        off: dict[str, dict[str, Any]] = {"window": {"left": -1, "right": -1}, "softcap": {"softcap": 0.0}}
        return self.but(**off.get(option, {option: False}))

    @property
    def size(self) -> int:
        """How large a witness this is: the elements of q, k and v together."""
        queries = self.heads * self.queries * self.head_dim
        return self.batch * (queries + self.kv_heads * self.keys * (self.head_dim + self.value_dim))

    def but(self, **changes: Any) -> Problem:
        """This problem with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Problem:
        """The problem in a case file. Raises CorruptCase naming the field that is wrong."""
        check_fields(cls, data, {"scale": (float, int, type(None)), "softcap": (float, int)})
        return cls(**data)

    def describe(self) -> str:
        """One line of arguments, as a kernel author would paste it."""
        heads = f"H={self.heads}" if self.heads == self.kv_heads else f"H={self.heads} Hkv={self.kv_heads}"
        width = f"D={self.head_dim}" if self.head_dim == self.value_dim else f"D={self.head_dim} Dv={self.value_dim}"
        parts = [f"B={self.batch} {heads} Lq={self.queries} Lk={self.keys} {width} {self.dtype}"]
        if self.causal:
            parts.append("causal")
        if self.mask != "none":
            parts.append(f"{self.mask} {self.route} mask ({self.mask_shape})")
        if self.bias:
            parts.append("bias")
        if self.scale is not None:
            parts.append(f"scale={self.scale:g}")
        if self.window:
            parts.append(f"window {self.left}" if self.right < 0 else f"window ({self.left}, {self.right})")
        if self.softcap:
            parts.append(f"softcap={self.softcap:g}")
        parts += [words for on, words in ((self.alibi, "ALiBi slopes"), (self.sinks, "sinks")) if on]
        if self.padding:
            parts.append("key padding")
        if self.regime != "normal":
            parts.append(f"{self.regime} values")
        return ", ".join(parts) + f", seed {self.seed}"
