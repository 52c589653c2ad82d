"""Test vectors: cases with their inputs, expected output, bound and reason, for code that attnlaws can't call.

.npz files that are not compressed, with an index in JSON, a page that explains them, and a script that uses them without attnlaws.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..judge.precision import Precision
from ..laws.trial import Evidence, Session, Trial
from ..problems.draw import covering
from ..problems.problem import EMPTY_MASKS, MASKS, Problem
from ..problems.wants import ALL, Wants
from ..targets.call import Call
from ..targets.conventions import TABLE, Abilities, Conventions
from ..targets.numpy_arrays import NumpyFramework
from ..targets.signature import understand
from ..targets.target import Target

FORMAT = "attnlaws vectors 1"
CASES = 200
SHAPES = ("LS", "BHLS", "B1LS", "1HLS", "11LS", "B11S")


@dataclass(frozen=True)
class Vector:
    """One case. `bound` is that of the loosest precision of its dtype that a right kernel may have, `strict` of the strictest."""

    problem: Problem
    call: Call
    expected: NDArray[np.float64]
    bound: NDArray[np.float64]
    strict: NDArray[np.float64]
    precisions: tuple[str, str]
    options: dict[str, Any]


def plain_target() -> Target:
    """What vectors are for where no target is named: masks, bias, causal flag, scale, grouped heads, by torch's conventions."""

    def attention(query: Any, key: Any, value: Any) -> Any:
        raise NotImplementedError("this stands for the code that the vectors are for")

    abilities = Abilities(
        dtypes=("float32", "float64", "bfloat16", "float16"), routes=("bool",), mask_shapes=SHAPES, bias=True, causal=True,
        grouped=True, scale=True,
    )  # fmt: skip
    conventions = Conventions().found("assumed", causal="flag")
    return Target("attention", attention, NumpyFramework(), understand(attention), conventions, abilities)


def vectors(target: Target, *, cases: int = CASES, seed: int = 0) -> Iterator[Vector]:
    """Cases from the covering design: each option of each choice equally often, small worlds first."""
    wants = Wants(options=ALL, masks=("none", *MASKS, *EMPTY_MASKS))
    for problem in islice(covering(wants, target.abilities, target.conventions, seed), cases):
        trial = Trial(target, problem, Session(), Evidence())
        exact = trial.exact()
        ladder = trial.ladder(problem.dtype)
        yield Vector(
            problem,
            trial.call,
            exact.output,
            _bound(trial, ladder[-1]),
            _bound(trial, ladder[0]),
            (ladder[0].name, ladder[-1].name),
            _options(trial),
        )


def _bound(trial: Trial, precision: Precision) -> NDArray[np.float64]:
    """The bound that laws allow: twice that of float64, in which the oracle itself errs."""
    return (2.0 if trial.call.dtype == "float64" else 1.0) * trial.bound(trial.call, precision)


def _options(trial: Trial) -> dict[str, Any]:
    """The options of a case that are no arrays, in plain words: how many keys a window leaves before and after its own."""
    call, made = trial.call, trial.options(trial.call)
    options: dict[str, Any] = {"causal": made["causal"] is not None, "scale": made["scale"]}
    if call.softcap is not None:
        options["softcap"] = call.softcap
    if call.window is not None:
        options["window"] = list(call.window)
    return options


def reasons(problem: Problem, target: Target) -> list[str]:
    """What a case is there for."""
    p, c = problem, target.conventions
    fill = c.empty_row(p.route, p.dtype)
    told = (
        (p.causal and p.queries == p.keys, "query i sees key j where j <= i"),
        (p.causal and p.queries != p.keys, f"the causal triangle of unlike lengths is aligned {c.alignment}"),
        (p.mask in EMPTY_MASKS, f"a row without a visible key gives: {fill}"),
        (p.mask not in ("none", *EMPTY_MASKS), f"a {p.mask} mask, given as {p.mask_shape}"),
        (p.bias, "numbers are added to the scores after the scale"),
        (p.scale is not None, "the scale is given, not 1/sqrt(D)"),
        (p.heads != p.kv_heads, "query head h reads key head h // (H / Hkv)"),
        (p.head_dim != p.value_dim, "the output is as wide as the values, the scale that of the queries"),
        (p.queries == 1, "one query: a step of decoding"),
        (max(p.queries, p.keys) > 13, "lengths beside the edges of tiles"),
        (p.window, "a window"),
        (bool(p.softcap), "scaled scores are capped by cap tanh(s / cap), before any mask"),
        (p.alibi, "ALiBi slopes"),
        (p.sinks, "sinks join the denominator alone"),
        (p.regime not in ("normal",), f"{p.regime} values"),
        (p.dtype in ("bfloat16", "float16"), f"{p.dtype}: accumulate in float32"),
    )
    return [words for holds, words in told if holds] or ["plain attention"]


