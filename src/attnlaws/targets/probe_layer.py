"""The probe of layers: how a module is called, and what its outputs depend on, by trying small inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from .call import Array, BoolArray, TargetRaised, WrongResult
from .far import look_far
from .initial import UnknownRule, declared_rules, recognised_rules, sample, slots
from .instance import Instance
from .layer import Dependence, LayerTarget
from .layer_masks import find_masks
from .layer_positions import find_positions, pattern_hint
from .layer_weights import recognise
from .names import role_of
from .redraw import redrawn
from .signature import CannotAdapt

FAILS = (TargetRaised, WrongResult)
LENGTHS = (33, 17, 9, 5, 3, 2, 1)
WIDTHS = ("embed_dim", "d_model", "hidden_size", "n_embd", "dim", "d_in", "embed_size", "emb_dim", "width", "model_dim")
#: what may be declared of a layer, and the choices
DECLARED = {
    "causal": ("always", "no"),
    "weights": ("separate", "fused", "fused, interleaved", "in_proj_weight"),
    "scale": ("1", "1/sqrt(D)"),
    "positions": ("used", "none"),
    "axes": ("BLE", "LBE"),
}


def adapt_layer(
    module: Any,
    make: Callable[[int], Any] | None = None,
    *,
    name: str,
    device: str = "cpu",
    declared: Mapping[str, Any] | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> LayerTarget:
    """A layer target out of a module, by trying it. Raises CannotAdapt with the first refusal."""
    told = dict(declared or {})
    module = module.to(device)
    inputs, roles, given = _parameters(module, fixed or {})
    bare = LayerTarget(
        name, module, make, device, inputs=inputs, fixed=given, weights_parameter=roles.get("weights", "")
    )
    target = _called(bare, told)
    target = _lengths(_dtypes(target))
    known = dict.fromkeys(told, "declared")
    quiet = probing(target)
    dependence = depends(quiet, target.only_length or min(target.longest, 33))
    if told.get("causal") == "always" or (not dependence.causal and "causal" in type(module).__name__.lower()):
        known.setdefault("causal", "its name")
        dependence = Dependence(True, dependence.left, None, clear=False)
    if told.get("causal") == "no":
        dependence = Dependence(False, clear=dependence.clear and not dependence.causal)
    if not dependence.clear and (word := pattern_hint(module)):
        known["pattern"] = word
    target = target.but(dependence=dependence, known=known)
    target = _flag(target, roles, quiet)
    target = _far(target, quiet)
    target = find_masks(target, roles, quiet)
    target = find_positions(target, quiet, told.get("positions"))
    return _initial(recognise(target, told.get("weights"), told.get("scale")), told.get("initialisation"))


def _initial(target: LayerTarget, declared: str | None) -> LayerTarget:
    """The layer with the rules of its initial weights, declared or recognised on builds of their own. Raises CannotAdapt."""
    p = target.projections
    if p is None or target.make is None:
        if declared is not None:
            raise CannotAdapt(
                "initialisation is declared, but the layer can't be built anew, or its projections were not found"
            )
        return target
    values = target.itself().parameters()
    if declared is not None:
        try:
            return target.but(
                initial=declared_rules(declared, p, values), known={**target.known, "initial": "declared"}
            )
        except UnknownRule as error:
            raise CannotAdapt(str(error)) from error
    smallest = min(slot.matrix(values).size for slot in slots(p).values())
    found = sample(target.built, p, -(-50_000 // smallest), 1 << 41)
    return target.but(initial=recognised_rules(p, values, {name: w.ravel() for name, w in found.items()}))


def _parameters(module: Any, fixed: Mapping[str, Any]) -> tuple[int, dict[str, str], dict[str, Any]]:
    """How many inputs, the parameters by role, and what else is passed with every call."""
    parameters = [
        p
        for p in inspect.signature(module.forward).parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in fixed
    ]
    roles: dict[str, str] = {}
    for p in parameters:
        role = role_of(p.name)
        if role is not None:
            roles.setdefault(role, p.name)
    required = [p.name for p in parameters if p.default is p.empty]
    masks = [roles[role] for role in ("mask", "padding", "bias") if role in roles]
    plain = [n for n in required if n not in masks]
    given = {**fixed, **{n: None for n in required if n in masks}}
    three = [roles.get(role) for role in ("query", "key", "value")]
    if not parameters:
        raise CannotAdapt("the module's forward takes no input; a layer takes x (batch, length, width)")
    if len(plain) == 3 and (plain == three or None in three):
        return 3, roles, given
    if len(plain) > 1:
        raise CannotAdapt(
            f"the module's forward requires {', '.join(plain)}; a layer takes x, or query, key and value. "
            "Wrap it in a module that takes x alone"
        )
    return 1, roles, given


def _called(target: LayerTarget, told: Mapping[str, Any]) -> LayerTarget:
    """The width and the axes, found by trying (2, 3, E)."""
    refusals: list[str] = []
    for width in [told["width"]] if "width" in told else widths(target.module):
        trial = target.but(width=width)
        instance = trial.fresh("float32")
        x = draw((2, 3, width), 1)
        try:
            out = instance.run(x)
        except FAILS as error:
            refusals.append(f"{width}: {error}")
            continue
        axes = told.get("axes") or _axes(instance, x, out)
        return trial.but(axes=axes, width_out=out.shape[2])
    first = f" ({refusals[0]})" if refusals else ""
    raise CannotAdapt(
        f"{target.name} takes no input (batch, length, width) of a width that its parameters suggest{first}; "
        "declare layer = { width = 64 } under [tool.attnlaws.targets.NAME], or wrap it in a module that takes x"
    )


def widths(module: Any) -> Iterator[int]:
    """Possible widths of the input: by the usual attributes, then by the shapes of the parameters."""
    tried: list[int] = []
    for holder in (module, getattr(module, "config", None)):
        tried += [w for n in WIDTHS if isinstance(w := getattr(holder, n, None), int)]
    for part in module.modules():
        tried += [w for n in ("in_features", "nx") if isinstance(w := getattr(part, n, None), int)]
    for parameter in module.parameters():
        tried += [int(n) for n in reversed(parameter.shape) if parameter.ndim <= 3]
    return iter([w for w in dict.fromkeys(tried) if 0 < w <= 8192][:12])


def _axes(instance: Instance, x: Array, out: Array) -> str:
    """BLE where a token moves others along the second axis, LBE where along the first."""
    moved = x.copy()
    moved[0, 0] = draw(moved[0, 0].shape, 5)  # no constant on top: a norm before the attention would take it away
    instance.set(redrawn(instance.parameters(), instance.trainable(), 3))
    change = np.abs(instance.run(moved) - instance.run(x)).max(-1)
    changed = change > 1e-4 * change.max()
    along_second, along_first = bool(changed[0, 1:].any()), bool(changed[1:, 0].any())
    if along_second != along_first:
        return "BLE" if along_second else "LBE"
    return "LBE" if getattr(instance.module, "batch_first", True) is False else "BLE"


def _dtypes(target: LayerTarget) -> LayerTarget:
    found = []
    for dtype in ("float32", "float64"):
        try:
            target.fresh(dtype).run(draw((2, 3, target.width), 1))
        except FAILS:
            continue
        found.append(dtype)
    if not found:
        raise CannotAdapt(f"{target.name} answers in neither float32 nor float64 when asked a second time")
    return target.but(dtypes=tuple(found))


def _far(target: LayerTarget, quiet: Instance) -> LayerTarget:
    """The far length that it takes, also where causality is asked for, and a window that shows there."""
    if target.only_length or "causal" in target.known:
        return target

    def takes(length: int) -> bool:
        try:
            quiet.run(draw((1, length, target.width), 1))
        except FAILS:
            return False
        return True

    def influences(length: int, tokens: list[int], asking: Instance = quiet, **options: Any) -> Array:
        x = draw((1, length, target.width), 2) / 8.0
        base, moved = asking.run(x, **options)[0], np.zeros((length, len(tokens)))
        for place, j in enumerate(tokens):
            other = x.copy()
            other[0, j] = draw((target.width,), 100 + j) / 8.0
            moved[:, place] = np.abs(asking.run(other, **options)[0] - base).max(-1)
        return moved

    far, dependence = look_far(target.module, target.longest, takes, influences, target.dependence)
    if far and target.flag and target.flagged is not None:
        asked = Instance(target, quiet.module, quiet.dtype)
        same = look_far(
            target.module, target.longest, takes, partial(influences, asking=asked, causal=True), target.flagged
        )
        far = far if same == (far, target.flagged) else 0
    return target.but(far=far, dependence=dependence if far else target.dependence)


def _lengths(target: LayerTarget) -> LayerTarget:
    """The longest input among a few that it takes, and whether it takes one length only."""
    instance = target.fresh(target.dtypes[0])

    def takes(length: int) -> bool:
        try:
            instance.run(draw((1, length, target.width), 1))
        except FAILS:
            return False
        return True

    taken = [n for n in LENGTHS if takes(n)]
    if taken == [3] or not taken:
        return target.but(longest=3, only_length=3)
    longest = taken[0]
    between = LENGTHS[LENGTHS.index(longest) - 1] if longest < LENGTHS[0] else longest
    while longest + 1 < between and takes(longest + 1):
        longest += 1
    return target.but(longest=longest)


def _flag(target: LayerTarget, roles: Mapping[str, str], quiet: Instance) -> LayerTarget:
    """The target with its causal flag, where the flag alone does something or is at least not refused."""
    if "causal" not in roles or target.dependence.causal or target.only_length:
        return target
    trial = target.but(flag=roles["causal"])
    asking = Instance(trial, quiet.module, quiet.dtype)
    try:
        found = depends(asking, min(target.longest, 9), causal=True)
    except FAILS:
        return target
    takes_mask = "mask" in roles
    if takes_mask and not found.causal:  # a hint that stands beside a mask, as in torch
        return target
    return trial.but(flagged=found)


def probing(target: LayerTarget) -> Instance:
    """A copy with other parameters, in the widest dtype that it takes, for looking at what depends on what."""
    instance = target.fresh(target.dtypes[-1])
    instance.set(redrawn(instance.parameters(), instance.trainable(), 3))
    return instance


def seen(instance: Instance, length: int, visible: BoolArray | None = None, **options: Any) -> BoolArray:
    """(L, L), True where output i moves with token j, by more than rounding."""
    x = draw((2, length, instance.target.width), 2) / 8.0  # small inputs, so that no weight is too small to be seen
    base = instance.run(x, visible=visible, **options)[0]
    size = float(np.nanmax(np.abs(base))) if np.isfinite(base).any() else 1.0
    least = 1e-10 if instance.dtype == "float64" else 2e-5
    found = np.zeros((length, length), dtype=bool)
    for j in range(length):
        moved = x.copy()
        moved[0, j] = draw((instance.target.width,), 100 + j) / 8.0
        change = np.abs(instance.run(moved, visible=visible, **options)[0] - base)
        found[:, j] = np.where(np.isfinite(change), change, 0.0).max(-1) > least * max(size, 1e-30)
    return found


def depends(instance: Instance, length: int, visible: BoolArray | None = None, **options: Any) -> Dependence:
    """The pattern that the outputs follow: all tokens, those before, a window; the nearest where none fits."""
    found = seen(instance, length, visible, **options)
    away = np.arange(length)[None, :] - np.arange(length)[:, None]
    left, right = -int(away[found].min(initial=0)), int(away[found].max(initial=0))
    if right == 0 or right == left or (left == right == length - 1):
        made = Dependence(
            causal=right == 0 and length > 1,
            left=None if left >= length - 1 else left,
            right=None if right in (0, length - 1) else right,
        )
        if (found == made.pattern(length)).all():
            return made
    future = found[away > 0]
    return Dependence(causal=bool(future.size) and float(future.mean()) < 0.5, clear=False)


def draw(shape: tuple[int, ...], seed: int) -> Array:
    """Normal values, exact in float32."""
    rng = np.random.Generator(np.random.Philox(key=[seed, 13]))
    return rng.standard_normal(shape).astype(np.float32).astype(np.float64)
