"""The error rates of the tests of chance: false alarms, power, and each wrong target red by the law that is meant."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from chance_wrong import WRONG, Wrong
from scipy import stats

import attnlaws
from attnlaws.api import AnyTarget, target_of
from attnlaws.judge import counts, moments
from attnlaws.judge.chance import FIRST, LIMIT, SECOND, Finding, generator, looks, reach, size_for_scale


def adapted(wrong: Wrong) -> AnyTarget:
    """The wrong target, probed; what is declared of a layer is declared."""
    return target_of(wrong.make(), layer=dict(wrong.layer) or None)


@pytest.mark.parametrize("wrong", WRONG, ids=[w.name for w in WRONG])
def test_wrong_is_red(wrong: Wrong) -> None:
    """By the law meant; tests/chance_campaign.py tries 200 seeds."""
    (verdict,) = attnlaws.check(adapted(wrong), laws=[wrong.law], seed=1).verdicts
    assert verdict.red, f"{verdict.status} {verdict.reason} {verdict.evidence.findings}"


def test_there_are_forty_of_them() -> None:
    assert len({w.name for w in WRONG}) == len(WRONG) >= 40


def uniform(draw: Any, runs: int = 800, *, least: float = 1e-4) -> None:
    """p-values of `runs` samples are uniform: Kolmogorov's distance, and the share below 1 %."""
    p = np.array([draw(np.random.default_rng([7, run])).p_value for run in range(runs)])
    assert stats.kstest(p, "uniform").pvalue > least, np.quantile(p, [0.01, 0.1, 0.5, 0.9])
    assert stats.binomtest(int((p < 0.01).sum()), runs, 0.01).pvalue > least


def score_matrix(rng: np.random.Generator) -> Finding:
    q, k = rng.standard_normal((20, 32, 16)), rng.standard_normal((20, 24, 16))
    s = q @ k.swapaxes(1, 2) / 4.0
    return moments.score_matrices("", float((s**2).mean()), 20, 1.0, rows=32, columns=24, dim=16)


def products(rng: np.random.Generator) -> Finding:
    s = (rng.standard_normal((4000, 4)) * rng.standard_normal((4000, 4))).sum(1)
    return moments.products("", float((s**2).mean()), 4000, 4.0, dim=4)


def blocks(rng: np.random.Generator) -> Finding:
    a = rng.uniform(-1, 1, (2, 500))
    return moments.correlation("", {"a, b": (a[0], a[1])})


CALIBRATED = {
    "normal second moment": lambda rng: moments.second_moment(
        "", float((rng.standard_normal(500) ** 2).mean()), 500, 1.0
    ),
    "uniform second moment": lambda rng: moments.second_moment(
        "", float((rng.uniform(-1, 1, 4000) ** 2).mean()), 4000, 1 / 3, kurtosis=1.8
    ),
    "products": products,
    "matrices of scores": score_matrix,
    "means": lambda rng: moments.mean("", rng.exponential(size=3000), 1.0),
    "correlations": blocks,
    "distributions": lambda rng: moments.distribution("", rng.uniform(size=400), lambda x: x),
    "dispersion": lambda rng: counts.dispersion("", rng.binomial(16, 0.25, 5000), 16, 0.25),
}


@pytest.mark.parametrize("name", CALIBRATED)
def test_p_values_are_uniform_under_the_truth(name: str) -> None:
    uniform(CALIBRATED[name])


def test_counts_never_alarm_more_than_stated() -> None:
    """p-values of counts are discrete: not uniform, but P(p <= a) <= a."""
    p = np.array([
        counts.rate("", int(np.random.default_rng([8, run]).binomial(2000, 0.15)), 2000, 0.15).p_value for run in range(1000)
    ])  # fmt: skip
    for level in (0.5, 0.1, 0.01):
        assert (p <= level).mean() <= level + 4 * math.sqrt(level / 1000)


