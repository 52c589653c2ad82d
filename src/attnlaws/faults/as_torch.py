"""A fault of the gradients as a torch function: the right output, and a backward pass that is the fault's rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .as_target import case_of
from .case import Case, Fault, attend
from .gradients import bias_gradient, derive

if TYPE_CHECKING:
    import torch


def differentiable(fault: Fault | None) -> Callable[..., Any]:
    """Attention of torch tensors whose gradients are those of the fault; the right ones for None."""

    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):  # type: ignore[no-untyped-def]
        mask = None if attn_mask is None else _array(attn_mask)
        case = case_of(_array(query), _array(key), _array(value), mask, is_causal, scale)
        return _function().apply(query, key, value, attn_mask, case, fault)

    attention.__name__ = "right" if fault is None else fault.name.replace(" ", "_")
    return attention


def _array(tensor: torch.Tensor) -> Any:
    """A tensor as a NumPy array, numbers in float64."""
    import torch

    tensor = tensor.detach().cpu()
    return tensor.numpy() if tensor.dtype == torch.bool else tensor.to(torch.float64).numpy()


def _function() -> Any:
    """The autograd function. Made here, so that torch is imported only where it is called."""
    import torch

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, case: Case, fault: Fault | None) -> Any:
            ctx.case, ctx.fault = case, fault
            ctx.like = [query, key, value, mask]
            out = torch.nan_to_num(torch.from_numpy(attend(case).copy()), nan=0.0)
            return out.to(dtype=query.dtype, device=query.device)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            case, upstream = ctx.case, _array(grads[0])
            rule = None if ctx.fault is None or ctx.fault.gradients is None else ctx.fault.gradients
            found = None if rule is None else rule(case, upstream)
            made: list[Any] = list(derive(case, upstream) if found is None else found)
            mask = ctx.like[3]
            made.append(bias_gradient(case, upstream) if mask is not None and mask.dtype.is_floating_point else None)
            back: list[Any] = []
            for gradient, like in zip(made, ctx.like, strict=True):
                if gradient is None:
                    back.append(None)
                    continue
                tensor = torch.from_numpy(gradient.copy())
                tensor = tensor if tensor.shape == like.shape else tensor.sum_to_size(like.shape)
                back.append(tensor.to(dtype=like.dtype, device=like.device))
            return (*back, None, None)

    return Attention
