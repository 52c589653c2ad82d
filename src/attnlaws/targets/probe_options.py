"""The options of a black box: what its window counts, what its slopes multiply, which options it refuses together."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from .call import Array, Call
from .conventions import TABLE
from .options import Window, band, distance, window_of_number
from .probe_masks import SQUARE, mask_call
from .recover import recover_weights
from .target import Target
from .trying import FAILS, base_call, effective_mask, refusal_of, triangle, with_abilities

SLOPES = (0.5, 0.25, 0.125, 0.375, 0.0625)


def probe_options(target: Target) -> Target:
    """Abilities and conventions of window, soft cap, slopes, sinks, padding beside a mask, dropout and log-sum-exp."""
    target = _window(target)
    for option in ("softcap", "alibi", "sinks", "dropout"):
        if target.signature.has(option):
            call = asking(target, option, base_call(target, 4, 4))
            refusal = refusal_of(target, call)
            target = with_abilities(target, {option: refusal}, **{option: refusal is None})
    if target.abilities.alibi:
        target = _alibi(target)
    routes = target.abilities.routes
    if "padding" in routes and len(routes) > 1:
        refused = [refusal_of(target, asking(target, "padding", _masked(target, r))) for r in routes if r != "padding"]
        taken = None in refused
        target = with_abilities(target, {"a mask with padding": None if taken else refused[0]}, padding=taken)
    target = _lse(target)
    return _pairs(target)


def asking(target: Target, option: str, call: Call) -> Call:
    """The call asking for one more option, with plain values."""
    if option == "window":
        return call.but(window=_some_window(target), causal=call.causal or target.abilities.window_causal)
    if option == "softcap":
        return call.but(softcap=4.0)
    if option == "alibi":
        return call.but(slopes=np.array(SLOPES)[np.arange(call.query.shape[1]) % len(SLOPES)])
    if option == "sinks":
        return call.but(sinks=np.linspace(-0.5, 0.5, call.query.shape[1]).round(2) // 0.25 * 0.25)
    if option == "padding":
        row = np.ones((call.query.shape[0], call.key.shape[2]), dtype=bool)
        row[-1, -1] = False
        return call.but(padding=row)
    if option == "dropout":
        return call.but(dropout=0.5, training=True)
    if option == "causal":
        return call.but(causal=True)
    if option == "scale":
        return call.but(scale=0.5)
    raise ValueError(f"unknown option {option!r}")


def _some_window(target: Target) -> Window:
    """A small window in the target's own form."""
    if target.conventions.window == "left and right":
        return (2, 1) if target.signature.has("window") or target.signature.has("window_right") else (2, None)
    return window_of_number(3, target.conventions.window)


def _masked(target: Target, route: str) -> Call:
    return mask_call(target, route, SQUARE | np.eye(4, dtype=bool), target.abilities.mask_shapes[0])


# -- window ------------------------------------------------------------------------------------------------------


def _window(target: Target) -> Target:
    """Two numbers or one, and what one counts; then the anchor, and what stands for no end."""
    if not (target.signature.has("window") or target.signature.has("window_left")):
        return target
    found, refusal = _window_form(target)
    if found is None:
        return with_abilities(target, {"window": refusal})
    right = found.signature.has("window") or found.signature.has("window_right")
    target = with_abilities(found, window=True, window_right=right)
    if target.conventions.window == "left and right" and right:
        target = _window_end(target)
    return _window_anchor(target)


def _window_form(target: Target) -> tuple[Target | None, str | None]:
    """The first form that acts exactly as one of the choices, else one that is taken at all."""
    known = target.conventions.known.get("window") is not None
    two = "left and right"
    choices = [target.conventions.window] if known else list(TABLE["window"].choices)
    if not target.signature.has("window"):
        choices = [two]
    taken: Target | None = None
    refusal: str | None = None
    for form in ("pair", "number"):
        mine = [c for c in choices if (c == two) == (form == "pair")]
        if not mine:
            continue
        tried = target.but(conventions=target.conventions.found("declared" if known else "unclear", window=mine[0]))
        call = asking(tried, "window", base_call(tried, 9, 9))
        said = refusal_of(tried, call)
        if said is not None and target.conventions.causal == "flag":
            call = call.but(causal=True)
            tried = with_abilities(tried, window_causal=True)
            said = refusal_of(tried, call)
        if said is not None:
            refusal = refusal or said
            continue
        taken = taken or tried
        if known:
            return tried, None
        seen = effective_mask(tried, call)[0, 0]
        for choice in mine:
            window = call.window if form == "pair" else window_of_number(3, choice)
            assert window is not None
            if (seen == _shown(tried, window, 9, 9, "top-left")).all():
                return tried.but(conventions=tried.conventions.found("probed", window=choice)), None
    return taken, refusal


def _shown(target: Target, window: Window, queries: int, keys: int, anchor: str) -> Array:
    shown = band(window, queries, keys, anchor)
    if target.conventions.causal == "always" or target.abilities.window_causal:
        shown = shown & triangle(queries, keys, target.conventions.alignment)
    return np.asarray(shown)


def _window_end(target: Target) -> Target:
    """Whether -1 or None stands for a side without end."""
    for end in ("-1", "None"):
        tried = with_abilities(target, window_open=end)
        call = base_call(tried, 9, 9, window=(2, None), causal=target.abilities.window_causal)
        if refusal_of(tried, call) is None:
            seen = effective_mask(tried, call)[0, 0]
            if (seen == _shown(tried, (2, None), 9, 9, "top-left")).all():
                return tried
    return target


