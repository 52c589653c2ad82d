"""Laws of the log-sum-exp: its value, and that parts merge by it."""

from __future__ import annotations

import numpy as np
from attnlaws.reference import oracle

from attnlaws.judge.lse import lse_worst
from attnlaws.judge.precision import Precision
from attnlaws.laws.law import law
from attnlaws.laws.trial import Trial
from attnlaws.problems.wants import ALL, Wants
from attnlaws.targets.call import Answer, Array, Call
from attnlaws.targets.target import Target

MILD = ("normal", "flat", "integer", "tied", "peaked")


def _returns_lse(target: Target) -> str | None:
    return None if target.abilities.lse else "returns no log-sum-exp"


def _natural(trial: Trial, answer: Answer) -> Array:
    """The log-sum-exp of an answer to the base e; missing is a break."""
    trial.require(answer.lse is not None, "no log-sum-exp of shape (B, H, L) comes back")
    assert answer.lse is not None
    return answer.lse * (np.log(2.0) if trial.conventions.lse_base == "2" else 1.0)


def _slack(trial: Trial, call: Call, answer: Answer, precision: Precision) -> Array:
    exact = trial.exact(call)
    factor = 2.0 if call.dtype == "float64" or trial.conventions.lse_base == "2" else 1.0
    return factor * lse_worst(
        call.query, call.key, call.value, exact, trial.scale(call), precision, answer.lse_dtype or call.dtype
    )


@law(
    "lse.value",
    "the log-sum-exp returned is log sum_j exp(s_ij)",
    wants=Wants(options=ALL, regimes=MILD),
    applies=_returns_lse,
    basis=("weights.oracle",),
)
def test_value(trial: Trial) -> None:
    """lse_i = log sum_j exp(s_ij), the sink included, in the base that the card says; asking for it changes nothing."""
    call = trial.call
    answer, exact = trial.run(lse=True), trial.exact()
    found = _natural(trial, answer)
    full = np.isfinite(exact.lse)
    trial.within(
        found[full],
        exact.lse[full],
        lambda p: _slack(trial, call, answer, p)[full],
        "the log-sum-exp is not log sum exp of the scores",
        call=call,
        name="lse",
    )
    trial.agree(answer.output, call, trial.run().output, call, "asking for the log-sum-exp changes the output")


@law(
    "lse.merge",
    "two halves of the keys merged by their log-sum-exp are the whole",
    wants=Wants(
        options=("softcap",), causal=False, min_keys=2, regimes=("normal", "flat", "integer"), bias=False,
        masks=("none", "random", "banded", "first-half"),
    ),
    applies=lambda t: _returns_lse(t) or (None if t.abilities.rectangular else "takes equal lengths only"),
    basis=("lse.value", "weights.oracle"),
)  # fmt: skip
def test_merge(trial: Trial) -> None:
    """o = sum_n exp(lse_n - lse) o_n over disjoint key sets n, lse = log sum_n exp(lse_n): arXiv:2205.14135, section 3.1.

    A half in which a row sees no key has no weight, whatever its output holds.
    """
    call = trial.call
    trial.suitable(call.route != "padding" or call.visible is None)
    cut = int(trial.rng.integers(1, trial.problem.keys))
    halves = [_part(call, slice(0, cut)), _part(call, slice(cut, None))]
    answers = [trial.run(half, lse=True) for half in halves]
    exacts = [trial.exact(half) for half in halves]
    logs = []
    for answer, exact in zip(answers, exacts, strict=True):
        logs.append(np.where(np.isfinite(exact.lse), _natural(trial, answer), -np.inf))
        fill_is_finite = trial.empty_row(call) == "uniform"  # as JAX fills under a boolean mask, and not under -inf
        if trial.conventions.empty_lse in ("-inf", "nan", "+inf") and not fill_is_finite:
            known = {"-inf": -np.inf, "+inf": np.inf, "nan": np.nan}[trial.conventions.empty_lse]
            assert answer.lse is not None
            empty = answer.lse[~np.isfinite(exact.lse)]
            trial.equal(
                empty, np.full_like(empty, known), "the log-sum-exp of a row without a key", call=call, name="lse"
            )
    merged, _ = oracle.merge([answer.output for answer in answers], logs)
    whole = trial.exact()
    share = [np.exp(np.where(np.isfinite(e.lse), e.lse, -np.inf) - whole.lse)[..., None] for e in exacts]

    meet = (share[0] > 0) & (share[1] > 0)  # an output without keys may be NaN, and has no weight
    apart = np.where(meet, np.abs(exacts[0].output - exacts[1].output), 0.0)

    def allowed(precision: Precision) -> Array:
        total = trial.bound(call, precision, whole)
        for half, answer, exact, weight in zip(halves, answers, exacts, share, strict=True):
            slack = _slack(trial, half, answer, precision)[..., None]
            moved = np.where(meet, np.expm1(2 * slack) * apart * share[0] * share[1], 0.0)
            total = total + np.where(weight > 0, weight * trial.bound(half, precision, exact), 0.0) + moved
        return np.asarray(2.0 * total)

    trial.within(merged, whole.output, allowed, "two halves merged by their log-sum-exp are not the whole", call=call)


def _part(call: Call, keys: slice) -> Call:
    """The call with some of its keys."""
    visible = None if call.visible is None else call.visible[..., keys]
    return call.but(key=call.key[:, :, keys], value=call.value[:, :, keys], visible=visible)
