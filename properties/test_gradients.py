"""Laws of the gradients: those of the formula, whatever the kernel stores or recomputes."""

from __future__ import annotations

import numpy as np

from attnlaws.judge.backward import bias_worst
from attnlaws.judge.precision import Precision
from attnlaws.laws.law import law
from attnlaws.laws.trial import Crashed, Refused, Trial
from attnlaws.problems.wants import ALL, Wants
from attnlaws.targets.call import Array, Call, TargetRaised


@law(
    "gradients.oracle",
    "dq, dk and dv are the derivatives of softmax(scale q k^T + mask) v",
    wants=Wants(options=ALL, gradients=True, regimes=("normal", "peaked", "integer", "flat", "tied")),
    share=1.5,
    basis=("weights.oracle",),
)
def test_oracle(trial: Trial) -> None:
    """dv = w^T do; ds = w (do v^T - sum_c do o); dq = scale ds k; dk = scale ds^T q, within the computed bound.

    The upstream gradient is random, and now and then not contiguous; one operand at a time, two, or all.
    """
    call = trial.call
    upstream = trial.rng.integers(-8, 9, (*call.query.shape[:3], call.value.shape[3])) / 4.0
    if trial.abilities.views and trial.rng.random() < 0.3:
        call = call.but(views=(("upstream", trial.abilities.views[0]),))
    roles: tuple[str, ...] = ("query", "key", "value")
    chance, one = trial.rng.random(), int(trial.rng.integers(0, 3))
    if chance < 0.3:
        roles = (roles[one],)
    elif chance < 0.5:
        roles = (*roles[:one], *roles[one + 1 :])
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
    wants=Wants(
        options=ALL, gradients=True, regimes=("normal", "integer", "flat", "tied"), dtypes=("float32", "float64")
    ),
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


@law(
    "gradients.mask",
    "the gradient by an additive mask is that of the scores",
    wants=Wants(
        gradients=True,
        bias=True,
        masks=("none",),
        options=("softcap", "sinks", "window"),
        regimes=("normal", "integer", "flat"),
    ),
    applies=lambda t: None if t.abilities.mask_gradient else "gives no gradient by its mask",
    share=0.6,
    basis=("gradients.oracle", "weights.oracle"),
)
def test_mask(trial: Trial) -> None:
    """dm_ij = ds_ij = w_ij (do_i.v_j - do_i.o_i), summed over the axes along which the mask was broadcast; alone or with q."""
    call, upstream = trial.call, _upstream(trial)
    trial.suitable(call.bias is not None)
    assert call.bias is not None
    wanted = ("bias",) if trial.rng.random() < 0.5 else ("query", "bias")
    try:
        gradient = trial.run(upstream=upstream, wanted=wanted).gradients.get("bias")
    except Crashed as refusal:
        trial.suitable(not call.causal)  # a mask that needs a gradient beside the causal flag may be refused
        raise refusal
    exact, grads = trial.exact(call), trial.exact_gradients(call, upstream)
    want, axes = grads.bias, _broadcast_axes(call.bias.shape, grads.bias.shape)
    want = want.sum(axes, keepdims=True)
    if gradient is None:
        trial.require(not np.any(want), "no gradient reaches the additive mask")
        return
    factor = 2.0 if call.dtype == "float64" else 1.0
    trial.within(
        gradient.reshape(want.shape),
        want,
        lambda p: (
            factor
            * bias_worst(call.query, call.key, call.value, upstream, exact, trial.scale(call), p, axes).reshape(
                want.shape
            )
        ),
        "the gradient by the additive mask is not that of the scores",
        call=call,
        name="dmask",
    )


