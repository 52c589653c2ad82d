"""Laws of conduct: a function of its arguments, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from attnlaws.judge.precision import PROFILES
from attnlaws.laws.law import law
from attnlaws.laws.trial import Crashed, Refused, Trial
from attnlaws.problems.wants import ALL, Wants
from attnlaws.targets.call import Call, TargetRaised, WrongResult
from attnlaws.targets.target import Target


@law("conduct.inputs-untouched", "every argument is as before, bit for bit", exact=True, wants=Wants(options=ALL))
def test_inputs_untouched(trial: Trial) -> None:
    """q, k, v and the mask have the same bits after the call as before."""
    answer = trial.run(watch=True)
    trial.require(not answer.mutated, f"the call changes {', '.join(answer.mutated)} in place")


@law("conduct.repeatable", "the same call gives the same bits", exact=True, wants=Wants(options=ALL))
def test_repeatable(trial: Trial) -> None:
    """o(q, k, v) = o(q, k, v), bit for bit, with another call between the two."""
    call = trial.call
    first = trial.run().output
    trial.run(call.but(query=call.query[::-1].copy(), value=-call.value))
    trial.equal(trial.run().output, first, "the same call gives another result the second time", call=call)


@law(
    "conduct.history",
    "a call gives what it gives first, whatever was called before",
    exact=True,
    share=0.8,
    wants=Wants(options=("window", "softcap", "alibi", "sinks")),
)
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
    trial.require(
        trial.target.kept(call, call.but(value=-call.value)), "a later call overwrites the result of this one"
    )
    before = call.but(query=-call.query, key=call.key[:, :, ::-1].copy(), value=call.value + 1.0)
    try:
        again = trial.target.refilled(before, call).output
    except (TargetRaised, WrongResult):
        return
    trial.agree(again, call, first, call, "new values in the memory of old ones give another result", exact_hoped=True)


@law("conduct.global-state", "random state, default dtype, threads and modes are as before", exact=True, share=0.4)
def test_global_state(trial: Trial) -> None:
    """A call without dropout draws no random number, sets no seed and changes no global setting, at its first call either."""
    framework = trial.target.framework
    with framework.seeded(trial.problem.seed + 12345):
        before = framework.global_state()
        trial.run()
        after = framework.global_state()
    changed = [*trial.target.disturbed, *(name for name in before if before[name] != after[name])]
    trial.require(not changed, f"the call changes the {', '.join(changed)}")


@law("conduct.whole-output", "every element of the output is written", share=0.6, wants=Wants(options=ALL))
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
    """o of inputs that require gradients = o of inputs that don't = o under no_grad and inference_mode, where there are such."""
    call = trial.call
    upstream = np.ones((*call.query.shape[:3], call.value.shape[3]))
    plain = trial.run().output
    recorded = trial.run(upstream=upstream).output
    trial.agree(recorded, call, plain, call, "recording gradients changes the output", exact_hoped=True)
    for mode in trial.target.framework.modes:
        try:
            answer = trial.target.transformed(mode)(call)
        except (TargetRaised, WrongResult) as failure:
            raise Crashed(f"under {mode}: {failure}", call) from failure
        trial.agree(answer.output, call, plain, call, f"the output changes under {mode}", exact_hoped=True)


def _offers(kind: str) -> Callable[[Target], str | None]:
    def missing(target: Target) -> str | None:
        known = target.framework.transformations
        return None if kind in known else f"{target.framework.name} has no such transformation"

    return missing


def _four_axes(target: Target) -> str | None:
    four = target.conventions.layout in ("BHSD", "BSHD")
    return _offers("vmap")(target) or (None if four else "takes no batch of heads")


SIMPLE = Wants(
    small=True, masks=("none",), bias=False, scale=False, dtypes=("float32", "float64"), regimes=("normal", "flat")
)


