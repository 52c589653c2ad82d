"""The probe of models: how a module from tokens to logits is called, and what its logits depend on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .call import Array, TargetRaised, WrongResult
from .far import look_far, said_lengths
from .layer import Dependence
from .model import ModelTarget
from .model_inputs import Inputs
from .model_instance import ModelInstance
from .model_names import VOCABULARIES, WINDOWS, role_of, said_kind
from .probe_layer import LENGTHS as TRIED_LENGTHS
from .probe_model_decoding import find_cache, find_generate
from .probe_model_options import find_loss, find_masks, find_places, find_segments, find_tied
from .signature import CannotAdapt
from .trying_model import changed, plain_inputs, probing

FAILS = (TargetRaised, WrongResult)
#: what may be declared of a model, and the choices; those with none take a number
DECLARED: dict[str, tuple[str, ...]] = {
    "kind": ("decoder", "encoder", "encoder-decoder"),
    "axes": ("BL", "LB"),
    "left_padding": ("absent", "counts"),
    "tied": ("yes", "no"),
    "loss": ("inside", "none", "other"),
    "vocabulary": (),
    "pad_id": (),
    "window": (),
}


class NoModel(CannotAdapt):
    """A module that doesn't take tokens."""


def adapt_model(
    module: Any,
    make: Callable[[int], Any] | None = None,
    *,
    name: str,
    device: str = "cpu",
    declared: Mapping[str, Any] | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> ModelTarget:
    """A model target out of a module, by trying it. Raises NoModel where it takes no tokens, else CannotAdapt."""
    told = dict(declared or {})
    module = module.to(device)
    target, roles = _parameters(ModelTarget(name, module, make, device), fixed or {})
    target = _called(target, roles, told)
    target = _axes(target, told)
    target = _lengths(_dtypes(target))
    target = _far(_kind(target, roles, told))
    target = find_masks(target, roles, probing(target))
    target = find_places(target, roles, probing(target), told)
    target = find_segments(target, roles, probing(target))
    target = find_loss(target, roles, probing(target), told)
    target = find_cache(target, roles)
    target = find_generate(target)
    return find_tied(target, told)


def takes_tokens(module: Any, fixed: Mapping[str, Any] | None = None) -> bool:
    """Whether a module takes tokens: it is called with some."""
    try:
        target, roles = _parameters(ModelTarget("the module", module), fixed or {})
        _called(target, roles, {})
    except CannotAdapt:
        return False
    return True


def _parameters(target: ModelTarget, fixed: Mapping[str, Any]) -> tuple[ModelTarget, dict[str, str]]:
    """The parameters by role, and what is passed with every call."""
    parameters = [
        p
        for p in inspect.signature(target.module.forward).parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in fixed
    ]
    roles: dict[str, str] = {}
    for p in parameters:
        role = role_of(p.name)
        if role == "decoder" and p.name == "y" and p.default is not p.empty:
            role = "labels"
        if role == "labels" and p.default is p.empty and roles.get("tokens", "").startswith(("src", "source")):
            role = "decoder"  # source and target: two texts
        if role is not None and (role != "tokens" or p is parameters[0]):
            roles.setdefault(role, p.name)
    if parameters and "tokens" not in roles and role_of(parameters[0].name) is None:
        roles["tokens"] = parameters[0].name
    required = [p.name for p in parameters if p.default is p.empty]
    given = dict(fixed)
    for role, value in (("start", 0), ("mask", None), ("decoder_mask", None), ("cache", None), ("use_cache", False)):
        if roles.get(role) in required:
            given[roles[role]] = value
    known = {roles.get(role) for role in ("tokens", "decoder", "labels")}
    if others := [n for n in required if n not in known and n not in given]:
        raise NoModel(
            f"the module's forward requires {', '.join(others)} as well; a model takes tokens (batch, length). "
            "Wrap it in a module that takes tokens alone"
        )
    two = "decoder" in roles and "tokens" in roles
    tokens = roles["decoder"] if two else roles.get("tokens", "")
    reads = "with labels" if roles.get("labels") in required else "all"
    made = target.but(tokens=tokens, source=roles["tokens"] if two else "", fixed=given, reads=reads)
    return made.but(labels=roles.get("labels", "")), roles


def _called(target: ModelTarget, roles: Mapping[str, str], told: Mapping[str, Any]) -> ModelTarget:
    """The vocabulary, the width of the logits and whether they are given for each token, found by trying (2, 3) tokens."""
    instance = target.fresh()
    inputs = Inputs(
        np.array([[1, 0, 0], [0, 1, 1]]), source=np.array([[0, 1, 1, 0], [1, 0, 1, 1]]) if target.source else None
    )
    sizes, found = _watched(instance, inputs)
    if found.logits.shape[1] != 3 and target.labels:
        try:
            instance.target = target.but(reads="with labels")
            found = instance.call(inputs)
            target = instance.target
        except FAILS:
            instance.target = target
    if found.logits.shape[1] != 3:
        target = target.but(reads="last")
    width = int(found.logits.shape[-1])
    vocabulary = told.get("vocabulary") or sizes.get("own") or _named_vocabulary(target.module) or width
    target = target.but(
        width=width,
        vocabulary=vocabulary,
        source_vocabulary=sizes.get("source", vocabulary),
        pad_id=_pad_id(target.module, sizes.get("pad"), vocabulary, told),
    )
    if target.vocabulary < 3:
        raise CannotAdapt(f"{target.name} has a vocabulary of {target.vocabulary}; laws need 3 tokens or more")
    return target


def _watched(instance: ModelInstance, inputs: Inputs) -> tuple[dict[str, int], Any]:
    """One call; the sizes of the embeddings that got the tokens, and what was read. Raises NoModel."""
    torch, sizes = instance.torch, dict[str, int]()
    embeddings = [m for m in instance.module.modules() if isinstance(m, torch.nn.Embedding)]
    wanted = {"own": instance.ids(inputs.ids)}
    if inputs.source is not None:
        wanted["source"] = instance.ids(inputs.source)

    def look(module: Any, given: tuple[Any, ...]) -> None:
        for name, ids in wanted.items():
            if (
                given
                and isinstance(given[0], torch.Tensor)
                and given[0].shape == ids.shape
                and bool((given[0] == ids).all())
            ):
                sizes.setdefault(name, int(module.num_embeddings))
                if module.padding_idx is not None:
                    sizes.setdefault("pad", int(module.padding_idx))

    handles = [m.register_forward_pre_hook(look) for m in embeddings]
    try:
        with torch.no_grad():
            found = instance.call(inputs)
    except FAILS as error:
        raise NoModel(f"{instance.target.name} takes no tokens (batch, length): {error}") from error
    finally:
        for handle in handles:
            handle.remove()
    if not embeddings and found.logits.shape[1] != 3:
        raise NoModel(f"{instance.target.name} has no embedding and gives no logits (batch, length, vocabulary)")
    return sizes, found


def _named_vocabulary(module: Any) -> int | None:
    for holder in (module, getattr(module, "config", None)):
        for name in VOCABULARIES:
            if isinstance(found := getattr(holder, name, None), int):
                return found
    return None


def _pad_id(module: Any, seen: int | None, vocabulary: int, told: Mapping[str, Any]) -> int | None:
    names = ("pad_token_id", "pad_id", "pad_idx", "src_pad_idx", "padding_idx", "pad_token")
    holders = (module, getattr(module, "config", None))
    said = [getattr(h, n, None) for h in holders for n in names]
    candidates = [told.get("pad_id"), seen, *(n for n in said if isinstance(n, int) and not isinstance(n, bool))]
    return next((n for n in candidates if n is not None and 0 <= n < vocabulary), None)


def _axes(target: ModelTarget, told: Mapping[str, Any]) -> ModelTarget:
    """BL where a token moves others along the second axis, LB where along the first."""
    if "axes" in told:
        return target.but(axes=told["axes"])
    instance = probing(target)
    inputs = plain_inputs(target, 2, 3)
    base = instance.run(inputs)
    moved = instance.run(inputs.but(ids=changed(inputs.ids, target, (0, 0))))
    change = np.abs(moved - base).max(-1)
    along_second, along_first = bool(change[0, 1:].any()), bool(change[1:, 0].any())
    return target.but(axes="LB") if along_first and not along_second else target


def _dtypes(target: ModelTarget) -> ModelTarget:
    found = []
    for dtype in ("float32", "float64"):
        try:
            target.fresh(dtype).run(plain_inputs(target, 2, 3))
        except FAILS:
            continue
        found.append(dtype)
    if not found:
        raise CannotAdapt(f"{target.name} answers in neither float32 nor float64 when asked a second time")
    return target.but(dtypes=tuple(found))


def _lengths(target: ModelTarget) -> ModelTarget:
    """The longest input among a few that it takes; the length that its attributes name, where that is 128 or less."""
    instance = target.fresh(target.dtypes[0])

    def takes(length: int) -> bool:
        try:
            with instance.torch.no_grad():
                instance.run(plain_inputs(target, 1, length), grad=False)
        except FAILS:
            return False
        return True

    said = [n for n in said_lengths(target.module) if n <= 128]
    for length in dict.fromkeys([*sorted(said, reverse=True), *TRIED_LENGTHS]):
        if takes(length):
            while length not in said and length not in TRIED_LENGTHS[:1] and takes(length + 1) and length < 33:
                length += 1
            if length < 2:
                break
            return target.but(longest=length)
    raise CannotAdapt(f"{target.name} takes no input of two or more tokens")


def _kind(target: ModelTarget, roles: Mapping[str, str], told: Mapping[str, Any]) -> ModelTarget:
    """Decoder, encoder or both; what logits depend on. What the names say holds: laws break where the outputs don't."""
    known = dict.fromkeys(told, "declared")
    length = min(target.longest, 33 if target.reads != "last" else 9)
    found = depends(probing(target), length)
    if target.source:
        kind = "encoder-decoder"
    elif "kind" in told:
        kind = told["kind"]
    else:
        name = type(target.module).__name__
        kind = said_kind(name)
        how = f"its name, {name}" if kind else ""
        if not kind and ("cache" in roles or hasattr(target.module, "generate")):
            kind, how = "decoder", "it generates"
        kind = kind or ("decoder" if found.causal or found.left == 0 else "encoder")
        if how:
            known["kind"] = how
    causal = kind != "encoder"
    if found.alone and _window_of_one(target.module):
        found = Dependence(causal=causal, left=0, right=None if causal else 0)
    elif found.left == 0 or found.causal is not causal or not (causal or found.clear):
        found = Dependence(causal=causal, clear=False)  # no past at all is no window, unless the model says so
    if isinstance(told.get("window"), int):
        found = replace(found, left=told["window"])
    return target.but(kind=kind, dependence=found, known=known)


def _far(target: ModelTarget) -> ModelTarget:
    """The far length that it takes, and a window that shows there."""
    if "window" in target.known:
        return target
    instance = probing(target)

    def takes(length: int) -> bool:
        try:
            instance.run(plain_inputs(target, 1, length), grad=False)
        except FAILS:
            return False
        return True

    def influences(length: int, tokens: list[int]) -> Array:
        inputs = plain_inputs(target, 1, length, seed=2)
        base = instance.run(inputs, grad=False)[0]
        moved = np.zeros((len(base), len(tokens)))
        for place, j in enumerate(tokens):
            for by in (1, 2):
                other = instance.run(inputs.but(ids=changed(inputs.ids, target, (0, j), by)), grad=False)[0]
                moved[:, place] = np.maximum(moved[:, place], np.abs(other - base).max(-1))
        return moved

    far, dependence = look_far(target.module, target.longest, takes, influences, target.dependence)
    return target.but(far=far, dependence=dependence)


def _window_of_one(module: Any) -> bool:
    """Whether a model says that its window is one token: an attribute of it, of its configuration or of its parts is 1, or a
    pair that begins with 0, the tokens before, as flash-attn has it; and none says another width. What it doesn't say is no
    window: attention that is computed and left out gives the same.
    """
    holders = (getattr(module, "config", None), *module.modules())
    said = [value for h in holders for name in WINDOWS if (value := getattr(h, name, None)) is not None]
    widths = [v[0] + 1 if isinstance(v, tuple | list) and v and isinstance(v[0], int) else v for v in said]
    return bool(widths) and all(type(w) is int and w == 1 for w in widths)


def depends(instance: ModelInstance, length: int) -> Dependence:
    """The pattern that the logits follow: all tokens, those before, a window; the nearest where none fits."""
    target = instance.target
    inputs = plain_inputs(target, 1, length, seed=2)
    base = instance.run(inputs, grad=False)[0]
    size = float(np.nanmax(np.abs(base))) if np.isfinite(base).any() else 1.0
    least = (1e-10 if instance.dtype == "float64" else 1e-5) * max(size, 1e-30)
    found = np.zeros((length, length), dtype=bool)
    for j in range(length):
        for by in (1, 2):
            other = instance.run(inputs.but(ids=changed(inputs.ids, target, (0, j), by)), grad=False)[0]
            change = np.abs(other - base)
            found[:, j] |= np.where(np.isfinite(change), change, 0.0).max(-1) > least
    away = np.arange(length)[None, :] - np.arange(length)[:, None]
    left, right = -int(away[found].min(initial=0)), int(away[found].max(initial=0))
    made = Dependence(
        causal=right == 0,
        left=None if left >= length - 1 else left,
        right=None if right in (0, length - 1) else right,
    )
    if (found == made.pattern(length)).all():
        return made
    future = found[away > 0]
    return Dependence(causal=bool(future.size) and float(future.mean()) < 0.5, clear=False)
