"""Laws of conduct: a function of its arguments, and of nothing else."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.law import law
from attnlaws.laws.trial import Crashed, Trial
from attnlaws.problems.draw import Wants
from attnlaws.targets.call import TargetRaised, WrongResult


@law("conduct.inputs-untouched", "every argument is as before, bit for bit", exact=True)
def test_inputs_untouched(trial: Trial) -> None:
    """q, k, v and the mask have the same bits after the call as before."""
    answer = trial.run(watch=True)
    trial.require(not answer.mutated, f"the call changes {', '.join(answer.mutated)} in place")


@law("conduct.repeatable", "the same call gives the same bits", exact=True)
def test_repeatable(trial: Trial) -> None:
    """o(q, k, v) = o(q, k, v), bit for bit, with another call between the two."""
    call = trial.call
    first = trial.run().output
    trial.run(call.but(query=call.query[::-1].copy(), value=-call.value))
    trial.equal(trial.run().output, first, "the same call gives another result the second time", call=call)


@law("conduct.history", "a call gives what it gives first, whatever was called before", exact=True, share=0.8)
def test_history(trial: Trial) -> None:
    """o(x) = o(x) after calls with other lengths, another scale, no mask, and after x took the place of other values in
    the same memory: results kept by shape or by address show here.
    """
    call = trial.call
    first = trial.run().output
    others = [
        call.but(visible=None, bias=None),
        call.but(key=call.key[:, :, :1], value=call.value[:, :, :1], visible=None, bias=None),
    ]
    if trial.abilities.scale:
        others.append(call.but(scale=0.7))
    for other in others:
        try:
            trial.run(other)
        except Crashed:  # lengths that are refused leave no trace either
            continue
    trial.equal(trial.run().output, first, "the same call gives another result after other calls", call=call)
    before = call.but(query=-call.query, key=call.key[:, :, ::-1].copy(), value=call.value + 1.0)
    try:
        again = trial.target.refilled(before, call).output
    except (TargetRaised, WrongResult):
        return
    trial.agree(again, call, first, call, "new values in the memory of old ones give another result", exact_hoped=True)


@law("conduct.global-state", "random state, default dtype, threads and modes are as before", exact=True, share=0.4)
def test_global_state(trial: Trial) -> None:
    """A call without dropout draws no random number and changes no global setting."""
    before = trial.target.framework.global_state()
    trial.run()
    after = trial.target.framework.global_state()
    changed = [name for name in before if before[name] != after[name]]
    trial.require(not changed, f"the call changes the {', '.join(changed)}")


@law("conduct.whole-output", "every element of the output is written", share=0.6)
def test_whole_output(trial: Trial) -> None:
    """Memory freed just before the call holds NaN: an element that is never written shows it."""
    batch, heads, _, queries, _, _, width = trial.call.sizes
    clean = trial.run().output
    trial.target.framework.poison((batch, heads, queries, width), trial.call.dtype)
    trial.equal(trial.run().output, clean, "an element of the output is never written", call=trial.call)


@law(
    "conduct.no-grad",
    "the output is the same whether gradients are recorded or not",
    wants=Wants(gradients=True),
    share=0.6,
)
def test_no_grad(trial: Trial) -> None:
    """o computed with inputs that require gradients = o computed with inputs that don't."""
    upstream = np.ones((*trial.call.query.shape[:3], trial.call.value.shape[3]))
    recorded = trial.run(upstream=upstream).output
    trial.agree(
        recorded, trial.call, trial.run().output, trial.call, "recording gradients changes the output", exact_hoped=True
    )
