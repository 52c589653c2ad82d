"""What the parts of a model give during one call, in the order in which they end. Knows no law."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .call import Array
from .model_inputs import Inputs
from .model_instance import ModelInstance
from .module_copy import tensors_in


@dataclass(frozen=True, eq=False)
class Stage:
    """The first result of one part of a model: its path, as in "h.0.attn", and its values."""

    path: str
    values: Array


def stages_of(instance: ModelInstance, inputs: Inputs) -> list[Stage]:
    """The results of all parts that are called, of each its first, and the logits at the end as "logits".

    Raises TargetRaised or WrongResult.
    """
    found: dict[str, Stage] = {}
    with _watched(instance, found):
        logits = instance.run(inputs, grad=False)
    return [*found.values(), Stage("logits", logits)]


@contextlib.contextmanager
def _watched(instance: ModelInstance, found: dict[str, Stage]) -> Iterator[None]:
    def watch(path: str) -> Any:
        def seen(module: Any, given: Any, result: Any) -> None:
            values = next((t for t in tensors_in(result, instance.torch) if t.is_floating_point()), None)
            if path not in found and values is not None:
                found[path] = Stage(path, instance.numbers(values))

        return seen

    hooks = [part.register_forward_hook(watch(path)) for path, part in instance.module.named_modules() if path]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
