"""The probe: conventions and abilities of a black box, found without any reference.

With q = 0 every visible key weighs the same, so with V = one-hot rows the output shows the effective mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .call import ROUTES, Array, BoolArray, Call, TargetRaised, WrongResult
from .conventions import Conventions
from .frameworks import frameworks_to_try
from .recover import recover_weights
from .signature import CannotAdapt, understand
from .target import Target

_FAILS = (TargetRaised, WrongResult)


def adapt(
    function: Callable[..., Any],
    *,
    name: str,
    device: str = "cpu",
    declared: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    routes: tuple[str, ...] | None = None,
    framework: str | None = None,
    precision: Mapping[str, str] | None = None,
) -> Target:
    """A callable target out of a function: its framework, layout, conventions and abilities, by trying them.

    Raises CannotAdapt where no framework and layout gives an attention-shaped result, with the first refusal.
    """
    if not callable(function):
        raise CannotAdapt(f"{name} is {type(function).__name__}, not a function of query, key and value")
    signature = understand(function, names, tuple(fixed or ()))
    refusals: list[str] = []
    candidates = [f for f in frameworks_to_try(function, device) if framework in (None, f.name)]
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
        found = _find_restricted(target, refusals)
        if found is not None:
            found = _probe(found, routes)
            return found.but(contradicted=_contradicted(bare, declared, routes)) if declared else found
    raise CannotAdapt(
        f"{name} can't be called as attention: {refusals[0] if refusals else 'it gave nothing'}; if it takes other axes, "
        "sizes or results, wrap it in a function (query, key, value) of its own"
    )


def _contradicted(
    bare: Target, declared: Mapping[str, str], routes: tuple[str, ...] | None
) -> dict[str, tuple[str, str]]:
    """Declared conventions of which the probe, left to itself, is sure to see another choice: name -> (declared, seen)."""
    alone = _find_restricted(bare, [])
    if alone is None:
        return {}
    seen = _probe(alone, routes).conventions
    return {
        name: (choice, str(getattr(seen, name)))
        for name, choice in declared.items()
        if seen.known.get(name) in ("probed", "signature") and getattr(seen, name) != choice
    }


# -- layout ------------------------------------------------------------------------------------------------------


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


def _find_restricted(target: Target, refusals: list[str]) -> Target | None:
    """The layout, found with the first dtype and head size that the target takes."""
    for dtype, head_dim in _RESTRICTED:
        if dtype in target.framework.dtypes:
            narrowed = replace(target.abilities, dtypes=(dtype,), head_dims=(head_dim,))
            found = _find_layout(target.but(abilities=narrowed), refusals)
            if found is not None:
                return found
    return None


def _find_layout(target: Target, refusals: list[str]) -> Target | None:
    """Try each layout with B = 2, H = L = S = 3 and q = 0: the output is the mean of V over the length axis."""
    declared = target.conventions.known
    best: tuple[float, Target] | None = None
    for axes, layouts in ((4, ("BHSD", "BSHD")), (3, ("BSD", "SHD", "HSD")), (2, ("SD",))):
        if "layout" in declared and target.conventions.layout not in layouts:
            continue
        for layout in layouts:
            if "layout" in declared and layout != target.conventions.layout:
                continue
            for output in ("as the input", "heads and length exchanged") if axes == 4 else ("as the input",):
                if "output_layout" in declared and output != target.conventions.output_layout:
                    continue
                how = {"layout": layout, "output_layout": output}
                free = {name: choice for name, choice in how.items() if declared.get(name) != "declared"}
                tried = target.but(conventions=target.conventions.found("probed", **free))
                score = _layout_score(tried, refusals)
                clear = score is not None and score > 0.99
                if score is not None and (best is None or (clear and score > best[0] + 1e-6)):
                    best = (score, tried)
        if best is not None:  # four axes that are answered are meant, even where the answer is wrong
            return best[1]
    return None


def _layout_score(target: Target, refusals: list[str]) -> float | None:
    """How well the output with q = 0 correlates with a mean (or running mean) of V over the length axis."""
    score = _one_layout_score(target, 3, 3, refusals)
    if score is None or target.conventions.layout in ("BSD", "SD"):
        return score
    # Where heads and length differ, a transposed merge can't pass for another layout.
    other = _one_layout_score(target, 2, 4, refusals)
    return score if other is None else min(score, other)


def _one_layout_score(target: Target, heads: int, length: int, refusals: list[str]) -> float | None:
    batch = 2 if target.conventions.layout in ("BHSD", "BSHD", "BSD") else 1
    heads = heads if target.conventions.layout in ("BHSD", "BSHD", "SHD", "HSD") else 1
    size = target.abilities.head_dims[0]
    call = _call(batch, heads, length, length, size, size, seed=11, dtype=target.abilities.dtypes[0])
    call = call.but(query=np.zeros_like(call.query))
    try:
        answer = target(call)
    except _FAILS as failure:
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


# -- everything else ---------------------------------------------------------------------------------------------


def _probe(target: Target, routes: tuple[str, ...] | None) -> Target:
    """Abilities first, since each convention is found only where the ability is there."""
    target = _sizes(target)
    target = _dtypes(target)
    target = _causality(target)
    target = _masks(target, routes)
    target = _mask_and_causal(target)
    target = _empty_rows(target)
    target = _scale(target)
    return _gradients(target)


def _call(
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


def _base(target: Target, queries: int, keys: int, **changes: Any) -> Call:
    """A small call that fits the target's abilities."""
    a = target.abilities
    size = _size(target)
    call = _call(2 if a.batch else 1, 3 if a.heads else 1, queries, keys, size, size, seed=5, dtype=a.dtypes[0])
    return call.but(**changes)


