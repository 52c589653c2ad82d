"""Finding a target by its name: pkg.mod:attr, path/to/file.py:attr, a preset, or a name from pyproject.toml."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from . import presets
from .build import has_embedding, is_layer, makes_layer, resolved, split_call
from .c_function import c_function
from .call import ROUTES, TargetRaised
from .conventions import UnknownChoice, declared
from .device import torch_device
from .frameworks import FRAMEWORKS
from .in_file import which
from .keras_backend import choose_backend
from .layer import LayerTarget
from .model import ModelTarget
from .names import NAMES
from .part import Part, taken_as
from .probe import adapt
from .probe_layer import DECLARED, adapt_layer
from .probe_model import DECLARED as DECLARED_OF_MODELS
from .probe_model import NoModel, adapt_model, takes_tokens
from .process import program_function
from .quiet import target_code
from .signature import CannotAdapt, callable_by_name
from .target import Target


class NoSuchTarget(Exception):
    """The name leads to nothing that can be imported; the message says at which step, and what was meant perhaps."""


class BadConfiguration(ValueError):
    """[tool.attnlaws] in pyproject.toml is wrong; the message names the key and the value."""


@dataclass(frozen=True)
class Settings:
    """What [tool.attnlaws.targets.NAME] may say of a target."""

    target: str
    names: Mapping[str, str] = field(default_factory=dict)
    conventions: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    routes: tuple[str, ...] | None = None
    framework: str | None = None
    precision: Mapping[str, str] = field(default_factory=dict)
    layer: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def load_target(
    name: str, *, device: str = "cpu", root: Path | None = None
) -> Target | LayerTarget | ModelTarget | Part:
    """The target of this name, imported, adapted and probed: a function of query, key and value, a layer, or a model; or a
    part of a model, as "mine.py:sample as sampler" names it. `root` is where names are declared: a TOML file, or a folder.

    Raises NoSuchTarget, CannotAdapt, NoDevice, UnknownChoice or BadConfiguration, each with one clear sentence.
    """
    configured = configured_targets(root or Path.cwd())
    settings = configured.get(name, Settings(name))
    _environment_is_set(name, settings.environment)
    address, word, kind = settings.target.partition(" as ")
    if word:
        return replace(taken_as(kind.strip(), name, locate(address.strip(), configured)), address=name)
    preset = presets.PRESETS.get(settings.target) or foreign(settings.target)
    if preset is None:
        address, arguments = split_call(presets.MODELS.get(settings.target, settings.target))
        found = locate(address, configured)
        built = resolved(found, arguments, address)
        if built is not None:
            return _adapted_module(*built, name, device, settings)
        return _adapted(found, name, device, settings)
    try:
        return _adapted(preset(device), name, device, settings)
    except ImportError as error:
        raise NoSuchTarget(f"{name} needs a library that can't be imported: {error}") from error


LIBRARIES = (".so", ".dylib", ".dll")


def foreign(address: str) -> presets.Preset | None:
    """A function that is no Python, to be loaded when it is asked for; None for other addresses.

    path/to/model.onnx, path/to/library.so:function, and "process: command".
    """
    place, _, name = address.rpartition(":")
    if address.endswith(".onnx"):

        def load(device: str) -> Callable[..., Any]:
            from .onnx_model import model_function

            return model_function(existing(address))

    elif address.startswith("process:"):

        def load(device: str) -> Callable[..., Any]:
            return program_function(address.removeprefix("process:"))

    elif place.endswith(LIBRARIES):

        def load(device: str) -> Callable[..., Any]:
            return c_function(existing(place), name)

    else:
        return None
    return load


def existing(place: str) -> Path:
    """The path of a file. Raises NoSuchTarget where there is none."""
    path = Path(place)
    if not path.is_file():
        raise NoSuchTarget(f"there is no file {place}")
    return path


def kind_at(name: str, root: Path | None = None) -> str:
    """ "model", "layer", "part" or "attention", by what stands at an address; what can't be found is told when it is loaded."""
    configured = configured_targets(root or Path.cwd())
    wanted = configured.get(name, Settings(name)).target
    if " as " in wanted:
        return "part"
    if wanted in presets.PRESETS or foreign(wanted) is not None:
        return "attention"
    try:
        address, arguments = split_call(presets.MODELS.get(wanted, wanted))
        found = locate(address, configured)
        if arguments is None and not is_layer(found) and not makes_layer(found, address):
            return "attention"
        built = resolved(found, arguments, address)
        return "model" if built is not None and takes_tokens(built[0]) else "layer"
    except (NoSuchTarget, CannotAdapt):
        return "attention"


