"""A problem of a model: a few numbers and words that fix one call for good. The vocabulary is the model's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ..targets.model import ModelTarget
from ..targets.model_inputs import Inputs, IntArray
from .choices import Pick, dealer, drawn_by, far_lengths
from .padding import PADDINGS, real_tokens
from .problem import CorruptCase, check_fields

TEXTS = ("random", "two tokens", "one token")


@dataclass(frozen=True, order=True)
class ModelProblem:
    """Batch, lengths, options and a seed. Goes to JSON and back.

    `source` is the length of the encoder's tokens beside a decoder's. `text`: random tokens, or drawn from two, or one again
    and again. `redrawn`: the parameters get other values, so that zeros and tiny weights at the start hide nothing.
    """

    batch: int = 1
    length: int = 1
    source: int = 1
    dtype: str = "float32"
    padding: str = "none"
    text: str = "random"
    grad: bool = False
    redrawn: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1 or self.length < 1 or self.source < 1:
            raise CorruptCase(f"a size is smaller than 1 in {self}")
        if self.padding not in PADDINGS or self.text not in TEXTS:
            raise CorruptCase(f"unknown padding {self.padding!r} or text {self.text!r}")

    @property
    def size(self) -> int:
        """How many tokens this is."""
        return self.batch * (self.length + self.source)

    def but(self, **changes: Any) -> ModelProblem:
        """This problem with some fields changed."""
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> ModelProblem:
        """The problem in a case file. Raises CorruptCase naming the field that is wrong."""
        check_fields(cls, data)
        return cls(**data)

    def describe(self) -> str:
        """One line."""
        parts = [
            f"B={self.batch} L={self.length}" + (f" S={self.source}" if self.source > 1 else "") + f" {self.dtype}"
        ]
        if self.padding != "none":
            parts.append(f"padding {self.padding}")
        if self.grad:
            parts.append("gradients recorded")
        parts.append("other parameters" if self.redrawn else "its own parameters")
        return ", ".join(parts) + f", seed {self.seed}"

    def smaller(self) -> Iterator[ModelProblem]:
        """Simpler neighbours, boldest first."""
        plain = ModelProblem()
        for name in ("dtype", "padding", "grad"):
            if getattr(self, name) != getattr(plain, name):
                yield self.but(**{name: getattr(plain, name)})
        for name in ("batch", "length", "source"):
            for less in dict.fromkeys((1, 2, 3, 4, getattr(self, name) // 2, getattr(self, name) - 1)):
                if 0 < less < getattr(self, name):
                    yield self.but(**{name: less})
        if self.text != "random":
            yield self.but(text="random")
        for seed in (0, 1, 2):
            if seed < self.seed:
                yield self.but(seed=seed)


@dataclass(frozen=True)
class ModelWants:
    """What a law needs of a problem. None means either way."""

    kinds: tuple[str, ...] = ("decoder", "encoder", "encoder-decoder")
    min_length: int = 1
    max_length: int = 128
    min_source: int = 1
    min_batch: int = 1
    padding: bool | None = False
    texts: tuple[str, ...] = ("random", "random", "two tokens")
    dtypes: tuple[str, ...] | None = None
    redrawn: bool | None = None
    #: whether lengths far beyond those of other laws are tried too, where the model takes them
    far: bool = False

    def missing(self, target: ModelTarget) -> str | None:
        """Why a model can't be given such problems; None where it can."""
        if target.kind not in self.kinds:
            return f"is {'an' if target.kind[0] == 'e' else 'a'} {target.kind}"
        if self.padding is True and not paddings(target):
            return "takes no padding mask" + (
                f" that was understood ({', '.join(target.unclear)})" if target.unclear else ""
            )
        if self.min_length > target.longest:
            return f"takes no more than {target.longest} tokens"
        return None

    def fits(self, problem: ModelProblem, target: ModelTarget) -> bool:
        """Whether a problem, shrunk perhaps, is still one that could have been drawn."""
        p = problem
        return (
            self.min_length <= p.length <= max(min(target.longest, self.max_length), target.far if self.far else 0)
            and p.batch >= self.min_batch
            and p.dtype in target.dtypes
            and (self.dtypes is None or p.dtype in self.dtypes)
            and (p.source >= self.min_source if target.source else p.source == 1)
            and p.padding in ("none", *paddings(target))
            and (self.padding is None or (p.padding != "none") is self.padding)
            and p.text in self.texts
            and (self.redrawn is None or p.redrawn is self.redrawn)
        )