def _size(target: Target) -> int:
    """A head size that the target takes: 8, or the next larger one."""
    return next((n for n in target.abilities.head_dims if n >= 8), 8)


def _accepts(target: Target, call: Call) -> str | None:
    """None where the target takes the call, else its refusal in one line. A wrong shape is no refusal: laws judge it."""
    try:
        target(call)
    except TargetRaised as refusal:
        return refusal.cause_line
    except WrongResult:
        return None
    return None


def _with(target: Target, refusals: Mapping[str, str | None] | None = None, **abilities: Any) -> Target:
    kept = {**target.abilities.refusals, **{k: v for k, v in (refusals or {}).items() if v is not None}}
    return target.but(abilities=replace(target.abilities, refusals=kept, **abilities))


def _sizes(target: Target) -> Target:
    layout = target.conventions.layout
    target = _with(target, batch=layout in ("BHSD", "BSHD", "BSD"), heads=layout in ("BHSD", "BSHD", "SHD", "HSD"))
    batch, heads = (2 if target.abilities.batch else 1), (4 if target.abilities.heads else 1)
    target, refusals = _head_dims(target, batch, heads)
    size, dtype = _size(target), target.abilities.dtypes[0]
    other = next((n for n in reversed(target.abilities.head_dims) if n != size), size + 2)
    width = _accepts(target, _call(batch, heads, 3, 3, size, other, dtype=dtype))
    rectangular = _accepts(target, _call(batch, heads, 3, 5, size, size, dtype=dtype))
    refusals |= {"Dv != D": width, "Lq != Lk": rectangular}
    _one_head_is_one_head(target)
    grouped = heads == 4 and (target.signature.has("grouped") or target.signature.has("module"))
    if heads == 4 and not grouped:
        # Without a flag grouped heads are taken only where the output depends on them as it must.
        grouped = _groups_work(target)
    elif grouped:
        refusals["Hkv < H"] = _accepts(target, _call(batch, 4, 3, 3, size, size, kv=2, dtype=dtype))
        grouped = refusals["Hkv < H"] is None
    return _with(target, refusals, value_width=width is None, rectangular=rectangular is None, grouped=grouped)


