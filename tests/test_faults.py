"""The catalogue of faults: each is caught, and each is what the diagnosis names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from right_attention import RIGHT

from attnlaws import api
from attnlaws.faults.catalogue import FAULTS, Case, Fault, attend
from attnlaws.faults.diagnose import diagnose
from attnlaws.targets.call import Call


def target_with(fault: Fault | None) -> Callable[..., Any]:
    """A NumPy attention function with one fault, or none."""

    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):  # type: ignore[no-untyped-def]
        dtype = query.dtype
        q, k, v = (x.astype(float) for x in (query, key, value))
        shape = (*q.shape[:3], k.shape[2])
        visible = bias = None
        route = "bool"
        if attn_mask is not None and attn_mask.dtype == bool:
            visible = np.broadcast_to(attn_mask, shape)
        elif attn_mask is not None:
            mask = attn_mask.astype(float)
            visible = np.broadcast_to(mask > -np.inf, shape)
            finite = np.where(mask > -np.inf, mask, 0.0)
            bias = finite if finite.any() else None
            route = "additive"
        own = q.shape[-1] ** -0.5
        call = Call(q, k, v, visible=visible, bias=bias, causal=is_causal, scale=scale, route=route)
        triangle = np.tri(*shape[2:], dtype=bool) if is_causal else None
        case = Case(call, own if scale is None else scale, own, triangle, 0)
        output = None if fault is None else fault.output(case)
        output = attend(case) if output is None else output
        return np.nan_to_num(output, nan=0.0, posinf=np.inf, neginf=-np.inf).astype(dtype)

    return attention


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_a_fault_is_caught_and_named(fault: Fault) -> None:
    # Two faults are conventions of others: they are faults where the convention is declared.
    target = api.target_of(target_with(fault), conventions={"alignment": "top-left", "mask_means": "attend"})
    report = api.check(target, laws=["weights.oracle"])
    if not report.failures:
        report = api.check(target)
    assert report.exit_code == 1, str(report)
    found = diagnose(target, witnesses=tuple(v.witness for v in report.failures if v.witness is not None))
    assert found is not None
    assert found.fault.name == fault.name
    assert found.wrong > 0


def test_without_a_fault_the_same_function_is_green_and_has_no_diagnosis() -> None:
    target = api.target_of(target_with(None))
    report = api.check(target, profile="smoke")
    assert report.exit_code == 0, str(report)
    assert diagnose(target) is None


@pytest.mark.parametrize("right", [r for r in RIGHT if r.name != "definition_by_loops"], ids=lambda r: r.name)
def test_nothing_is_said_of_right_code(right) -> None:  # type: ignore[no-untyped-def]
    assert diagnose(api.target_of(right.function)) is None


def test_the_report_says_what_it_reads_like() -> None:
    fault = next(f for f in FAULTS if f.name == "causal sees next")
    report = api.check(target_with(fault), laws=["causality.future-keys"], dtypes=["float32"])
    assert report.diagnosis is not None
    assert "reads like   each query also sees the key after it" in str(report)
    assert f"fix          {fault.fix}" in str(report)
