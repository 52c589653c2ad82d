"""Finding logits, loss and cache in what a model gave back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .call import WrongResult
from .model_names import CACHES, LOGITS


@dataclass(frozen=True)
class Read:
    """Logits (B, n, V) of the last n tokens, the loss, and the cache; None for what is not there."""

    logits: Any
    loss: Any = None
    cache: Any = None


def read(result: Any, batch: int, length: int, width: int | None, axes: str, torch: Any) -> Read:
    """What stands in a result: a tensor, a tuple, a dictionary or an object with fields. Raises WrongResult."""
    if isinstance(result, torch.Tensor):
        return Read(_logits([result], result, batch, length, width, axes, torch))
    named = _named(result)
    if named is not None:
        order = [named[n] for n in LOGITS if isinstance(named.get(n), torch.Tensor)]
        cache = next((named[n] for n in CACHES if named.get(n) is not None), None)
        items = order or [v for v in named.values() if isinstance(v, torch.Tensor)]
        return Read(_logits(items, result, batch, length, width, axes, torch), named.get("loss"), cache)
    if isinstance(result, tuple | list):
        items = [v for v in result if isinstance(v, torch.Tensor)]
        logits = _logits(items, result, batch, length, width, axes, torch)
        loss = next((v for v in items if v.numel() == 1 and v.ndim == 0 and v.is_floating_point()), None)
        rest = (v for v in result if not _is_plain(v, torch) or (isinstance(v, torch.Tensor) and v.ndim >= 5))
        return Read(logits, loss, next(rest, None))
    raise WrongResult(f"returned {type(result).__name__}, in which no logits are found")


def _is_plain(value: Any, torch: Any) -> bool:
    """Whether a part of a result can be no cache: a tensor, a number, nothing, an empty tuple, or nothing but Nones."""
    if isinstance(value, tuple | list):
        return all(v is None for v in value)
    return value is None or isinstance(value, torch.Tensor | int | float | str | bool)


def _named(result: Any) -> dict[str, Any] | None:
    """The parts of a result by name; None where it has none."""
    if isinstance(result, dict):
        return dict(result)
    if hasattr(result, "_asdict"):
        return dict(result._asdict())
    if isinstance(result, tuple | list) or not hasattr(result, "__dict__"):
        return None
    return dict(vars(result)) or None


def _logits(items: list[Any], result: Any, batch: int, length: int, width: int | None, axes: str, torch: Any) -> Any:
    """The first tensor with the batch and the length in their places, (B, n, V): n = L, or 1 for the last token alone."""
    wanted = (batch, length) if axes == "BL" else (length, batch)
    floating = [t for t in items if t.is_floating_point() and width in (None, t.shape[-1] if t.ndim else None)]
    for t in floating:
        if t.ndim == 3 and tuple(t.shape[:2]) == wanted:
            return t if axes == "BL" else t.transpose(0, 1)
    for t in floating:
        if t.ndim == 2 and t.shape[0] == batch * length and length > 1:  # (B L, V), as lectures flatten it for the loss
            return t.view(*wanted, -1) if axes == "BL" else t.view(*wanted, -1).transpose(0, 1)
        if t.ndim == 3 and tuple(t.shape[:2]) == ((batch, 1) if axes == "BL" else (1, batch)):
            return t if axes == "BL" else t.transpose(0, 1)
        if t.ndim == 2 and t.shape[0] == batch:
            return t[:, None]
    shapes = ", ".join(str(tuple(t.shape)) for t in items) or "no tensor"
    kind = "a tensor" if isinstance(result, torch.Tensor) else type(result).__name__
    raise WrongResult(f"returned {kind} of {shapes} for {batch} x {length} tokens")