_HEAD_DIMS = (1, 2, 3, 4, 5, 8, 12, 16, 32, 64, 80, 128, 256)


def _head_dims(target: Target, batch: int, heads: int) -> tuple[Target, dict[str, str | None]]:
    """Which head sizes are taken, and what is said of the first that is not."""
    dtype = target.abilities.dtypes[0]
    answers = {n: _accepts(target, _call(batch, heads, 3, 3, n, n, dtype=dtype)) for n in _HEAD_DIMS}
    taken = tuple(n for n, refusal in answers.items() if refusal is None)
    if len(taken) == len(_HEAD_DIMS):
        return _with(target, head_dims=()), {}
    first = next(n for n, refusal in answers.items() if refusal is not None)
    return _with(target, head_dims=taken or target.abilities.head_dims), {f"head size {first}": answers[first]}


def _one_head_is_one_head(target: Target) -> None:
    """Raise CannotAdapt where the last axis of a (B, L, D) function holds several heads, which a plain call can't show.

    A needle in the first channel decides the whole row of one head, but leaves the last channel of a second head alone.
    """
    if target.conventions.layout not in ("BSD", "SD"):
        return
    call = _base(target, 3, 3)
    query, key = np.zeros_like(call.query), np.zeros_like(call.key)
    query[..., 0], key[:, :, 1, 0] = 16.0, 16.0
    try:
        row = target(call.but(query=query, key=key)).output[0, 0, 2]
    except _FAILS:
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
        size, dtype = _size(target), target.abilities.dtypes[0]
        target(_call(2 if target.abilities.batch else 1, 4, 3, 3, size, size, kv=2, dtype=dtype))
    except _FAILS:
        return False
    return True


def _dtypes(target: Target) -> Target:
    taken, refusals = [], {}
    for dtype in target.framework.dtypes:
        refusal = _accepts(target, _base(target, 3, 3).but(dtype=dtype))
        if refusal is None:
            taken.append(dtype)
        else:
            refusals[dtype] = refusal
    if not taken:
        raise CannotAdapt(f"{target.name} takes none of {', '.join(target.framework.dtypes)}: {refusals['float32']}")
    views = [v for v in target.framework.views if _accepts(target, _viewed(target, v)) is None]
    return _with(target, refusals, dtypes=tuple(taken), views=tuple(views))


def _viewed(target: Target, view: str) -> Call:
    call = _base(target, 3, 3)
    return call.but(views=(("query", view), ("key", view), ("value", view)))


def effective_mask(target: Target, call: Call, *, strict: bool = False) -> BoolArray:
    """Which keys have any weight, (B, H, L, S); rows that are not finite count as empty. q is taken as 0.

    A call that the target doesn't answer shows nothing, or raises where `strict`.
    """
    quiet = call.but(query=np.zeros_like(call.query))
    try:
        with np.errstate(invalid="ignore"):
            weights = recover_weights(target, quiet)
    except _FAILS:
        if strict:
            raise
        return np.zeros((*call.query.shape[:3], call.key.shape[2]), dtype=bool)
    return np.asarray(np.where(np.isfinite(weights), weights, 0.0) > 1e-4, dtype=bool)


def triangle(queries: int, keys: int, alignment: str) -> BoolArray:
    """j <= i, or j <= i + S - L."""
    return np.tri(queries, keys, keys - queries if alignment == "bottom-right" else 0, dtype=bool)


def _nearest(seen: BoolArray, candidates: Mapping[str, BoolArray]) -> tuple[str, bool]:
    """The candidate that differs in the fewest cells, and whether it differs in none."""
    distances = {name: int((seen != mask).sum()) for name, mask in candidates.items()}
    best = min(distances, key=lambda name: distances[name])
    return best, distances[best] == 0


