"""Initial weights: rules of a matrix's fan-in and fan-out, and those of GPT-2, BERT, T5 and Llama.

A weight of `torch.nn.Linear` is (out, in): its fan-in is the second size. The rules say the standard deviation that they
give, so that it can be tested. A matrix that holds q, k and v side by side has three times the fan-out: rules with a
fan-out give other values to it than to three matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class Rule(Protocol):
    """How a matrix is filled."""

    def std(self, fan_in: int, fan_out: int) -> float:
        """The standard deviation of its values."""

    def fill_(self, tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw the tensor's values in place."""


@dataclass(frozen=True)
class Normal:
    """N(0, deviation^2), whatever the fans."""

    deviation: float

    def std(self, fan_in: int, fan_out: int) -> float:
        return self.deviation

    def fill_(self, tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return _fill(tensor, self.deviation * _normal(tensor, generator))


@dataclass(frozen=True)
class Uniform:
    """Uniform on [-bound, bound]."""

    bound: float

    def std(self, fan_in: int, fan_out: int) -> float:
        return self.bound / math.sqrt(3)

    def fill_(self, tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return _fill(tensor, self.bound * _symmetric(tensor, generator))


@dataclass(frozen=True)
class TruncatedNormal:
    """N(0, deviation^2) within `cut` deviations of 0. Cutting narrows it: to 0.8796 of the deviation for cut = 2.

    TensorFlow, and so BERT, leaves it so. With `corrected` the deviation is that of the result, as in JAX and Flax.
    """

    deviation: float
    cut: float = 2.0
    corrected: bool = False

    def std(self, fan_in: int, fan_out: int) -> float:
        return self.deviation if self.corrected else self.deviation * self.narrowing

    @property
    def narrowing(self) -> float:
        """sqrt(1 - 2 c phi(c) / (2 Phi(c) - 1)), c = cut."""
        density = math.exp(-(self.cut**2) / 2) / math.sqrt(2 * math.pi)
        return math.sqrt(1 - 2 * self.cut * density / math.erf(self.cut / math.sqrt(2)))

    def fill_(self, tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
        inside = math.erf(self.cut / math.sqrt(2)) * _symmetric(tensor, generator)  # 2 Phi(x) - 1 of a kept x
        drawn = (math.sqrt(2) * torch.erfinv(inside)).clamp(-self.cut, self.cut)
        return _fill(tensor, self.deviation / (self.narrowing if self.corrected else 1.0) * drawn)


@dataclass(frozen=True)
class Xavier:
    """Variance gain^2 2 / (fan_in + fan_out), normal or uniform. Glorot and Bengio 2010, equations (12) and (16)."""

    gain: float = 1.0
    uniform: bool = False

    def std(self, fan_in: int, fan_out: int) -> float:
        return self.gain * math.sqrt(2 / (fan_in + fan_out))

    def fill_(self, tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return _by_fans(self, tensor, self.uniform, generator)


@dataclass(frozen=True)
class FanIn:
    """Variance gain^2 / fan_in, normal or uniform."""

    gain: float
    uniform: bool = False

    def std(self, fan_in: int, fan_out: int) -> float:
        return self.gain / math.sqrt(fan_in)

    def fill_(self, tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return _by_fans(self, tensor, self.uniform, generator)


def he(*, uniform: bool = False) -> FanIn:
    """Variance 2 / fan_in: ReLU, which halves the mean square, keeps it so. He et al. 2015, arXiv:1502.01852, equation (10)."""
    return FanIn(gain=math.sqrt(2), uniform=uniform)


def fan_in_normal() -> FanIn:
    """N(0, 1 / fan_in): a normed input gives outputs of variance 1. LeCun et al. 1998, Efficient BackProp, section 4.6."""
    return FanIn(gain=1.0)


def torch_linear() -> FanIn:
    """What `torch.nn.Linear` draws, weight and bias: uniform on [-1/sqrt(fan_in), 1/sqrt(fan_in)], so 1/3 of the variance."""
    return FanIn(gain=1 / math.sqrt(3), uniform=True)


def fans(tensor: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight (out, in, ...): further axes, as of a convolution, multiply both."""
    if tensor.ndim < 2:
        raise ValueError(f"a rule of fan-in and fan-out needs a matrix (out, in), not shape {tuple(tensor.shape)}")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def gpt2_(model: nn.Module, num_layers: int, generator: torch.Generator | None = None) -> None:
    """GPT-2's: weights and embeddings N(0, 0.02^2), the last matrix of each residual branch (`c_proj`) 1/sqrt(2 layers)
    of that, biases 0, norms 1. Radford et al. 2019, section 2.3, and the released code for 0.02.
    """
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, not {num_layers}")

    def rule(name: str) -> Rule:
        return Normal(0.02 / math.sqrt(2 * num_layers) if name.endswith("c_proj.weight") else 0.02)

    for name, parameter in model.named_parameters():
        _fill_by_kind(name, parameter, rule(name), generator)


def bert_(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """BERT's: weights and embeddings 0.02 times a normal cut at 2, biases 0, norms 1. The released code."""
    for name, parameter in model.named_parameters():
        _fill_by_kind(name, parameter, TruncatedNormal(0.02), generator)


def llama_(model: nn.Module, generator: torch.Generator | None = None) -> None:
    """N(0, 0.02^2) throughout, norms 1: what transformers does for Llama; the paper gives no rule."""
    for name, parameter in model.named_parameters():
        _fill_by_kind(name, parameter, Normal(0.02), generator)


def t5_(model: nn.Module, d_head: int, generator: torch.Generator | None = None) -> None:
    """T5's: N(0, 1 / fan_in), queries N(0, 1 / (fan_in D)) in place of a scale, the embedding N(0, 1), norms 1; the
    relative biases N(0, 1 / E). arXiv:1910.10683's code (Mesh TensorFlow).
    """
    parameters = dict(model.named_parameters())

    def rule(name: str) -> Rule:
        if name.endswith("relative_bias.weight"):
            return Normal(1 / math.sqrt(parameters["embedding.weight"].shape[1]))
        if name.endswith(("embedding.weight", "lm_head.weight")):
            return Normal(1.0)
        return FanIn(gain=1 / math.sqrt(d_head)) if name.endswith("q.weight") else fan_in_normal()

    for name, parameter in parameters.items():
        _fill_by_kind(name, parameter, rule(name), generator)


def _fill_by_kind(name: str, parameter: Tensor, rule: Rule, generator: torch.Generator | None) -> None:
    """A matrix by the rule; of the vectors, biases 0 and the weights of norms 1."""
    with torch.no_grad():
        if parameter.ndim >= 2:
            rule.fill_(parameter, generator)
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def _by_fans(rule: Xavier | FanIn, tensor: Tensor, uniform: bool, generator: torch.Generator | None) -> Tensor:
    deviation = rule.std(*fans(tensor))
    drawn = math.sqrt(3) * _symmetric(tensor, generator) if uniform else _normal(tensor, generator)
    return _fill(tensor, deviation * drawn)


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """N(0, 1), in float32 at least: 16 bits have too few values near 0."""
    return _wide(like).normal_(generator=None if like.is_meta else generator)


def _symmetric(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform on [-1, 1), in float32 at least."""
    return _wide(like).uniform_(-1, 1, generator=None if like.is_meta else generator)


def _wide(like: Tensor) -> Tensor:
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.empty(like.shape, dtype=dtype, device=like.device)


def _fill(tensor: Tensor, values: Tensor) -> Tensor:
    with torch.no_grad():
        return tensor.copy_(values)
