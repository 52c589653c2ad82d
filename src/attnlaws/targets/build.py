"""Building a module: from a class with arguments, a factory, or a ready instance.

The arguments in an address are literals, read by ast and never evaluated.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import sys
from collections.abc import Callable
from typing import Any

from .names import role_of
from .signature import CannotAdapt


class _NoModule(CannotAdapt):
    """What was built is no module."""


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
        positional = [ast.literal_eval(item) for item in call.args]
        named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, AssertionError) as error:
        raise CannotAdapt(
            f"the arguments in {address!r} must be literals, such as Layer(width=64, causal=True); "
            "for others, write a function without arguments that returns the module"
        ) from error
    return f"{found['place']}:{found['attribute']}", (positional, named)


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
                made = found(*positional, **named)
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            hint = "" if arguments else f"; give its arguments: {name}(width=64, ...)"
            raise CannotAdapt(f"{name} can't be built: {type(error).__name__}: {text}{hint}") from error
        if not isinstance(made, torch.nn.Module):
            raise _NoModule(f"{name}(...) gives {type(made).__name__}, not a torch.nn.Module")
        return made

    return make


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