def _causality(target: Target) -> Target:
    conventions = target.conventions
    if not target.signature.has("causal"):
        if conventions.known.get("causal") == "declared":
            always = conventions.causal == "always"
        else:
            seen = effective_mask(target, _base(target, 6, 6))[0, 0]
            name, _ = _nearest(seen, {"all": np.ones((6, 6), bool), "always": triangle(6, 6, "top-left")})
            always = name == "always"
            target = target.but(conventions=conventions.found("probed", causal="always" if always else "not offered"))
        if not always:
            return target
    else:
        refusal = _accepts(target, _base(target, 4, 4, causal=True))
        target = target.but(
            conventions=conventions.found("signature", causal="flag" if refusal is None else "not offered")
        )
        if refusal is not None:
            return _with(target, {"causal": refusal})
    return _alignment(_with(target, causal=True))


def _alignment(target: Target) -> Target:
    """The alignment from a wide rectangle, and what a single query sees."""
    if not target.abilities.rectangular:
        return _with(target, rectangular_causal=False)
    refusal = _accepts(target, _base(target, 3, 5, causal=True))
    if refusal is not None:
        target = target.but(conventions=target.conventions.found("probed", alignment="square only"))
        return _with(target, {"causal, Lq != Lk": refusal}, rectangular_causal=False)
    if "alignment" not in target.conventions.known:
        seen = effective_mask(target, _base(target, 3, 5, causal=True))[0, 0]
        name, sure = _nearest(seen, {a: triangle(3, 5, a) for a in ("top-left", "bottom-right")})
        name = "top-left" if seen.all() else name  # a flag without effect is near to neither
        target = target.but(conventions=target.conventions.found("probed" if sure else "unclear", alignment=name))
    alignment = target.conventions.alignment
    if "single_query" not in target.conventions.known and alignment != "square only":
        single = effective_mask(target, _base(target, 1, 5, causal=True))[0, 0]
        aligned = triangle(1, 5, alignment)
        if alignment == "top-left" and target.signature.has("module") and single.all():
            target = target.but(conventions=target.conventions.found("probed", single_query="all keys"))
        elif np.array_equal(single, aligned):
            target = target.but(conventions=target.conventions.found("probed", single_query="as aligned"))
    return target


_MASK = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 1], [1, 1, 0, 0, 1]], dtype=bool)
_SQUARE = np.array([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 1]], dtype=bool)


def _mask_call(target: Target, route: str, mask: BoolArray, shape: str = "LS") -> Call:
    """A call with this (L, S) mask through a route, in one of the broadcast shapes."""
    call = _base(target, *mask.shape, route=route)
    batch, heads, _, queries, keys, _, _ = call.sizes
    if target.conventions.causal == "always":
        mask = mask | np.eye(queries, keys, dtype=bool)
    given = {
        "LS": mask,
        "BHLS": np.broadcast_to(mask, (batch, heads, queries, keys)).copy(),
        "B1LS": np.broadcast_to(mask, (batch, 1, queries, keys)).copy(),
        "1HLS": np.broadcast_to(mask, (1, heads, queries, keys)).copy(),
        "11LS": mask[None, None],
        "B11S": np.broadcast_to(mask[:1], (batch, 1, 1, keys)).copy(),
    }[shape]
    return call.but(visible=given)


MASK_SHAPES = ("LS", "BHLS", "B1LS", "1HLS", "11LS", "B11S")


