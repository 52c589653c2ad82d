"""The masks of a black box: which forms it takes, what True means, what a row without a key returns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .call import ROUTES, Array, BoolArray, Call, TargetRaised, WrongResult
from .conventions import HALF_FILL
from .recover import recover_weights
from .target import Target
from .trying import FAILS, base_call, effective_mask, refusal_of, triangle, with_abilities

MASK = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 1], [1, 1, 0, 0, 1]], dtype=bool)


SQUARE = np.array([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 1]], dtype=bool)


def mask_call(target: Target, route: str, mask: BoolArray, shape: str = "LS") -> Call:
    """A call with this (L, S) mask through a route, in one of the broadcast shapes."""
    call = base_call(target, *mask.shape, route=route)
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


def probe_masks(target: Target, declared_routes: tuple[str, ...] | None) -> Target:
    mask = MASK if target.abilities.rectangular else SQUARE
    wanted = ROUTES if declared_routes is None else declared_routes
    routes: list[str] = []
    refusals: dict[str, str | None] = {}
    shapes = MASK_SHAPES if target.conventions.layout in ("BHSD", "BSHD", "SBHD") else ("LS",)
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
            if "B1LS" in shapes and "B1LS" not in taken and _three_axes(target, route, mask):
                target = with_abilities(target, mask_without_heads=True)
                taken = [s for s in ("LS", "B1LS") if _takes_shape(target, route, mask, s)]
            if not taken:
                refusals[f"{route} mask"] = refusal_of(target, mask_call(target, route, mask, shapes[0]))
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
    return with_abilities(
        target, refusals, routes=tuple(routes), bias=bias, mask_shapes=usable if set(routes) - {"padding"} else ()
    )


def _three_axes(target: Target, route: str, mask: BoolArray) -> bool:
    """Whether a mask (B, L, S) acts as a mask, where (B, 1, L, S) is refused."""
    tried = with_abilities(target, mask_without_heads=True)
    call = mask_call(tried, route, mask, "B1LS")
    if call.visible is None or refusal_of(tried, call) is not None:
        return False
    mask = call.visible.copy()
    mask[-1] = mask[-1, :, ::-1]
    seen = effective_mask(tried, call.but(visible=mask))
    return bool((seen == call.full(mask)).all() or (seen == ~call.full(mask)).all())


def _takes_shape(target: Target, route: str, mask: BoolArray, shape: str) -> bool:
    """Whether a broadcast shape is taken, also with one query and with grouped heads where those are taken."""
    calls = [mask_call(target, route, mask, shape)]
    if target.abilities.rectangular:
        calls.append(mask_call(target, route, mask[:1], shape))
    if target.abilities.grouped:
        calls += [_grouped(call) for call in calls]
    return all(refusal_of(target, call) is None for call in calls)


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
    call = mask_call(target, route, mask, shape)
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
        if agree and opposed and (target.signature.has("module") or _adds_numbers(target, call, before)):
            return with_abilities(target, {"bool mask": "it is added to the scores as 1 and 0"}), False
        sure = "probed" if min(agree, opposed) == 0 else "unclear"
        means = "attend" if agree <= opposed else "masked"
        return target.but(conventions=target.conventions.found(sure, mask_means=means)), True
    if route == "additive":
        return target, _is_additive(target, call, seen, truth)
    # 1/0 floats: only where -inf/0 floats are not understood, since a convention has one reading.
    return target, "additive" not in before and bool((seen == truth).all())


def _adds_numbers(target: Target, call: Call, before: list[str]) -> bool:
    """Whether a function for additive masks adds booleans too, as 1 and 0, so that they are no masks to it.

    A parameter named `attn_mask` is left out: torch, whose name that is, documents boolean masks for it.
    """
    role = target.signature.roles.get("mask")
    if "additive" not in before or role is None or role.name == "attn_mask" or call.visible is None:
        return False
    try:
        weights = recover_weights(target, call.but(query=np.zeros_like(call.query)))
    except FAILS:
        return False
    given = np.exp(call.full(call.visible).astype(np.float64))
    if target.conventions.causal == "always":
        given = given * triangle(call.query.shape[2], call.key.shape[2], target.conventions.alignment)
    return bool(np.abs(weights - given / given.sum(-1, keepdims=True)).max() < 0.02)


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
    call = mask_call(target, "additive", mask, shape)
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
    mask = MASK if target.abilities.rectangular else SQUARE
    return tried if _padding(tried, mask)[1] else target


def _padding(target: Target, mask: BoolArray) -> tuple[Target, bool]:
    """Whether a (B, S) mask is taken, as booleans or as 1 and 0, and which of them masks."""
    call = mask_call(target, "padding", mask, "B11S")
    if refusal_of(target, call) is not None:
        target = with_abilities(target, padding_numbers=True)
        if refusal_of(target, call) is not None:
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


def probe_mask_and_causal(target: Target) -> Target:
    """Both together: the intersection, or refused; the mask alone where that is declared or the interface's rule."""
    if target.conventions.causal != "flag" or not target.abilities.routes:
        return target
    route = target.abilities.routes[0]
    shape = target.abilities.mask_shapes[0] if target.abilities.mask_shapes else "B11S"
    call = mask_call(target, route, SQUARE | np.eye(4, dtype=bool), shape).but(causal=True)
    assert call.visible is not None
    try:
        seen = effective_mask(target, call, strict=True)
    except WrongResult:
        return target
    except TargetRaised as refusal:
        target = target.but(conventions=target.conventions.found("probed", mask_and_causal="refused"))
        return with_abilities(target, {"mask and causal": refusal.cause_line}, mask_with_causal=False)
    if "mask_and_causal" in target.conventions.known:
        return target
    alone = np.asarray(call.full(call.visible), dtype=bool)
    if target.signature.has("module") and (seen == alone).all():
        return target.but(conventions=target.conventions.found("probed", mask_and_causal="the mask alone"))
    sure = (seen == (alone & triangle(4, 4, "top-left"))).all()
    return target.but(
        conventions=target.conventions.found("probed" if sure else "unclear", mask_and_causal="intersection")
    )


