"""Lengths far beyond those that every law tries: whether a module takes them, and what its outputs depend on there.

Caches in blocks of 64, masks that end, tiles: what goes wrong from token 64 on shows nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .call import Array, BoolArray
from .layer import Dependence
from .model_names import LENGTHS

FAR = (129, 65)
#: up to here what outputs depend on is found by the probe
NEAR = 33
#: parameters up to which such lengths cost little
SMALL = 500_000
#: the least influence, beside the largest, of a token that is certainly seen
CLEAR = 1e-6


#: from a length and some of its tokens to how much each output, or the last one alone, moves with each of these
Influences = Callable[[int, list[int]], Array]


def look_far(
    module: Any, longest: int, takes: Callable[[int], bool], influences: Influences, near: Dependence
) -> tuple[int, Dependence]:
    """The far length that a module takes, or 0, and what its outputs depend on by what was found near and there.

    `longest` is the longest near one. Where what is seen of the past follows no pattern, or fades, such lengths are left alone: what
    an output must depend on is not known. The future is not looked at: an output that moves with it breaks laws.
    """
    small = sum(parameter.numel() for parameter in module.parameters()) <= SMALL
    if not small or not near.clear or near.right is not None or near.alone:
        return 0, near
    most = max(said_lengths(module), default=FAR[0])
    length = next((n for n in FAR if longest < n <= most and takes(n)), longest)
    if length <= NEAR:
        return 0, near
    tokens = sorted({*range(0, length, 8), 1, 62, 63, 64, 65, length - 2, length - 1} & set(range(length)))
    influence = influences(length, tokens)
    edge = _first_seen(influence[-1])
    if edge > 0:  # somewhere between two tokens that were looked at
        more = list(range(tokens[edge - 1] + 1, tokens[edge]))
        influence = np.insert(influence, [edge] * len(more), influences(length, more), axis=1)
        tokens[edge:edge] = more
    left = length - 1 - tokens[_first_seen(influence[-1])] if edge >= 0 else -1
    found = replace(near, left=None if left == length - 1 else left)
    known = near.left is None or found.left == near.left
    if left < 0 or not known or (found.left is not None and (not near.causal or len(influence) == 1)):
        return 0, near
    return (length, found) if _follows(influence, found.pattern(length), tokens, near.causal) else (0, near)


def said_lengths(module: Any) -> list[int]:
    """What a module and its configuration say of the longest input."""
    holders = (module, getattr(module, "config", None))
    return [n for h in holders for name in LENGTHS if type(n := getattr(h, name, None)) is int and n >= 2]


def _first_seen(influence: Array) -> int:
    """The place of the first token that an output clearly sees; -1 where there is none."""
    seen = influence > CLEAR * influence.max(initial=0.0)
    return int(np.argmax(seen)) if seen.any() else -1


def _follows(influence: Array, pattern: BoolArray, tokens: list[int], causal: bool) -> bool:
    """Whether the outputs see what the pattern says of the past, clearly, and nothing of it beyond."""
    rows = len(influence)
    pattern = pattern[-rows:, tokens]
    past = np.tri(tokens[-1] + 1, dtype=bool)[-rows:, tokens] if causal else np.ones(influence.shape, dtype=bool)
    clear = influence > CLEAR * influence.max(-1, keepdims=True)
    return bool((clear == pattern)[past].all() and ((influence > 0.0) == pattern)[past].all())


def tried_lengths(longest: int, far: int) -> str:
    """The lengths that laws try, in words."""
    return f"tried up to {longest}" + (f", by some laws up to {far}" if far > longest else "")
