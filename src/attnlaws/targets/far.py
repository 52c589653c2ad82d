"""Lengths far beyond those that every law tries: whether a module takes them, and what its outputs depend on there.

Caches in blocks of 64, masks that end, tiles: what goes wrong from token 64 on shows nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .call import Array
from .layer import Dependence

FAR = (129, 65)
#: up to here what outputs depend on is found by the probe
NEAR = 33
#: parameters up to which such lengths cost little
SMALL = 5_000_000
#: the least influence, beside the largest, of a token that is certainly seen
CLEAR = 1e-6


def look_far(
    module: Any,
    longest: int,
    takes: Callable[[int], bool],
    influences: Callable[[int], tuple[Array, Array]],
    near: Dependence,
) -> tuple[int, Dependence]:
    """The far length that a module takes, or 0, and what its outputs depend on by what was found near and there.

    `longest` is the longest near one. `influences` gives how much the first and the last output move with each token of so many. Where that follows no pattern, or
    fades, such lengths are left alone: what an output must depend on is not known.
    """
    small = sum(parameter.numel() for parameter in module.parameters()) <= SMALL
    if not small or not near.clear or near.right is not None or near.alone:
        return 0, near
    length = next((n for n in FAR if n > longest and takes(n)), longest)
    if length <= NEAR:
        return 0, near
    first, last = influences(length)
    if not near.causal and _reach(first[::-1]) != length - 1:
        return 0, near
    reach = _reach(last)
    left = None if reach == length - 1 else reach
    if reach < 0 or (near.left is not None and left != near.left) or (left is not None and not near.causal):
        return 0, near
    return length, replace(near, left=left)


def _reach(influence: Array) -> int:
    """How many tokens before the last one are seen, all that are nearer too; -1 where that is not clear."""
    moved = influence > 0.0
    if not moved.any():
        return -1
    first = int(np.argmax(moved))
    clear = moved[first:].all() and influence[first:].min() > CLEAR * influence.max()
    return len(influence) - 1 - first if clear else -1


def tried_lengths(longest: int, far: int) -> str:
    """The lengths that laws try, in words."""
    return f"tried up to {longest}" + (f", by some laws up to {far}" if far > longest else "")
