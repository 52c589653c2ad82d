"""Laws of masks: what a mask hides is as if it were not there, in whatever form the mask is given."""

from __future__ import annotations

import numpy as np

from attnlaws.judge.precision import Precision
from attnlaws.laws.law import law
from attnlaws.laws.trial import Broken, Crashed, Ignored, Trial
from attnlaws.problems.dtypes import LARGEST, round_to
from attnlaws.problems.wants import ALL, Wants
from attnlaws.targets.call import Array, Call
from attnlaws.targets.target import Target

SOME_MASK = ("random", "padding-right", "padding-left", "banded", "first-half")


def _two_forms(target: Target) -> str | None:
    return None if {"bool", "additive"} <= set(target.abilities.routes) else "takes masks in one form only"


@law(
    "masks.bool-is-additive",
    "a boolean mask equals the mask of 0 and -inf",
    wants=Wants(options=ALL, masks=SOME_MASK, routes=("bool",), bias=False),
    applies=_two_forms,
    basis=("masks.sensitivity",),
)
def test_bool_is_additive(trial: Trial) -> None:
    """o(bool mask m) = o(additive mask log m), log 1 = 0 and log 0 = -inf."""
    call = trial.call
    trial.suitable(call.visible is not None)
    additive = call.but(route="additive")
    trial.agree(
        trial.run().output, call, trial.run(additive).output, additive, "the boolean and the 0/-inf mask differ"
    )
    if call.dtype in ("bfloat16", "float16"):
        wide = additive.but(mask_dtype="float32")
        try:
            answer = trial.run(wide)
        except Crashed:  # a mask of another dtype is refused
            return
        trial.agree(
            answer.output, wide, trial.run().output, call, f"a float32 mask beside {call.dtype} queries differs"
        )


@law(
    "masks.padding-is-absence",
    "keys masked for all queries are as if they were not there",
    wants=Wants(
        options=("softcap", "sinks"),
        causal=False,
        masks=("padding-right", "padding-left", "first-half", "padding-right"),
        bias=False,
        min_keys=2,
        regimes=("normal", "flat", "tied", "integer", "offset"),
    ),
    applies=lambda t: None if t.abilities.rectangular else "takes equal lengths only",
    basis=("masks.sensitivity",),
)
def test_padding_is_absence(trial: Trial) -> None:
    """o(K, V, mask) = o(K without the masked keys, V likewise), whatever the masked keys hold; each sample by itself."""
    call = trial.call
    trial.suitable(call.visible is not None)
    assert call.visible is not None
    shown = np.asarray(call.full(call.visible), dtype=bool)
    common = shown[:, 0, 0]
    trial.suitable(bool((shown == common[:, None, None]).all()))
    call = _filled(call, common, trial.rng)
    whole = trial.run(call).output
    for b in range(trial.problem.batch):
        kept = common[b]
        alone = call.but(
            query=call.query[b : b + 1],
            key=call.key[b : b + 1, :, kept],
            value=call.value[b : b + 1, :, kept],
            visible=None,
        )
        trial.agree(
            trial.run(alone).output,
            alone,
            whole,
            call,
            f"sample {b} differs from itself without its masked keys ({int(kept.sum())} of {kept.size} kept)",
            part=lambda a: a,
            other=lambda a, b=b: a[b : b + 1],  # type: ignore[misc]
        )


def _filled(call: Call, kept: np.ndarray, rng: np.random.Generator) -> Call:  # type: ignore[type-arg]
    """The call with the masked keys and values as they are, or large."""
    if rng.random() < 0.5:
        return call
    hidden = ~kept[:, None, :, None]
    factor = 16.0 if call.dtype == "float16" else 256.0
    return call.but(
        key=round_to(np.where(hidden, 8.0 * call.key + 1.0, call.key), call.dtype),
        value=round_to(np.where(hidden, factor * (call.value + 1.0), call.value), call.dtype),
    )


