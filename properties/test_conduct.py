"""Laws of conduct: a function of its arguments, and of nothing else."""

from __future__ import annotations

from attnlaws.laws.law import law
from attnlaws.laws.trial import Trial


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
