"""The claims ledger: each verdict is shown by its own check, and each check fails for a wrong statement.

The ledger is imported by the tests only, since every run of the laws imports this file.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from attnlaws.claims.ledger import Result

IDS = [f"{text}{i}" for text, last in (("A", 25), ("B", 15), ("C", 24)) for i in range(1, last + 1)]

#: for each claim a wrong statement, as an argument of its check
WRONG: dict[str, dict[str, Any]] = {
    "A1": {"power": 0.9},
    "A2": {"of": "value"},
    "A3": {"rows_compared": "different"},
    "A4": {"normed": False},
    "A5": {"freedom": 2},
    "A6": {"normed": False},
    "A7": {"rate": -1.0},
    "A8": {"dim": 64},
    "A9": {"unscaled": 49.0},
    "A10": {"measure": "spectral norm"},
    "A11": {"tail_dim": 64},
    "A12": {"scaled": False},
    "A13": {"kurtosis": 3.0},
    "A14": {"width": 64},
    "A15": {"power": -0.45},
    "A16": {"fan_out_counts": False},
    "A17": {"second_moment": 0.5},
    "A18": {"deviation": 768**-0.5},
    "A19": {"total": 1.01},
    "A20": {"target": 1.5},
    "A21": {"query": 1.0},
    "A22": {"order": -1},
    "A23": {"shift": 1},
    "A24": {"share": 0.16},
    "A25": {"cells": 12},
    "B1": {"extra": 1},
    "B2": {"diagonal": 2},
    "B3": {"factor": 2.0},
    "B4": {"training": True},
    "B5": {"rate": 0.15},
    "B6": {"columns": 4},
    "B7": {"view": "heads last"},
    "B8": {"columns": 3},
    "B9": {"times": 1e6},
    "B10": {"by": "embedding"},
    "B11": {"gap_factor": 2.0},
    "B12": {"heads": 1},
    "B13": {"diagonal": 1},
    "B14": {"zero": 1e-9},
    "B15": {"contiguous": False},
    "C1": {"expected": 174_604_259_328},
    "C2": {"width": 122_888},
    "C3": {"turn": 0.8},
    "C4": {"power": 1.0},
    "C5": {"gap_factor": 2.0},
    "C6": {"rarer": 0.45},
    "C7": {"head": 96},
    "C8": {"factor": 1.0},
    "C9": {"power": 1.0},
    "C10": {"rows": "queries"},
    "C11": {"ratio": 32.0},
    "C12": {"keeps": 0.0},
    "C13": {"rank": 15},
    "C14": {"matrices": 1},
    "C15": {"count": 95},
    "C16": {"number": 95},
    "C17": {"axis": 1},
    "C18": {"width_factor": 3},
    "C19": {"number": 95},
    "C20": {"module": "attention"},
    "C21": {"by": "rows"},
    "C22": {"spare": 1},
    "C23": {"vectors": 10_000},
    "C24": {"next_dimension": 1030},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a claim."""
    if "claim_id" in metafunc.fixturenames:
        metafunc.parametrize("claim_id", IDS)


@cache
def measured(claim_id: str) -> Result:
    """The measurement of one claim, made once."""
    from attnlaws.claims.ledger import measure, select

    return measure(select([claim_id])[0])


def test_claim(claim_id: str) -> None:
    """The measurement shows the verdict and the right statement."""
    result = measured(claim_id)
    assert result.measured.shows, str(result.measured)
    assert (result.claim.kind == "statistical") == (result.measured.tests > 0)


def test_wrong_statement_is_not_shown(claim_id: str) -> None:
    """The same check, given a wrong value, does not show: it has power."""
    from attnlaws.claims.ledger import one_thread, select

    (claim,) = select([claim_id])
    with one_thread():
        shown = claim.check(**WRONG[claim_id])
    assert not shown.shows, shown.found
    assert str(shown).startswith("NOT SHOWN")


