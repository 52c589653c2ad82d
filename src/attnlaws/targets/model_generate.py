"""Calling a model's generate method with options by their role."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .call import WrongResult
from .model_inputs import Inputs, IntArray
from .quiet import target_code

if TYPE_CHECKING:
    from .model_instance import ModelInstance


def generate(instance: ModelInstance, prompt: Inputs, count: int, *, seed: int = 0, **options: Any) -> IntArray:
    """The new tokens (B, n), n = count or less where an end token came; options by role: temperature, top_k, ...

    The prompt is `ids` with `real`; for an encoder-decoder the source, and `ids` holds the start token alone.
    Raises TargetRaised, and WrongResult where the method changed the prompt or gave another form.
    """
    from .model import pad_tensor

    target, way = instance.target, instance.target.generate
    assert way is not None, "a model without a generate method is not asked to generate"
    given = prompt.ids if prompt.source is None else prompt.source
    real, pad = (prompt.real, target.pad) if prompt.source is None else (prompt.source_real, target.source_pad)
    keywords: dict[str, Any] = {
        way.roles[way.counts]: count
        if way.counts == "new"
        else (prompt.length if target.source else given.shape[1]) + count
    }
    if real is not None and "mask" in way.roles and pad is not None:
        keywords[way.roles["mask"]] = pad_tensor(pad, real, instance.dtype, instance.torch, target.device)
    keywords.update({way.roles[role]: value for role, value in options.items()})
    tokens = way.roles.get("tokens")
    ids = instance.ids(given)
    quiet_config(instance.module)
    with target_code(), instance._seeded(seed), instance.torch.no_grad():
        method = getattr(instance.module, way.method)
        result = method(**{tokens: ids}, **keywords) if tokens else method(ids, **keywords)
    return _new_tokens(instance, result, prompt.ids, count, way.returns)


def _new_tokens(instance: ModelInstance, result: Any, prompt: IntArray, count: int, returns: str) -> IntArray:
    torch = instance.torch
    if not isinstance(result, torch.Tensor):
        result = getattr(result, "sequences", result[0] if isinstance(result, tuple) and result else result)
    if not isinstance(result, torch.Tensor) or result.ndim != 2 or result.is_floating_point():
        raise WrongResult(f"generate returned {type(result).__name__}, not a tensor of tokens")
    laid = result if instance.target.axes == "BL" else result.T
    found: IntArray = np.asarray(laid.detach().cpu().numpy(), dtype=np.int64)
    if returns == "new":
        return found
    length = prompt.shape[1]
    if found.shape[0] != prompt.shape[0] or found.shape[1] < length or not np.array_equal(found[:, :length], prompt):
        raise WrongResult("generate returned tokens that don't begin with the prompt")
    return found[:, length:]


def quiet_config(module: Any) -> None:
    """A copy of a model that generates from a configuration gets one without ends and rules of its own."""
    config = getattr(module, "generation_config", None)
    for name in (
        "eos_token_id",
        "forced_eos_token_id",
        "forced_bos_token_id",
        "max_length",
        "top_k",
        "top_p",
        "temperature",
    ):
        if config is not None and hasattr(config, name):
            setattr(config, name, None)
