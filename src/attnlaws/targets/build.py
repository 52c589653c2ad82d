"""Building a module: from a class with arguments, a factory, or a ready instance.

The arguments in an address are literals, read by ast and never evaluated, or a class beside what is built with literals.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .names import role_of
from .signature import CannotAdapt


class _NoModule(CannotAdapt):
    """What was built is no module."""


@dataclass(frozen=True)
class Nested:
    """A call among the arguments, such as GPTConfig(n_layer=2): what it names stands beside what is built."""

    name: str
    positional: tuple[Any, ...]
    named: dict[str, Any]


_CALL = re.compile(r"(?P<place>.*?):(?P<attribute>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\((?P<arguments>.*)\)\s*", re.DOTALL)


def split_call(address: str) -> tuple[str, tuple[list[Any], dict[str, Any]] | None]:
    """The address without its arguments, and the arguments; None where it has none. Raises CannotAdapt."""
    found = _CALL.fullmatch(address)
    if found is None:
        return address, None
    try:
        call = ast.parse(f"f({found['arguments']})", mode="eval").body
        assert isinstance(call, ast.Call)
        if any(word.arg is None for word in call.keywords):
            raise ValueError("** is no literal")
        positional = [_literal(item) for item in call.args]
        named = {str(word.arg): _literal(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, AssertionError) as error:
        raise CannotAdapt(
            f"the arguments in {address!r} must be literals, such as Layer(width=64, causal=True); "
            "for others, write a function without arguments that returns the module"
        ) from error
    return f"{found['place']}:{found['attribute']}", (positional, named)


def _literal(node: ast.expr) -> Any:
    """A literal, or a call of a name with literals. Raises ValueError."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and all(word.arg for word in node.keywords):
        named = {str(word.arg): _literal(word.value) for word in node.keywords}
        return Nested(node.func.id, tuple(_literal(item) for item in node.args), named)
    return ast.literal_eval(node)


def is_module(value: Any) -> bool:
    """Whether a value is a torch.nn.Module; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def is_module_class(value: Any) -> bool:
    """Whether a value is a class of modules."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, type) and issubclass(value, torch.nn.Module)


def is_factory(value: Any) -> bool:
    """Whether a value is a plain function that needs no argument: what it returns may be a module."""
    if not inspect.isfunction(value):
        return False
    parameters = inspect.signature(value).parameters.values()
    if {role_of(p.name) for p in parameters} & {"query", "key", "value"}:
        return False
    return all(p.default is not p.empty and p.kind is not p.VAR_POSITIONAL for p in parameters)


def maker(found: Any, arguments: tuple[list[Any], dict[str, Any]] | None, name: str) -> Callable[[int], Any]:
    """A function from a seed to a new module. Raises CannotAdapt, when called, in one sentence."""
    positional, named = arguments if arguments is not None else ([], {})

    def make(seed: int) -> Any:
        import torch

        try:
            with contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                made = _built(found, positional, named)
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            hint = "" if arguments else f"; give its arguments: {name}(width=64, ...)"
            raise CannotAdapt(f"{name} can't be built: {type(error).__name__}: {text}{hint}") from error
        if not isinstance(made, torch.nn.Module):
            raise _NoModule(f"{name}(...) gives {type(made).__name__}, not a torch.nn.Module")
        return made

    return make


def _built(found: Any, positional: list[Any], named: dict[str, Any]) -> Any:
    """What is found, called; where it takes a configuration, the arguments may be those of the configuration."""
    place = sys.modules.get(getattr(found, "__module__", ""))

    def value(item: Any) -> Any:
        if not isinstance(item, Nested):
            return item
        if not isinstance(getattr(place, item.name, None), type):
            own = getattr(found, "__name__", "what is built")
            raise ValueError(f"arguments must be literals, or classes beside {own}; there is no class {item.name}")
        return getattr(place, item.name)(*map(value, item.positional), **{n: value(v) for n, v in item.named.items()})

    config = None if positional else _config_class(found, place, named)
    if config is not None:
        return found(config(**{n: value(v) for n, v in named.items()}))
    return found(*map(value, positional), **{n: value(v) for n, v in named.items()})


_CONFIGS = ("config", "cfg", "args", "params", "hparams", "configuration")


def _config_class(found: Any, place: Any, named: dict[str, Any]) -> Any:
    """The class of the one argument that a class of modules takes, where the given ones are not the module's own; or None."""
    if not is_module_class(found):
        return None
    parameters = [
        p for p in list(inspect.signature(found.__init__).parameters.values())[1:] if p.kind is not p.VAR_KEYWORD
    ]
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if len(required) != 1 or set(named) & {p.name for p in parameters} or required[0].name not in _CONFIGS:
        return None
    if isinstance(getattr(found, "config_class", None), type):
        return found.config_class
    said = required[0].annotation
    if isinstance(said, type):
        return said
    classes = {n: v for n, v in vars(place).items() if isinstance(v, type)} if place else {}
    if isinstance(said, str) and said in classes:
        return classes[said]
    likely = [
        v for n, v in classes.items() if n.lower().endswith(("config", "args")) and v.__module__ == found.__module__
    ]
    return likely[0] if len(likely) == 1 else None


def has_embedding(module: Any) -> bool:
    """Whether a module holds an embedding, which takes tokens."""
    torch = sys.modules["torch"]
    return any(isinstance(part, torch.nn.Embedding) for part in module.modules())


def resolved(found: Any, arguments: tuple[list[Any], dict[str, Any]] | None, name: str) -> tuple[Any, Any] | None:
    """(module, maker or None) where an object is a layer or makes one, else None. Raises CannotAdapt."""
    if arguments is not None and is_module(found):
        raise CannotAdapt(f"{name} is a module already and takes no arguments")
    if is_module(found):
        return found, None
    if arguments is None and not is_module_class(found) and not is_factory(found):
        return None
    if not callable(found):
        raise CannotAdapt(f"{name} is {type(found).__name__}, and takes no arguments")
    make = maker(found, arguments, name)
    if is_factory(found) and arguments is None:
        try:
            return make(0), make
        except _NoModule:
            return None
    return make(0), make


def is_layer(found: Any) -> bool:
    """Whether an object is a module, or a class of modules."""
    return is_module(found) or is_module_class(found)


def makes_layer(found: Any, name: str) -> bool:
    """Whether an object is a factory of modules; it is called to find out."""
    return is_factory(found) and resolved(found, None, name) is not None
