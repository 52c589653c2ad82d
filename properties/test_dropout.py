"""Laws of dropout: off it changes nothing; on, weights are dropped or divided by 1 - p, the same forward and backward."""

from __future__ import annotations

import numpy as np

from attnlaws.judge.exponent import gamma
from attnlaws.judge.precision import Precision
from attnlaws.laws.law import law
from attnlaws.laws.trial import Ignored, Trial
from attnlaws.problems.wants import Wants
from attnlaws.targets.call import Array, Call
from attnlaws.targets.target import Target
from attnlaws.targets.trying import size_of

SMALL = Wants(
    small=True, masks=("none",), bias=False, scale=False, grouped=False, regimes=("normal", "flat", "integer")
)


def _has_dropout(target: Target) -> str | None:
    return None if target.abilities.dropout else "takes no dropout"


def _gated(target: Target) -> str | None:
    # Of functions of transformers' attention interface the caller passes a rate of 0 in evaluation: the sdpa one has no switch.
    gated = target.signature.has("training")
    return _has_dropout(target) or (None if gated else "has no switch between training and evaluation")


@law("dropout.off", "dropout of 0 changes nothing, before and after a call with dropout", wants=SMALL, share=0.3,
     applies=_has_dropout, exact=True)  # fmt: skip
def test_off(trial: Trial) -> None:
    """o(p = 0) = o after a call with p = 1/2, bit for bit: nothing of a training step stays."""
    call = trial.call
    before = trial.run().output
    with trial.target.framework.seeded(trial.problem.seed):
        trial.run(call.but(dropout=0.5, training=True))
    trial.equal(trial.run().output, before, "a call with dropout changes later calls without it", call=call)


@law("dropout.evaluation", "in evaluation the dropout rate means nothing", wants=SMALL, share=0.3, applies=_gated,
     exact=True)  # fmt: skip
def test_evaluation(trial: Trial) -> None:
    """o(p, evaluation) = o(p = 0), and train, evaluate, train, evaluate gives the same each time it evaluates."""
    call = trial.call
    plain = trial.run().output
    for _ in range(2):
        with trial.target.framework.seeded(trial.problem.seed):
            trial.run(call.but(dropout=0.5, training=True))
        trial.equal(
            trial.run(call.but(dropout=0.5, training=False)).output,
            plain,
            "dropout acts in evaluation",
            call=call,
        )


def _dense(trial: Trial) -> Call:
    """A dense square call with V = one-hot rows: the output is the dropped weight matrix."""
    a = trial.abilities
    size = size_of(trial.target)
    batch, heads = 2 if a.batch else 1, 3 if a.heads else 1
    shape = (batch, heads, size, size)
    query, key = (trial.rng.integers(-8, 9, shape) / 8.0 for _ in range(2))
    value = np.broadcast_to(np.eye(size), shape).copy()
    return Call(query, key, value, trial.call.dtype, causal=trial.call.causal)


@law("dropout.weights", "a weight is dropped, or divided by 1 - p", wants=SMALL, share=0.3, applies=_has_dropout,
     basis=("weights.oracle",))  # fmt: skip
def test_weights(trial: Trial) -> None:
    """With V = one-hot rows o_ij is 0 or w_ij / (1 - p); rows are not renormalised. Srivastava et al. 2014, section 10.

    Both kinds occur, at rates 1/2 and 1/4: of 192 weights none, or all, dropped has a chance below 1e-24.
    """
    call = _dense(trial)
    exact = trial.exact(call)
    for p in (0.5, 0.25):
        active = call.but(dropout=p, training=True)
        with trial.target.framework.seeded(trial.problem.seed):
            got = trial.run(active).output
        kept = exact.output / (1.0 - p)
        large = kept > 1e-3
        dropped = (got == 0) & large
        trial.evidence.add(1, 0.0)
        if not dropped.any():
            raise Ignored(f"a dropout of {p:g} drops nothing: accepted, then ignored", call=active)
        trial.require(not bool((dropped | ~large).all()), f"a dropout of {p:g} drops everything", active)

        def allowed(precision: Precision, p: float = p) -> Array:
            unit = precision.u_out + precision.u_probs + 4 * precision.u_a
            # The weight's own error grows by 1 / (1 - p); dividing, and storing what is larger, round once more.
            return np.asarray((trial.bound(call, precision, exact) + 2 * unit * exact.output) / (1.0 - p))

        want = np.where(got == 0, 0.0, kept)
        trial.within(got, want, allowed, f"with dropout {p:g} a weight is neither 0 nor w / (1 - p)", call=active)


@law(
    "dropout.same-in-backward",
    "the backward pass drops the weights that the forward pass dropped",
    wants=Wants(small=True, masks=("none",), bias=False, scale=False, grouped=False, gradients=True, regimes=("normal",)),
    share=0.3,
    applies=_has_dropout,
    basis=("dropout.weights", "gradients.oracle"),
)  # fmt: skip
def test_same_in_backward(trial: Trial) -> None:
    """dv = d^T do with d the very weights of the forward pass, which V = one-hot rows show as its output."""
    call = _dense(trial).but(dropout=0.5, training=True)
    upstream = trial.rng.integers(-8, 9, call.query.shape) / 4.0
    with trial.target.framework.seeded(trial.problem.seed):
        answer = trial.run(call, upstream=upstream)
    gradient = answer.gradients["value"]
    trial.suitable(gradient is not None)
    assert gradient is not None
    weights = answer.output
    want = np.matmul(weights.swapaxes(-1, -2), upstream)
    plain = call.but(dropout=0.0, training=False)

    def allowed(precision: Precision) -> Array:
        size = weights.shape[2]
        off = 3 * trial.bound(plain, precision)
        unit = (
            gamma(size + 4, precision.u_a) + 2 * precision.u_probs + 2 * precision.u_out + gamma(size, precision.u_out)
        )
        return np.asarray(np.matmul((off + unit * np.abs(weights)).swapaxes(-1, -2), np.abs(upstream)))

    trial.within(gradient, want, allowed, "forward and backward drop different weights", call=call, name="dvalue")
