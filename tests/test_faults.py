"""The catalogue of faults: each is caught, and each is what the diagnosis names."""

from __future__ import annotations

import pytest
from right_attention import RIGHT

from attnlaws import api
from attnlaws.faults.as_target import function_of
from attnlaws.faults.case import Fault
from attnlaws.faults.catalogue import FAULTS
from attnlaws.faults.diagnose import diagnose


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_a_fault_is_caught_and_named(fault: Fault) -> None:
    # Two faults are conventions of others: they are faults where the convention is declared.
    target = api.target_of(function_of(fault), conventions={"alignment": "top-left", "mask_means": "attend"})
    report = api.check(target, laws=["weights.oracle"])
    if not report.failures:
        report = api.check(target)
    assert report.exit_code == 1, str(report)
    found = diagnose(target, witnesses=tuple(v.witness for v in report.failures if v.witness is not None))
    assert found is not None
    assert found.fault.name == fault.name
    assert found.wrong > 0


def test_without_a_fault_the_same_function_is_green_and_has_no_diagnosis() -> None:
    target = api.target_of(function_of(None))
    report = api.check(target, profile="smoke")
    assert report.exit_code == 0, str(report)
    assert diagnose(target) is None


@pytest.mark.parametrize("right", [r for r in RIGHT if r.name != "definition_by_loops"], ids=lambda r: r.name)
def test_nothing_is_said_of_right_code(right) -> None:  # type: ignore[no-untyped-def]
    assert diagnose(api.target_of(right.function)) is None


def test_the_report_says_what_it_reads_like() -> None:
    fault = next(f for f in FAULTS if f.name == "causal sees next")
    report = api.check(function_of(fault), laws=["causality.future-keys"], dtypes=["float32"])
    assert report.diagnosis is not None
    assert "reads like   each query also sees the key after it" in str(report)
    assert f"fix          {fault.fix}" in str(report)
