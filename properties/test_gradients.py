"""Laws of the gradients: those of the formula, whatever the kernel stores or recomputes."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.law import law
from attnlaws.laws.trial import Trial
from attnlaws.problems.draw import Wants


@law(
    "gradients.oracle",
    "dq, dk and dv are the derivatives of softmax(scale q k^T + mask) v",
    wants=Wants(gradients=True, regimes=("normal", "peaked", "integer", "flat", "tied")),
    share=2.0,
    basis=("weights.oracle",),
)
def test_oracle(trial: Trial) -> None:
    """dv = w^T do; ds = w (do v^T - sum_c do o); dq = scale ds k; dk = scale ds^T q, within the computed bound.

    The upstream gradient is random, and now and then not contiguous; one operand at a time, or all.
    """
    call = trial.call
    upstream = trial.rng.integers(-8, 9, (*call.query.shape[:3], call.value.shape[3])) / 4.0
    if trial.abilities.views and trial.rng.random() < 0.3:
        call = call.but(views=(("upstream", trial.abilities.views[0]),))
    roles = ("query", "key", "value")
    if trial.rng.random() < 0.3:
        roles = (roles[int(trial.rng.integers(0, 3))],)
    found = trial.run(call, upstream=upstream, wanted=roles).gradients
    exact, grads = trial.exact(call), trial.exact_gradients(call, upstream)
    factor = 2.0 if call.dtype == "float64" else 1.0
    for role in roles:
        gradient, want = found[role], getattr(grads, role)
        if gradient is None:
            trial.require(not np.any(want), f"no gradient reaches {role}", call)
            continue
        at = ("query", "key", "value").index(role)
        trial.within(
            gradient,
            want,
            lambda p, at=at: factor * trial.gradient_bounds(call, upstream, grads, p, exact)[at],  # type: ignore[misc]
            f"the gradient by {role} is not the derivative of the output",
            call=call,
            name=f"d{role}",
        )


PADDED = Wants(
    gradients=True,
    causal=False,
    masks=("padding-right", "padding-left", "first-half", "padding-right"),
    bias=False,
    regimes=("normal", "integer", "flat"),
)


def _upstream(trial: Trial) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(trial.rng.integers(-8, 9, (*trial.call.query.shape[:3], trial.call.value.shape[3])) / 4.0)


@law(
    "gradients.masked-are-zero",
    "keys and values that are masked for all queries have no gradient",
    wants=PADDED,
    exact=True,
    share=0.6,
    basis=("gradients.oracle", "weights.oracle"),
)
def test_masked_are_zero(trial: Trial) -> None:
    """w_ij = 0 for all i gives dk_j = 0 and dv_j = 0, exactly."""
    trial.suitable(trial.call.visible is not None)
    group = trial.problem.heads // trial.problem.kv_heads
    shown = trial.allowed_pairs().any(2).reshape(trial.problem.batch, trial.problem.kv_heads, group, -1).any(2)
    trial.suitable(bool((~shown).any()))
    found = trial.run(upstream=_upstream(trial)).gradients
    for role in ("key", "value"):
        gradient = found[role]
        if gradient is not None:
            hidden = gradient[~shown]
            trial.equal(
                hidden, np.zeros_like(hidden), f"a masked {role} has a gradient", call=trial.call, name=f"d{role}"
            )


@law(
    "gradients.rows-sum-zero",
    "equal keys give no gradient by the query",
    wants=Wants(gradients=True, regimes=("normal", "integer")),
    share=0.6,
    basis=("gradients.oracle", "weights.oracle"),
)
def test_rows_sum_zero(trial: Trial) -> None:
    """sum_j ds_ij = 0 for every row, so with all keys equal to u, dq_i = scale (sum_j ds_ij) u = 0 to rounding."""
    call = trial.call.but(key=np.repeat(trial.call.key[:, :, :1], trial.problem.keys, axis=2))
    upstream = _upstream(trial)
    gradient = trial.run(call, upstream=upstream).gradients["query"]
    trial.suitable(gradient is not None)
    assert gradient is not None
    exact, grads = trial.exact(call), trial.exact_gradients(call, upstream)
    factor = 2.0 if call.dtype == "float64" else 1.0
    trial.within(
        gradient,
        np.zeros_like(gradient),
        lambda p: factor * trial.gradient_bounds(call, upstream, grads, p, exact)[0],
        "with all keys equal the query has a gradient: a row of score gradients doesn't sum to 0",
        call=call,
        name="dquery",
    )


@law(
    "gradients.linear-in-upstream",
    "twice the upstream gradient gives twice the gradients",
    wants=Wants(gradients=True, regimes=("normal", "integer", "flat", "tied"), dtypes=("float32", "float64")),
    share=0.6,
    basis=("gradients.oracle", "weights.oracle"),
)
def test_linear_in_upstream(trial: Trial) -> None:
    """dq, dk and dv are linear in do: a factor of 2 is exact, and a row of zeros contributes nothing."""
    call, upstream = trial.call, _upstream(trial)
    row = int(trial.rng.integers(0, trial.problem.queries))
    upstream[:, :, row] = 0.0
    once, twice = (trial.run(upstream=u).gradients for u in (upstream, 2 * upstream))
    exact, grads = trial.exact(call), trial.exact_gradients(call, upstream)
    for at, role in enumerate(("query", "key", "value")):
        first, second = once[role], twice[role]
        if first is None or second is None:
            continue
        trial.within(
            second,
            2 * first,
            lambda p, at=at: 4 * trial.gradient_bounds(call, upstream, grads, p, exact)[at],  # type: ignore[misc]
            f"twice the upstream gradient doesn't give twice d{role}",
            call=call,
            name=f"d{role}",
        )
    query = once["query"]
    if query is not None:
        dead = query[:, :, row]
        trial.equal(
            dead,
            np.zeros_like(dead),
            "an output row without upstream gradient has a gradient by its query",
            call=call,
            name="dquery",
        )
