"""Understanding a third party's signature: which parameter plays which role."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .names import role_of


class CannotAdapt(Exception):
    """The target can be imported but not called as attention; the message says why and what to do."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of the target: its name, whether it needs a value, whether it may or must go by position."""

    name: str
    required: bool
    positional: bool
    position_only: bool = False
    #: its default is False or None, so that leaving it out switches it off
    off: bool = False


@dataclass(frozen=True)
class Signature:
    """Roles found in a signature: role -> parameter. `assumed` says what was taken by position, `unknown` is left at its
    default, `by_position` can't be given by name, in the order of the signature.
    """

    roles: Mapping[str, Parameter]
    assumed: str = ""
    unknown: tuple[str, ...] = ()
    by_position: tuple[Parameter, ...] = ()

    def has(self, role: str) -> bool:
        """Whether the target has a parameter of this role."""
        return role in self.roles


def _from_docstring(function: Callable[..., Any]) -> inspect.Signature | None:
    """The signature in the first lines of a docstring, as builtins of torch have it."""
    name = re.escape(getattr(function, "__name__", ""))
    found = re.search(name + r"\s*\((.*?)\)\s*(?:->|:|\n|$)", inspect.getdoc(function) or "", re.DOTALL)
    if not name or not found:
        return None
    try:
        arguments = ast.parse(f"def f({' '.join(found[1].split())}): ...").body[0]
    except SyntaxError:
        return None
    assert isinstance(arguments, ast.FunctionDef)
    plain = arguments.args.posonlyargs + arguments.args.args
    first_default = len(plain) - len(arguments.args.defaults)
    parameters = [
        inspect.Parameter(
            item.arg,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if index < first_default else None,
        )
        for index, item in enumerate(plain)
    ]
    parameters += [
        inspect.Parameter(
            item.arg, inspect.Parameter.KEYWORD_ONLY, default=inspect.Parameter.empty if value is None else None
        )
        for item, value in zip(arguments.args.kwonlyargs, arguments.args.kw_defaults, strict=True)
    ]
    return inspect.Signature(parameters)


def _own_step(function: Any) -> Any:
    """The subclass of torch.autograd.Function whose bound `apply` a function is; None for any other."""
    torch, owner = sys.modules.get("torch"), getattr(function, "__self__", None)
    if torch is None or not isinstance(owner, type) or not issubclass(owner, torch.autograd.Function):
        return None
    return owner if getattr(function, "__name__", "") == "apply" else None


def _of_forward(step: Any) -> inspect.Signature:
    """What `apply` of an autograd.Function takes: the parameters of its forward, by position alone.

    Without the first, the context, unless the class has a setup_context: then forward gets none
    (https://docs.pytorch.org/docs/stable/notes/extending.html).
    """
    parameters = list(inspect.signature(step.forward).parameters.values())
    with_context = step.setup_context is sys.modules["torch"].autograd.Function.setup_context
    return inspect.Signature([p.replace(kind=p.POSITIONAL_ONLY) for p in parameters[with_context:] if p.kind in _PLAIN])


_PLAIN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def callable_by_name(function: Any) -> Any:
    """A function that takes its arguments by name too, where it is the `apply` of an autograd.Function; any other as it is."""
    step = _own_step(function)
    if step is None:
        return function
    parameters = [p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in _of_forward(step).parameters.values()]
    signature = inspect.Signature(parameters)

    @functools.wraps(function)
    def apply(*positional: Any, **keywords: Any) -> Any:
        return function(*in_order(signature, positional, keywords).values())

    apply.__module__, apply.__qualname__ = step.__module__, f"{step.__qualname__}.apply"
    apply.__signature__ = signature  # type: ignore[attr-defined]
    return apply


def in_order(signature: inspect.Signature, positional: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call in the order of the signature, with the defaults of what is left out before the last of them."""
    given = signature.bind(*positional, **keywords).arguments
    parameters = list(signature.parameters.values())
    last = max((place for place, p in enumerate(parameters) if p.name in given), default=-1)
    return {p.name: given.get(p.name, p.default) for p in parameters[: last + 1]}


def by_position_alone(function: Any) -> bool:
    """Whether a function is what `callable_by_name` made: without it, its arguments go by position."""
    return _own_step(getattr(function, "__wrapped__", None)) is not None


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function, or what its docstring says it is; for the `apply` of an autograd.Function that of its
    forward. Raises CannotAdapt where nothing tells.
    """
    step = _own_step(function)
    try:
        return inspect.signature(function) if step is None else _of_forward(step)
    except (TypeError, ValueError):
        found = _from_docstring(function)
    if found is None:
        raise CannotAdapt(
            f"the signature of {function!r} can't be read; wrap it in a function (query, key, value, ...) of your own"
        )
    return found


def understand(
    function: Callable[..., Any], renamed: Mapping[str, str] | None = None, given: Collection[str] = ()
) -> Signature:
    """Find the role of each parameter by name; the first three without a known name are query, key, value.

    `renamed` maps roles to parameter names where the user declares them, `given` are parameters with a fixed argument. Raises CannotAdapt where a required
    parameter has no role or fewer than three arrays are taken.
    """
    parameters = signature_of(function).parameters.values()
    by_declared = {name: role for role, name in (renamed or {}).items()}
    known_names = {p.name for p in parameters}
    for name, declared_role in by_declared.items():
        if name not in known_names:
            raise CannotAdapt(
                f"{declared_role} is declared to be the parameter {name!r}, but the target has {sorted(known_names)}"
            )
    roles: dict[str, Parameter] = {}
    unknown: list[Parameter] = []
    by_position: list[Parameter] = []
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or p.name in given:
            continue
        positional = p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        off = p.default is None or p.default is False
        mine = Parameter(p.name, p.default is p.empty, positional, p.kind is p.POSITIONAL_ONLY, off)
        if mine.position_only:
            by_position.append(mine)
        role = by_declared.get(p.name) or role_of(p.name)
        if role == "module" and not mine.required:  # Flax: where to record weights; transformers': always there
            role = None
        if role is None or role in roles:
            unknown.append(mine)
        else:
            roles[role] = mine
    assumed = _assume(roles, unknown)
    left = [p.name for p in unknown if p.required]
    if left:
        raise CannotAdapt(
            f"the target requires {', '.join(left)}, and attnlaws doesn't know what that is; name it under "
            f"[tool.attnlaws.targets.NAME] as names = {{ role = {left[0]!r} }}, or wrap the target"
        )
    return Signature(roles, assumed, tuple(p.name for p in unknown), tuple(by_position))


def _assume(roles: dict[str, Parameter], unknown: list[Parameter]) -> str:
    """Take query, key and value by position where their names are unknown; say so."""
    missing = [role for role in ("query", "key", "value") if role not in roles]
    candidates = [p for p in unknown if p.required and p.positional]
    if len(missing) > len(candidates):
        found = ", ".join(p.name for p in roles.values()) or "nothing"
        raise CannotAdapt(
            f"no {', '.join(missing)} in the target's parameters (understood: {found}); a target is a function of "
            "query, key and value. Wrap it in one, or name the parameters under [tool.attnlaws.targets.NAME]"
        )
    taken = []
    for role, parameter in zip(missing, candidates, strict=False):
        roles[role] = parameter
        unknown.remove(parameter)
        taken.append(f"{parameter.name} as {role}")
    return ", ".join(taken)