def _masks(target: Target, declared_routes: tuple[str, ...] | None) -> Target:
    mask = _MASK if target.abilities.rectangular else _SQUARE
    wanted = ROUTES if declared_routes is None else declared_routes
    routes: list[str] = []
    refusals: dict[str, str | None] = {}
    shapes = MASK_SHAPES if target.conventions.layout in ("BHSD", "BSHD") else ("LS",)
    usable: tuple[str, ...] = shapes
    if target.signature.has("mask") or target.signature.has("bias"):
        for route in ("additive", "bool", "keep"):
            if route not in wanted:
                continue
            if route in ("bool", "keep") and not target.signature.has("mask"):
                continue
            if route == "additive" and not (target.signature.has("bias") or target.signature.has("mask")):
                continue
            taken = [s for s in shapes if _takes_shape(target, route, mask, s)]
            if not taken:
                refusals[f"{route} mask"] = _accepts(target, _mask_call(target, route, mask, shapes[0]))
                continue
            target, works = _route(target, route, mask, taken[0], routes)
            if works:
                routes.append(route)
                usable = tuple(s for s in usable if s in taken)
    if not routes and target.signature.has("mask") and not target.signature.has("padding"):
        target = _mask_is_padding(target)
    if target.signature.has("padding") and "padding" in wanted:
        target, works = _padding(target, mask)
        routes += ["padding"] if works else []
    if "additive" in routes and "finite_mask" not in target.conventions.known:
        target = _finite_mask(target, mask, usable[0])
    bias = "additive" in routes and target.conventions.finite_mask == "added to the score"
    return _with(
        target, refusals, routes=tuple(routes), bias=bias, mask_shapes=usable if set(routes) - {"padding"} else ()
    )


def _takes_shape(target: Target, route: str, mask: BoolArray, shape: str) -> bool:
    """Whether a broadcast shape is taken, also with one query and with grouped heads where those are taken."""
    calls = [_mask_call(target, route, mask, shape)]
    if target.abilities.rectangular:
        calls.append(_mask_call(target, route, mask[:1], shape))
    if target.abilities.grouped:
        calls += [_grouped(call) for call in calls]
    return all(_accepts(target, call) is None for call in calls)


def _grouped(call: Call) -> Call:
    """The call with 4 query heads on 2 key heads."""
    per_head = call.visible is not None and call.visible.ndim == 4 and call.visible.shape[1] > 1
    return call.but(
        query=call.query[:, [0, 1, 2, 0]],
        key=call.key[:, :2],
        value=call.value[:, :2],
        visible=call.visible[:, [0, 1, 2, 0]] if per_head and call.visible is not None else call.visible,
    )


def _route(target: Target, route: str, mask: BoolArray, shape: str, before: list[str]) -> tuple[Target, bool]:
    """Whether a mask through this route is a mask; the polarity of boolean ones.

    An option that is taken and has no effect stays a route: the laws, not the probe, call it broken. Only float
    masks have two legitimate readings (added, or 1 = keep), and only one of them is kept.
    """
    call = _mask_call(target, route, mask, shape)
    assert call.visible is not None
    truth = np.asarray(call.full(call.visible), dtype=bool)
    if target.conventions.causal == "always":
        truth = truth & triangle(mask.shape[0], mask.shape[1], target.conventions.alignment)
    seen = effective_mask(target, call)
    if route == "bool":
        if "mask_means" in target.conventions.known:
            return target, True
        other = effective_mask(target, call.but(visible=~call.visible))
        agree, opposed = int((seen != truth).sum()), int((other != truth).sum())
        if target.signature.has("module") and agree and opposed:
            return target, False
        sure = "probed" if min(agree, opposed) == 0 else "unclear"
        means = "attend" if agree <= opposed else "masked"
        return target.but(conventions=target.conventions.found(sure, mask_means=means)), True
    if route == "additive":
        return target, _is_additive(target, call, seen, truth)
    # 1/0 floats: only where -inf/0 floats are not understood, since a convention has one reading.
    return target, "additive" not in before and bool((seen == truth).all())


def _is_additive(target: Target, call: Call, seen: BoolArray, truth: BoolArray) -> bool:
    """0/-inf is taken as additive unless it acts the other way round, as a 1/0 mask would read it."""
    if (seen == truth).all():
        return True
    if target.bias_has_own_parameter:
        return True
    keep = effective_mask(target, call.but(route="keep"))
    return not (keep == truth).all()


