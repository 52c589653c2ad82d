"""Laws of the weights: o = w v, each row of w a probability distribution over the visible keys."""

from __future__ import annotations

import numpy as np

from attnlaws.faults.impostors import tally_impostors
from attnlaws.judge.bounds import row_sum_slack
from attnlaws.laws.law import law
from attnlaws.laws.trial import Crashed, Trial
from attnlaws.problems.dtypes import round_to
from attnlaws.problems.wants import ALL, Wants
from attnlaws.targets.target import Target

MILD = ("normal", "flat", "integer", "tied")


def _lengths_may_differ(target: Target) -> str | None:
    return None if target.abilities.rectangular else "takes equal lengths only"


@law(
    "weights.oracle",
    "the output equals softmax(scale q k^T + mask) v",
    share=3.0,
    basis=(
        "layout.result",
        "scores.default-scale",
        "weights.row-stochastic",
        "causality.future-keys",
        "causality.past-matters",
        "masks.sensitivity",
        "scores.scale-argument",
        "scores.scale-not-on-mask",
        "heads.grouped",
        "heads.split",
        "batch.slices",
        "scores.magnitude",
        "masks.window",
        "masks.alibi",
        "masks.sinks",
        "scores.softcap",
    ),
    wants=Wants(options=ALL),
)
def test_oracle(trial: Trial) -> None:
    """o_i = sum_j softmax_j(s q_i.k_j + m_ij) v_j, within the rounding that the precision allows.

    Vaswani et al. 2017, equation 1. The bound is computed for each element from the inputs.
    """
    exact = trial.exact()
    trial.agrees_with_oracle(trial.run().output, trial.call, "the output is not softmax(scale q k^T + mask) v", exact)
    tally_impostors(trial, exact)


@law(
    "weights.row-stochastic",
    "the weights of a row are not negative and sum to 1",
    wants=Wants(options=("window", "softcap", "alibi", "padding")),
)
def test_row_stochastic(trial: Trial) -> None:
    """w_ij >= 0 and sum_j w_ij = 1: with V = 1 the output is 1, and with V = one-hot rows the outputs sum to 1."""
    ones = trial.call.but(value=np.ones_like(trial.call.value))
    exact = trial.exact(ones)
    trial.agrees_with_oracle(
        trial.run(ones).output, ones, "with V = 1 the output is not 1: a row does not sum to 1", exact
    )
    trial.suitable(trial.problem.keys <= 17)
    weights = trial.weights()
    call = trial.one_hot(trial.call)
    least = float(weights.min(initial=0.0))
    trial.require(least >= 0.0 or not np.isfinite(least), f"a weight is negative: {least:g}", call)
    sums = weights.sum(-1, keepdims=True)
    trial.within(
        sums,
        np.ones_like(sums),
        lambda p: np.full_like(sums, row_sum_slack(trial.problem.keys, p, _largest(exact.lse))),
        "the recovered weights of a row don't sum to 1",
        call=call,
        name="sum of weights",
    )


def _largest(lse: np.ndarray) -> float:  # type: ignore[type-arg]
    finite = np.abs(lse[np.isfinite(lse)])
    return float(finite.max(initial=0.0))