def test_draws_never_alarm_more_than_stated() -> None:
    """An e-value is above 1/a with probability a at most, however thin the cells are."""
    law = 1.0 / np.arange(1, 201)
    law /= law.sum()
    near = np.array([0.95, 1.05])
    p = np.array([
        counts.draws("", np.random.default_rng([9, run]).multinomial(1000, law), law, near).p_value for run in range(2000)
    ])  # fmt: skip
    for level in (0.1, 0.01):
        assert (p <= level).mean() <= level + 4 * math.sqrt(level / 2000)


def test_independent_entries_of_a_score_matrix_would_cry_wolf() -> None:
    """What dependence does: taken as independent, the entries of right score matrices alarm far too often."""
    alarms = 0
    for run in range(300):
        rng = np.random.default_rng([10, run])
        s = rng.standard_normal((64, 64)) @ rng.standard_normal((64, 64)).T / 8.0
        alarms += moments.products("", float((s**2).mean()), s.size, 1.0, dim=64).p_value < 0.01
    assert alarms > 20


@pytest.mark.parametrize(("law", "kurtosis"), [("normal", 3.0), ("uniform", 1.8)])
def test_power_at_the_stated_effect(law: str, kurtosis: float) -> None:
    """A deviation that is 2 % off is refuted each time; the sizes are those that the tests use. Sums are drawn as such."""

    def sample(rng: np.random.Generator, stage: int, off: float) -> list[Finding]:
        n = size_for_scale(kurtosis, stage)
        freedom = 2.0 * n / (kurtosis - 1.0)  # the sum of n squares by its first two moments
        mean = off**2 * float(rng.chisquare(freedom)) / freedom
        return [moments.second_moment(law, mean, n, 1.0, kurtosis=kurtosis, stage=stage)]

    for off, expected in ((1.02, 1.0), (0.98, 1.0), (1.0, 0.0)):
        refuted = [bool(looks(f"{law} {off}", seed, lambda r, s, o=off: sample(r, s, o))[1]) for seed in range(300)]
        assert np.mean(refuted) == expected


def test_two_looks_have_the_stated_false_alarm() -> None:
    """FIRST * SECOND a test; a run of LIMIT tests stays below 1e-6, with a factor of two for approximate tails."""
    assert pytest.approx(1e-6) == LIMIT * 2 * FIRST * SECOND
    first = sum(
        looks("null", seed, lambda rng, _: [p_value(rng.random())])[0][0].p_value < FIRST for seed in range(3_000)
    )
    assert first == 0  # what is doubted is looked at again, and the second look is what is kept
    assert reach(0) < reach(1)


def p_value(p: float) -> Finding:
    return Finding("p", 0.0, 1.0, 0.0, 1, p)


def test_a_doubted_quantity_is_looked_at_again_and_only_it() -> None:
    """The other quantities keep their first look; a NaN is doubted, and refutes."""
    drawn: list[int] = []

    def sample(rng: np.random.Generator, stage: int) -> list[Finding]:
        drawn.append(stage)
        wrong = Finding("wrong", float(stage), 1.0, 0.0, 1, math.nan if stage else 1e-9)
        return [Finding("right", float(stage), 1.0, 0.0, 1, 0.5 if not stage else 0.0), wrong]

    found, refuted = looks("a", 0, sample)
    assert drawn == [0, 1]
    assert [(f.quantity, f.estimate) for f in found] == [("right", 0.0), ("wrong", 1.0)]
    assert [f.quantity for f in refuted] == ["wrong"]
    assert generator("a", 0, 0).random() != generator("a", 0, 1).random() != generator("a", 1, 0).random()


def test_a_finding_prints_all_there_is_to_know() -> None:
    text = str(moments.second_moment("variance of q", 0.51, 100_000, 0.5))
    for words in (
        "variance of q 0.51",
        "..",
        "predicted 0.5",
        "n = 100000",
        "p = ",
        "sees",
        "% of a standard deviation",
    ):
        assert words in text
    assert SECOND < FIRST


def test_few_values_have_the_tails_of_students_law() -> None:
    """With 16 values and an estimated deviation a normal law would give p < 0.001 five times too often."""
    few = [moments.mean("", np.random.default_rng([11, run]).standard_normal(16), 0.0).p_value for run in range(4000)]
    assert stats.kstest(few, "uniform").pvalue > 1e-4
    assert (np.array(few) < 0.001).mean() < 0.003