@law(
    "masks.empty-row",
    "a row without a visible key returns what the convention says, and spoils nothing else",
    basis=("scores.default-scale", "weights.uniform", "masks.sensitivity"),
    wants=Wants(
        causal=False,
        masks=("empty-row", "empty-sample", "empty-all"),
        bias=False,
        regimes=("normal", "integer", "flat"),
    ),
)
def test_empty_row(trial: Trial) -> None:
    """A row whose keys are all masked gives zeros, NaN, the mean of V or the unmasked row, as the card says; other rows
    are untouched; where it gives zeros, gradients are finite."""
    call = trial.call
    trial.suitable(call.visible is not None)
    exact = trial.exact()
    empty = ~exact.visible.any(-1)
    trial.suitable(bool(empty.any()))
    output = trial.run().output
    convention = trial.empty_row(call)
    # A finite fill added to the scores swallows them only below half its last place: 16 at the end of float16.
    trial.suitable(convention != "uniform" or float(np.abs(exact.scaled).max(initial=0.0)) < 15.0)
    rest = np.where(empty[..., None], exact.output, output)
    trial.agrees_with_oracle(rest, call, "a row without visible keys changes other rows", exact)
    known = trial.conventions.known.get(f"empty_{call.route}", "")
    words = f"a row without visible keys doesn't give {convention}"
    if known == "unclear":
        words = "a row without visible keys gives none of: zeros, NaN, the mean of V, the unmasked row"
    _empty_as_said(trial, output, exact.output, empty, convention, words)
    if trial.abilities.gradients and convention == "zeros":
        _finite_gradients(trial, empty)


def _empty_as_said(trial: Trial, output: Array, want: Array, empty: np.ndarray, convention: str, words: str) -> None:  # type: ignore[type-arg] # fmt: skip
    got = output[empty]
    places = np.arange(output.size).reshape(output.shape)[empty]
    if convention in ("zeros", "nan"):
        trial.equal(got, want[empty], words, call=trial.call, places=places)
        return
    free = trial.call.but(visible=None, causal=False)
    if convention == "uniform":
        free = free.but(query=np.zeros_like(free.query))

    def allowed(precision: Precision) -> Array:
        loss = 0.0 if convention == "uniform" else _lost_by_fill(free, precision)
        return np.asarray(trial.bound(free, precision)[empty] + loss)

    trial.within(got, want[empty], allowed, words, call=trial.call, places=places)


def _lost_by_fill(free: Call, precision: Precision) -> float:
    """A finite fill of about -1e4 costs that many units in the last place of each score before it cancels."""
    spread = 2.0 * float(np.abs(free.value).max(initial=0.0))
    return min(float(np.expm1(min(4e4 * max(precision.u_a, precision.u_scores), 5.0))), 1.0) * spread


def _finite_gradients(trial: Trial, empty: np.ndarray) -> None:  # type: ignore[type-arg]
    call = trial.call
    upstream = np.ones((*call.query.shape[:3], call.value.shape[3]))
    found = trial.run(upstream=upstream).gradients
    for role, gradient in found.items():
        if gradient is not None:
            trial.require(bool(np.isfinite(gradient).all()), f"a row without visible keys makes d{role} not finite")
    query = found.get("query")
    if query is not None:
        trial.require(bool((query[empty] == 0).all()), "a row of zeros has a gradient by its query")


#: what the law of sensitivity is tried on
SENSITIVITY = Wants(options=ALL, regimes=("normal", "peaked", "integer", "needle"))


def _takes_option(target: Target) -> bool:
    a = target.abilities
    return bool(a.routes or a.causal or a.scale or any(getattr(a, option) for option in ALL))


@law(
    "masks.sensitivity",
    "an option that is taken changes the result where it must",
    basis=("causality.future-keys",),
    wants=SENSITIVITY,
    applies=lambda t: None if _takes_option(t) else "takes no option",
)
def test_sensitivity(trial: Trial) -> None:
    """Where the oracle's outputs with and without an option differ by more than rounding, the target's differ too.

    "Accepted, then ignored" is the commonest fault of all.
    """
    options = _without(trial)
    trial.suitable(bool(options))
    for option, plain in options:
        if _useless(trial, plain):
            what = f"{option} makes no difference on this input, where it must"
            if _useless_in_general(trial, option):
                raise Ignored(f"{what}: accepted, then ignored", call=trial.call)
            raise Broken(what, call=trial.call)


def _without(trial: Trial) -> list[tuple[str, Call]]:
    """The trial's call without each of its options, by the name of the option."""
    call = trial.call
    without: list[tuple[str, Call]] = []
    needed = call.window is not None and trial.abilities.window_causal
    if call.causal and trial.conventions.causal == "flag" and not needed:
        without.append(("the causal flag", call.but(causal=False)))
    if call.visible is not None:
        without.append((f"the {call.route} mask", call.but(visible=None)))
    if call.bias is not None:
        without.append(("the additive mask", call.but(bias=None)))
    if call.scale is not None and trial.conventions.default_scale != "required":
        without.append(("the scale", call.but(scale=None)))
    fields = {
        "window": "window",
        "softcap": "soft cap",
        "slopes": "ALiBi slopes",
        "sinks": "sinks",
        "padding": "padding",
    }
    without += [
        (f"the {name}", call.but(**{field: None})) for field, name in fields.items() if getattr(call, field) is not None
    ]
    return without


