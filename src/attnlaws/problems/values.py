"""Values of a problem: arrays from its seed by NumPy's counter-based generator, exact in the problem's dtype."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..targets.call import Array, BoolArray, Call
from ..targets.conventions import Conventions
from ..targets.options import Window, band, window_of_number
from .dtypes import round_to
from .problem import Problem


def generator(problem: Problem, stream: int = 0) -> np.random.Generator:
    """The generator of one stream of a problem: 0 its tensors, 1 its mask, 2 what a law draws on top."""
    return np.random.Generator(np.random.Philox(key=[problem.seed, stream]))


def call_of(problem: Problem, conventions: Conventions | None = None) -> Call:
    """The call that a problem stands for. Each row sees a key, except where the mask is one of the empty kinds."""
    conventions = conventions or Conventions()
    query, key, value = tensors(problem)
    padding = padding_of(problem)
    visible = mask_of(problem, conventions, padding)
    bias = None
    if problem.bias:
        bias = generator(problem, 3).integers(-24, 25, mask_axes(problem)) / 8.0
        if problem.seed % 4 == 0:  # large, and of more bits than 16 hold
            bias = round_to(4.0 * bias + bias / 1024.0, problem.dtype)
        bias = bias[0, 0] if problem.mask_shape == "LS" else bias
    return Call(
        query,
        key,
        value,
        problem.dtype,
        visible=visible,
        bias=bias,
        route=problem.route,
        causal=problem.causal,
        scale=problem.scale,
        window=window_of(problem, conventions.window),
        softcap=problem.softcap or None,
        slopes=generator(problem, 4).integers(1, 9, problem.heads) / 16.0 if problem.alibi else None,
        sinks=generator(problem, 5).integers(-8, 9, problem.heads) / 4.0 if problem.sinks else None,
        padding=padding,
    )


def window_of(problem: Problem, choice: str) -> Window | None:
    """What the window of a problem shows (left, right), None without end, by the target's convention."""
    if not problem.window:
        return None
    if choice == "left and right":
        left, right = (None if n < 0 else n for n in (problem.left, problem.right))
        return left, right
    return window_of_number(problem.left, choice)


def padding_of(problem: Problem) -> BoolArray | None:
    """A key padding mask (B, S), True = attend: the first keys of each sample are real, and at least one."""
    if not problem.padding:
        return None
    lengths = generator(problem, 6).integers(1, max(problem.keys, 1) + 1, problem.batch)
    return np.asarray(np.arange(problem.keys) < lengths[:, None])


def tensors(problem: Problem) -> tuple[Array, Array, Array]:
    """query (B, H, L, D), key (B, Hkv, S, D), value (B, Hkv, S, Dv) of a problem."""
    rng = generator(problem)
    p = problem
    query = rng.standard_normal((p.batch, p.heads, p.queries, p.head_dim))
    key = rng.standard_normal((p.batch, p.kv_heads, p.keys, p.head_dim))
    value = rng.standard_normal((p.batch, p.kv_heads, p.keys, p.value_dim))
    query, key, value = _regime(problem, rng, query, key, value)
    return round_to(query, p.dtype), round_to(key, p.dtype), round_to(value, p.dtype)


def _regime(
    problem: Problem, rng: np.random.Generator, query: Array, key: Array, value: Array
) -> tuple[Array, Array, Array]:
    """Values with a purpose: what a plain normal draw never shows."""
    name = problem.regime
    if name == "flat":
        query = query / 64.0
    elif name == "peaked":
        query = query * 6.0
    elif name == "tied":
        query, key = np.sign(query), np.sign(key)
    elif name == "integer":
        query, key, value = np.rint(2 * query), np.rint(2 * key), np.rint(3 * value)
    elif name == "offset":
        value = value + 100.0
    elif name == "heavy":
        query, key = (
            np.clip(x / np.maximum(np.abs(rng.standard_normal(x.shape)), 0.05), -30, 30) for x in (query, key)
        )
    elif name == "needle":
        query = _needle(problem, rng, key)
    elif name == "huge":
        query, key = _huge(problem, query, key)
    return query, key, value


