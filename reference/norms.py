"""Root mean square normalisation. LayerNorm is `torch.nn.LayerNorm`: its epsilon is under the root, its variance biased."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """weight * x / sqrt(mean(x^2) + eps) over the last axis          arXiv:1910.07467, equation (4)

    The mean is in float32 at least; the quotient is rounded to the input's dtype before it meets the weight, as in
    T5 and Llama.
    """

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)
