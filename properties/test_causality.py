"""Laws of causality: output i depends on keys up to i, and on each of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnlaws.laws.law import law
from attnlaws.laws.trial import Broken, Crashed, Refused, Trial, Unsuitable
from attnlaws.problems.dtypes import round_to
from attnlaws.problems.wants import ALL, Wants
from attnlaws.targets.call import Call
from attnlaws.targets.target import Target

CAUSAL = Wants(causal=True, masks=("none",), bias=False, regimes=("normal", "integer", "flat", "peaked", "tied"))


def _needs_flag_and_mask(target: Target) -> str | None:
    if target.conventions.causal != "flag":
        return "takes no causal flag"
    return None if set(target.abilities.routes) - {"padding"} else "takes no mask of queries and keys to compare with"


def _far(call: Call, rows: slice, rng: np.random.Generator) -> Call:
    """The call with the keys and values of some positions replaced by far, finite ones."""
    key, value = call.key.copy(), call.value.copy()
    size = 64.0 if call.dtype == "float16" else 1024.0
    key[:, :, rows] = round_to(2.0 - 3.0 * key[:, :, rows] + rng.integers(-2, 3, key[:, :, rows].shape), call.dtype)
    value[:, :, rows] = round_to(size * (1.0 + np.abs(value[:, :, rows])), call.dtype)
    return call.but(key=key, value=value)


@law(
    "causality.future-keys",
    "the output at position i must not depend on keys after i",
    wants=replace(CAUSAL, options=("window", "softcap", "alibi", "sinks")),
    exact=True,
    share=1.5,
)
def test_future_keys(trial: Trial) -> None:
    """Replacing k_j and v_j leaves o_i as it was, bit for bit, for every i that may not see j: each j in turn, then all."""
    keys, triangle = trial.problem.keys, trial.triangle()
    trial.suitable(bool((~triangle).any()))
    before = trial.run().output
    chosen = range(keys) if keys <= 6 else sorted({1, keys - 1, *trial.rng.integers(1, keys, 4).tolist()})
    for j in chosen:
        for changed in (slice(j, j + 1), slice(j, keys)):
            blind = ~triangle[:, changed].any(-1)
            if not blind.any():
                continue
            moved = _far(trial.call, changed, trial.rng)
            trial.agree(
                trial.run(moved).output,
                moved,
                before,
                trial.call,
                f"the output moves when a key that it may not see changes (key {j}{' and later' if changed.stop > j + 1 else ''})",
                part=lambda a, rows=blind: a[:, :, rows],
                exact_hoped=True,  # type: ignore[misc]
            )


@law("causality.past-matters", "every allowed key has a weight", wants=replace(CAUSAL, options=("window", "softcap")))
def test_past_matters(trial: Trial) -> None:
    """With q = 0 each visible key has weight 1/n > 0, so changing it changes o_i: the diagonal and the first key too."""
    call = trial.call.but(query=np.zeros_like(trial.call.query))
    weights, shown = trial.weights(call), trial.allowed_pairs(call)
    missing = shown & ~(weights > 0.25 / trial.problem.keys)
    trial.evidence.add(weights.size, 0.0)
    if missing.any():
        _, _, i, j = (int(n) for n in np.argwhere(missing)[0])
        raise Broken(f"query {i} may see key {j}, but its output doesn't depend on it", call=trial.one_hot(call))


@law(
    "causality.jacobian",
    "the gradient of output i by later keys and values is zero, and by allowed ones is not",
    wants=Wants(
        causal=True,
        masks=("none",),
        bias=False,
        regimes=("normal", "flat", "integer"),
        gradients=True,
        dtypes=("float32", "float64"),
    ),
    exact=True,
    basis=("causality.future-keys", "causality.past-matters"),
)
def test_jacobian(trial: Trial) -> None:
    """d o_i / d k_j = 0 and d o_i / d v_j = 0 for every j that i may not see; d o_i / d v_j = w_ij > 0 otherwise."""
    call, triangle = trial.call, trial.triangle()
    for i in sorted({0, trial.problem.queries - 1, int(trial.rng.integers(0, trial.problem.queries))}):
        upstream = np.zeros((*call.query.shape[:3], call.value.shape[3]))
        upstream[:, :, i] = 1.0
        found = trial.run(upstream=upstream).gradients
        hidden = ~triangle[i]
        free = call.but(causal=False)
        for role in ("key", "value"):
            gradient = found[role]
            trial.require(gradient is not None, f"no gradient reaches {role}")
            assert gradient is not None
            leak = gradient[:, :, hidden]
            if np.any(leak != 0):  # weights zeroed after the softmax leave rounding here, never more
                trial.evidence.not_exact += 1
                _no_more_than_rounding(trial, role, leak, free, upstream, hidden)
        value = found["value"]
        assert value is not None
        group = trial.problem.heads // trial.problem.kv_heads
        seen = trial.exact().weights[:, ::group, i] > 1e-20  # below, a weight may vanish by underflow
        reached = np.abs(value).max(-1) > 0
        trial.require(bool(reached[seen].all()), f"no gradient of output {i} reaches a value that it sees")


def _no_more_than_rounding(
    trial: Trial, role: str, leak: np.ndarray, free: Call, upstream: np.ndarray, hidden: np.ndarray
) -> None:  # type: ignore[type-arg] # fmt: skip
    options = trial.exact(free)
    grads = trial.exact_gradients(free, upstream)
    at = ("query", "key", "value").index(role)
    trial.within(
        leak,
        np.zeros_like(leak),
        lambda p: trial.gradient_bounds(free, upstream, grads, p, options)[at][:, :, hidden],
        f"the gradient of an output by a later {role} is not zero",
        call=trial.call,
        name=f"d{role}",
    )


@law(
    "causality.flag-is-triangle",
    "the causal flag equals the explicit mask of its alignment",
    wants=replace(CAUSAL, options=("window", "softcap", "alibi", "sinks")),
    applies=_needs_flag_and_mask,
    basis=("causality.future-keys", "causality.past-matters"),
)
def test_flag_is_triangle(trial: Trial) -> None:
    """o(causal) = o(mask = [j <= i + offset]), offset 0 (top-left) or S - L (bottom-right), for L != S both ways."""
    call, triangle = trial.call, trial.triangle()
    trial.suitable(bool(triangle.any(-1).all()))
    trial.suitable(call.window is None or not trial.abilities.window_causal)
    routes = [r for r in trial.abilities.routes if r != "padding"]
    route = routes[int(trial.rng.integers(0, len(routes)))]
    masked = call.but(causal=False, visible=trial.in_shape(triangle), route=route)
    trial.agree(
        trial.run().output,
        call,
        trial.run(masked).output,
        masked,
        "the causal flag differs from the explicit triangular mask",
    )


def _needs_both(target: Target) -> str | None:
    missing = "takes no causal flag" if target.conventions.causal != "flag" else None
    missing = missing or (None if target.abilities.routes else "takes no mask")
    if missing is None and target.conventions.mask_and_causal == "the mask alone":
        return "with a mask, the mask alone counts: a rule of its interface"
    return missing


@law(
    "causality.flag-and-mask",
    "the causal flag with a mask is their intersection, or a clear error",
    wants=Wants(
        options=ALL, causal=True, regimes=CAUSAL.regimes, masks=("random", "padding-right", "banded"), bias=False
    ),
    basis=("scores.default-scale", "weights.uniform", "masks.sensitivity"),
    applies=_needs_both,
)
def test_flag_and_mask(trial: Trial) -> None:
    """o(causal, mask m) = o(mask m and [j <= i]). A target that refuses some such calls is tried on others: Dv = D."""
    call = trial.call
    if trial.conventions.mask_and_causal == "refused":
        call = _both(trial)
    trial.suitable(call.visible is not None)
    try:
        both = trial.run(call)
    except Crashed as refusal:
        trial.evidence.add(1, 0.0)  # a clear error
        trial.suitable(trial.conventions.mask_and_causal == "refused")
        raise Unsuitable from refusal
    trial.agrees_with_oracle(both.output, call, "causal with a mask is not the intersection of the two")


def _both(trial: Trial) -> Call:
    """The causal call with a random mask of queries and keys on top, its values as wide as its keys."""
    call = trial.call
    routes = [r for r in trial.abilities.routes if r != "padding"]
    trial.suitable(bool(routes) and call.query.shape[2] <= call.key.shape[2])
    mask = trial.rng.random((call.query.shape[2], call.key.shape[2])) < 0.6
    mask[:, 0] = True
    value = np.resize(call.value, call.key.shape)
    return call.but(value=value, visible=trial.in_shape(mask), route=routes[0])


@law(
    "causality.empty-rows",
    "rows that the causal triangle leaves without a key give what the card says",
    wants=replace(CAUSAL, regimes=("normal", "integer")),
    applies=lambda t: (
        None if t.conventions.alignment == "bottom-right" and t.abilities.rectangular_causal else "leaves no row without a key"
    ),
    basis=("causality.future-keys",),
    share=0.6,
)  # fmt: skip
def test_empty_rows(trial: Trial) -> None:
    """Aligned at the bottom right, L > S leaves the first L - S rows empty; the others see j <= i + S - L as always."""
    whole = trial.call
    more = whole.key.shape[2] + 1 + int(trial.rng.integers(0, 4))
    call = whole.but(query=whole.query[:, :, np.arange(more) % whole.query.shape[2]])
    try:
        output = trial.run(call).output
    except Crashed as refusal:  # more queries than keys may be refused
        raise Refused(refusal.line) from refusal
    exact = trial.exact(call)
    empty = ~exact.visible.any(-1)
    rest = np.where(empty[..., None], exact.output, output)
    trial.agrees_with_oracle(
        rest, call, "with more queries than keys the causal rows are not aligned as the card says", exact
    )
    words = f"a causal row without a key doesn't give {trial.conventions.empty_causal}"
    if trial.conventions.known.get("empty_causal") == "unclear":
        words = "a causal row without a key gives none of: zeros, NaN, the mean of V, the unmasked row"
    trial.suitable(trial.conventions.empty_causal != "unmasked")
    trial.agrees_with_oracle(np.where(empty[..., None], output, exact.output), call, words, exact)


@law(
    "causality.cutoff",
    "the first n rows are what the first n tokens alone give",
    wants=Wants(causal=True, masks=("none",), rectangular=False, min_queries=2, bias=False),
    basis=("causality.future-keys", "causality.past-matters"),
)
def test_cutoff(trial: Trial) -> None:
    """o(x_1..x_L)[:n] = o(x_1..x_n) for causal attention with equal lengths."""
    call, length = trial.call, trial.problem.queries
    trial.suitable(length == trial.problem.keys)
    whole = trial.run().output
    for n in sorted({length - 1, int(trial.rng.integers(1, length))}):
        part = call.but(query=call.query[:, :, :n], key=call.key[:, :, :n], value=call.value[:, :, :n])
        trial.agree(
            trial.run(part).output,
            part,
            whole,
            call,
            f"the first {n} rows change when later tokens are there",
            part=lambda a: a,
            other=lambda a, n=n: a[:, :, :n],  # type: ignore[misc]
        )