@law(
    "conduct.compile",
    "the output is the same when the function is compiled",
    wants=SIMPLE,
    applies=_offers("compile"),
    share=0.02,
    slow=True,
)
def test_compile(trial: Trial) -> None:
    """o compiled = o, also for a second shape after the first trace: torch.compile, traced whole without code generation;
    jax.jit.

    What can't be compiled says nothing.
    """
    call = trial.call
    longer = call.but(
        query=np.concatenate([call.query] * 2, axis=2),
        key=np.concatenate([call.key] * 2, axis=2),
        value=np.concatenate([call.value] * 2, axis=2),
    )
    compiled = trial.target.transformed("compile")
    for given in (call, longer):
        try:
            answer = compiled(given)
        except (TargetRaised, WrongResult) as failure:
            raise Refused(str(failure)) from failure
        plain = trial.run(given).output
        trial.agree(answer.output, given, plain, given, "the output changes when the function is compiled")


@law("conduct.vmap", "mapping over the batch gives the batch", wants=SIMPLE, applies=_four_axes, share=0.1)
def test_vmap(trial: Trial) -> None:
    """vmap(o)(batch) = o(batch). What can't be mapped says nothing."""
    call = trial.call
    try:
        answer = trial.target.transformed("vmap")(call)
    except (TargetRaised, WrongResult) as failure:
        raise Refused(str(failure)) from failure
    trial.agree(answer.output, call, trial.run().output, call, "the output changes under vmap", exact_hoped=True)


@law(
    "conduct.autocast",
    "under bfloat16 autocast the errors are those of bfloat16",
    wants=Wants(small=True, masks=("none",), bias=False, scale=False, dtypes=("bfloat16",), regimes=("normal", "flat")),
    applies=_offers("autocast"),
    basis=("weights.oracle",),
    share=0.2,
)
def test_autocast(trial: Trial) -> None:
    """With float32 inputs under autocast, o is within the bound of the loosest bfloat16 precision: nothing but rounding."""
    call = trial.call
    given = call.but(dtype="float32")
    try:
        answer = trial.target.transformed("autocast")(given)
    except (TargetRaised, WrongResult) as failure:
        raise Refused(str(failure)) from failure
    exact = trial.exact()
    allowed = trial.bound(call, PROFILES["bfloat16"][-1], exact)
    trial.within(
        answer.output,
        exact.output,
        lambda _: allowed,
        "under autocast the output is off by more than bfloat16",
        call=given,
    )


@law("conduct.reject-or-correct", "sizes that don't fit raise an error", share=0.3,
     wants=Wants(small=True, masks=("none",), bias=False, grouped=False, min_queries=3, min_keys=3, min_heads=2))  # fmt: skip
def test_reject_or_correct(trial: Trial) -> None:
    """Queries wider than keys, or with more samples, and masks with too few rows: raise, never answer.

    Only what can't be read past the end of an array, and can't be broadcast, is tried.
    """
    call = trial.call
    for what, illegal in _illegal(trial, call):
        try:
            trial.target(illegal)
        except (TargetRaised, WrongResult):
            trial.evidence.add(1, 0.0)
            continue
        trial.require(False, f"{what}: answered instead of refused", illegal)


def _illegal(trial: Trial, call: Call) -> Iterator[tuple[str, Call]]:
    a = trial.abilities
    if call.query.shape[3] >= 2 and not a.head_dims:
        wide = np.concatenate([call.query, call.query[..., :1]], axis=3)
        yield "queries wider than keys", call.but(query=wide)
    if call.query.shape[0] >= 2 and trial.conventions.layout != "packed":
        more = np.concatenate([call.query, call.query[:1]])
        yield "more samples of queries than of keys", call.but(query=more)
    routes = [r for r in a.routes if r != "padding"]
    if routes and "LS" in a.mask_shapes and not call.causal:
        rows, keys = call.query.shape[2], call.key.shape[2]
        mask = np.ones((rows - 1, keys), dtype=bool)
        mask[:, -1] = False
        yield "a mask with fewer rows than queries", call.but(visible=mask, route=routes[0])
