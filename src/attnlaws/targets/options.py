"""The options of a call as the target wants them: windows, soft caps, slopes, sinks, packed offsets, dropout.

A window is (left, right) in a call: how many keys before and after its own a query sees, None without end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .call import Array, BoolArray, Call

if TYPE_CHECKING:
    from .conventions import Conventions
    from .target import Target

Window = tuple[int | None, int | None]


def window_of_number(number: int, choice: str) -> Window:
    """What a window of one number shows, by the target's convention; left and right are the number for a pair."""
    return {
        "n - 1 before": (number - 1, None),
        "n before": (number, None),
        "n - 1 before, none after": (number - 1, 0),
        "n before, none after": (number, 0),
        "n - 1 each side": (number - 1, number - 1),
        "n each side": (number, number),
        "left and right": (number, number),
    }[choice]


def number_of_window(window: Window, choice: str) -> int:
    """The number that asks for a window: the inverse of `window_of_number`."""
    left = window[0]
    assert left is not None, "a window of one number has a left end"
    return left + 1 if choice.startswith("n - 1") else left


def band(window: Window, queries: int, keys: int, anchor: str) -> BoolArray:
    """i + offset - left <= j <= i + offset + right (L, S), offset 0 or S - L."""
    offset = keys - queries if anchor == "bottom-right" else 0
    away = np.arange(keys)[None, :] - np.arange(queries)[:, None] - offset
    left, right = window
    shown = np.ones((queries, keys), dtype=bool)
    if left is not None:
        shown &= away >= -left
    if right is not None:
        shown &= away <= right
    return shown


def distance(queries: int, keys: int, choice: str) -> Array:
    """What ALiBi slopes multiply (L, S): j - i, or -|i + S - L - j|."""
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    if choice == "-|i - j|":
        return np.asarray(-np.abs(i + (keys - queries) - j), dtype=np.float64)
    return np.asarray(j - i, dtype=np.float64)


def structure(call: Call, conventions: Conventions) -> BoolArray | None:
    """What the window and the padding of a call leave visible, to be met with its mask; None where it has neither."""
    queries, keys = call.query.shape[2], call.key.shape[2]
    shown: BoolArray | None = None
    if call.window is not None:
        shown = band(call.window, queries, keys, conventions.window_anchor)
    if call.padding is not None:
        row = call.padding[:, None, None, :]
        shown = row if shown is None else shown & row
    return shown


def alibi_bias(call: Call, conventions: Conventions) -> Array | None:
    """slope * distance (1, H, L, S), or None."""
    if call.slopes is None:
        return None
    away = distance(call.query.shape[2], call.key.shape[2], conventions.alibi)
    return np.asarray(call.slopes[None, :, None, None] * away)


def option_arguments(target: Target, call: Call) -> dict[str, Any]:
    """The values of the option parameters by role; an option that the call doesn't ask for is left at its default."""
    given: dict[str, Any] = {}
    if call.window is not None:
        given.update(_window_arguments(target, call.window))
    if call.softcap is not None:
        given["softcap"] = call.softcap
    if call.slopes is not None:
        given["alibi"] = target.framework.tensor(call.slopes, "float32")
    if call.sinks is not None:
        given["sinks"] = target.framework.tensor(call.sinks, call.dtype)
    if target.signature.has("dropout"):
        given["dropout"] = call.dropout
    if target.signature.has("training"):
        given["training"] = call.training
    return given


def _window_arguments(target: Target, window: Window) -> dict[str, Any]:
    choice, end = target.conventions.window, -1 if target.abilities.window_open == "-1" else None
    left, right = (end if n is None else n for n in window)
    if target.signature.has("window"):
        pair = choice == "left and right"
        return {"window": (left, right) if pair else number_of_window(window, choice)}
    given: dict[str, Any] = {"window_left": left}
    if target.signature.has("window_right"):
        given["window_right"] = right
    return given


def packed_arguments(target: Target, queries: list[int], keys: list[int]) -> dict[str, Any]:
    """Offsets and longest lengths of packed sequences."""
    given: dict[str, Any] = {}
    for side, lengths in (("q", queries), ("k", keys)):
        if target.signature.has(f"offsets_{side}"):
            given[f"offsets_{side}"] = target.framework.integers(np.cumsum([0, *lengths]))
        if target.signature.has(f"longest_{side}"):
            given[f"longest_{side}"] = max(lengths, default=0)
    return given