@law(
    "weights.masked-are-zero",
    "a masked pair has weight exactly 0",
    exact=True,
    applies=lambda t: None if t.abilities.routes or t.abilities.causal else "takes neither mask nor causal flag",
    wants=Wants(options=ALL, bias=False, masks=("random", "padding-right", "padding-left", "banded", "first-half")),
    basis=("masks.sensitivity", "causality.future-keys"),
)
def test_masked_are_zero(trial: Trial) -> None:
    """w_ij = 0 where (i, j) is masked, also where every visible score of the row is far below the fill of the mask.

    A finite fill such as -1e4 hides until the visible scores lie below it.
    """
    call, shown = trial.call, trial.allowed_pairs()
    trial.suitable(bool((~shown).any()))
    if trial.rng.random() < 0.7:
        row = int(trial.rng.integers(0, trial.problem.queries))
        size = np.sqrt(min(2e4 / trial.scale(call), 3e4))
        query, key = np.zeros_like(call.query), np.zeros_like(call.key)
        query[..., 0] = size
        heads = shown[:, :: trial.problem.heads // trial.problem.kv_heads, row, :]
        key[..., 0] = np.where(heads, -size, 0.0)
        call = call.but(query=round_to(query, call.dtype), key=round_to(key, call.dtype))
    weights = trial.weights(call)
    one_hot = trial.one_hot(call)
    trial.equal(np.where(shown, 0.0, weights), np.zeros_like(weights), "a masked key has weight", call=one_hot)
    trial.require(bool(np.isfinite(weights).all()), "the weights of a row with visible keys are not finite", one_hot)


@law(
    "weights.hull",
    "each output coordinate lies between the least and the largest visible V",
    basis=("weights.oracle",),
    wants=Wants(options=("window", "softcap", "alibi", "padding")),
)
def test_hull(trial: Trial) -> None:
    """min_j v_jc <= o_ic <= max_j v_jc over the visible keys j, since o is a weighted mean of them."""
    exact = trial.exact()
    output = trial.run().output
    value = np.repeat(trial.call.value, trial.problem.heads // trial.problem.kv_heads, axis=1)[:, :, None]
    shown = exact.visible[..., None]
    low = np.where(shown, value, np.inf).min(3)
    high = np.where(shown, value, -np.inf).max(3)
    nearest = np.where(np.isfinite(output), np.clip(output, low, high), exact.output)
    trial.within(
        output,
        nearest,
        lambda p: trial.bound(trial.call, p, exact),
        "the output leaves the hull of the visible V rows",
        call=trial.call,
    )


@law(
    "weights.match-output",
    "the weights that are returned, times V, give the output",
    applies=lambda t: None if t.abilities.weights else "returns no weights",
    basis=("weights.oracle",),
)
def test_match_output(trial: Trial) -> None:
    """w v = o for the weights w that the target hands out, and asking for them changes nothing."""
    call = trial.call
    quiet = trial.run()
    try:
        loud = trial.run(weights=True)
    except Crashed as refusal:  # beside an option the weights may be refused
        trial.suitable(not call.causal and call.visible is None)
        raise refusal
    trial.agree(loud.output, call, quiet.output, call, "asking for the weights changes the output")
    trial.suitable(loud.weights is not None)
    assert loud.weights is not None
    value = np.repeat(call.value, trial.problem.heads // trial.problem.kv_heads, axis=1)
    one_hot = trial.one_hot(call)
    product = np.matmul(loud.weights, value)
    trial.within(
        loud.output,
        product,
        lambda p: trial.bound(call, p) + np.matmul(trial.bound(one_hot, p), np.abs(value)),
        "the returned weights times V are not the output",
        call=call,
    )


@law(
    "weights.uniform",
    "q = 0 gives the mean of the visible V rows",
    wants=Wants(bias=False),
    basis=("weights.row-stochastic", "causality.future-keys", "masks.sensitivity"),
)
def test_uniform(trial: Trial) -> None:
    """q = 0 makes all visible scores equal, so o_i = mean of v_j over the keys that i sees."""
    call = trial.call.but(query=np.zeros_like(trial.call.query))
    exact = trial.exact(call)
    value = np.repeat(call.value, trial.problem.heads // trial.problem.kv_heads, axis=1)
    mean = np.matmul(exact.visible / exact.visible.sum(-1, keepdims=True), value)
    factor = 2.0 if call.dtype == "float64" else 1.0
    trial.within(
        trial.run(call).output,
        mean,
        lambda p: factor * trial.bound(call, p, exact),
        "with q = 0 the output is not the mean of the visible V rows",
        call=call,
    )


@law(
    "weights.argmax",
    "a dominating key gives its V row",
    wants=Wants(bias=False, regimes=("normal", "integer")),
    basis=("weights.oracle",),
)
def test_argmax(trial: Trial) -> None:
    """Where one visible key's score exceeds the others by a gap g, |o - v_j| <= (S - 1) e^-g range(V): each key in turn."""
    call, keys = trial.call, trial.problem.keys
    positions = sorted({0, keys - 1, keys // 2, int(trial.rng.integers(0, keys)), max(keys - 2, 0)})
    size = np.sqrt(40.0 / trial.scale(call))
    for j in positions:
        query, key = np.zeros_like(call.query), np.zeros_like(call.key)
        query[..., 0], key[:, :, j, 0] = size, size
        needle = call.but(query=round_to(query, call.dtype), key=round_to(key, call.dtype))
        exact = trial.exact(needle)
        sees = exact.visible[..., j]
        row = np.repeat(call.value, trial.problem.heads // trial.problem.kv_heads, axis=1)[:, :, j : j + 1]
        want = np.where(sees[..., None], row, exact.output)
        spread = np.abs(call.value).max(initial=0.0) * 2 * keys * np.exp(-39.0)
        trial.within(
            trial.run(needle).output,
            want,
            lambda p, n=needle, e=exact, s=spread: trial.bound(n, p, e) * 2 + s,  # type: ignore[misc]
            f"a query that matches key {j} alone doesn't return its V row",
            call=needle,
        )


@law(
    "weights.value-linear",
    "the output is linear in V",
    wants=Wants(options=ALL, regimes=MILD),
    basis=("weights.oracle",),
)
def test_value_linear(trial: Trial) -> None:
    """o(V1 + 2 V2) = o(V1) + 2 o(V2), with small integers so that the sum is exact in every dtype."""
    call = trial.call
    first, second = (trial.rng.integers(-3, 4, call.value.shape).astype(float) for _ in range(2))
    calls = [call.but(value=v) for v in (first, second, first + 2 * second)]
    one, two, both = (trial.run(c).output for c in calls)
    trial.within(
        both,
        one + 2 * two,
        lambda p: trial.bound(calls[2], p) + trial.bound(calls[0], p) + 2 * trial.bound(calls[1], p),
        "o(V1 + 2 V2) is not o(V1) + 2 o(V2)",
        call=calls[2],
    )


@law(
    "weights.shift",
    "adding one vector to all keys changes nothing",
    wants=Wants(regimes=("integer", "tied")),
    basis=("weights.oracle",),
)
def test_shift(trial: Trial) -> None:
    """q.(k + u) = q.k + q.u: each row of scores moves by a constant, which the softmax doesn't see."""
    call = trial.call
    shift = trial.rng.integers(-2, 3, (1, 1, 1, trial.problem.head_dim)).astype(float)
    moved = call.but(key=call.key + shift)
    trial.agree(
        trial.run(moved).output, moved, trial.run().output, call, "adding the same vector to all keys moves the output"
    )


@law(
    "weights.key-permutation",
    "permuting keys, values and mask columns together changes nothing",
    wants=Wants(options=("softcap", "sinks"), causal=False, min_keys=2),
    basis=("weights.oracle",),
)
def test_key_permutation(trial: Trial) -> None:
    """sum_j w_ij v_j does not depend on the order of the keys."""
    call = trial.call
    order = trial.rng.permutation(trial.problem.keys)
    moved = call.but(
        key=call.key[:, :, order],
        value=call.value[:, :, order],
        visible=None if call.visible is None else call.visible[..., order],
        bias=None if call.bias is None else call.bias[..., order],
    )
    trial.agree(trial.run(moved).output, moved, trial.run().output, call, "permuting the keys moves the output")


@law(
    "weights.query-rows",
    "an output row depends on its own query alone",
    wants=Wants(options=("softcap", "sinks", "padding"), causal=False, min_queries=2),
    applies=_lengths_may_differ,
    basis=("weights.oracle",),
)
def test_query_rows(trial: Trial) -> None:
    """o_i is a function of q_i, K and V: a subset of the queries gives the same rows, and so does one query alone."""
    call, queries = trial.call, trial.problem.queries
    whole = trial.run().output
    for count in {1, int(trial.rng.integers(1, queries + 1))}:
        rows = np.sort(trial.rng.permutation(queries)[:count])

        def cut(mask: np.ndarray | None) -> np.ndarray | None:  # type: ignore[type-arg]
            return mask if mask is None or mask.shape[-2] == 1 else mask[..., rows, :]  # noqa: B023

        part = call.but(query=call.query[:, :, rows], visible=cut(call.visible), bias=cut(call.bias))
        trial.agree(
            trial.run(part).output,
            part,
            whole,
            call,
            f"{count} of the {queries} queries give other rows than all of them",
            part=lambda a: a,
            other=lambda a, r=rows: a[:, :, r],  # type: ignore[misc]
        )


@law(
    "weights.duplicate-keys",
    "a key given twice weighs as two keys",
    wants=Wants(causal=False),
    applies=_lengths_may_differ,
    basis=("weights.oracle",),
)
def test_duplicate_keys(trial: Trial) -> None:
    """Every key given twice changes nothing; one key given twice weighs as that key with log 2 added to its scores."""
    call = trial.call
    pairs = np.repeat(np.arange(trial.problem.keys), 2)

    def take(array: np.ndarray | None, columns: np.ndarray) -> np.ndarray | None:  # type: ignore[type-arg]
        return None if array is None else array[..., columns]

    doubled = call.but(
        key=call.key[:, :, pairs],
        value=call.value[:, :, pairs],
        visible=take(call.visible, pairs),
        bias=take(call.bias, pairs),
    )
    trial.agree(trial.run(doubled).output, doubled, trial.run().output, call, "giving every key twice moves the output")
    j = int(trial.rng.integers(0, trial.problem.keys))
    columns = np.append(np.arange(trial.problem.keys), j)
    again = call.but(
        key=call.key[:, :, columns],
        value=call.value[:, :, columns],
        visible=take(call.visible, columns),
        bias=take(call.bias, columns),
    )
    trial.agrees_with_oracle(trial.run(again).output, again, f"key {j} given twice doesn't weigh as two keys")
