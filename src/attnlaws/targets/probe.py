"""The probe: conventions and abilities of a black box, found without any reference.

With q = 0 every visible key weighs the same, so with V = one-hot rows the output shows the effective mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .call import Call, TargetRaised
from .conventions import Conventions
from .frameworks import Framework, frameworks_to_try
from .layout import find_layout
from .probe_masks import MASK, SQUARE, mask_call, probe_empty_rows, probe_mask_and_causal, probe_masks
from .probe_options import probe_options
from .signature import CannotAdapt, understand
from .target import Target
from .trying import (
    FAILS,
    base_call,
    effective_mask,
    nearest,
    plain_call,
    refusal_of,
    samples_are_free,
    size_of,
    triangle,
    with_abilities,
)


def adapt(
    function: Callable[..., Any],
    *,
    name: str,
    device: str = "cpu",
    declared: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    routes: tuple[str, ...] | None = None,
    framework: str | Framework | None = None,
    precision: Mapping[str, str] | None = None,
) -> Target:
    """A callable target out of a function: its framework, layout, conventions and abilities, by trying them.

    Raises CannotAdapt where no framework and layout gives an attention-shaped result, with the first refusal.
    """
    if not callable(function):
        raise CannotAdapt(f"{name} is {type(function).__name__}, not a function of query, key and value")
    signature = understand(function, names, tuple(fixed or ()))
    refusals: list[str] = []
    if framework is None or isinstance(framework, str):
        candidates = frameworks_to_try(function, device, framework)
    else:
        candidates = [framework]
    for candidate in candidates:
        bare = Target(
            name,
            function,
            candidate,
            signature,
            fixed=fixed or {},
            declared_precision=precision or {},
        )
        target = bare.but(
            conventions=Conventions().found("declared", **(declared or {})), declared=tuple(declared or ())
        )
        before = candidate.global_state()
        found = find_layout(target, refusals) or find_layout(_without_dropout(target), refusals)
        if found is not None:
            found = _probe(found, routes)
            found = found.but(disturbed=_disturbed(before, candidate.global_state()))
            return found.but(contradicted=_contradicted(bare, declared, routes)) if declared else found
    raise CannotAdapt(
        f"{name} can't be called as attention: {refusals[0] if refusals else 'it gave nothing'}; if it takes other axes, "
        "sizes or results, wrap it in a function (query, key, value) of its own"
    )


def _disturbed(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, ...]:
    """Settings that the calls of the probe changed; random states may, where dropout was tried."""
    return tuple(name for name in before if before[name] != after[name] and "random" not in name)


def _without_dropout(target: Target) -> Target:
    """The target with its dropout parameter left at its default: a module or None, in textbooks, and no rate."""
    roles = {role: p for role, p in target.signature.roles.items() if role != "dropout" or p.required}
    return target.but(signature=replace(target.signature, roles=roles))


def _contradicted(
    bare: Target, declared: Mapping[str, str], routes: tuple[str, ...] | None
) -> dict[str, tuple[str, str]]:
    """Declared conventions of which the probe, left to itself, is sure to see another choice: name -> (declared, seen)."""
    alone = find_layout(bare, [])
    if alone is None:
        return {}
    seen = _probe(alone, routes).conventions
    return {
        name: (choice, str(getattr(seen, name)))
        for name, choice in declared.items()
        if seen.known.get(name) in ("probed", "signature") and getattr(seen, name) != choice
    }


def _probe(target: Target, routes: tuple[str, ...] | None) -> Target:
    """Abilities first, since each convention is found only where the ability is there."""
    target = _sizes(target)
    target = _dtypes(target)
    target = _causality(target)
    target = _masked_dtypes(probe_masks(target, routes))
    target = probe_mask_and_causal(target)
    target = probe_empty_rows(target)
    target = _scale(target)
    target = probe_options(target)
    return _gradients(target)


def _sizes(target: Target) -> Target:
    layout = target.conventions.layout
    target = with_abilities(
        target,
        batch=layout in ("BHSD", "BSHD", "SBHD", "BSD", "packed"),
        heads=layout in ("BHSD", "BSHD", "SBHD", "SHD", "HSD", "packed"),
        costly_sizes=target.framework.costly_sizes,
    )
    batch, heads = (2 if target.abilities.batch else 1), (4 if target.abilities.heads else 1)
    target, refusals = _head_dims(target, batch, heads)
    size, dtype = size_of(target), target.abilities.dtypes[0]
    other = next((n for n in reversed(target.abilities.head_dims) if n != size), size + 2)
    width = refusal_of(target, plain_call(batch, heads, 3, 3, size, other, dtype=dtype))
    rectangular = refusal_of(target, plain_call(batch, heads, 3, 5, size, size, dtype=dtype))
    refusals |= {"Dv != D": width, "Lq != Lk": rectangular}
    _one_head_is_one_head(target)
    grouped = heads == 4 and (target.signature.has("grouped") or target.signature.has("module"))
    if heads == 4 and not grouped:
        # Without a flag grouped heads are taken only where the output depends on them as it must.
        grouped = _groups_work(target)
    elif grouped:
        refusals["Hkv < H"] = refusal_of(target, plain_call(batch, 4, 3, 3, size, size, kv=2, dtype=dtype))
        grouped = refusals["Hkv < H"] is None
    free = target.abilities.batch and samples_are_free(target)
    return with_abilities(
        target,
        refusals,
        value_width=width is None,
        rectangular=rectangular is None,
        grouped=grouped,
        samples_are_free=free,
    )


#: where each size costs a compilation these tell whether a size is refused at all
_FEW_HEAD_DIMS = (1, 12, 64)
_HEAD_DIMS = (1, 2, 3, 4, 5, 8, 12, 16, 32, 64, 80, 128, 256)


def _head_dims(target: Target, batch: int, heads: int) -> tuple[Target, dict[str, str | None]]:
    """Which head sizes are taken, and what is said of the first that is not."""
    dtype = target.abilities.dtypes[0]
    tried = _FEW_HEAD_DIMS if target.framework.costly_sizes else _HEAD_DIMS
    answers = {n: refusal_of(target, plain_call(batch, heads, 3, 3, n, n, dtype=dtype)) for n in tried}
    if None in answers.values() and set(answers.values()) != {None} and tried != _HEAD_DIMS:
        answers = {n: refusal_of(target, plain_call(batch, heads, 3, 3, n, n, dtype=dtype)) for n in _HEAD_DIMS}
    taken = tuple(n for n, refusal in answers.items() if refusal is None)
    if set(answers.values()) == {None}:
        return with_abilities(target, head_dims=()), {}
    first = next(n for n, refusal in answers.items() if refusal is not None)
    return with_abilities(target, head_dims=taken or target.abilities.head_dims), {f"head size {first}": answers[first]}


def _one_head_is_one_head(target: Target) -> None:
    """Raise CannotAdapt where the last axis of a (B, L, D) function holds several heads, which a plain call can't show.

    A needle in the first channel decides the whole row of one head, but leaves the last channel of a second head alone.
    """
    if target.conventions.layout not in ("BSD", "SD"):
        return
    call = base_call(target, 3, 3)
    query, key = np.zeros_like(call.query), np.zeros_like(call.key)
    query[..., 0], key[:, :, 1, 0] = 16.0, 16.0
    try:
        row = target(call.but(query=query, key=key)).output[0, 0, 2]
    except FAILS:
        return
    value = call.value[0, 0]
    decided, mean = value[1], value.mean(0)
    if abs(row[0] - decided[0]) < 0.02 and abs(row[-1] - mean[-1]) < 0.02 < abs(decided[-1] - mean[-1]):
        raise CannotAdapt(
            f"{target.name} takes (B, L, E) and splits E into heads itself; wrap it in a function of (B, H, L, D) arrays"
        )


def _groups_work(target: Target) -> bool:
    """Whether H = 4 queries with Hkv = 2 are answered at all, by an output of the right shape."""
    try:
        size, dtype = size_of(target), target.abilities.dtypes[0]
        target(plain_call(2 if target.abilities.batch else 1, 4, 3, 3, size, size, kv=2, dtype=dtype))
    except FAILS:
        return False
    return True


def _dtypes(target: Target) -> Target:
    taken, refusals = [], {}
    for dtype in target.framework.dtypes:
        refusal = refusal_of(target, base_call(target, 3, 3).but(dtype=dtype))
        if refusal is None:
            taken.append(dtype)
        else:
            refusals[dtype] = refusal
    if not taken:
        raise CannotAdapt(f"{target.name} takes none of {', '.join(target.framework.dtypes)}: {refusals['float32']}")
    views = [v for v in target.framework.views if refusal_of(target, _viewed(target, v)) is None]
    return with_abilities(target, refusals, dtypes=tuple(taken), views=tuple(views))


def _masked_dtypes(target: Target) -> Target:
    """Without the dtypes in which no mask is taken: a fill of -1e9, in textbooks everywhere, is refused by float16 in torch."""
    mask, abilities = MASK if target.abilities.rectangular else SQUARE, target.abilities
    refusals = {}
    for dtype in abilities.dtypes[1:]:
        for route in abilities.routes:
            shape = "B11S" if route == "padding" else abilities.mask_shapes[0]
            refusal = refusal_of(target, mask_call(target, route, mask, shape).but(dtype=dtype))
            if refusal is not None:
                refusals[f"{dtype} with a mask"] = refusal
    taken = tuple(d for d in abilities.dtypes if f"{d} with a mask" not in refusals)
    return with_abilities(target, refusals, dtypes=taken)


def _viewed(target: Target, view: str) -> Call:
    call = base_call(target, 3, 3)
    return call.but(views=(("query", view), ("key", view), ("value", view)))


def _causality(target: Target) -> Target:
    conventions = target.conventions
    if not target.signature.has("causal"):
        if conventions.known.get("causal") == "declared":
            always = conventions.causal == "always"
        else:
            seen = effective_mask(target, base_call(target, 6, 6))[0, 0]
            name, _ = nearest(seen, {"all": np.ones((6, 6), bool), "always": triangle(6, 6, "top-left")})
            always = name == "always"
            target = target.but(conventions=conventions.found("probed", causal="always" if always else "not offered"))
        if not always:
            return target
    else:
        refusal = refusal_of(target, base_call(target, 4, 4, causal=True))
        target = target.but(
            conventions=conventions.found("signature", causal="flag" if refusal is None else "not offered")
        )
        if refusal is not None:
            return with_abilities(target, {"causal": refusal})
    return _alignment(with_abilities(target, causal=True))


def _alignment(target: Target) -> Target:
    """The alignment from a wide rectangle, and what a single query sees."""
    if not target.abilities.rectangular:
        return with_abilities(target, rectangular_causal=False)
    refusal = refusal_of(target, base_call(target, 3, 5, causal=True))
    if refusal is not None:
        target = target.but(conventions=target.conventions.found("probed", alignment="square only"))
        return with_abilities(target, {"causal, Lq != Lk": refusal}, rectangular_causal=False)
    if "alignment" not in target.conventions.known:
        seen = effective_mask(target, base_call(target, 3, 5, causal=True))[0, 0]
        name, sure = nearest(seen, {a: triangle(3, 5, a) for a in ("top-left", "bottom-right")})
        name = "top-left" if seen.all() else name  # a flag without effect is near to neither
        target = target.but(conventions=target.conventions.found("probed" if sure else "unclear", alignment=name))
    alignment = target.conventions.alignment
    if "single_query" not in target.conventions.known and alignment != "square only":
        single = effective_mask(target, base_call(target, 1, 5, causal=True))[0, 0]
        aligned = triangle(1, 5, alignment)
        if alignment == "top-left" and target.signature.has("module") and single.all():
            target = target.but(conventions=target.conventions.found("probed", single_query="all keys"))
        elif np.array_equal(single, aligned):
            target = target.but(conventions=target.conventions.found("probed", single_query="as aligned"))
    return target


def _scale(target: Target) -> Target:
    if not target.signature.has("scale"):
        return target
    if target.signature.roles["scale"].required and "default_scale" not in target.conventions.known:
        target = target.but(conventions=target.conventions.found("signature", default_scale="required"))
    refusal = refusal_of(target, base_call(target, 3, 3, scale=0.5))
    if refusal is not None:
        return with_abilities(target, {"scale": refusal})
    target = with_abilities(target, scale=True)
    for name, value in (("negative_scale", -0.5), ("zero_scale", 0.0)):
        if name not in target.conventions.known:
            choice = _scale_choice(target, value)
            target = target.but(conventions=target.conventions.found("probed", **{name: choice}))
    return target


def _scale_choice(target: Target, value: float) -> str:
    """Whether a scale is computed, refused or gives NaN: plainly, under the causal flag, and under a mask."""
    mask = MASK if target.abilities.rectangular else SQUARE
    calls = [base_call(target, 3, 3, scale=value)]
    if target.conventions.causal == "flag":
        calls.append(base_call(target, 3, 3, scale=value, causal=True))
    calls += [
        mask_call(target, route, mask, target.abilities.mask_shapes[0] if route != "padding" else "B11S").but(
            scale=value
        )
        for route in target.abilities.routes
    ]
    for call in calls:
        if refusal_of(target, call) is not None:
            return "refused"
        if np.isnan(target(call).output).any():
            return "nan"
    return "computed"


def _gradients(target: Target) -> Target:
    if not target.framework.differentiable:
        return with_abilities(target, {"gradients": f"{target.framework.name} has none"})
    call = base_call(target, 3, 3)
    upstream = np.ones(call.value.shape[:1] + call.query.shape[1:3] + call.value.shape[3:])
    try:
        target(call, upstream=upstream)
    except FAILS as refusal:
        line = refusal.cause_line if isinstance(refusal, TargetRaised) else str(refusal)
        return with_abilities(target, {"gradients": line})
    weights = False
    try:
        weights = target(call, weights=True).weights is not None
    except FAILS:
        weights = False
    mask_gradient = False
    if target.abilities.bias:
        bias = np.zeros((3, 3))
        try:
            answer = target(call.but(bias=bias), upstream=upstream, wanted=("query", "bias"))
            mask_gradient = answer.gradients.get("bias") is not None
        except FAILS:
            mask_gradient = False
        if not mask_gradient:
            target = with_abilities(target, {"gradients by the mask": "none comes back"})
    return with_abilities(target, gradients=True, weights=weights, mask_gradient=mask_gradient)