def paddings(target: ModelTarget) -> tuple[str, ...]:
    """The kinds of padding that a model can be given."""
    ways = [way for way in (target.pad, target.source_pad) if way is not None]
    if not ways:
        return ()
    if any(way.kind == "by id" for way in ways) or target.left_padding == "not taken":
        return ("right",)
    return PADDINGS[1:]


def lengths(wants: ModelWants, target: ModelTarget) -> list[int]:
    """Lengths to try: small ones, powers of two and their neighbours, the edges of the window, the longest."""
    window = target.dependence.left
    edges = [] if window is None else [window, window + 1, window + 2]
    every = dict.fromkeys([1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, *edges, target.longest])
    found = [n for n in every if wants.min_length <= n <= min(target.longest, wants.max_length)]
    if wants.far and target.far:
        found += far_lengths(found, target.far, window)
    return found or [wants.min_length]


def build(pick: Pick, wants: ModelWants, target: ModelTarget) -> ModelProblem:
    """One problem, every choice made by `pick(name, options)`."""
    padding = "none"
    if wants.padding is not False and paddings(target):
        padding = pick("padding", paddings(target) if wants.padding else ("none", *paddings(target)))
    return ModelProblem(
        batch=pick("batch", [n for n in (1, 2, 3, 4) if n >= wants.min_batch]),
        length=pick("length", lengths(wants, target)),
        source=pick("source", [n for n in (1, 2, 3, 5, 9) if n >= wants.min_source]) if target.source else 1,
        dtype=pick("dtype", [d for d in target.dtypes if wants.dtypes is None or d in wants.dtypes]),
        padding=padding,
        text=pick("text", wants.texts),
        grad=bool(pick("grad", (0, 0, 0, 1))),
        redrawn=wants.redrawn if wants.redrawn is not None else bool(pick("redrawn", (1, 1, 1, 0))),
        seed=pick("seed", range(1 << 16)),
    )


def covering(wants: ModelWants, target: ModelTarget, seed: int) -> Iterator[ModelProblem]:
    """An endless covering design: each option of each choice comes up equally often."""
    pick = dealer(seed, 79)
    while True:
        yield build(pick, wants, target)


def model_problems(wants: ModelWants, target: ModelTarget) -> st.SearchStrategy[ModelProblem]:
    """Hypothesis' strategy over problems that fit a model and a law's wants."""
    return drawn_by(lambda pick: build(pick, wants, target))


# -- values ------------------------------------------------------------------------------------------------------------


def generator(problem: ModelProblem, stream: int = 0) -> np.random.Generator:
    """The generator of one stream: 0 the tokens, 1 the padding, 2 what a law draws on top, 3 the slack, 4 the source."""
    return np.random.Generator(np.random.Philox(key=[problem.seed, 200 + stream]))


def text(problem: ModelProblem, ids: Sequence[int], length: int, stream: int = 0) -> IntArray:
    """Tokens (B, L) out of some ids."""
    rng = generator(problem, stream)
    some = rng.choice(ids, {"random": len(ids), "two tokens": 2, "one token": 1}[problem.text], replace=False)
    return np.asarray(rng.choice(some, (problem.batch, length)), dtype=np.int64)


def inputs_of(problem: ModelProblem, target: ModelTarget) -> Inputs:
    """What the model is called with: at padded places stands the pad id, or a random one where there is none."""
    p = problem
    made = Inputs(text(p, target.real_ids, p.length))
    if target.source:
        ids = [i for i in range(target.source_vocabulary) if i != target.pad_id]
        made = made.but(source=text(p, ids, p.source, 4))
    if p.padding == "none":
        return made
    for name, mask, way in (("ids", "real", target.pad), ("source", "source_real", target.source_pad)):
        tokens = getattr(made, name)
        if way is not None and tokens is not None:
            real = real_tokens(generator(p, 1 if name == "ids" else 5), p.padding, p.batch, tokens.shape[1])
            if target.pad_id is not None:
                tokens = np.where(real, tokens, target.pad_id)
            made = made.but(**{name: tokens, mask: real})
    return made
