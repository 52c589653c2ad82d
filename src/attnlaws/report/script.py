"""A script that shows a failure with nothing but the target and its framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..laws.trial import Broken, Crashed
from ..run.ledger import Report, Verdict
from ..targets.call import Call
from ..targets.signature import by_position_alone, in_order, signature_of
from ..targets.target import Target

#: framework: how it is imported, an array of a list, an array of zeros
_WORDS = {
    "torch": (
        "import torch",
        "torch.tensor({values}, dtype=torch.{dtype})",
        "torch.zeros({shape}, dtype=torch.{dtype})",
    ),
    "numpy": ("import numpy as np", "np.array({values}, dtype=np.{dtype})", "np.zeros({shape}, dtype=np.{dtype})"),
    "jax": (
        "import jax\nimport jax.numpy as jnp",
        "jnp.array({values}, dtype=jnp.{dtype})",
        "jnp.zeros({shape}, dtype=jnp.{dtype})",
    ),
    "mlx": ("import mlx.core as mx", "mx.array({values}, dtype=mx.{dtype})", "mx.zeros({shape}, dtype=mx.{dtype})"),
}

_HEAD = '''"""{law}: {statement}

{reason}
Written by attnlaws; needs only the target and {framework}.
"""

{imports}
'''


def write_script(verdict: Verdict, report: Report, folder: Path) -> Path | None:
    """Write the script of a red verdict; None where the target has no address or the failing call is too large."""
    failure = verdict.failure
    call = getattr(failure, "call", None)
    if not isinstance(call, Call) or call.query.size + call.key.size + call.value.size > 4000 or call.views:
        return None
    address = report.target.address
    if address is None or ":" not in address or not isinstance(report.target, Target):
        return None
    if report.target.framework.name not in _WORDS:
        return None
    path = folder / f"{verdict.law}.py"
    path.write_text(script(verdict, report.target, call, address), encoding="utf-8")
    return path


def script(verdict: Verdict, target: Target, call: Call, address: str) -> str:
    """The text of the script."""
    words = _WORDS[target.framework.name]
    lines = [
        _HEAD.format(
            law=verdict.law,
            statement=verdict.statement,
            reason=verdict.reason,
            framework=target.framework.name,
            imports="\n".join([*_find(address), words[0]]),
        )
    ]
    if target.framework.name == "jax" and call.dtype == "float64":
        lines.append('jax.config.update("jax_enable_x64", True)')
    (positional, keywords), _ = target.arguments(call, (), False)
    placed = dict(zip((p.name for p in target.signature.by_position), positional, strict=False))
    if by_position_alone(target.function):
        placed, keywords = in_order(signature_of(target.function), (), keywords), {}
    names = []
    for name, value in {**placed, **keywords}.items():
        by_name = "" if name in placed else f"{name}="
        if target.framework.is_tensor(value):
            lines.append(f"{_plain(name)} = {_literal(target, value, words)}")
            names.append(f"{by_name}{_plain(name)}")
        elif type(value).__name__ == "_StandIn":
            lines.append(
                "module = type('Module', (), dict(training=False, num_key_value_groups="
                f"{value.num_key_value_groups}, is_causal=False))()"
            )
            names.append(f"{by_name}module")
        else:
            names.append(f"{by_name}{value!r}")
    lines.append(f"\nresult = target({', '.join(names)})")
    lines.append("output = result[0] if isinstance(result, tuple | list) else result")
    lines.append("print(output)")
    lines += _claim(verdict, target)
    return "\n".join(lines) + "\n"


def _plain(name: str) -> str:
    return name if name != "target" else "target_"


def _find(address: str) -> list[str]:
    place, attribute = address.rsplit(":", 1)
    first, *rest = attribute.split(".")
    if place.endswith(".py"):
        return [
            "import runpy",
            f"target = runpy.run_path({place!r})[{first!r}]{''.join('.' + r for r in rest)}",
        ]
    return [f"from {place} import {first} as found", f"target = found{''.join('.' + r for r in rest)}"]


def _literal(target: Target, value: Any, words: tuple[str, str, str]) -> str:
    array = target.framework.to_numpy(value)
    dtype = target.framework.dtype_of(value)
    if array.size == 0:
        return words[2].format(shape=array.shape, dtype=dtype)
    if dtype == "bool":
        text = str(array.astype(bool).tolist())
    else:
        text = str(array.tolist()).replace("inf", "float('inf')").replace("nan", "float('nan')")
    return words[1].format(values=text, dtype=dtype)


def _claim(verdict: Verdict, target: Target) -> list[str]:
    failure = verdict.failure
    if isinstance(failure, Crashed):
        return [f"# expected: an output; it raised {failure.line}"]
    if (
        not isinstance(failure, Broken)
        or failure.got is None
        or failure.index is None
        or not failure.where.startswith("out[")
        or len(failure.index) != 4
    ):
        return [f"# broken: {verdict.reason}"]
    index = _own_index(target, failure)
    return [
        f"# the element {failure.where} in (batch, head, query, channel) order",
        f"got, expected, allowed = float(output{list(index)}), {_number(failure.want)}, {_number(failure.allowed)}",
        "print(f'got {got:.9g}, expected {expected:.9g}, off by {abs(got - expected):.3g}, allowed {allowed:.3g}')",
        "raise SystemExit(not abs(got - expected) <= allowed)",
    ]


def _number(value: float | None) -> str:
    return f"float({str(value)!r})" if value is None or not np.isfinite(value) else repr(value)


def _own_index(target: Target, failure: Broken) -> tuple[int, ...]:
    """The index of an element in the target's own axes."""
    assert failure.index is not None
    b, h, i, c = failure.index
    queries = 0 if failure.call is None else failure.call.query.shape[2]
    if target.heads_merged and failure.call is not None:
        return b, i, h * failure.call.value.shape[3] + c
    return {
        "BHSD": (b, h, i, c),
        "BSHD": (b, i, h, c),
        "SBHD": (i, b, h, c),
        "packed": (b * queries + i, h, c),
        "SHD": (i, h, c),
        "HSD": (h, i, c),
        "BSD": (b, i, c),
        "SD": (i, c),
    }[target.output_axes]
