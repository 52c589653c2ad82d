"""One call of an attention function, written down without any framework."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: The ways in which a mask can reach a target.
ROUTES = ("bool", "additive", "keep", "padding")


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one call. Arrays are float64 and exactly representable in `dtype`.

    query (B, H, L, D), key (B, Hkv, S, D), value (B, Hkv, S, Dv). `visible` (True = attend) and `bias`
    (added to the scores) are given in the very shape in which the target receives them: (L, S) or
    any (B|1, H|1, L|1, S). `route` says through which parameter `visible` travels. `window` is how many keys a query
    sees on its left and right beside its own, None without end; `softcap` caps the scaled scores; `slopes` (H,) multiply
    the distance of a key (ALiBi); `sinks` (H,) are logits that join the denominator only; `padding` (B, S) is a key padding
    mask (True = attend) beside the mask; `dropout` is the rate asked for, in training or not.
    """

    query: Array
    key: Array
    value: Array
    dtype: str = "float32"
    visible: BoolArray | None = None
    bias: Array | None = None
    route: str = "bool"
    causal: bool = False
    scale: float | None = None
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    slopes: Array | None = None
    sinks: Array | None = None
    padding: BoolArray | None = None
    dropout: float = 0.0
    training: bool = False
    mask_dtype: str | None = None
    views: tuple[tuple[str, str], ...] = ()
    extra: tuple[tuple[str, Any], ...] = ()

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int, int]:
        """B, H, Hkv, L, S, D, Dv."""
        batch, heads, queries, head_dim = self.query.shape
        return batch, heads, self.key.shape[1], queries, self.key.shape[2], head_dim, self.value.shape[3]

    def but(self, **changes: Any) -> Call:
        """This call with some arguments changed."""
        return replace(self, **changes)

    def full(self, array: NDArray[Any]) -> NDArray[Any]:
        """A mask or bias of this call, expanded to (B, H, L, S)."""
        batch, heads, _, queries, keys, _, _ = self.sizes
        return np.broadcast_to(array, (batch, heads, queries, keys))


@dataclass(frozen=True, eq=False)
class Answer:
    """What a target gave back: float64 arrays in (B, H, L, Dv) order, and what the raw result looked like."""

    output: Array
    dtype: str
    kind: str
    device: str
    raw_shape: tuple[int, ...]
    shape_as_expected: bool
    weights: Array | None = None
    #: log of the sum of exponentials (B, H, L), in the base that the target uses, and the dtype it came in
    lse: Array | None = None
    lse_dtype: str = ""
    gradients: dict[str, Array | None] = field(default_factory=dict)
    mutated: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


class TargetRaised(Exception):
    """The target raised on a call; `cause_line` is its exception in one line."""

    def __init__(self, error: BaseException) -> None:
        text = " ".join(str(error).split())
        self.cause_line = f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
        self.error = error
        super().__init__(self.cause_line)


class WrongResult(Exception):
    """The target returned something that is no attention output; the message says what."""