def _needle(problem: Problem, rng: np.random.Generator, key: Array) -> Array:
    """Each query points at one key with a gap that decides the row."""
    if problem.keys == 0:
        return rng.standard_normal((problem.batch, problem.heads, problem.queries, problem.head_dim))
    chosen = rng.integers(0, problem.keys, problem.queries)
    chosen[-1:] = problem.keys - 1
    expanded = np.repeat(key, problem.heads // problem.kv_heads, axis=1)
    return np.asarray(4.0 * expanded[:, :, chosen, :])


def _huge(problem: Problem, query: Array, key: Array) -> tuple[Array, Array]:
    """Scores up to 1e4 in size, with products below what the dtype holds (3e4 before the scale in float16)."""
    dots = np.abs(query @ np.repeat(key, problem.heads // problem.kv_heads, axis=1).swapaxes(-1, -2))
    largest = float(dots.max()) if dots.size else 1.0
    scale = problem.scale if problem.scale else float(problem.head_dim) ** -0.5
    wanted = min(1e4 / max(abs(scale), 1e-3), 3e4)
    factor = np.sqrt(wanted / max(largest, 1e-3))
    return query * factor, key * factor


# -- masks -------------------------------------------------------------------------------------------------------


def causal_triangle(queries: int, keys: int, alignment: str, single_query: str = "as aligned") -> BoolArray:
    """j <= i, or j <= i + S - L; one query may see all keys where that is the target's convention."""
    if queries == 1 and single_query == "all keys":
        return np.ones((1, keys), dtype=bool)
    return np.tri(queries, keys, keys - queries if alignment == "bottom-right" else 0, dtype=bool)


def mask_of(problem: Problem, conventions: Conventions, padding: BoolArray | None = None) -> BoolArray | None:
    """The boolean mask (True = attend) in the shape in which it is passed; None without one."""
    if problem.mask == "none":
        return None
    p = problem
    mask = _kind(problem, generator(problem, 1), mask_axes(problem))
    if p.mask not in ("empty-row", "empty-sample", "empty-all"):
        allowed = np.ones((p.queries, p.keys), dtype=bool)
        if p.causal:
            allowed = causal_triangle(p.queries, p.keys, conventions.alignment, conventions.single_query)
        window = window_of(problem, conventions.window)
        if window is not None:
            allowed = allowed & band(window, p.queries, p.keys, conventions.window_anchor)
        # What every sample's padding leaves: the mask may be shared by the batch.
        mask = _never_empty(mask, allowed if padding is None else allowed & padding.all(0))
    return mask[0, 0] if p.mask_shape == "LS" else mask


def mask_axes(problem: Problem) -> tuple[int, int, int, int]:
    """The four axes of a mask of this broadcast shape; "LS" is passed without the first two."""
    p = problem
    return {
        "LS": (1, 1, p.queries, p.keys),
        "11LS": (1, 1, p.queries, p.keys),
        "B1LS": (p.batch, 1, p.queries, p.keys),
        "1HLS": (1, p.heads, p.queries, p.keys),
        "BHLS": (p.batch, p.heads, p.queries, p.keys),
        "B11S": (p.batch, 1, 1, p.keys),
    }[p.mask_shape]


def _kind(problem: Problem, rng: np.random.Generator, shape: tuple[int, ...]) -> BoolArray:
    batch, _, rows, keys = shape
    column = np.arange(keys)
    if problem.mask == "random":
        return np.asarray(rng.random(shape) < 0.6)
    if problem.mask in ("padding-right", "padding-left"):
        lengths = rng.integers(1, keys + 1, batch) if keys else np.zeros(batch, dtype=int)
        if batch > 1 and keys:
            lengths[0] = keys
        kept = column < lengths[:, None] if problem.mask == "padding-right" else column >= keys - lengths[:, None]
        return np.broadcast_to(kept[:, None, None, :], shape).copy()
    if problem.mask == "banded":
        width = int(rng.integers(0, max(keys // 2, 1)))
        return np.broadcast_to(np.abs(column - np.arange(rows)[:, None]) <= width, shape).copy()
    if problem.mask == "first-half":
        return np.broadcast_to(column >= keys // 2, shape).copy()
    mask: BoolArray = np.array(rng.random(shape) < 0.7, dtype=bool)
    if problem.mask == "empty-all":
        mask[:] = False
    elif problem.mask == "empty-sample":
        mask[-1] = False
    else:
        mask[..., int(rng.integers(0, max(rows, 1))), :] = False
    return mask


def _never_empty(mask: BoolArray, allowed: BoolArray) -> BoolArray:
    """Show each row the last key that causality allows it, where it would otherwise see none."""
    mask = mask.copy()
    queries, keys = allowed.shape
    if keys == 0 or queries == 0:
        return mask
    if mask.shape[2] == 1 and queries > 1:  # one row for all queries: the first key is the one that every query may see
        dead = ~(mask & allowed).any(-1).all(-1, keepdims=True)
        mask[..., 0] |= dead
        return mask
    last = np.where(allowed.any(-1), keys - 1 - allowed[:, ::-1].argmax(-1), 0)
    dead = np.asarray(~(mask & allowed).any(-1))
    index = np.broadcast_to(last, dead.shape)[..., None]
    chosen = np.take_along_axis(mask, index, axis=-1) | dead[..., None]
    np.put_along_axis(mask, index, chosen, axis=-1)
    return mask


def expanded(array: NDArray[np.float64], heads: int) -> NDArray[np.float64]:
    """Key or value heads repeated for their query heads: head h reads h // (H / Hkv)."""
    return np.repeat(array, heads // array.shape[1], axis=1)
