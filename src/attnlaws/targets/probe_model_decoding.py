"""How a model decodes, found by trying: its cache, and its generate method."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .call import TargetRaised, WrongResult
from .model import CacheWay, GenerateWay, ModelTarget
from .model_cache import Decoding, is_plain, leaves
from .model_generate import generate
from .model_inputs import Inputs
from .model_instance import ModelInstance
from .model_names import MAKERS, RESETS, generate_role_of
from .trying_model import plain_inputs, probing

FAILS = (TargetRaised, WrongResult)


def find_cache(target: ModelTarget, roles: Mapping[str, str]) -> ModelTarget:
    """The target with the first way to use a cache that takes two chunks one after the other."""
    if not target.decodes or not {"cache", "use_cache", "start", "cache_places"} & set(roles):
        return target
    refusal = ""
    for way in _ways(target, roles):
        trial = target.but(
            cache=way,
            fixed={n: v for n, v in target.fixed.items() if n not in (way.parameter, way.asked_by, way.start)},
        )
        try:
            _two_chunks(trial)
        except FAILS as error:
            refusal = refusal or str(error)
            continue
        return target.but(cache=_with_axes(trial, way))
    asked = ", ".join(roles[role] for role in ("cache", "use_cache", "start", "cache_places") if role in roles)
    return target.but(unclear=(*target.unclear, asked), known={**target.known, "cache": refusal})


def _ways(target: ModelTarget, roles: Mapping[str, str]) -> Iterator[CacheWay]:
    module = target.module
    parameter, asked = roles.get("cache", ""), roles.get("use_cache", "")
    start, places = roles.get("start", ""), roles.get("cache_places", "")
    reset = next((n for n in RESETS if callable(getattr(module, n, None))), "")
    if parameter:
        yield CacheWay("passed", parameter, asked, start=start, places=places)
        for maker in _makers(module):
            yield CacheWay("made", parameter, asked, maker, start, places)
        return
    if start or places or reset:
        yield CacheWay("inside", "", asked, start=start, places=places, reset=reset)


def _makers(module: Any) -> list[str]:
    """Methods that give an empty cache, and classes of caches that the file of the model defines or imports."""
    place = sys.modules.get(type(module).__module__)
    classes = [n for n, v in vars(place).items() if isinstance(v, type) and "cache" in n.lower()] if place else []
    return [n for n in MAKERS if callable(getattr(module, n, None))] + classes


def _two_chunks(target: ModelTarget, batch: int = 2, first: int = 2) -> Any:
    """The cache after two chunks of tokens. Raises WrongResult where none comes back."""
    inputs = plain_inputs(target, batch, first + 1)
    decoding = Decoding(probing(target), inputs)
    decoding.feed(inputs.ids[:, :first])
    way = target.cache
    assert way is not None
    if way.form == "passed" and decoding.value is None:
        raise WrongResult("returned no cache")
    decoding.feed(inputs.ids[:, first:])
    return decoding.value


def _with_axes(target: ModelTarget, way: CacheWay) -> CacheWay:
    """The axes of batch and length in a plain cache, by caches of other sizes."""
    torch = target.torch
    if way.form == "inside":
        return way
    try:
        base, longer, wider = _two_chunks(target), _two_chunks(target, first=3), _two_chunks(target, batch=3)
    except FAILS:
        return way
    if not is_plain(base, torch):
        return way

    def axis(other: Any) -> int | None:
        pairs = list(zip(leaves(base, torch), leaves(other, torch), strict=False))
        grown = {tuple(n for n, (a, b) in enumerate(zip(x.shape, y.shape, strict=False)) if a != b) for x, y in pairs}
        return grown.pop()[0] if len(grown) == 1 and len(next(iter(grown))) == 1 else None

    return replace(way, batch_axis=axis(wider), length_axis=axis(longer))


# -- generate ----------------------------------------------------------------------------------------------------------


def find_generate(target: ModelTarget) -> ModelTarget:
    """The target with its generate method, where its parameters are known and it answers."""
    method = getattr(target.module, "generate", None)
    if not callable(method) or not target.decodes:
        return target
    own = hasattr(target.module, "generation_config")
    roles = dict(_TRANSFORMERS) if own else _roles(method)
    if roles is None:
        return target.but(unclear=(*target.unclear, "generate"))
    start = None
    if target.source:
        start = getattr(getattr(target.module, "config", None), "decoder_start_token_id", None)
        if start is None:
            return target.but(unclear=(*target.unclear, "generate"))
    way = GenerateWay(roles, start=start)
    refusal = ""
    for returns in ("all", "new"):
        for many in (True, False):
            trial = replace(way, returns=returns, many=many)
            refusal = _refusal(target.but(generate=trial))
            if not refusal:
                return target.but(generate=_ways_to_choose(target, trial, method))
    # Told, with what came of one text, and no break: a generate may want more than tokens and a count (an image, a
    # configuration, a tokenizer), and says so by any exception. Whether it should have answered nobody can tell from outside.
    return target.but(unclear=(*target.unclear, "generate"), known={**target.known, "generate": refusal})


#: transformers' generate takes most of its options as further keywords
_TRANSFORMERS = {
    "tokens": "inputs", "new": "max_new_tokens", "sample": "do_sample", "temperature": "temperature", "top_k": "top_k",
    "top_p": "top_p", "use_cache": "use_cache", "eos": "eos_token_id", "pad": "pad_token_id", "mask": "attention_mask",
}  # fmt: skip


def _roles(method: Any) -> dict[str, str] | None:
    """The parameters by role; None where something else is required, or no number of tokens can be given."""
    parameters = [
        p for p in inspect.signature(method).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    roles: dict[str, str] = {}
    for n, p in enumerate(parameters):
        role = "tokens" if n == 0 else generate_role_of(p.name)
        if role is None and p.default is p.empty:
            return None
        if role is not None:
            roles.setdefault(role, p.name)
    return roles if "tokens" in roles and {"new", "total"} & set(roles) else None


def prompt_of(target: ModelTarget, batch: int, length: int, seed: int = 1) -> Inputs:
    """A prompt: tokens, or a source and the start token."""
    inputs = plain_inputs(target, batch, length, seed)
    way = target.generate
    if target.source and way is not None:
        return inputs.but(ids=np.full((batch, 1), way.start, dtype=np.int64))
    return inputs


def _refusal(target: ModelTarget) -> str:
    """What came of generate instead of tokens: an exception, another result; "" where tokens came."""
    way = target.generate
    assert way is not None
    count = min(2, target.longest - 2) or 1
    try:
        found = generate(target.fresh(), prompt_of(target, 2 if way.many else 1, 2), count)
    except TargetRaised as error:
        return f"generate raised {error.cause_line}"
    except WrongResult as error:
        return str(error)
    if found.shape[1] == count or (way.returns == "all" and found.shape[1] > 0):
        return ""
    return f"generate returned {found.shape[1]} new tokens where {count} were asked for"


def _ways_to_choose(target: ModelTarget, way: GenerateWay, method: Any) -> GenerateWay:
    """What asks for the most likely token, and what for a drawn one: by the parameters there are, seen to be so."""
    roles = way.roles
    default = inspect.signature(method).parameters.get(roles.get("temperature", ""))
    cold = default is not None and default.default == 0
    greedy: list[dict[str, Any]] = []
    if "sample" in roles:
        greedy.append({"sample": False})
    if "greedy" in roles:
        greedy.append({"greedy": True})
    if cold or not {"temperature", "top_k", "top_p", "sample", "greedy"} & set(roles):
        greedy.append({})
    greedy += [{"top_k": 1}] if "top_k" in roles else []
    greedy += [{"temperature": 0.0}, {"temperature": 1e-6}] if "temperature" in roles else []
    found = next((options for options in greedy if _steady(target.but(generate=way), options)), None)
    sampling: dict[str, Any] | None = {}
    if "sample" in roles:
        sampling = {"sample": True}
    elif "greedy" in roles:
        sampling = {"greedy": False}
    elif not {"temperature", "top_k", "top_p"} & set(roles):
        sampling = None
    if sampling is not None and "temperature" in roles:
        sampling["temperature"] = 1.0
    return replace(way, greedy=found, sampling=sampling)


def _steady(target: ModelTarget, options: Mapping[str, Any]) -> bool:
    """Whether the same tokens come whatever the seed."""
    instance = target.fresh()
    way = target.generate
    assert way is not None
    prompt = prompt_of(target, 2 if way.many else 1, 1)
    count = max(min(8, target.longest - 2), 1)
    try:
        found = [generate(instance, prompt, count, seed=n, **options) for n in range(3)]
    except FAILS:
        return False
    return all(np.array_equal(found[0], other) for other in found)


__all__ = ["ModelInstance", "find_cache", "find_generate", "prompt_of"]
