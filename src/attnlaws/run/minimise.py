"""Shrinking a failing problem field by field. Structure only: values follow from the seed, so each step is cheap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..problems.problem import CorruptCase, Problem

F = TypeVar("F", bound=Exception)

_PLAIN = {"dtype": "float32", "mask": "none", "bias": False, "scale": None, "regime": "normal", "causal": False}


def minimise(problem: Any, failure: F, fails: Callable[[Any], Exception | None], *, limit: int) -> tuple[Any, F]:
    """The smallest problem found that fails in the same way, within `limit` attempts.

    `fails` returns the failure of a problem or None. A step is kept where it fails with the same type of exception.
    """
    attempts = 0
    progress = True
    while progress and attempts < limit:
        progress = False
        for smaller in _smaller(problem) if isinstance(problem, Problem) else problem.smaller():
            attempts += 1
            found = fails(smaller)
            if found is not None and type(found) is type(failure):
                problem, failure, progress = smaller, found, True
                break
            if attempts >= limit:
                break
    return problem, failure


def _smaller(problem: Problem) -> Iterator[Problem]:
    """Simpler neighbours of a problem, boldest first."""
    for name, plain in _PLAIN.items():
        if getattr(problem, name) != plain:
            yield from _legal(problem, **{name: plain})
    for option in sorted(problem.options):
        yield from _legal(problem.without(option))
    if problem.left > 1:
        yield from _legal(problem, left=1)
    if problem.right > 0:
        yield from _legal(problem, right=0)
    if problem.heads > 1 or problem.kv_heads > 1:
        if problem.kv_heads != problem.heads:
            yield from _legal(problem, heads=2 * problem.kv_heads)
            yield from _legal(problem, heads=4, kv_heads=2)
            yield from _legal(problem, heads=problem.kv_heads)
        for heads in _less(problem.heads):
            yield from _legal(problem, heads=heads, kv_heads=heads)
    for name in ("batch", "queries", "keys", "head_dim", "value_dim"):
        for size in _less(getattr(problem, name)):
            yield from _legal(problem, **{name: size})
    for size in _less(max(problem.queries, problem.keys)):
        if problem.queries == problem.keys:
            yield from _legal(problem, queries=size, keys=size)
    for size in _less(max(problem.head_dim, problem.value_dim)):
        if problem.head_dim == problem.value_dim:
            yield from _legal(problem, head_dim=size, value_dim=size)
    if problem.mask_shape != "LS" and problem.mask != "none":
        yield from _legal(problem, mask_shape="LS")
    for seed in (0, 1, 2):
        if problem.seed > seed:
            yield from _legal(problem, seed=seed)


def _less(size: int) -> Iterator[int]:
    for smaller in dict.fromkeys((1, 2, 3, 4, 8, 9, 16, 17, 32, 33, 64, 65, size // 2, size - 8, size - 1)):
        if 0 < smaller < size:
            yield smaller


def _legal(problem: Problem, **changes: object) -> Iterator[Problem]:
    try:
        changed = problem.but(**changes)
    except CorruptCase:
        return
    if changed != problem or not changes:
        yield changed