def _adapted(function: Any, name: str, device: str, settings: Settings) -> Target:
    made = adapt(
        callable_by_name(function),
        name=name,
        device=device,
        declared=settings.conventions,
        names=settings.names,
        fixed=settings.arguments,
        routes=settings.routes,
        framework=settings.framework,
        precision=settings.precision,
    )
    return made.but(address=name, cost=settings.cost)


def adapt_module(
    module: Any,
    make: Any,
    *,
    name: str,
    device: str = "cpu",
    layer: Mapping[str, Any],
    model: Mapping[str, Any],
    fixed: Mapping[str, Any] | None = None,
) -> LayerTarget | ModelTarget:
    """A model where the module takes tokens, else a layer. Raises CannotAdapt or NoDevice."""
    torch_device(device)
    if layer and not model:
        return adapt_layer(module, make, name=name, device=device, declared=layer, fixed=fixed)
    try:
        return adapt_model(module, make, name=name, device=device, declared=model, fixed=fixed)
    except NoModel as no_model:
        try:
            return adapt_layer(module, make, name=name, device=device, declared=layer, fixed=fixed)
        except CannotAdapt:
            if has_embedding(module):
                raise no_model from None
            raise


def _adapted_module(
    module: Any, make: Any, name: str, device: str, settings: Settings
) -> LayerTarget | ModelTarget | Target:
    """A module; or its forward as a function of query, key and value with heads, where that is what it takes."""
    made: LayerTarget | ModelTarget
    try:
        made = adapt_module(
            module,
            make,
            name=name,
            device=device,
            layer=settings.layer,
            model=settings.model,
            fixed=settings.arguments,
        )
    except CannotAdapt as refusal:
        try:
            return _adapted(module.forward, name, device, settings)
        except CannotAdapt:
            raise refusal from None
    return made.but(address=name)


