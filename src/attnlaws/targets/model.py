"""A language model: tokens (B, L) to logits (B, L, V), with what was found out about how it is called.

A frozen description; `fresh` gives copies of the module to try things on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from .call import BoolArray
from .layer import Dependence
from .model_inputs import Inputs
from .model_instance import ModelInstance
from .module_copy import copied

#: what a padding mask of a model may mean, and the shapes in which it may be passed; "by id": hidden is what holds the pad id
PAD_KINDS = ("1 = real", "True = real", "True = padding", "additive")
PAD_SHAPES = ("BL", "B11L")


@dataclass(frozen=True)
class PadWay:
    """How a model is told what is padding."""

    parameter: str
    kind: str
    shape: str = "BL"

    def __str__(self) -> str:
        return "by the pad id" if self.kind == "by id" else f"{self.parameter} {self.shape}, {self.kind}"


@dataclass(frozen=True)
class LossWay:
    """What a model's loss is: shift "inside" compares position i with label i + 1, "none" with label i."""

    shift: str
    ignore: tuple[int, ...] = ()
    reduction: str = "mean"

    def __str__(self) -> str:
        words = {
            "inside": "labels are shifted by one inside",
            "none": "label i is for position i",
        }
        ignored = f", {' and '.join(map(str, self.ignore))} ignored" if self.ignore else ""
        return f"{self.reduction} over the labels, {words[self.shift]}{ignored}"


@dataclass(frozen=True)
class CacheWay:
    """How keys and values of earlier tokens are kept.

    "passed": given back and passed again; "made": an object of the model's own method, changed in place; "inside": in the module.
    """

    form: str
    parameter: str = ""
    asked_by: str = ""
    maker: str = ""
    start: str = ""
    places: str = ""
    reset: str = ""
    #: the axes of the batch and of the length in the tensors of a plain cache; None where they were not found
    batch_axis: int | None = None
    length_axis: int | None = None

    def __str__(self) -> str:
        words = {
            "passed": f"given back and passed as {self.parameter}",
            "made": f"made by {self.maker}(), passed as {self.parameter}",
            "inside": "kept in the module",
        }[self.form]
        extra = [f"{n}=True" for n in (self.asked_by,) if n]
        extra += [f"{n} counts the tokens in it" for n in (self.start, self.places) if n]
        return ", ".join([words, *extra])


@dataclass(frozen=True)
class GenerateWay:
    """How tokens are generated: parameters of the method by role, and what asks for the most likely token."""

    roles: Mapping[str, str]
    returns: str = "all"
    greedy: Mapping[str, Any] | None = None
    sampling: Mapping[str, Any] | None = None
    #: the token that a decoder beside an encoder starts with
    start: int | None = None
    #: whether it takes a batch
    many: bool = True
    method: str = "generate"

    @property
    def counts(self) -> str:
        """ "new" or "total": what the number of tokens asked for counts."""
        return "new" if "new" in self.roles else "total"


@dataclass(frozen=True)
class ModelTarget:
    """A module and how to call it. Frozen: the probe returns a new one."""

    #: the kind of the laws that are about it
    LAWS: ClassVar[str] = "model"

    name: str
    module: Any
    #: a new module of the same kind with random weights of this seed; None where a ready instance was given
    make: Callable[[int], Any] | None = None
    device: str = "cpu"
    #: "decoder" (each position sees those before it), "encoder" (all), "encoder-decoder"
    kind: str = "decoder"
    tokens: str = ""
    source: str = ""
    axes: str = "BL"
    #: ids are 0 .. vocabulary - 1; logits have `width` entries
    vocabulary: int = 2
    source_vocabulary: int = 2
    width: int | None = None
    longest: int = 33
    #: a length far beyond that which it takes too, or 0 (targets/far.py)
    far: int = 0
    dtypes: tuple[str, ...] = ("float32",)
    dependence: Dependence = field(default_factory=Dependence)
    #: "all": logits of all positions; "last": of the last alone; "with labels": of all only where labels are given
    reads: str = "all"
    pad: PadWay | None = None
    source_pad: PadWay | None = None
    pad_id: int | None = None
    ignored: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    positions: str = ""
    positions_shape: str = "BL"
    #: the position id of the first token
    first_place: int = 0
    #: "relative", "absolute", "none" or "unknown": what was found of where tokens stand
    placed: str = "unknown"
    #: "absent": padding on the left is as if it were not there; "counts": it takes positions; "unknown"
    left_padding: str = "unknown"
    segments: str = ""
    segment_count: int = 2
    labels: str = ""
    loss: LossWay | None = None
    cache: CacheWay | None = None
    generate: GenerateWay | None = None
    tied: tuple[tuple[str, ...], ...] = ()
    #: the attribute that says that weights are tied, or ""
    says_tied: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    known: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None

    @property
    def torch(self) -> Any:
        """The framework of the module."""
        import torch

        return torch

    def but(self, **changes: Any) -> ModelTarget:
        """This target with some fields changed."""
        return replace(self, **changes)

    def fresh(self, dtype: str = "float32", *, training: bool = False) -> ModelInstance:
        """A copy of the module, moved to a dtype, in eval mode unless `training`. Raises CannotAdapt."""
        import torch

        module = copied(self.module, self.make)
        module.to(getattr(torch, dtype))
        module.train(training)
        return ModelInstance(self, module, dtype)

    def itself(self) -> ModelInstance:
        """The module as it is, to read its parameters; what is tried is tried on copies."""
        return ModelInstance(self, self.module, self.dtypes[0])

    def another(self, seed: int, dtype: str) -> ModelInstance:
        """A model of the same kind that was built apart, with other random weights; a copy where it can't be built."""
        import torch

        module = copied(self.module, None) if self.make is None else self.make(seed).to(self.device)
        module.to(getattr(torch, dtype))
        module.train(False)
        made = ModelInstance(self, module, dtype)
        made.set({name: values + 0.25 for name, values in made.parameters().items()})
        return made

    @property
    def decodes(self) -> bool:
        """Whether it has a part that sees the tokens before alone."""
        return self.kind != "encoder"

    @property
    def real_ids(self) -> tuple[int, ...]:
        """The ids that a real token may have: all but the pad id."""
        return tuple(i for i in range(self.vocabulary) if i != self.pad_id)

    @property
    def parameter_count(self) -> int:
        """Elements in all parameters, each counted once."""
        return sum(int(p.numel()) for p in self.module.parameters())


def pad_tensor(way: PadWay, real: BoolArray, dtype: str, torch: Any, device: str) -> Any:
    """A padding mask in the shape and the values of a way."""
    values = torch.from_numpy(np.array(real)).to(device)
    if way.shape == "B11L":
        values = values[:, None, None, :]
    if way.kind == "True = real":
        return values
    if way.kind == "True = padding":
        return ~values
    if way.kind == "1 = real":
        return values.long()
    wanted = getattr(torch, dtype)
    return torch.zeros(values.shape, dtype=wanted, device=device).masked_fill(~values, -torch.inf)


__all__ = ["CacheWay", "GenerateWay", "Inputs", "LossWay", "ModelTarget", "PadWay", "pad_tensor"]
