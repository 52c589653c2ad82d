"""Finding a target by its name: pkg.mod:attr, path/to/file.py:attr, a preset, or a name from pyproject.toml."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from . import presets
from .build import is_layer, makes_layer, resolved, split_call
from .c_function import c_function
from .call import ROUTES
from .conventions import UnknownChoice, declared
from .frameworks import FRAMEWORKS
from .keras_backend import choose_backend
from .layer import LayerTarget
from .names import NAMES
from .probe import adapt
from .probe_layer import DECLARED, adapt_layer
from .process import program_function
from .signature import CannotAdapt
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


def load_target(name: str, *, device: str = "cpu", root: Path | None = None) -> Target | LayerTarget:
    """The target of this name, imported, adapted and probed: a function of query, key and value, or a layer.

    Raises NoSuchTarget, CannotAdapt, UnknownChoice or BadConfiguration, each with one clear sentence.
    """
    configured = configured_targets(root or Path.cwd())
    settings = configured.get(name, Settings(name))
    preset = presets.PRESETS.get(settings.target) or foreign(settings.target)
    if preset is None:
        address, arguments = split_call(settings.target)
        found = locate(address, configured)
        built = resolved(found, arguments, address)
        if built is not None:
            return _adapted_layer(*built, name, device, settings)
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
    """ "layer" or "attention", by what stands at an address; what can't be found is told when it is loaded."""
    configured = configured_targets(root or Path.cwd())
    wanted = configured.get(name, Settings(name)).target
    if wanted in presets.PRESETS or foreign(wanted) is not None:
        return "attention"
    try:
        address, arguments = split_call(wanted)
        found = locate(address, configured)
        return "layer" if arguments is not None or is_layer(found) or makes_layer(found, address) else "attention"
    except (NoSuchTarget, CannotAdapt):
        return "attention"


def _adapted(function: Any, name: str, device: str, settings: Settings) -> Target:
    made = adapt(
        function,
        name=name,
        device=device,
        declared=settings.conventions,
        names=settings.names,
        fixed=settings.arguments,
        routes=settings.routes,
        framework=settings.framework,
        precision=settings.precision,
    )
    return made.but(address=name)


def _adapted_layer(module: Any, make: Any, name: str, device: str, settings: Settings) -> LayerTarget | Target:
    """A layer; or the module's forward as a function of query, key and value with heads, where that is what it takes."""
    try:
        made = adapt_layer(module, make, name=name, device=device, declared=settings.layer, fixed=settings.arguments)
    except CannotAdapt as refusal:
        try:
            return _adapted(module.forward, name, device, settings)
        except CannotAdapt:
            raise refusal from None
    return made.but(address=name)


def locate(address: str, others: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """The object at pkg.mod:attr or path/to/file.py:attr."""
    place, colon, attribute = address.rpartition(":")
    if not colon or not place or not attribute:
        known = [*presets.PRESETS, *(others or {})]
        near = get_close_matches(address, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else f"; presets: {', '.join(presets.PRESETS)}"
        raise NoSuchTarget(
            f"{address!r} is neither pkg.mod:attr, path/to/file.py:attr, model.onnx, library.so:function, 'process: command' nor a preset{hint}"
        )
    module = _from_file(existing(place)) if place.endswith(".py") else _from_module(place)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [n for n in dir(found) if not n.startswith("_")]
            near = get_close_matches(part, public, n=1, cutoff=0.5)
            raise NoSuchTarget(f"{place} has no {part!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _from_file(path: Path) -> Any:
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
        with contextlib.redirect_stdout(io.StringIO()):
            return load()
    except SystemExit as error:
        raise NoSuchTarget(f"importing {name} calls sys.exit({error.code})") from error
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise NoSuchTarget(f"importing {name} raises {type(error).__name__}: {text}") from error


def configured_targets(root: Path) -> dict[str, Settings]:
    """[tool.attnlaws.targets] of the nearest pyproject.toml at or above `root`."""
    for folder in (root, *root.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            break
    else:
        return {}
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"{path} is no TOML: {error}") from error
    section = data.get("tool", {}).get("attnlaws", {}).get("targets", {})
    return {name: _settings(name, values) for name, values in section.items()}


_KEYS = ("target", "names", "conventions", "arguments", "routes", "framework", "precision", "layer")


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
    for key in ("names", "conventions", "arguments", "precision", "layer"):
        if not isinstance(values.get(key, {}), dict):
            raise BadConfiguration(f"{where} {key} = {values[key]!r} must be a table")
    for key, known in (("names", tuple(NAMES)), ("precision", ("float64", "float32", "bfloat16", "float16"))):
        for item in values.get(key, {}):
            if item not in known:
                raise BadConfiguration(f"{where} {key} has {item!r}; possible: {', '.join(known)}")
    _declared_layer(where, values.get("layer", {}))
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


__all__ = ["BadConfiguration", "CannotAdapt", "NoSuchTarget", "Settings", "load_target", "locate"]
