"""Whether a layer uses positions: its outputs follow a permutation of the tokens, or its names or code speak of positions."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np

from .call import TargetRaised, WrongResult
from .instance import Instance
from .layer import LayerTarget

#: words of modules that know where a token is
_WORDS = re.compile(
    r"(?<![a-z])pos(?:ition|_|\b)|rope|rotary|rotate|relative|alibi|slope|freq|theta|(?<![a-z])sin\(|(?<![a-z])cos\(|distance"
    r"|conv[123]d|(?<![a-z])rnn|lstm|(?<![a-z])gru(?![a-z])|(?<![a-z])roll\(|window|(?<![a-z])local|dilat|decay|cumsum|shift",
    re.IGNORECASE,
)


def find_positions(target: LayerTarget, instance: Instance, declared: str | None) -> LayerTarget:
    """The target with `positions`: declared, seen not to be used, or used as its names and its code hint."""
    if declared is not None:
        return target.but(positions=declared)
    if target.only_length:
        return target.but(positions="used")
    length = min(target.longest, 6)
    rng = np.random.Generator(np.random.Philox(key=[6, 13]))
    x = rng.standard_normal((1, length, target.width)).astype(np.float32).astype(np.float64)
    order = np.arange(length)[::-1]
    if target.dependence.causal:
        order = np.array([*reversed(range(length - 1)), length - 1])
    try:
        out, other = instance.run(x), instance.run(x[:, order])
    except (TargetRaised, WrongResult):
        return target.but(positions="used")
    rows = slice(length - 1, None) if target.dependence.causal else slice(None)
    want = out[:, order][:, rows]
    least = (1e-9 if instance.dtype == "float64" else 1e-4) * float(np.abs(want).max())
    if (np.abs(other[:, rows] - want) <= least).all():
        return target.but(positions="none")
    hint = hints(target.module)
    return target.but(
        positions="used" if hint else "none", known={**target.known, **({"positions": hint} if hint else {})}
    )


#: words of modules that see a pattern of tokens of their own
_SPARSE = re.compile(
    r"sparse|window|(?<![a-z])local|dilat|stride|block_mask|(?<![a-z])lsh|top_?k|global_?tok|landmark", re.IGNORECASE
)


def pattern_hint(module: Any) -> str:
    """The first word that speaks of a pattern of visible tokens, or ""."""
    return hints(module, _SPARSE)


def hints(module: Any, words: re.Pattern[str] = _WORDS) -> str:
    """The first word in the names or the code of a module that speaks of positions, or ""."""
    names = [n for part in module.modules() for n in vars(part)]
    names += [n for n, _ in module.named_parameters()] + [n for n, _ in module.named_buffers()]
    names += [type(part).__name__ for part in module.modules()]
    for name in names:
        found = words.search(name.replace("Conv1D", ""))  # transformers' name for a linear map
        if found and not name.startswith("_"):
            return f"the name {name}"
    for kind in {type(part) for part in module.modules()}:
        if kind.__module__.startswith("torch.nn"):
            continue
        try:
            source = inspect.getsource(kind.forward)
        except (OSError, TypeError):
            continue
        found = words.search(source)
        if found:
            return f"the word {found[0].strip('(')!r} in {kind.__name__}.forward"
    return ""