def _useless(trial: Trial, plain: Call) -> bool:
    """Whether the target gives the same with and without an option where the oracle does not."""
    call, exact = trial.call, trial.exact()
    expected = np.abs(exact.output - trial.exact(plain).output)
    precision = trial.ladder(call.dtype)[-1]
    slack = trial.bound(call, precision, exact) + trial.bound(plain, precision)
    must = expected > 4 * slack
    if not must.any():
        return False
    moved = np.abs(trial.run().output - trial.run(plain).output)
    trial.evidence.add(int(must.sum()), 0.0)
    return not (moved[must] > slack[must]).any()


def _useless_in_general(trial: Trial, option: str) -> bool:
    """Whether it makes no difference on a problem with more queries and keys either; what leaks one key shows there."""
    sizes = {"queries": 8, "keys": 8} if trial.problem.queries == trial.problem.keys else {"queries": 8, "keys": 11}
    roomy = trial.problem.but(**sizes)
    if not SENSITIVITY.fits(roomy, trial.abilities, trial.conventions):
        return True
    larger = Trial(trial.target, roomy, trial.session, trial.evidence)
    return all(_useless(larger, plain) for name, plain in _without(larger) if name == option)


@law(
    "masks.softmax-then-renormalise",
    "softmax, zero, renormalise equals softmax with -inf",
    wants=Wants(bias=False, regimes=("normal", "flat", "tied"), masks=SOME_MASK, small=True),
    applies=lambda t: (
        "is always causal"
        if t.conventions.causal == "always"
        else None
        if t.abilities.routes or t.abilities.causal
        else "takes neither mask nor causal flag"
    ),
    basis=("masks.sensitivity", "causality.future-keys", "weights.oracle"),
)
def test_softmax_then_renormalise(trial: Trial) -> None:
    """w'_ij = m_ij w_ij / sum_k m_ik w_ik are the masked weights, w the unmasked: the identity behind causal masking."""
    call = trial.call
    shown = trial.allowed_pairs()
    trial.suitable(bool((~shown).any()))
    free = call.but(visible=None, causal=False)
    masked, plain = trial.weights(), trial.weights(free)
    exact = trial.exact(trial.one_hot(free)).output
    mass = np.where(shown, exact, 0.0).sum(-1, keepdims=True)
    kept = np.where(shown, plain, 0.0)

    def allowed(precision: object) -> Array:
        own = trial.bound(trial.one_hot(free), precision) * shown  # type: ignore[arg-type]
        rest = mass - own.sum(-1, keepdims=True)
        trial.suitable(bool((rest > 0).all()))  # weights that rounding can swallow can't be renormalised
        return np.asarray(trial.bound(trial.one_hot(call), precision) + (own + own.sum(-1, keepdims=True)) / rest)  # type: ignore[arg-type]

    with np.errstate(all="ignore"):
        want = kept / kept.sum(-1, keepdims=True)
    trial.suitable(bool(np.isfinite(want).all()))
    trial.within(
        masked, want, allowed, "masking is not softmax, zero, renormalise", call=trial.one_hot(call), name="weight"
    )


@law(
    "masks.additive-values",
    "finite values of an additive mask are added to the scores",
    wants=Wants(bias=True, masks=("none",), regimes=("normal", "flat", "integer", "tied")),
    basis=("scores.scale-not-on-mask", "weights.oracle"),
)
def test_additive_values(trial: Trial) -> None:
    """w ~ exp(s + m): the least finite number and -1e4 mask, +5 and 1 favour, 0 changes nothing; one 0 in each row."""
    call = trial.call
    trial.suitable(call.bias is not None)
    assert call.bias is not None
    values = np.array([-LARGEST[call.dtype], -1e4, 5.0, 0.0, 1.0, -0.5])
    bias = values[trial.rng.integers(0, len(values), call.bias.shape)]
    bias[..., 0] = 0.0
    biased = call.but(bias=round_to(bias, call.dtype))
    trial.agrees_with_oracle(
        trial.run(biased).output, biased, "finite values of an additive mask are not added to the scores"
    )


