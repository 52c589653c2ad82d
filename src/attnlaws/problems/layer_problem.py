"""A problem of a layer: a few numbers and words that fix one call for good. The width is the layer's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ..targets.call import Array, BoolArray
from ..targets.layer import LayerTarget
from ..targets.redraw import redrawn
from .choices import Pick, dealer, drawn_by, far_lengths
from .padding import PADDINGS, real_tokens
from .problem import CorruptCase, check_fields

VALUES = ("normal", "peaked", "integer", "offset")


@dataclass(frozen=True, order=True)
class LayerProblem:
    """Batch, length, options and a seed. Goes to JSON and back.

    `causal`: causality is asked for, where the layer takes a flag or a mask. `grad`: gradients are recorded.
    `redrawn`: the parameters get other values, so that zeros at the start hide nothing.
    """

    batch: int = 1
    length: int = 1
    dtype: str = "float32"
    causal: bool = False
    padding: str = "none"
    grad: bool = True
    redrawn: bool = True
    values: str = "normal"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1 or self.length < 1:
            raise CorruptCase(f"a size is smaller than 1 in {self}")
        if self.padding not in PADDINGS or self.values not in VALUES:
            raise CorruptCase(f"unknown padding {self.padding!r} or values {self.values!r}")

    @property
    def size(self) -> int:
        """How many tokens this is."""
        return self.batch * self.length

    def but(self, **changes: Any) -> LayerProblem:
        """This problem with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> LayerProblem:
        """The problem in a case file. Raises CorruptCase naming the field that is wrong."""
        check_fields(cls, data)
        return cls(**data)

    def describe(self) -> str:
        """One line."""
        parts = [f"B={self.batch} L={self.length} {self.dtype}"]
        parts += [words for on, words in ((self.causal, "causal"), (not self.grad, "no gradients recorded")) if on]
        if self.padding != "none":
            parts.append(f"padding {self.padding}")
        if self.values != "normal":
            parts.append(f"{self.values} values")
        parts.append("other parameters" if self.redrawn else "its own parameters")
        return ", ".join(parts) + f", seed {self.seed}"

    def smaller(self) -> Iterator[LayerProblem]:
        """Simpler neighbours, boldest first."""
        plain = LayerProblem()
        for name in ("dtype", "padding", "causal", "values", "grad"):
            if getattr(self, name) != getattr(plain, name):
                yield self.but(**{name: getattr(plain, name)})
        for name in ("batch", "length"):
            for less in dict.fromkeys((1, 2, 3, 4, getattr(self, name) // 2, getattr(self, name) - 1)):
                if 0 < less < getattr(self, name):
                    yield self.but(**{name: less})
        for seed in (0, 1, 2):
            if seed < self.seed:
                yield self.but(seed=seed)


@dataclass(frozen=True)
class LayerWants:
    """What a law needs of a problem. None means either way."""

    min_length: int = 1
    min_batch: int = 1
    causal: bool | None = None
    padding: bool | None = False
    values: tuple[str, ...] = VALUES
    dtypes: tuple[str, ...] | None = None
    redrawn: bool | None = None
    #: whether lengths far beyond those of other laws are tried too, where the layer takes them
    far: bool = False

    def missing(self, target: LayerTarget) -> str | None:
        """Why a layer can't be given such problems; None where it can."""
        if self.padding is True and target.padding is None:
            return "takes no padding mask" + (
                f" that was understood ({', '.join(target.unclear)})" if target.unclear else ""
            )
        if self.causal is True and not target.asks_causal and not target.dependence.causal:
            return "is not causal, and can't be asked to be"
        if self.causal is False and target.dependence.causal:
            return "is always causal"
        if self.min_length > (target.only_length or target.longest):
            return f"takes no more than {target.only_length or target.longest} tokens"
        return None

    def fits(self, problem: LayerProblem, target: LayerTarget) -> bool:
        """Whether a problem, shrunk perhaps, is still one that could have been drawn."""
        p = problem
        lengths = (
            (target.only_length,)
            if target.only_length
            else range(1, max(target.longest, target.far if self.far else 0) + 1)
        )
        return (
            p.length in lengths
            and p.length >= self.min_length
            and p.batch >= self.min_batch
            and p.dtype in target.dtypes
            and (self.dtypes is None or p.dtype in self.dtypes)
            and (not p.causal or target.asks_causal)
            and (self.causal is None or (p.causal or target.dependence.causal) is self.causal)
            and (p.padding == "none" or target.padding is not None)
            and (self.padding is None or (p.padding != "none") is self.padding)
            and not (p.padding != "none" and p.causal and not target.masks_meet)
            and p.values in self.values
        )


def build(pick: Pick, wants: LayerWants, target: LayerTarget) -> LayerProblem:
    """One problem, every choice made by `pick(name, options)`."""
    lengths = [n for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33) if wants.min_length <= n <= target.longest]
    if wants.far and target.far:
        lengths += far_lengths(lengths, target.far, target.dependence.left)
    length = target.only_length or pick("length", lengths or [target.longest])
    causal = target.asks_causal and (wants.causal is True or (wants.causal is None and bool(pick("causal", (0, 1)))))
    if target.dependence.causal:
        causal = False
    padding = "none"
    if target.padding is not None and wants.padding is not False:
        padding = pick("padding", PADDINGS[1:] if wants.padding else PADDINGS)
        if causal and not target.masks_meet:
            causal, padding = (causal, "none") if wants.padding is None else (False, padding)
    dtypes = [d for d in target.dtypes if wants.dtypes is None or d in wants.dtypes]
    return LayerProblem(
        batch=pick("batch", [n for n in (1, 2, 3, 4) if n >= wants.min_batch]),
        length=length,
        dtype=pick("dtype", dtypes),
        causal=causal,
        padding=padding,
        grad=bool(pick("grad", (1, 0))),
        redrawn=wants.redrawn if wants.redrawn is not None else bool(pick("redrawn", (1, 1, 1, 0))),
        values=pick("values", wants.values),
        seed=pick("seed", range(1 << 16)),
    )


def covering(wants: LayerWants, target: LayerTarget, seed: int) -> Iterator[LayerProblem]:
    """An endless covering design: each option of each choice comes up equally often."""
    pick = dealer(seed, 78)
    while True:
        yield build(pick, wants, target)


def layer_problems(wants: LayerWants, target: LayerTarget) -> st.SearchStrategy[LayerProblem]:
    """Hypothesis' strategy over problems that fit a layer and a law's wants."""
    return drawn_by(lambda pick: build(pick, wants, target))


# -- values ------------------------------------------------------------------------------------------------------------


def generator(problem: LayerProblem, stream: int = 0) -> np.random.Generator:
    """The generator of one stream: 0 the input, 1 the padding, 2 what a law draws on top."""
    return np.random.Generator(np.random.Philox(key=[problem.seed, 100 + stream]))


def tokens(problem: LayerProblem, width: int) -> Array:
    """x (B, L, E), exact in float32."""
    x = generator(problem).standard_normal((problem.batch, problem.length, width))
    if problem.values == "peaked":
        x = 3.0 * x
    elif problem.values == "integer":
        x = np.rint(2.0 * x)
    elif problem.values == "offset":
        x = x + 2.0
    return x.astype(np.float32).astype(np.float64)


def padding_of(problem: LayerProblem) -> BoolArray | None:
    """Which tokens are real (B, L); None where all are."""
    p = problem
    return None if p.padding == "none" else real_tokens(generator(p, 1), p.padding, p.batch, p.length)


def parameters(problem: LayerProblem, own: dict[str, Array], trainable: Sequence[str]) -> dict[str, Array]:
    """Values for the parameters: other ones where the problem says so, else none to change."""
    return redrawn(own, trainable, problem.seed) if problem.redrawn else {}