def write_vectors(target: Target, folder: Path, *, cases: int = CASES, seed: int = 0) -> int:
    """Write the cases, index.json, README.md and check.py into a folder; how many cases. Raises FileExistsError where it holds
    other files.
    """
    if folder.exists() and any(folder.iterdir()) and not (folder / "index.json").is_file():
        raise FileExistsError(f"{folder} holds other files; choose an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for number, vector in enumerate(vectors(target, cases=cases, seed=seed), start=1):
        name = f"{number:04d}.npz"
        arrays = _arrays(vector)
        np.savez(folder / name, **arrays)
        listed.append(_entry(name, vector, arrays, target))
    index = {"format": FORMAT, "seed": seed, "conventions": _conventions(target), "cases": listed}
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    script = Path(__file__).with_name("check_vectors.py").read_text(encoding="utf-8")
    (folder / "check.py").write_text(script, encoding="utf-8")
    (folder / "README.md").write_text(_page(target, len(listed)), encoding="utf-8")
    return len(listed)


def _arrays(vector: Vector) -> dict[str, Any]:
    """The arrays of a case. bfloat16, which .npy files don't have, is stored as float32 with the same values."""
    call, call_dtype = vector.call, vector.problem.dtype
    stored = "float32" if call_dtype == "bfloat16" else call_dtype
    arrays: dict[str, Any] = {n: getattr(call, n).astype(stored) for n in ("query", "key", "value")}
    visible = None if call.visible is None else np.atleast_2d(call.visible)
    if call.padding is not None:
        row = call.padding[:, None, None, :]
        visible = row if visible is None else visible & row
    if visible is not None:
        arrays["visible"] = np.ascontiguousarray(visible.reshape((1,) * (4 - visible.ndim) + visible.shape))
    if call.bias is not None:
        arrays["bias"] = call.bias.reshape((1,) * (4 - call.bias.ndim) + call.bias.shape).astype(stored)
    for name, array in (("slopes", call.slopes), ("sinks", call.sinks)):
        if array is not None:
            arrays[name] = array.astype("float32")
    return {**arrays, "expected": vector.expected, "bound": vector.bound, "strict": vector.strict}


def _entry(name: str, vector: Vector, arrays: dict[str, Any], target: Target) -> dict[str, Any]:
    p = vector.problem
    return {
        "file": name,
        "problem": p.describe(),
        "reasons": reasons(p, target),
        "dtype": p.dtype,
        "sizes": {
            "B": p.batch, "H": p.heads, "Hkv": p.kv_heads, "L": p.queries, "S": p.keys, "D": p.head_dim, "Dv": p.value_dim,
        },
        "options": vector.options,
        "arrays": {n: list(a.shape) for n, a in arrays.items()},
        "precision": {"strict": vector.precisions[0], "bound": vector.precisions[1]},
    }  # fmt: skip


def _conventions(target: Target) -> dict[str, str]:
    """The conventions that shape an expected output."""
    known = target.conventions
    shaping = [f.name for f in fields(Conventions) if f.name.startswith("empty_") and f.name != "empty_lse"]
    names = ("alignment", "single_query", "window_anchor", "alibi", *shaping)
    return {TABLE[name].question: str(getattr(known, name)) for name in names}


def _page(target: Target, count: int) -> str:
    rules = "\n".join(f"* {question}: {choice}" for question, choice in _conventions(target).items())
    return _README.format(count=count, name=target.name, rules=rules)


_README = """# Test vectors for attention

{count} cases for {name}: inputs, the expected output, how far a right output may be from it, and why the case is there. They need nothing but
a reader of .npz files. attnlaws wrote them.

## A case

`index.json` lists the cases. Each has a file of arrays, in C order:

| array | shape | what |
| --- | --- | --- |
| `query` | (B, H, L, D) | in the dtype of the case; bfloat16 is stored as float32 with the same values |
| `key`, `value` | (B, Hkv, S, D), (B, Hkv, S, Dv) | query head h reads key head h // (H / Hkv) |
| `visible` | (B or 1, H or 1, L or 1, S) | booleans, if there: true where a query may see a key |
| `bias` | (B or 1, H or 1, L or 1, S) | if there: added to the scaled scores |
| `slopes`, `sinks` | (H) | if there: ALiBi slopes; logits that join the denominator alone |
| `expected` | (B, H, L, Dv) | float64 |
| `bound` | (B, H, L, Dv) | an output is right where abs(output - expected) <= bound, element by element |
| `strict` | (B, H, L, Dv) | the bound of the strictest precision, where yours claims to be that |

`options` in the index: `causal`; `scale`, always given; `softcap` and `window` (keys before and after a query's own, null without end) where the
case has them. A NaN in `expected` must be a NaN in the output. The bounds are derived from the inputs, the dtype and the kinds of rounding
named under `precision`: they are no tolerances, and needn't be widened.

output = softmax(mask(scale q k^T + bias)) v, where the mask hides what `visible`, causality and the window hide.

## Conventions

{rules}

## From C++, Rust, Swift

Compute each case, convert to the dtype of the case first, write the output as `RESULTS/0001.npy` and so on, and run

```
python check.py RESULTS
```

An .npz file is a zip file of .npy files; these are stored, not compressed, so that a reader is a page of code. There are cnpy and
libnpy for C++, ndarray-npy for Rust, and readers for Swift. Or read `index.json`, and compare in your own test.

A Python function is checked without files: `python check.py module:function`. It is called as function(query, key, value, **options) with NumPy
arrays; a case whose options it doesn't take is counted as not compared.
"""
