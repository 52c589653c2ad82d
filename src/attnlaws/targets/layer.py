"""A layer: a module that takes (B, L, E) to (B, L, E'), with what was found out about how it is called.

A frozen description; `fresh` gives copies of the module to try things on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .call import Array, BoolArray
from .instance import Instance
from .module_copy import copied

if TYPE_CHECKING:
    from .initial import Rule
    from .layer_weights import Projections

#: what a mask of a layer may mean, and the shapes in which it may be passed
KINDS = ("True = hidden", "True = attend", "additive", "1 = attend")
SHAPES = ("BL", "LL", "B11L", "B1LL", "BLL", "1LL")


@dataclass(frozen=True)
class MaskWay:
    """How a layer takes a mask: its parameter, what the values mean, and the shape."""

    parameter: str
    kind: str
    shape: str

    def __str__(self) -> str:
        return f"{self.parameter} {self.shape}, {self.kind}"


@dataclass(frozen=True)
class Dependence:
    """Which tokens an output depends on: position j for output i where `causal` and the window allow it.

    `left` and `right` are how many tokens before and after its own it sees; None without end.
    """

    causal: bool = False
    left: int | None = None
    right: int | None = None
    #: whether the outputs followed one of these patterns in the probe
    clear: bool = True

    @property
    def alone(self) -> bool:
        """Whether no output depends on another token than its own: a window of one."""
        return self.left == 0 and (self.causal or self.right == 0)

    def pattern(self, length: int) -> BoolArray:
        """(L, L), True where output i depends on token j."""
        away = np.arange(length)[None, :] - np.arange(length)[:, None]
        shown = np.ones((length, length), dtype=bool)
        if self.causal:
            shown &= away <= 0
        if self.left is not None:
            shown &= away >= -self.left
        if self.right is not None:
            shown &= away <= self.right
        return shown

    def __str__(self) -> str:
        words = "each output sees the tokens up to its own" if self.causal else "each output sees all tokens"
        if self.alone:
            words = "each output sees its own token alone"
        elif self.left is not None or self.right is not None:
            ends = [f"{n} {side}" for n, side in ((self.left, "before"), (self.right, "after")) if n is not None]
            words = f"each output sees its own token and {' and '.join(ends)}" + (", none later" if self.causal else "")
        return words if self.clear else words + " (nearly)"


@dataclass(frozen=True)
class LayerTarget:
    """A module and how to call it. Frozen: the probe returns a new one."""

    #: the kind of the laws that are about it
    LAWS: ClassVar[str] = "layer"

    name: str
    module: Any
    #: a new module of the same kind with random weights of this seed; None where a ready instance was given
    make: Callable[[int], Any] | None = None
    device: str = "cpu"
    axes: str = "BLE"
    #: how many times the input is given: 1 for f(x), 3 for f(query, key, value)
    inputs: int = 1
    width: int = 1
    width_out: int | None = None
    longest: int = 64
    #: a length far beyond that which it takes too, or 0 (targets/far.py)
    far: int = 0
    #: the only length that it takes, or 0
    only_length: int = 0
    dtypes: tuple[str, ...] = ("float32",)
    dependence: Dependence = field(default_factory=Dependence)
    #: what it depends on where a mask is given as well
    with_mask: Dependence | None = None
    #: "used", "none", or "hinted": not equivariant, and its names or its code speak of positions
    positions: str = "none"
    padding: MaskWay | None = None
    mask: MaskWay | None = None
    #: mask parameters that are taken and change nothing, and those whose meaning was not found
    ignored: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    #: the parameter that asks for causality, and what outputs depend on then
    flag: str = ""
    flagged: Dependence | None = None
    weights_parameter: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    projections: Projections | None = None
    #: whether the projections were held against the module's output: "reproduced", "declared", "by a fault" or "no"
    recognised: str = "no"
    #: the rule that each matrix follows when it is built, by the names q, k, v, o; those that follow none are left out
    initial: Mapping[str, Rule] = field(default_factory=dict)
    known: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None

    @property
    def torch(self) -> Any:
        """The framework of the module."""
        import torch

        return torch

    def but(self, **changes: Any) -> LayerTarget:
        """This target with some fields changed."""
        return replace(self, **changes)

    def fresh(self, dtype: str = "float32", *, training: bool = False) -> Instance:
        """A copy of the module, moved to a dtype, in eval mode unless `training`. Raises CannotAdapt."""
        import torch

        module = copied(self.module, self.make)
        module.to(getattr(torch, dtype))
        module.train(training)
        return Instance(self, module, dtype)

    def itself(self) -> Instance:
        """The module as it is, to read its parameters; what is tried is tried on copies."""
        return Instance(self, self.module, self.dtypes[0])

    def built(self, seed: int) -> dict[str, Array]:
        """The parameters of a layer of the same kind, as it is built under a seed. Only where it can be built anew."""
        assert self.make is not None
        return Instance(self, self.make(seed), self.dtypes[0]).parameters()

    def another(self, seed: int, dtype: str) -> Instance:
        """A layer of the same kind that was built apart, with other random weights; a copy where it can't be built."""
        import torch

        module = copied(self.module, None) if self.make is None else self.make(seed).to(self.device)
        module.to(getattr(torch, dtype))
        module.train(False)
        made = Instance(self, module, dtype)
        made.set({name: values + 0.25 for name, values in made.parameters().items()})
        return made

    def masked(self, visible: BoolArray | None, dtype: str, torch: Any) -> dict[str, Any]:
        """The mask argument for what is visible: (B, L) keys or (B, L, L) pairs, True = attend."""
        if visible is None:
            return {}
        way = self.padding if visible.ndim == 2 else self.mask
        assert way is not None, "a mask is asked for only where there is a way to pass it"
        return {way.parameter: mask_tensor(way, visible, dtype, torch, self.device)}

    @property
    def asks_causal(self) -> bool:
        """Whether causality can be asked for, by a flag or by a mask of pairs."""
        return not self.dependence.causal and bool(self.flag or self.mask)

    @property
    def masks_meet(self) -> bool:
        """Whether causality and padding can be asked for in one call: in one mask of pairs and samples, or by a flag."""
        return bool(self.flag) or (self.mask is not None and self.mask.shape in ("B1LL", "BLL"))

    @property
    def parameter_count(self) -> int:
        """Elements in all parameters."""
        return sum(int(p.numel()) for p in self.module.parameters())


def mask_tensor(way: MaskWay, visible: BoolArray, dtype: str, torch: Any, device: str) -> Any:
    """A mask in the shape and the values of a way."""
    batch, length = visible.shape[0], visible.shape[-1]
    full = visible if visible.ndim == 3 else np.broadcast_to(visible[:, None, :], (batch, length, length))
    rows = visible if visible.ndim == 2 else full[:, 0]
    shaped = {
        "BL": rows,
        "LL": full[0],
        "B11L": rows[:, None, None, :],
        "B1LL": full[:, None],
        "BLL": full,
        "1LL": full[:1],
    }[way.shape]
    values = torch.from_numpy(np.array(shaped)).to(device)
    if way.kind == "True = attend":
        return values
    if way.kind == "True = hidden":
        return ~values
    wanted = getattr(torch, dtype)
    if way.kind == "1 = attend":
        return values.to(wanted)
    return torch.zeros(values.shape, dtype=wanted, device=device).masked_fill(~values, -torch.inf)