def probe_empty_rows(target: Target) -> Target:
    """What a row without a visible key returns, for each way of masking, by comparing with the closed list."""
    for route in target.abilities.routes:
        name = f"empty_{route}"
        if name in target.conventions.known:
            continue
        shape = target.abilities.mask_shapes[0] if route != "padding" and target.abilities.mask_shapes else "B11S"
        mask = np.zeros((4, 4), dtype=bool) if shape == "B11S" else np.array(SQUARE)
        mask[1:2] = False
        base = mask_call(target.but(conventions=replace(target.conventions, causal="flag")), route, mask, shape)
        row = _row_output(target, base, 1)
        if row is not None:
            choice, sure = _name_empty(row, base, target)
            choice = _in_half(target, base, choice) if name != "empty_additive" else choice
            target = target.but(conventions=target.conventions.found("probed" if sure else "unclear", **{name: choice}))
    return _empty_causal_rows(target)


def _in_half(target: Target, call: Call, choice: str) -> str:
    """The choice, or that float16 differs, as it does for a finite fill of the smallest number of the dtype."""
    if choice != "uniform" or "float16" not in target.abilities.dtypes:
        return choice
    half = call.but(dtype="float16")
    row = _row_output(target, half, 1)
    return HALF_FILL if row is not None and _name_empty(row, half, target) == ("unmasked", True) else choice


def _empty_causal_rows(target: Target) -> Target:
    """The same for rows that a bottom-right triangle leaves without a key."""
    a, c = target.abilities, target.conventions
    if not (a.causal and a.rectangular_causal) or c.alignment != "bottom-right" or "empty_causal" in c.known:
        return target
    base = base_call(target, 4, 2, causal=True)
    row = _row_output(target, base, 0)
    if row is None:
        return target
    choice, sure = _name_empty(row, base, target)
    return target.but(conventions=c.found("probed" if sure else "unclear", empty_causal=choice))


def _row_output(target: Target, call: Call, row: int) -> tuple[Array, Array] | None:
    """The output of one row (H, Dv) of sample 0, and the same without any mask."""
    try:
        return target(call).output[0, :, row], target(call.but(visible=None, causal=False)).output[0, :, row]
    except FAILS:
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