def _broadcast_axes(shape: tuple[int, ...], full: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of `full` along which an array of this shape is repeated."""
    padded = (1,) * (len(full) - len(shape)) + tuple(shape)
    return tuple(axis for axis, (own, other) in enumerate(zip(padded, full, strict=True)) if own == 1 and other != 1)


CHECKED = Wants(
    gradients=True, small=True, masks=("none",), bias=False, regimes=("normal", "flat"), dtypes=("float64",), grouped=False,
    options=("softcap",),
)  # fmt: skip


def _direction(trial: Trial, call: Call) -> list[Array]:
    return [np.asarray(trial.rng.integers(-4, 5, x.shape) / 4.0) for x in (call.query, call.key, call.value)]


def _along(call: Call, direction: list[Array], step: float) -> Call:
    moved = [x + step * d for x, d in zip((call.query, call.key, call.value), direction, strict=True)]
    return call.but(query=moved[0], key=moved[1], value=moved[2])


@law(
    "gradients.gradcheck",
    "the gradients are the slope of the target's own output",
    wants=CHECKED,
    share=0.4,
    basis=("gradients.oracle",),
)
def test_gradcheck(trial: Trial) -> None:
    """(o(x + h t) - o(x - h t)).u / 2h = sum_n d_n.t_n in float64, for a random direction t and upstream u.

    What the difference quotient leaves out is estimated from a second step, h / 2; rounding by the bound of the output.
    """
    call, upstream = trial.call, _upstream(trial)
    direction = _direction(trial, call)
    found = trial.run(upstream=upstream).gradients
    slope = sum(float((g * d).sum()) for g, d in zip(found.values(), direction, strict=True) if g is not None)
    quotients = []
    for step in (2.0**-12, 2.0**-13):
        ends = [trial.run(_along(call, direction, sign * step)).output for sign in (1.0, -1.0)]
        quotients.append(float(((ends[0] - ends[1]) * upstream).sum()) / (2.0 * step))
    left_out = 4.0 * abs(quotients[1] - quotients[0])
    exact, grads = trial.exact(), trial.exact_gradients(call, upstream)
    sizes = [np.abs(d) for d in direction]

    def allowed(precision: Precision) -> Array:
        rounding = float((trial.bound(call, precision, exact) * np.abs(upstream)).sum()) * 4.0 * 2.0**13
        own = trial.gradient_bounds(call, upstream, grads, precision, exact)
        mine = sum(float((b * t).sum()) for b, t in zip(own, sizes, strict=True))
        return np.array([left_out + rounding + 2.0 * mine + 1e-12])

    trial.within(
        np.array([slope]), np.array([quotients[1]]), allowed, "the gradients are not the slope of the output", call=call,
        name="slope",
    )  # fmt: skip


@law(
    "gradients.second-order",
    "gradients that can be differentiated again are differentiated rightly",
    wants=CHECKED,
    share=0.2,
    basis=("gradients.oracle",),
)
def test_second_order(trial: Trial) -> None:
    """d/dx (sum_n d_n(x).t_n) for a random t is the oracle's, by central differences of its gradients.

    A wrong second derivative is off by much of its size, a right one by rounding, in float32 inside too: 2^-10 of the largest
    entry tells them apart. A target without second derivatives says nothing.
    """
    call, upstream = trial.call, _upstream(trial)
    direction = _direction(trial, call)
    try:
        found = trial.target.second(call, upstream, direction)
    except TargetRaised as failure:
        raise Refused(str(failure)) from failure
    step = 2.0**-14
    ends = [trial.exact_gradients(_along(call, direction, sign * step), upstream) for sign in (1.0, -1.0)]
    for role, got in zip(("query", "key", "value"), found, strict=True):
        want = (getattr(ends[0], role) - getattr(ends[1], role)) / (2.0 * step)
        slack = np.full_like(want, 2.0**-10 * max(float(np.abs(want).max(initial=0.0)), 2.0**-6))
        trial.within(
            np.zeros_like(want) if got is None else got,
            want,
            lambda _, slack=slack: slack,  # type: ignore[misc]
            f"the second derivative by {role} is wrong",
            call=call,
            name=f"second derivative by {role}",
        )
