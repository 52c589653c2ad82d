"""Parts of language models as targets: samplers, corruptions, rules of initial weights, dropout, stacks of blocks.

A part is called with NumPy arrays and a seed, whatever its own framework. Knows no law.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .call import Array

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """A part: its name, its kind, and the function that the laws call. What the function takes and gives depends on the kind.

    sampler          (logits (B, V), seed, temperature=, top_k=, top_p=) -> tokens (B,)
    masking          (tokens (B, L), special (B, L), seed, mask_id=, vocab_size=) -> inputs, labels, (B, L) each
    spans            (tokens (L,), seed, first_sentinel=) -> inputs, labels
    initialiser      (out, in, seed) -> weights (out, in)
    weights          (seed) -> the initial parameters of a model by name
    dropout          (x, p, seed) -> x with values dropped
    stack            (seed) -> the variance of the residual stream after 0, 1, 2, ... blocks, norms before the blocks' parts
    normed stack     the same, norms after
    """

    name: str
    kind: str
    function: Callable[..., Any]
    #: what is predicted of it, where its kind does not say so by itself
    predicted: Any = None
    address: str | None = None

    @property
    def torch(self) -> Any:
        """The framework of the parts that are shipped."""
        import torch

        return torch

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.function(*args, **options)


@dataclass(frozen=True)
class PreNorm:
    """A stack of blocks with LayerNorm before their parts and GPT-2's activation: widths, deviations of the weights, epsilon."""

    width: int
    inner: int
    layers: int
    deviation: float
    residual_deviation: float
    eps: float


def torch_sampler(name: str, function: Callable[..., Any]) -> Part:
    """A sampler of torch tensors: function(logits, temperature=, top_k=, top_p=) -> (B,) or (B, 1)."""

    def run(logits: Array, seed: int, **options: Any) -> Ints:
        import torch

        with seeded(seed):
            drawn = function(torch.from_numpy(logits), **options)
        return np.asarray(drawn.reshape(len(logits)).numpy(), dtype=np.int64)

    return Part(name, "sampler", run)


def torch_masking(name: str, function: Callable[..., Any]) -> Part:
    """Masking of torch tensors: function(tokens, mask_id=, vocab_size=, special=) -> inputs, labels."""

    def run(tokens: Ints, special: Bools, seed: int, **options: Any) -> tuple[Ints, Ints]:
        import torch

        with seeded(seed):
            inputs, labels = function(torch.from_numpy(tokens), special=torch.from_numpy(special), **options)
        return inputs.numpy(), labels.numpy()

    return Part(name, "masking", run)


def torch_spans(name: str, function: Callable[..., Any]) -> Part:
    """Span corruption of torch tensors: function(tokens, first_sentinel=) -> inputs, labels."""

    def run(tokens: Ints, seed: int, **options: Any) -> tuple[Ints, Ints]:
        import torch

        with seeded(seed):
            inputs, labels = function(torch.from_numpy(tokens), **options)
        return inputs.numpy(), labels.numpy()

    return Part(name, "spans", run)


def torch_initialiser(name: str, fill: Callable[[Any], Any], predicted: Any) -> Part:
    """What fill(tensor (out, in)) puts into it; `predicted` is the rule by fan-in and fan-out that it is held against."""

    def run(rows: int, columns: int, seed: int) -> Array:
        import torch

        with seeded(seed), torch.no_grad():
            tensor = torch.empty(rows, columns)
            fill(tensor)
        return np.asarray(tensor.double().numpy())

    return Part(name, "initialiser", run, predicted)


def torch_weights(name: str, build: Callable[[], Any], predicted: Callable[[str], float | None]) -> Part:
    """The parameters of build() by name; `predicted` gives the deviation of each, None where none is said."""

    def run(seed: int) -> Mapping[str, Array]:
        with seeded(seed):
            model = build()
        return {n: np.asarray(p.detach().double().numpy()) for n, p in model.named_parameters()}

    return Part(name, "weights", run, predicted)


def torch_dropout(name: str, function: Callable[[Any, float], Any]) -> Part:
    """Dropout in training: function(x, p)."""

    def run(x: Array, p: float, seed: int) -> Array:
        import torch

        with seeded(seed):
            return np.asarray(function(torch.from_numpy(x), p).numpy())

    return Part(name, "dropout", run)


def torch_stack(
    name: str, build: Callable[[], Any], stream: Callable[[Any], Sequence[Array]], predicted: Any = None
) -> Part:
    """The variances of what stream(model) gives, (N, E) after each block, of build(); `predicted` for norms before the parts."""

    def run(seed: int) -> Array:
        with seeded(seed):
            model = build()
        return np.array([float(((x - x.mean(-1, keepdims=True)) ** 2).mean()) for x in stream(model)])

    return Part(name, "normed stack" if predicted is None else "stack", run, predicted)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's own generator seeded inside, and as it was afterwards."""
    import torch

    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)
