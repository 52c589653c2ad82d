"""A fault of an option as a function that takes all options, in flash-attn's and torch's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..targets.options import band, distance
from .case import Case, Fault, attend


def with_options(fault: Fault | None, case_of: Callable[..., Case]) -> Callable[..., Any]:
    """The NumPy attention function with this fault among its options; the right one for None.

    A window is (left, right), ends included, -1 without end, aligned with the last keys as in flash-attn; slopes
    multiply -|i + S - L - j|; True in `key_padding_mask` masks.
    """

    def attention(  # type: ignore[no-untyped-def]
        query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, window_size=(-1, -1),
        softcap=0.0, alibi_slopes=None, sinks=None, key_padding_mask=None,
    ):  # fmt: skip
        made = case_of(query, key, value, attn_mask, is_causal, scale)
        queries, keys = made.shape[2:]
        window = tuple(None if n < 0 else n for n in window_size)
        call = made.call.but(
            window=None if window == (None, None) else window,
            softcap=softcap or None,
            slopes=None if alibi_slopes is None else np.asarray(alibi_slopes, dtype=np.float64),
            sinks=None if sinks is None else np.asarray(sinks, dtype=np.float64),
            padding=None if key_padding_mask is None else ~np.asarray(key_padding_mask),
        )
        bottom = np.tri(queries, keys, keys - queries, dtype=np.bool_)
        case = Case(
            call, made.scale, made.default_scale, bottom if is_causal else None, keys - queries,
            band=None if call.window is None else band(call.window, queries, keys, "bottom-right"),
            distance=None if call.slopes is None else distance(queries, keys, "-|i - j|"),
        )  # fmt: skip
        output = None if fault is None or fault.output is None else fault.output(case)
        output = attend(case) if output is None else output
        with np.errstate(all="ignore"):
            return np.nan_to_num(output, nan=0.0, posinf=np.inf, neginf=-np.inf).astype(query.dtype)

    attention.__name__ = "right_with_options" if fault is None else fault.name.replace(" ", "_")
    return attention