def locate(address: str, others: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """The object at pkg.mod:attr or path/to/file.py:attr."""
    if address.endswith(".py"):
        raise NoSuchTarget(_which(address))
    place, colon, attribute = address.rpartition(":")
    if not colon or not place or not attribute:
        known = [*presets.PRESETS, *presets.MODELS, *(others or {})]
        near = get_close_matches(address, known, n=1, cutoff=0.5)
        hint = (
            f"; did you mean {near[0]!r}?" if near else f"; presets: {', '.join([*presets.PRESETS, *presets.MODELS])}"
        )
        raise NoSuchTarget(
            f"{address!r} is neither pkg.mod:attr, path/to/file.py:attr, model.onnx, library.so:function, 'process: command' nor a preset{hint}"
        )
    module = module_at(existing(place)) if place.endswith(".py") else _from_module(place)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [n for n in dir(found) if not n.startswith("_")]
            near = get_close_matches(part, public, n=1, cutoff=0.5)
            raise NoSuchTarget(f"{place} has no {part!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _which(place: str) -> str:
    """The question which function of a file is meant. Raises NoSuchTarget where there is no such file."""
    try:
        return which(place, existing(place).read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        return f"{place} is no Python: {error}"


def module_at(path: Path) -> Any:
    """The module in a file, imported now. Raises NoSuchTarget."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.resolve().parent))
    loader = spec.loader

    def execute() -> Any:
        loader.exec_module(module)
        return module

    return _imported(execute, str(path))


def _from_module(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        missing = importlib.util.find_spec(name.split(".")[0]) is None
    except (ImportError, ValueError):
        missing = True
    if missing:
        raise NoSuchTarget(f"there is no module {name.split('.')[0]!r} to import")
    if name.split(".")[0] == "keras":
        choose_backend()
    return _imported(lambda: importlib.import_module(name), name)


def _imported(load: Callable[[], Any], name: str) -> Any:
    """Import with whatever the module prints put aside; any error becomes one sentence."""
    try:
        with target_code():
            return load()
    except TargetRaised as raised:
        error = raised.error
        if isinstance(error, SystemExit):
            raise NoSuchTarget(f"importing {name} calls sys.exit({error.code})") from error
        raise NoSuchTarget(f"importing {name} raises {raised.cause_line}") from error


def configured_targets(root: Path) -> dict[str, Settings]:
    """[tool.attnlaws.targets] of a TOML file, or of the nearest pyproject.toml at or above a folder."""
    places = (root,) if root.is_file() else (folder / "pyproject.toml" for folder in (root, *root.parents))
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        return {}
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"{path} is no TOML: {error}") from error
    section = data.get("tool", {}).get("attnlaws", {}).get("targets", {})
    return {name: _settings(name, values) for name, values in section.items()}


def _environment_is_set(name: str, wanted: Mapping[str, str]) -> None:
    """Raise BadConfiguration where a variable is not set as declared: most are read when a library is imported."""
    for variable, value in wanted.items():
        if os.environ.get(variable) != value:
            raise BadConfiguration(f"{name} needs {variable}={value} in the environment; set it before Python starts")


#: the tables of a target's declaration, and its keys
_TABLES = ("names", "conventions", "arguments", "precision", "layer", "model", "cost", "environment")
_KEYS = ("target", *_TABLES, "routes", "framework")


def _settings(name: str, values: Any) -> Settings:
    where = f"[tool.attnlaws.targets.{name}]"
    if isinstance(values, str):
        return Settings(values)
    if not isinstance(values, dict) or not isinstance(values.get("target"), str):
        raise BadConfiguration(f"{where} lacks target = 'pkg.mod:attr'")
    for key in values:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            raise BadConfiguration(
                f"{where} has an unknown key {key!r}; known: {', '.join(_KEYS)}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
    for key in _TABLES:
        if not isinstance(values.get(key, {}), dict):
            raise BadConfiguration(f"{where} {key} = {values[key]!r} must be a table")
    for key, known in (("names", tuple(NAMES)), ("precision", ("float64", "float32", "bfloat16", "float16"))):
        for item in values.get(key, {}):
            if item not in known:
                raise BadConfiguration(f"{where} {key} has {item!r}; possible: {', '.join(known)}")
    _declared_layer(where, values.get("layer", {}))
    _declared_model(where, values.get("model", {}))
    _declared_cost(where, values.get("cost", {}))
    routes = values.get("routes", [])
    if not isinstance(routes, list) or not set(routes) <= set(ROUTES):
        raise BadConfiguration(f"{where} routes = {routes!r} must be a list of: {', '.join(ROUTES)}")
    if values.get("framework", "torch") not in FRAMEWORKS:
        raise BadConfiguration(f"{where} framework = {values['framework']!r} is not one of: {', '.join(FRAMEWORKS)}")
    try:
        conventions = declared(values.get("conventions", {}))
    except UnknownChoice as error:
        raise BadConfiguration(f"{where} conventions: {error}") from error
    return Settings(
        values["target"],
        values.get("names", {}),
        conventions,
        values.get("arguments", {}),
        tuple(values["routes"]) if "routes" in values else None,
        values.get("framework"),
        values.get("precision", {}),
        values.get("layer", {}),
        values.get("model", {}),
        values.get("cost", {}),
        {variable: str(value) for variable, value in values.get("environment", {}).items()},
    )


def _declared_layer(where: str, values: Mapping[str, Any]) -> None:
    """Raise BadConfiguration for a key or a choice that no layer has."""
    for key, choice in values.items():
        if (key == "width" and isinstance(choice, int)) or (key == "initialisation" and isinstance(choice, str)):
            continue
        if key not in DECLARED:
            raise BadConfiguration(f"{where} layer has {key!r}; possible: width, initialisation, {', '.join(DECLARED)}")
        if choice not in DECLARED[key]:
            raise BadConfiguration(f"{where} layer {key} = {choice!r} is not one of: {', '.join(DECLARED[key])}")


def _declared_model(where: str, values: Mapping[str, Any]) -> None:
    """Raise BadConfiguration for a key or a choice that no model has."""
    for key, choice in values.items():
        if key not in DECLARED_OF_MODELS:
            raise BadConfiguration(f"{where} model has {key!r}; possible: {', '.join(DECLARED_OF_MODELS)}")
        choices = DECLARED_OF_MODELS[key]
        if choices and choice not in choices:
            raise BadConfiguration(f"{where} model {key} = {choice!r} is not one of: {', '.join(choices)}")
        if not choices and (not isinstance(choice, int) or isinstance(choice, bool)):
            raise BadConfiguration(f"{where} model {key} = {choice!r} must be a number")


COSTS = ("memory", "time", "decode", "window")


def _declared_cost(where: str, values: Mapping[str, Any]) -> None:
    """Raise BadConfiguration for a cost that no law is about, or that is no exponent."""
    for key, exponent in values.items():
        if key not in COSTS:
            raise BadConfiguration(f"{where} cost has {key!r}; possible: {', '.join(COSTS)}")
        if isinstance(exponent, bool) or not isinstance(exponent, int | float) or not 0 <= exponent <= 4:
            raise BadConfiguration(f"{where} cost {key} = {exponent!r} is no exponent of the length, such as 1 or 2")


__all__ = ["BadConfiguration", "CannotAdapt", "NoSuchTarget", "Settings", "load_target", "locate"]
