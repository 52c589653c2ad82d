"""What a Python file offers as a target, read and never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .names import role_of

_MOST = 12


def which(place: str, text: str) -> str:
    """The question which of the functions and classes in a file is meant, those of query, key and value first.

    Raises SyntaxError where the text is no Python.
    """
    found = dict(_callables(ast.parse(text).body))
    names = sorted(found, key=lambda name: not found[name])
    if not names:
        return f"{place} has no public function or class"
    first = "attention" if "attention" in names else names[0]
    others = [name for name in names if name != first]
    also = f"; it also has {', '.join(others[:_MOST])}{', ...' if len(others) > _MOST else ''}" if others else ""
    return f"{place}: which function? attnlaws check {place}:{first}{also}"


def _callables(body: Sequence[ast.stmt]) -> Iterator[tuple[str, bool]]:
    """Each public name that is defined as a function or a class, and whether it takes query, key and value.

    Of assigned names a lambda, and the `apply` of an autograd.Function.
    """
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _callables([part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt)])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            if not node.name.startswith("_"):
                yield node.name, isinstance(node, ast.FunctionDef) and _is_attention(node.args)
        elif isinstance(node, ast.Assign):
            value = node.value
            step = isinstance(value, ast.Attribute) and value.attr == "apply"
            for goal in node.targets:
                if (
                    isinstance(goal, ast.Name)
                    and not goal.id.startswith("_")
                    and (step or isinstance(value, ast.Lambda))
                ):
                    yield goal.id, step or (isinstance(value, ast.Lambda) and _is_attention(value.args))


def _is_attention(arguments: ast.arguments) -> bool:
    taken = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {"query", "key", "value"} <= {role_of(item.arg) for item in taken}