@law(
    "masks.broadcast",
    "a mask of any shape equals its expansion to (B, H, L, S)",
    wants=Wants(options=ALL, masks=SOME_MASK, bias=False),
    applies=lambda t: None if "BHLS" in t.abilities.mask_shapes else "takes no mask (B, H, L, S)",
    basis=("masks.sensitivity",),
)
def test_broadcast(trial: Trial) -> None:
    """o(m) = o(m expanded): (L, S), (1, 1, L, S), (B, 1, L, S), (1, H, L, S), (B, 1, 1, S), with B = H and B = L on purpose."""
    call = trial.call
    trial.suitable(call.visible is not None and call.route != "padding")
    assert call.visible is not None
    full = call.but(visible=np.array(call.full(call.visible)))
    trial.agree(
        trial.run().output, call, trial.run(full).output, full, "a mask and its expansion differ", exact_hoped=True
    )


@law(
    "scores.scale-not-on-mask",
    "an additive mask is not scaled",
    wants=Wants(bias=True, masks=("none",), min_keys=2),
    basis=("weights.uniform", "weights.row-stochastic"),
)
def test_scale_not_on_mask(trial: Trial) -> None:
    """With q = 0 the scores are the mask alone: o = softmax(m) v, whatever the scale."""
    trial.suitable(trial.call.bias is not None)
    call = trial.call.but(query=np.zeros_like(trial.call.query))
    trial.agrees_with_oracle(
        trial.run(call).output, call, "with q = 0 and an additive mask m the output is not softmax(m) v"
    )


@law(
    "masks.empty-with-causal",
    "a row that mask and causality together leave without a key sees nothing of the future",
    wants=Wants(
        routes=("bool", "keep"),causal=True, masks=("random", "padding-right", "banded", "first-half"), bias=False, min_queries=2, min_keys=2,
                rectangular=False, regimes=("normal", "integer")),
    applies=lambda t: None if t.conventions.mask_and_causal == "intersection" and t.abilities.routes and t.abilities.causal
    else "takes no mask with the causal flag",
    basis=("causality.flag-and-mask", "masks.empty-row"),
    share=0.6,
)  # fmt: skip
def test_empty_with_causal(trial: Trial) -> None:
    """Row i masked for all j <= i gives zeros, NaN, a mean over all keys or over those up to i, or the row without the mask.

    What it must not give is a mixture that depends on what the mask shows of the future. Boolean masks alone: with -inf
    added for the mask and a finite fill for causality, as in JAX, such a row is the mean over the future by that rule.
    """
    call = trial.call
    trial.suitable(call.visible is not None)
    assert call.visible is not None
    mask = np.array(call.full(call.visible))
    row = int(trial.rng.integers(0, trial.problem.queries - 1))
    trial.suitable(call.route != "padding" and call.visible.shape[-2] > 1)
    mask[:, :, row, : row + 1] = False
    trial.suitable(row + 2 < trial.problem.keys)
    mask[:, :, row, row + 1 :] = True
    mask[:, :, row, -1] = False
    given = mask if "BHLS" in trial.abilities.mask_shapes else mask[0, 0]
    trial.suitable(given.ndim == 4 or "LS" in trial.abilities.mask_shapes)
    whole = call.but(visible=given)
    output, exact = trial.run(whole).output, trial.exact(whole)
    got = output[:, :, row]
    rest = np.where(exact.visible.any(-1)[..., None], output, exact.output)
    trial.agrees_with_oracle(rest, whole, "a row emptied by mask and causality changes other rows", exact)
    value = np.repeat(call.value, trial.problem.heads // trial.problem.kv_heads, axis=1)
    free, loosest = call.but(visible=None), trial.ladder(call.dtype)[-1]
    flat = free.but(query=np.zeros_like(call.query), causal=False)
    mean_slack, own_slack = (trial.bound(c, loosest)[:, :, row] for c in (flat, free))
    choices = (
        (np.zeros_like(got), np.zeros_like(got)),
        (value.mean(2), mean_slack),
        (value[:, :, : row + 1].mean(2), mean_slack),
        (trial.exact(free).output[:, :, row], own_slack + _lost_by_fill(free, loosest)),
    )
    fits = bool(np.isnan(got).all()) or any(bool((np.abs(got - want) <= slack).all()) for want, slack in choices)
    trial.evidence.add(got.size, 0.0)
    if not fits:
        raise Broken(
            f"row {row}, emptied by mask and causality together, gives none of: zeros, NaN, a mean over all keys or "
            "those up to its own, the row without the mask", call=whole,
        )  # fmt: skip
