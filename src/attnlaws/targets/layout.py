"""The axes of a black box: each layout is tried, and the output with q = 0 tells which is meant."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .call import Array, WrongResult
from .signature import CannotAdapt
from .target import Target
from .trying import FAILS, plain_call

#: dtypes and head sizes tried where plain float32 with a head size of 4 is refused: what kernels restrict themselves to
_RESTRICTED = (
    ("float32", 4),
    ("float32", 64),
    ("float32", 128),
    ("float64", 4),
    ("bfloat16", 64),
    ("bfloat16", 128),
    ("float16", 64),
    ("float16", 128),
)

#: what may be said of the axes of the output
OUTPUTS = ("as the input", "heads and length exchanged", "heads merged")
#: the correlation from which on an output is what was expected
CLEAR = 0.99


def find_layout(target: Target, refusals: list[str]) -> Target | None:
    """The layout, found with the first dtype and head size that the target takes."""
    for dtype, head_dim in _RESTRICTED:
        if dtype in target.framework.dtypes:
            narrowed = replace(target.abilities, dtypes=(dtype,), head_dims=(head_dim,))
            found = _with_these_sizes(target.but(abilities=narrowed), refusals)
            if found is not None:
                return found
    return None


def _with_these_sizes(target: Target, refusals: list[str]) -> Target | None:
    """Try each layout with B = 2, H = L = S = 3 and q = 0: the output is the mean of V over the length axis."""
    declared = target.conventions.known
    best: tuple[float, Target] | None = None
    if target.signature.has("offsets_q"):
        families: tuple[tuple[str, ...], ...] = (("packed",),)
    else:
        families = (("BHSD", "BSHD", "SBHD"), ("BSD", "SHD", "HSD"), ("SD",))
    for layouts in families:
        if "layout" in declared and target.conventions.layout not in layouts:
            continue
        for layout in layouts:
            if "layout" in declared and layout != target.conventions.layout:
                continue
            for output in OUTPUTS if layout in ("BHSD", "BSHD") else OUTPUTS[:1]:
                if "output_layout" in declared and output != target.conventions.output_layout:
                    continue
                how = {"layout": layout, "output_layout": output}
                free = {name: choice for name, choice in how.items() if declared.get(name) != "declared"}
                tried = target.but(conventions=target.conventions.found("probed", **free))
                score = _layout_score(tried, refusals)
                clear = score is not None and score > CLEAR
                if score is not None and (best is None or (clear and score > best[0] + 1e-6)):
                    best = (score, tried)
        if best is not None:  # four axes that are answered are meant, even where the answer is wrong
            if best[0] <= CLEAR:
                _length_is_not_last(best[1])
            return best[1]
    return None


def _length_is_not_last(target: Target) -> None:
    """Raise CannotAdapt where the last axis is the length: with q = 0 the output is the mean of V over that axis."""
    if target.conventions.layout not in ("BHSD", "BSD") or target.conventions.known.get("layout") == "declared":
        return
    heads = 3 if target.conventions.layout == "BHSD" else 1
    size = target.abilities.head_dims[0]
    call = plain_call(2, heads, 3, 3, size, size, seed=11, dtype=target.abilities.dtypes[0])
    try:
        answer = target(call.but(query=np.zeros_like(call.query)))
    except FAILS:
        return
    along = np.broadcast_to(call.value.mean(3, keepdims=True), call.value.shape)
    running = np.cumsum(call.value, axis=3) / np.arange(1, size + 1)
    if answer.shape_as_expected and max(_correlation(answer.output, x) for x in (along, running)) > CLEAR:
        axes = "(B, H, D, L)" if heads > 1 else "(B, D, L)"
        raise CannotAdapt(
            f"{target.name} has the length as its last axis, {axes}; wrap it in a function of {axes.replace('D, L', 'L, D')} arrays"
        )


def _layout_score(target: Target, refusals: list[str]) -> float | None:
    """How well the output with q = 0 correlates with a mean (or running mean) of V over the length axis."""
    score = _one_layout_score(target, 3, 3, refusals)
    if score is None or target.conventions.layout in ("BSD", "SD"):
        return score
    # Where heads and length differ, a transposed merge can't pass for another layout.
    other = _one_layout_score(target, 2, 4, refusals)
    return score if other is None else min(score, other)


def _one_layout_score(target: Target, heads: int, length: int, refusals: list[str]) -> float | None:
    batch = 2 if target.conventions.layout in ("BHSD", "BSHD", "SBHD", "BSD", "packed") else 1
    heads = heads if target.conventions.layout in ("BHSD", "BSHD", "SBHD", "SHD", "HSD", "packed") else 1
    size = target.abilities.head_dims[0]
    call = plain_call(batch, heads, length, length, size, size, seed=11, dtype=target.abilities.dtypes[0])
    call = call.but(query=np.zeros_like(call.query))
    try:
        answer = target(call)
    except FAILS as failure:
        refusals.append(str(failure) if isinstance(failure, WrongResult) else failure.cause_line)
        return None
    output = answer.output
    if not np.isfinite(output).all() or not answer.shape_as_expected:
        return 0.0
    mean = np.broadcast_to(call.value.mean(2, keepdims=True), call.value.shape)
    running = np.cumsum(call.value, axis=2) / np.arange(1, length + 1)[:, None]
    return max(_correlation(output, mean), _correlation(output, running))


def _correlation(first: Array, second: Array) -> float:
    a, b = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0
