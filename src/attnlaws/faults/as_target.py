"""A fault as an attention function that anyone could have written: what the laws are tried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..targets.call import Call
from .as_options import with_options
from .case import Case, Fault, attend


def function_of(fault: Fault | None) -> Callable[..., Any]:
    """The attention function with this fault; the right one for None.

    A fault in a step becomes a NumPy function in float64 inside; one of the gradients a torch function.
    """
    if fault is not None and fault.function is not None:
        return fault.function
    if fault is not None and fault.gradients is not None:
        from .as_torch import differentiable

        return differentiable(fault)
    if fault is not None and fault.options:
        return with_options(fault, case_of)

    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):  # type: ignore[no-untyped-def]
        case = case_of(query, key, value, attn_mask, is_causal, scale)
        output = None if fault is None or fault.output is None else fault.output(case)
        output = attend(case) if output is None else output
        with np.errstate(all="ignore"):
            return np.nan_to_num(output, nan=0.0, posinf=np.inf, neginf=-np.inf).astype(query.dtype)

    attention.__name__ = "right" if fault is None else fault.name.replace(" ", "_")
    return attention


def case_of(query: Any, key: Any, value: Any, attn_mask: Any, is_causal: bool, scale: float | None) -> Case:
    """The case of a call in torch's own words: boolean masks True = attend, others added, causal from the top left."""
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (query, key, value))
    shape = (*q.shape[:3], k.shape[2])
    visible = bias = None
    route = "bool"
    if attn_mask is not None and attn_mask.dtype == bool:
        visible = np.asarray(attn_mask)
        np.broadcast_to(visible, shape)  # raises where it doesn't fit
    elif attn_mask is not None:
        mask = np.asarray(attn_mask, dtype=np.float64)
        np.broadcast_to(mask, shape)
        finite = np.where(mask > -np.inf, mask, 0.0)
        bias = finite if finite.any() else None
        hidden = bool((mask == -np.inf).any())
        visible = mask > -np.inf if hidden or bias is None else None
        route = "additive"
    own = float(q.shape[-1]) ** -0.5 if q.shape[-1] else 1.0
    call = Call(q, k, v, visible=visible, bias=bias, causal=is_causal, scale=scale, route=route)
    triangle = np.tri(*shape[2:], dtype=np.bool_) if is_causal else None
    return Case(call, own if scale is None else scale, own, triangle, 0)