def _finite_mask(target: Target, mask: BoolArray, shape: str) -> Target:
    """Whether 1/2 in an additive mask is added, or masks like any value that is not 0."""
    call = _mask_call(target, "additive", mask, shape)
    assert call.visible is not None
    truth = np.asarray(call.full(call.visible), dtype=bool)
    seen = effective_mask(target, call.but(visible=None, bias=np.where(call.visible, 0.0, 0.5)))
    masks = bool((seen == truth).all())
    choice = "masks unless 0" if masks else "added to the score"
    return target.but(conventions=target.conventions.found("probed", finite_mask=choice))


def _mask_is_padding(target: Target) -> Target:
    """A mask parameter that takes no (L, S) shape takes (B, S), perhaps: `attention_mask` in transformers' models."""
    roles = {("padding" if role == "mask" else role): parameter for role, parameter in target.signature.roles.items()}
    tried = target.but(signature=replace(target.signature, roles=roles))
    mask = _MASK if target.abilities.rectangular else _SQUARE
    return tried if _padding(tried, mask)[1] else target


def _padding(target: Target, mask: BoolArray) -> tuple[Target, bool]:
    """Whether a (B, S) mask is taken, as booleans or as 1 and 0, and which of them masks."""
    call = _mask_call(target, "padding", mask, "B11S")
    if _accepts(target, call) is not None:
        target = _with(target, padding_numbers=True)
        if _accepts(target, call) is not None:
            return target, False
    if "padding_means" not in target.conventions.known:
        truth = call.full(call.visible) if call.visible is not None else np.ones(1)
        distances = {}
        for means in ("masked", "attend"):
            tried = target.but(conventions=target.conventions.found("probed", padding_means=means))
            distances[means] = int((effective_mask(tried, call) != truth).sum())
        means = min(distances, key=lambda m: distances[m])
        how = "probed" if distances[means] == 0 else "unclear"
        target = target.but(conventions=target.conventions.found(how, padding_means=means))
    return target, True


def _mask_and_causal(target: Target) -> Target:
    """Both together: the intersection, or refused; the mask alone where that is declared or the interface's rule."""
    if target.conventions.causal != "flag" or not target.abilities.routes:
        return target
    route = target.abilities.routes[0]
    shape = target.abilities.mask_shapes[0] if target.abilities.mask_shapes else "B11S"
    call = _mask_call(target, route, _SQUARE | np.eye(4, dtype=bool), shape).but(causal=True)
    assert call.visible is not None
    try:
        seen = effective_mask(target, call, strict=True)
    except WrongResult:
        return target
    except TargetRaised as refusal:
        target = target.but(conventions=target.conventions.found("probed", mask_and_causal="refused"))
        return _with(target, {"mask and causal": refusal.cause_line}, mask_with_causal=False)
    if "mask_and_causal" in target.conventions.known:
        return target
    alone = np.asarray(call.full(call.visible), dtype=bool)
    if target.signature.has("module") and (seen == alone).all():
        return target.but(conventions=target.conventions.found("probed", mask_and_causal="the mask alone"))
    sure = (seen == (alone & triangle(4, 4, "top-left"))).all()
    return target.but(
        conventions=target.conventions.found("probed" if sure else "unclear", mask_and_causal="intersection")
    )


def _empty_rows(target: Target) -> Target:
    """What a row without a visible key returns, for each way of masking, by comparing with the closed list."""
    for route in target.abilities.routes:
        name = f"empty_{route}"
        if name in target.conventions.known:
            continue
        shape = target.abilities.mask_shapes[0] if route != "padding" and target.abilities.mask_shapes else "B11S"
        mask = np.zeros((4, 4), dtype=bool) if shape == "B11S" else np.array(_SQUARE)
        mask[1:2] = False
        base = _mask_call(target.but(conventions=replace(target.conventions, causal="flag")), route, mask, shape)
        row = _row_output(target, base, 1)
        if row is not None:
            choice, sure = _name_empty(row, base, target)
            target = target.but(conventions=target.conventions.found("probed" if sure else "unclear", **{name: choice}))
    return _empty_causal_rows(target)


