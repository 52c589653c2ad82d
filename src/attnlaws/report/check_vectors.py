"""Check outputs against the test vectors in this folder. Needs Python and NumPy, nothing else.

python check.py RESULTS            RESULTS holds the output of case 0001 as 0001.npy, (B, H, L, Dv), and so on
python check.py module:function    a Python function, called as function(query, key, value, **options)

The options of a case stand in index.json: causal, scale, softcap, window, and the arrays visible, bias, slopes, sinks; a case has those that it
needs. Exit code 0: all outputs are within their bounds; 1: one is not; 2: nothing could be compared.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


def given(case: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """All arrays of a case, and the options for a function of query, key and value."""
    with np.load(HERE / case["file"]) as stored:
        arrays = {name: stored[name] for name in stored.files}
    needed = {name: array for name, array in arrays.items() if name in ("visible", "bias", "slopes", "sinks")}
    return arrays, {**case["options"], **needed}


def ratio(got: Any, expected: Any, bound: Any) -> float:
    """The largest error / bound; 0 where equal, infinite where NaN or infinity is out of place."""
    if got.shape != expected.shape:
        return float("inf")
    with np.errstate(all="ignore"):
        error = np.abs(got.astype(np.float64) - expected)
        ratios = np.where(error == 0, 0.0, error / bound)
    ratios = np.where(np.isnan(expected) & np.isnan(got), 0.0, ratios)
    return float(np.max(np.where(np.isnan(ratios), np.inf, ratios), initial=0.0))


def results_in(folder: Path) -> Callable[[dict[str, Any]], Any]:
    def result(case: dict[str, Any]) -> Any:
        return np.load(folder / Path(case["file"]).with_suffix(".npy"))

    return result


def results_of(address: str) -> Callable[[dict[str, Any]], Any]:
    module, _, name = address.partition(":")
    sys.path.insert(0, ".")
    function = getattr(importlib.import_module(module), name)

    def result(case: dict[str, Any]) -> Any:
        arrays, options = given(case)
        return np.asarray(function(arrays["query"], arrays["key"], arrays["value"], **options))

    return result


def main(where: str) -> int:
    cases = json.loads((HERE / "index.json").read_text(encoding="utf-8"))["cases"]
    result = results_of(where) if ":" in where else results_in(Path(where))
    right, wrong, missing = 0, 0, 0
    for case in cases:
        try:
            got = result(case)
        except (FileNotFoundError, NotImplementedError, TypeError) as error:
            missing += 1
            print(f"{case['file']}: not compared: {error}")
            continue
        arrays, _ = given(case)
        worst = ratio(got, arrays["expected"], arrays["bound"])
        right, wrong = right + (worst <= 1.0), wrong + (worst > 1.0)
        if worst > 1.0:
            print(f"{case['file']}: error / bound {worst:.3g}: {case['problem']}: {'; '.join(case['reasons'])}")
    print(f"{right} right, {wrong} wrong, {missing} not compared, of {len(cases)}")
    return 1 if wrong else 0 if right else 2


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(__doc__)
        raise SystemExit(2)
    raise SystemExit(main(sys.argv[1]))