def _window_anchor(target: Target) -> Target:
    if not target.abilities.rectangular or "window_anchor" in target.conventions.known:
        return target
    call = asking(target, "window", base_call(target, 3, 9))
    if refusal_of(target, call) is not None:
        return target
    assert call.window is not None
    seen = effective_mask(target, call)[0, 0]
    for anchor in ("top-left", "bottom-right"):
        if (seen == _shown(target, call.window, 3, 9, anchor)).all():
            return target.but(conventions=target.conventions.found("probed", window_anchor=anchor))
    if seen.all():  # a window without effect is near to neither
        return target
    return target.but(conventions=target.conventions.found("unclear", window_anchor="top-left"))


# -- slopes, log-sum-exp, pairs ----------------------------------------------------------------------------------


def _alibi(target: Target) -> Target:
    """With q = 0 the logarithms of the weights are slope * distance, up to a constant of the row."""
    if "alibi" in target.conventions.known:
        return target
    call = asking(target, "alibi", base_call(target, 5, 5))
    call = call.but(query=np.zeros_like(call.query))
    try:
        weights = recover_weights(target, call)
    except FAILS:
        return target
    assert call.slopes is not None
    errors = {}
    with np.errstate(all="ignore"):
        logs = np.log(weights)
        for choice in TABLE["alibi"].choices:
            want = call.slopes[None, :, None, None] * distance(5, 5, choice)
            off = np.where(weights > 0, logs - want, np.nan)
            errors[choice] = float(np.nanmax(np.nanmax(off, -1) - np.nanmin(off, -1)))
    best = min(errors, key=lambda c: errors[c])
    sure = errors[best] < 0.05  # the probe's own measure: a wrong distance is off by a slope at least
    return target.but(conventions=target.conventions.found("probed" if sure else "unclear", alibi=best))


def _lse(target: Target) -> Target:
    """Whether a log-sum-exp comes back, in which axes and base, and what it is for a row without a key."""
    rectangular = target.abilities.rectangular
    call = base_call(target, 4, 5 if rectangular else 4)
    call = call.but(query=np.zeros_like(call.query))
    for axes in ("BHL", "BLH"):
        tried = with_abilities(target, lse_axes=axes)
        try:
            lse = tried(call, lse=True).lse
        except FAILS:
            return target
        if lse is not None and np.isfinite(lse).all():
            break
    else:
        return target
    target = with_abilities(tried, lse=True)
    last = float(lse[0, 0, -1])
    if "lse_base" not in target.conventions.known:
        near = {base: abs(last - np.log(call.key.shape[2]) / np.log(n)) for base, n in (("e", np.e), ("2", 2.0))}
        base = min(near, key=lambda b: near[b])
        how = "probed" if near[base] < 0.02 else "unclear"
        target = target.but(conventions=target.conventions.found(how, lse_base=base if how == "probed" else "e"))
    return _empty_lse(target)


def _empty_lse(target: Target) -> Target:
    if not target.abilities.routes or "empty_lse" in target.conventions.known or target.conventions.causal == "always":
        return target
    route = target.abilities.routes[0]
    shape = "B11S" if route == "padding" else target.abilities.mask_shapes[0]
    mask = np.zeros((4, 4), dtype=bool) if shape == "B11S" else np.array(SQUARE)
    mask[1:2] = False
    try:
        lse = target(mask_call(target, route, mask, shape), lse=True).lse
    except FAILS:
        return target
    if lse is None:
        return target
    value = float(lse[0, 0, 1])
    choice = "finite" if np.isfinite(value) else "nan" if np.isnan(value) else "-inf" if value < 0 else "+inf"
    return target.but(conventions=target.conventions.found("probed", empty_lse=choice))


def _pairs(target: Target) -> Target:
    """Which options are refused together: each new option with every other, and with gradients and Lq != Lk."""
    a, c = target.abilities, target.conventions
    new = [n for n in ("window", "softcap", "alibi", "sinks", "padding", "dropout") if getattr(a, n)]
    old = ["causal"] if c.causal == "flag" else []
    old += ["scale"] if a.scale else []
    old += [r for r in a.routes if r != "padding"]
    old += [n for n in ("rectangular", "grouped") if getattr(a, n)]
    refused = set()
    for first, second in combinations([*new, *old], 2):
        if first in new and refusal_of(target, _both(target, first, second)) is not None:
            refused.add(frozenset((first, second)))
    return with_abilities(target, refused_pairs=frozenset(refused))


def _both(target: Target, first: str, second: str) -> Call:
    """A call that asks for two options."""
    queries, keys = (3, 9) if second == "rectangular" else (4, 4)
    call = base_call(target, queries, keys)
    if second in ("bool", "additive", "keep"):
        mask = SQUARE | np.eye(4, dtype=bool)
        call = mask_call(target, second, mask, target.abilities.mask_shapes[0])
    elif second == "grouped":
        call = call.but(query=call.query[:, [0, 1, 2, 0]], key=call.key[:, :2], value=call.value[:, :2])
    elif second != "rectangular":
        call = asking(target, second, call)
    return asking(target, first, call)
