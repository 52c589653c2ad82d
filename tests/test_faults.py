"""The catalogue of faults: each is caught, and each is what the diagnosis names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from attnlaws.reference import oracle
from right_attention import RIGHT

from attnlaws import api
from attnlaws.faults.as_target import function_of
from attnlaws.faults.as_torch import differentiable
from attnlaws.faults.case import Case, Fault
from attnlaws.faults.catalogue import FAULTS, names
from attnlaws.faults.diagnose import case_of_trial, diagnose
from attnlaws.faults.diagnose_gradients import explain_gradients
from attnlaws.faults.gradients import derive
from attnlaws.laws.load import load_laws
from attnlaws.run.ledger import Report
from attnlaws.targets.call import Call
from attnlaws.targets.conventions import declared
from attnlaws.targets.target import Target

OF_STEPS = [fault for fault in FAULTS if fault.output is not None]
OF_GRADIENTS = [fault for fault in FAULTS if fault.gradients is not None]
OF_FUNCTIONS = [fault for fault in FAULTS if fault.function is not None]


@pytest.fixture(autouse=True)
def _settings_as_they_were() -> Iterator[None]:
    """Some faults leave global settings changed."""
    import torch

    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)


def _caught(fault: Fault, first: str) -> tuple[Target, Report]:
    """The fault as a target, and the report on the law that meets it first, or on all where that law held."""
    target = api.target_of(function_of(fault), conventions=fault.conventions)
    report = api.check(target, laws=[first])
    if not report.failures:  # rare triggers: all laws, or more of the law that names it
        report = api.check(target, laws=[first], profile="full") if fault.law else api.check(target)
    assert report.exit_code == 1, str(report)
    return target, report


@pytest.mark.parametrize("fault", OF_STEPS, ids=lambda f: f.name)
def test_a_fault_of_a_step_is_caught_and_named(fault: Fault) -> None:
    _, report = _caught(fault, fault.law or "weights.oracle")
    assert report.diagnosis is not None
    words, fix = report.diagnosis
    assert words.startswith(f"{fault.sentence} (reproduces ")  # no two faults have the same sentence
    assert fix == fault.fix


@pytest.mark.parametrize("fault", OF_GRADIENTS, ids=lambda f: f.name)
def test_a_fault_of_the_gradients_is_caught_and_named(fault: Fault) -> None:
    target, report = _caught(fault, fault.law or "gradients.oracle")
    witnesses = tuple(v.witness for v in report.failures if v.witness is not None)
    found = explain_gradients(target, case_of_trial, witnesses=witnesses)
    assert found is not None
    assert found.fault.name == fault.name
    assert 0 < found.wrong <= found.problems


@pytest.mark.parametrize("fault", OF_FUNCTIONS, ids=lambda f: f.name)
def test_a_fault_that_is_no_step_breaks_the_law_that_names_it(fault: Fault) -> None:
    _, report = _caught(fault, fault.law)
    assert [v.law for v in report.failures] == [fault.law]


def test_the_catalogue_is_large_and_its_entries_are_whole() -> None:
    assert len(FAULTS) >= 115
    assert len(OF_GRADIENTS) >= 10
    assert [name for name, count in Counter(names()).items() if count > 1] == []
    assert [words for words, count in Counter(f.sentence for f in FAULTS).items() if count > 1] == []
    for fault in FAULTS:
        forms = (fault.output, fault.gradients, fault.function)
        assert sum(form is not None for form in forms) == 1, fault.name
        assert fault.sentence.strip(), fault.name
        assert fault.fix.strip(), fault.name
        assert not fault.sentence.endswith("."), fault.name
        assert all("/" in source and "#" in source for source in fault.sources), fault.name
        assert (fault.law or "weights.oracle") in load_laws(), fault.name
        assert bool(fault.law) >= (fault.function is not None), fault.name
        declared(dict(fault.conventions))


def _with_all_options() -> tuple[Case, dict[str, object]]:
    """A case with grouped heads, a mask, causality, slopes, sinks and a soft cap, and the oracle's words for it."""
    rng = np.random.Generator(np.random.Philox(key=[5, 5]))
    query, key, value = (rng.standard_normal(shape) for shape in ((2, 4, 6, 3), (2, 2, 7, 3), (2, 2, 7, 5)))
    visible = rng.random((2, 1, 6, 7)) < 0.7
    visible[..., 0] = True
    slopes, sinks = rng.random(4), rng.standard_normal(4)
    call = Call(query, key, value, visible=visible, causal=True, softcap=2.0, slopes=slopes, sinks=sinks, window=(4, 4))
    distance = np.arange(7.0)[None, :] - np.arange(6.0)[:, None]
    band = np.abs(distance) <= 4
    triangle = np.tri(6, 7, dtype=bool)
    case = Case(call, 3**-0.5, 3**-0.5, triangle, 0, band=band, distance=distance)
    options = {"causal": "top-left", "softcap": 2.0, "alibi_slopes": slopes, "sinks": sinks, "visible": visible & band}
    return case, options


@pytest.mark.parametrize("fault", [*OF_STEPS, *OF_GRADIENTS], ids=lambda f: f.name)
def test_a_fault_of_one_step_takes_calls_with_options(fault: Fault) -> None:
    case, _ = _with_all_options()
    upstream = np.ones((2, 4, 6, 5))
    if fault.output is not None:
        output = fault.output(case)
        assert output is None or output.shape == upstream.shape
        return
    assert fault.gradients is not None
    found = fault.gradients(case, upstream)
    wanted = [case.call.query.shape, case.call.key.shape, case.call.value.shape]
    assert found is None or [g.shape for g in found] == wanted


def test_without_a_fault_the_gradients_are_those_of_the_oracle_with_options_too() -> None:
    case, options = _with_all_options()
    upstream = np.random.Generator(np.random.Philox(key=[6, 6])).standard_normal((2, 4, 6, 5))
    exact = oracle.gradients(case.call.query, case.call.key, case.call.value, upstream, **options)
    for found, want in zip(derive(case, upstream), (exact.query, exact.key, exact.value), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-10, atol=1e-12)


def test_without_a_fault_the_same_function_is_green_and_has_no_diagnosis() -> None:
    target = api.target_of(function_of(None))
    report = api.check(target, profile="smoke")
    assert report.exit_code == 0, str(report)
    assert diagnose(target) is None


def test_without_a_fault_the_differentiable_function_is_green_and_has_no_diagnosis() -> None:
    target = api.target_of(differentiable(None))
    assert target.abilities.gradients
    report = api.check(target, laws=["gradients", "weights.oracle", "causality.jacobian"], profile="smoke")
    assert report.exit_code == 0, str(report)
    assert explain_gradients(target, case_of_trial) is None


@pytest.mark.parametrize("right", [r for r in RIGHT if r.name != "definition_by_loops"], ids=lambda r: r.name)
def test_nothing_is_said_of_right_code(right) -> None:  # type: ignore[no-untyped-def]
    target = api.target_of(right.function)
    assert diagnose(target) is None
    assert explain_gradients(target, case_of_trial) is None


def test_the_report_says_what_it_reads_like() -> None:
    fault = next(f for f in FAULTS if f.name == "causal sees next")
    report = api.check(function_of(fault), laws=["causality.future-keys"], dtypes=["float32"])
    assert report.diagnosis is not None
    assert "reads like   each query also sees the key after it" in str(report)
    assert f"fix          {fault.fix}" in str(report)
