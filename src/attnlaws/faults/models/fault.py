"""What a fault of a model is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelFault:
    """A named way for a model to be wrong: what happens instead, what to change, who reported it, the law that is about it.

    `make` gives a small torch module from tokens (B, L) to logits (B, L, V) with this one fault. `sources` are issues and pull
    requests as owner/repository#number.
    """

    name: str
    sentence: str
    fix: str
    sources: tuple[str, ...]
    law: str
    make: Callable[[], Any]
