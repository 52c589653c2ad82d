"""Parts of language models as targets: samplers, corruptions, rules of initial weights, dropout, stacks of blocks.

A part is called with NumPy arrays and a seed, whatever its own framework. Knows no law.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .call import Array
from .quiet import target_code
from .signature import CannotAdapt

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
    rotation         (x (B, H, L, D), positions (L,)) -> x turned; predicted: the base
    slopes           (heads) -> ALiBi's slopes (H,)
    buckets          (distances (N,), bidirectional=, num_buckets=, max_distance=) -> T5's buckets (N,)
    sinusoids        (length, width) -> (L, E)
    layer norm       (x (N, E)) -> (N, E), with gain 1 and no bias; predicted: the epsilon
    rms norm         the same
    causal loss      (logits (B, L, V), labels (B, L)) -> the mean in nats
    stack            (seed) -> the variance of the residual stream after 0, 1, 2, ... blocks, norms before the blocks' parts
    normed stack     the same, norms after
    """

    #: the kind of laws
    LAWS: ClassVar[str] = "part"

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
        """What the part gives. Raises TargetRaised with its own exception."""
        with target_code():
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


def torch_rotation(name: str, function: Callable[..., Any], base: float = 10_000.0) -> Part:
    """A rotation of torch tensors: function(x, positions)."""

    def run(x: Array, positions: Ints) -> Array:
        return plain(function(tensor(x), tensor(positions)))

    return Part(name, "rotation", run, base)


def torch_slopes(name: str, function: Callable[[int], Any]) -> Part:
    """ALiBi's slopes: function(heads), any shape of that many."""
    return Part(name, "slopes", lambda heads: plain(function(heads)).reshape(-1))


def torch_buckets(name: str, function: Callable[..., Any]) -> Part:
    """T5's buckets: function(distances, bidirectional=, num_buckets=, max_distance=)."""

    def run(distances: Ints, **options: Any) -> Ints:
        return plain(function(tensor(distances), **options)).astype(np.int64)

    return Part(name, "buckets", run)


def torch_sinusoids(name: str, function: Callable[[int, int], Any]) -> Part:
    """Sinusoidal positions: function(length, width)."""
    return Part(name, "sinusoids", lambda length, width: plain(function(length, width)).reshape(length, width))


def torch_norm(name: str, build: Callable[[int], Any], kind: str = "layer norm") -> Part:
    """A norm as a module, built for a width; its epsilon is read from it."""

    def run(x: Array) -> Array:
        import torch

        with torch.no_grad():
            return plain(build(x.shape[-1])(tensor(x)))

    made = build(4)
    eps = next(
        (
            float(v)
            for n in ("eps", "variance_epsilon", "epsilon", "norm_eps")
            if (v := getattr(made, n, None)) is not None
        ),
        0.0,
    )
    return Part(name, kind, run, eps)


def torch_loss(name: str, function: Callable[[Any, Any], Any]) -> Part:
    """The loss of a language model: function(logits, labels), the labels being the tokens."""

    def run(logits: Array, labels: Ints) -> float:
        return float(function(tensor(logits), tensor(labels)))

    return Part(name, "causal loss", run)


def tensor(array: NDArray[Any]) -> Any:
    """Reals as float32, integers as they are."""
    import torch

    made = torch.from_numpy(np.ascontiguousarray(array))
    return made.float() if made.is_floating_point() else made


def plain(value: Any) -> Array:
    """A tensor, or what makes one, as float64."""
    import torch

    return np.asarray(torch.as_tensor(value).detach().double().numpy())


def torch_stack(
    name: str, build: Callable[[], Any], stream: Callable[[Any], Sequence[Array]], predicted: Any = None
) -> Part:
    """The variances of what stream(model) gives, (N, E) after each block, of build(); `predicted` for norms before the parts."""

    def run(seed: int) -> Array:
        with seeded(seed):
            model = build()
        return np.array([float(((x - x.mean(-1, keepdims=True)) ** 2).mean()) for x in stream(model)])

    return Part(name, "normed stack" if predicted is None else "stack", run, predicted)


#: what a function is taken as: the words of --as, and what makes a part of it
TAKEN_AS: dict[str, Callable[[str, Any], Part]] = {
    "sampler": torch_sampler,
    "masking": torch_masking,
    "spans": torch_spans,
    "dropout": torch_dropout,
    "rotation": torch_rotation,
    "slopes": torch_slopes,
    "buckets": torch_buckets,
    "sinusoids": torch_sinusoids,
    "layer-norm": torch_norm,
    "rms-norm": lambda name, build: torch_norm(name, build, "rms norm"),
    "causal-loss": torch_loss,
}


def taken_as(kind: str, name: str, function: Any) -> Part:
    """A part of this kind out of a function of torch tensors. Raises CannotAdapt for an unknown kind."""
    if kind not in TAKEN_AS:
        near = get_close_matches(kind, TAKEN_AS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else f"; possible: {', '.join(TAKEN_AS)}"
        raise CannotAdapt(f"{kind!r} is no kind of part{hint}")
    try:
        return TAKEN_AS[kind](name, function)
    except CannotAdapt:
        raise
    except Exception as error:
        raise CannotAdapt(f"{name} can't be taken as {kind}: {type(error).__name__}: {error}") from error


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