def _empty_causal_rows(target: Target) -> Target:
    """The same for rows that a bottom-right triangle leaves without a key."""
    a, c = target.abilities, target.conventions
    if not (a.causal and a.rectangular_causal) or c.alignment != "bottom-right" or "empty_causal" in c.known:
        return target
    base = _base(target, 4, 2, causal=True)
    row = _row_output(target, base, 0)
    if row is None:
        return target
    choice, sure = _name_empty(row, base, target)
    return target.but(conventions=c.found("probed" if sure else "unclear", empty_causal=choice))


def _row_output(target: Target, call: Call, row: int) -> tuple[Array, Array] | None:
    """The output of one row (H, Dv) of sample 0, and the same without any mask."""
    try:
        return target(call).output[0, :, row], target(call.but(visible=None, causal=False)).output[0, :, row]
    except _FAILS:
        return None


def _name_empty(row: tuple[Array, Array], call: Call, target: Target) -> tuple[str, bool]:
    got, unmasked = row
    mean = call.value[0].mean(1)
    # The probe's own measure: choices differ by more than 0.1 on these values, every dtype errs by far less.
    if np.isnan(got).all():
        return "nan", True
    if (got == 0).all():
        return "zeros", True
    if np.abs(got - mean).max() < 0.02:
        return "uniform", True
    if np.abs(got - unmasked).max() < 0.02:
        return "unmasked", True
    return "zeros", False


def _scale(target: Target) -> Target:
    if not target.signature.has("scale"):
        return target
    if target.signature.roles["scale"].required and "default_scale" not in target.conventions.known:
        target = target.but(conventions=target.conventions.found("signature", default_scale="required"))
    refusal = _accepts(target, _base(target, 3, 3, scale=0.5))
    if refusal is not None:
        return _with(target, {"scale": refusal})
    target = _with(target, scale=True)
    for name, value in (("negative_scale", -0.5), ("zero_scale", 0.0)):
        if name not in target.conventions.known:
            choice = _scale_choice(target, value)
            target = target.but(conventions=target.conventions.found("probed", **{name: choice}))
    return target


def _scale_choice(target: Target, value: float) -> str:
    """Whether a scale is computed, refused or gives NaN: plainly, under the causal flag, and under a mask."""
    mask = _MASK if target.abilities.rectangular else _SQUARE
    calls = [_base(target, 3, 3, scale=value)]
    if target.conventions.causal == "flag":
        calls.append(_base(target, 3, 3, scale=value, causal=True))
    calls += [
        _mask_call(target, route, mask, target.abilities.mask_shapes[0] if route != "padding" else "B11S").but(
            scale=value
        )
        for route in target.abilities.routes
    ]
    for call in calls:
        if _accepts(target, call) is not None:
            return "refused"
        if np.isnan(target(call).output).any():
            return "nan"
    return "computed"


def _gradients(target: Target) -> Target:
    if not target.framework.differentiable:
        return _with(target, {"gradients": f"{target.framework.name} has none"})
    call = _base(target, 3, 3)
    upstream = np.ones(call.value.shape[:1] + call.query.shape[1:3] + call.value.shape[3:])
    try:
        target(call, upstream=upstream)
    except _FAILS as refusal:
        line = refusal.cause_line if isinstance(refusal, TargetRaised) else str(refusal)
        return _with(target, {"gradients": line})
    weights = False
    try:
        weights = target(call, weights=True).weights is not None
    except _FAILS:
        weights = False
    mask_gradient = False
    if target.abilities.bias:
        bias = np.zeros((3, 3))
        try:
            answer = target(call.but(bias=bias), upstream=upstream, wanted=("query", "bias"))
            mask_gradient = answer.gradients.get("bias") is not None
        except _FAILS:
            mask_gradient = False
    return _with(target, gradients=True, weights=weights, mask_gradient=mask_gradient)
