"""Trying a target: small calls that fit it, what it refuses, and what its outputs show."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .call import Array, BoolArray, Call, TargetRaised, WrongResult
from .recover import recover_weights
from .target import Target

FAILS = (TargetRaised, WrongResult)


def plain_call(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    value_dim: int,
    *,
    kv: int | None = None,
    seed: int = 0,
    dtype: str = "float32",
) -> Call:
    """A plain call with multiples of 1/8, exact in every dtype."""
    rng = np.random.Generator(np.random.Philox(seed))

    def draw(*shape: int) -> Array:
        return rng.integers(-12, 13, shape) / 8.0

    kv = heads if kv is None else kv
    return Call(
        draw(batch, heads, queries, head_dim), draw(batch, kv, keys, head_dim), draw(batch, kv, keys, value_dim), dtype
    )


def base_call(target: Target, queries: int, keys: int, **changes: Any) -> Call:
    """A small call that fits the target's abilities."""
    a = target.abilities
    size = size_of(target)
    call = plain_call(2 if a.batch else 1, 3 if a.heads else 1, queries, keys, size, size, seed=5, dtype=a.dtypes[0])
    return call.but(**changes)


def size_of(target: Target) -> int:
    """A head size that the target takes: 8, or the next larger one."""
    return next((n for n in target.abilities.head_dims if n >= 8), 8)


def refusal_of(target: Target, call: Call) -> str | None:
    """None where the target takes the call, else its refusal in one line. A wrong shape is no refusal: laws judge it."""
    try:
        target(call)
    except TargetRaised as refusal:
        return refusal.cause_line
    except WrongResult:
        return None
    return None


def samples_are_free(target: Target) -> bool:
    """Whether four samples call no more functions in Python than two. Counted, not timed, so that it is the same in each run."""
    heads, size = (2 if target.abilities.heads else 1), size_of(target)

    def calls(batch: int) -> int:
        count = 0

        def seen(*_: object) -> None:
            nonlocal count
            count += 1

        call = plain_call(batch, heads, 3, 3, size, size, dtype=target.abilities.dtypes[0])
        before = sys.getprofile()
        try:
            target(call)  # what is done once, is done now
            sys.setprofile(seen)
            target(call)
        finally:
            sys.setprofile(before)
        return count

    try:
        return calls(4) <= calls(2)
    except (TargetRaised, WrongResult):
        return False


def with_abilities(target: Target, refusals: Mapping[str, str | None] | None = None, **abilities: Any) -> Target:
    kept = {**target.abilities.refusals, **{k: v for k, v in (refusals or {}).items() if v is not None}}
    return target.but(abilities=replace(target.abilities, refusals=kept, **abilities))


def effective_mask(target: Target, call: Call, *, strict: bool = False) -> BoolArray:
    """Which keys have any weight, (B, H, L, S); rows that are not finite count as empty. q is taken as 0.

    A call that the target doesn't answer shows nothing, or raises where `strict`.
    """
    quiet = call.but(query=np.zeros_like(call.query))
    try:
        with np.errstate(invalid="ignore"):
            weights = recover_weights(target, quiet)
    except FAILS:
        if strict:
            raise
        return np.zeros((*call.query.shape[:3], call.key.shape[2]), dtype=bool)
    return np.asarray(np.where(np.isfinite(weights), weights, 0.0) > 1e-4, dtype=bool)


def triangle(queries: int, keys: int, alignment: str) -> BoolArray:
    """j <= i, or j <= i + S - L."""
    return np.tri(queries, keys, keys - queries if alignment == "bottom-right" else 0, dtype=bool)


def nearest(seen: BoolArray, candidates: Mapping[str, BoolArray]) -> tuple[str, bool]:
    """The candidate that differs in the fewest cells, and whether it differs in none."""
    distances = {name: int((seen != mask).sum()) for name, mask in candidates.items()}
    best = min(distances, key=lambda name: distances[name])
    return best, distances[best] == 0