def test_ledger_holds_every_claim_once() -> None:
    """Nothing is left out, no verdict stands outside the list, and each claim says what is right and why."""
    from attnlaws.claims.claim import TEXTS, VERDICTS
    from attnlaws.claims.ledger import CLAIMS

    assert [c.id for c in CLAIMS] == IDS
    assert set(WRONG) == set(IDS)
    for claim in CLAIMS:
        assert claim.verdict in VERDICTS
        assert claim.text == TEXTS[claim.id[0]]
        assert len(claim.claim) > 20 < len(claim.right), claim.id
        assert len(claim.check.__doc__ or "") > 20, claim.id


def test_false_alarm_over_the_ledger_is_at_most_1e_6() -> None:
    """No more tests of chance than the error rates are stated for. Each counts itself where it is made."""
    from attnlaws.claims.chance import FIRST, LIMIT, SECOND

    tests = sum(measured(claim_id).measured.tests for claim_id in IDS)
    assert 0 < tests <= LIMIT
    assert tests * 2 * FIRST * SECOND <= 1e-6


def test_ledger_is_printed() -> None:
    """The table has the id, the claim, the verdict and what was found; a failure says so; an unknown id is told."""
    import pytest

    from attnlaws.claims.claim import Measured
    from attnlaws.claims.ledger import Result, UnknownClaim, detail, select, table

    results = [measured("B13"), Result(measured("C7").claim, Measured(False, "1 a head"), 0.0)]
    text = table(results, width=80)
    assert max(map(len, text.splitlines()[:-1])) <= 80
    for words in ("✓ B13", "✗ C7", "verdict  true", "found    0 of 36", "NOT SHOWN: 1 a head", "not shown: C7"):
        assert words in text
    assert "why        torch.tril of a matrix of ones" in detail(results[0])
    assert [c.id for c in select(["c1", "B"])] == [*(f"B{i}" for i in range(1, 16)), "C1"]
    with pytest.raises(UnknownClaim, match=r"A1\.\.A25"):
        select(["D1"])


def test_confirmation_is_on_a_fresh_sample() -> None:
    """A first look that fails is looked at once more, on other numbers; then it is over."""
    from attnlaws.claims.chance import Look, confirmed, generator

    drawn: list[float] = []

    def sample(rng: Any, p_values: tuple[float, float]) -> Look:
        drawn.append(float(rng.standard_normal()))
        return Look(p_values[len(drawn) - 1], "")

    for p_values, wrong, looks in (((0.5, 0.0), False, 1), ((1e-9, 0.5), False, 2), ((1e-9, 1e-9), True, 2)):
        drawn.clear()
        assert confirmed("a test", lambda rng, p=p_values: sample(rng, p))[1] is wrong
        assert len(drawn) == looks == len(set(drawn))
    assert generator("a", 0).random() == generator("a", 0).random() != generator("b", 0).random()


def test_quadrature_agrees_with_direct_sums() -> None:
    """The closed forms that the ledger predicts with, at sizes where they can be had otherwise."""
    import numpy as np

    from attnlaws.claims.score_law import product_cdf, product_density
    from attnlaws.judge.softmax_law import entropy, largest_slope, row_law, softmax

    at, weight = np.polynomial.hermite_e.hermegauss(120)
    w = softmax(np.stack(np.meshgrid(at, at), -1).reshape(-1, 2))
    both = np.outer(weight, weight).ravel() / weight.sum() ** 2
    assert abs(both @ (w**2).sum(1) - row_law(2, 1.0).concentration) < 1e-6
    assert abs(both @ entropy(w) - row_law(2, 1.0).entropy) < 1e-6

    w = softmax(3.0 * np.random.default_rng(0).standard_normal((3, 20)))
    exact = [np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)).max() for p in w]
    assert np.abs(largest_slope(w) - exact).max() < 1e-14

    s = np.linspace(1e-6, 20.0, 20_001)
    mass = np.trapezoid(product_density(s[:5001], 5), s[:5001])
    assert abs(mass - (product_cdf(np.array([5.0 / 5**0.5]), 5)[0] - 0.5)) < 1e-5
