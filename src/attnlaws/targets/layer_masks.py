"""How a layer takes masks: a key is hidden in each possible way, and what the outputs then depend on tells the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from .call import Array, TargetRaised, WrongResult
from .instance import Instance
from .layer import KINDS, Dependence, LayerTarget, MaskWay

FAILS = (TargetRaised, WrongResult)


def find_masks(target: LayerTarget, roles: Mapping[str, str], instance: Instance) -> LayerTarget:
    """The target with its ways to hide keys and pairs, and the parameters whose meaning was not found.

    A way that hides a key nearly, or in the wrong samples as well, is taken where no better one is there: laws break.
    """
    if target.only_length:
        return target
    found: list[tuple[str, MaskWay]] = []
    ignored: list[str] = []
    unclear: list[str] = []
    for role in ("padding", "mask", "bias"):
        name = roles.get(role)
        if name is None or target.fixed.get(name) is not None:
            continue
        answers = [(_tried(target, instance, way), way) for way in _ways(role, name)]
        best = next((a for a in ("hides", "nearly") if any(answer == a for answer, _ in answers)), None)
        found += [(answer, way) for answer, way in answers if answer == best]
        if best is None:
            said = {answer for answer, _ in answers} - {"refused"}
            (ignored if said == {"nothing"} else unclear).append(name)
    keys = _first(found, ("BL", "B11L", "B1LL", "BLL"))
    pairs = _first(found, ("B1LL", "BLL", "LL", "1LL"))
    target = target.but(padding=keys, mask=pairs, ignored=tuple(ignored), unclear=tuple(unclear))
    return target.but(with_mask=_with_mask(target, instance))


def _first(found: list[tuple[str, MaskWay]], shapes: tuple[str, ...]) -> MaskWay | None:
    """The way of the first of these shapes that there is, those that hide wholly before those that hide nearly."""
    ranked = sorted(
        (answer != "hides", shapes.index(w.shape), n) for n, (answer, w) in enumerate(found) if w.shape in shapes
    )
    return found[ranked[0][2]][1] if ranked else None


def _ways(role: str, name: str) -> Iterator[MaskWay]:
    shapes = ("BL",) if role == "padding" else ("LL", "B1LL", "B11L", "BLL", "1LL", "BL")
    for kind in KINDS:
        for shape in shapes:
            if role != "bias" or kind == "additive":
                yield MaskWay(name, kind, shape)


def _tried(target: LayerTarget, instance: Instance, way: MaskWay) -> str:
    """What hiding the second of four keys does: "hides" it, "nearly", "nothing", "refused", or "other"."""
    trial = replace(target, padding=way, mask=way)
    asking = Instance(trial, instance.module, instance.dtype)
    per_key = way.shape in ("BL", "B11L")
    batch, length = 2, 4
    shown = np.ones((batch, length) if per_key else (batch, length, length), dtype=bool)
    shown[..., 1] = False
    if way.shape not in ("LL", "1LL"):
        shown[1] = True  # the second sample hides nothing
    x = _draw((batch, length, target.width), 4)
    try:
        base, free = asking.run(x, visible=shown), instance.run(x)
        moved = [asking.run(_moved(x, j), visible=shown) for j in (0, 1)]
    except FAILS:
        return "refused"
    if np.array_equal(base, free):
        return "nothing"
    if not np.isfinite(base[0, 2:]).all():
        return "other"
    size = float(np.abs(base[0, 2:]).max())
    by = np.array([[np.abs(m[b, 2:] - base[b, 2:]).max() / size for m in moved] for b in range(batch)])
    least = 1e-10 if instance.dtype == "float64" else 2e-5
    elsewhere = way.shape in ("LL", "1LL") or by[1, 1] > least
    if by[0, 1] <= least < by[0, 0]:
        return "hides" if elsewhere else "nearly"
    return "nearly" if by[0, 1] < 0.1 * by[0, 0] else "other"


def _with_mask(target: LayerTarget, instance: Instance) -> Dependence | None:
    """What outputs depend on where a mask that hides nothing is given: some layers then drop their own triangle."""
    from .probe_layer import depends

    if not target.dependence.causal or (target.padding is None and target.mask is None):
        return None
    asking = Instance(target, instance.module, instance.dtype)
    length = min(target.longest, 6)
    shape = (2, length) if target.padding is not None else (2, length, length)
    return depends(asking, length, np.ones(shape, dtype=bool))


def _moved(x: Array, j: int) -> Array:
    other = x.copy()
    other[:, j] = _draw(x[:, j].shape, 50 + j)
    return other


def _draw(shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.Generator(np.random.Philox(key=[seed, 13]))
    return rng.standard_normal(shape).astype(np.float32).astype(np.float64)
