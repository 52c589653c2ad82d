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
    basis=("weights.oracle",),
    share=2.0,
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
