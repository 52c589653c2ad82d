"""Laws of layout: what comes back, and that strides don't matter."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.law import law
from attnlaws.laws.trial import Crashed, Trial
from attnlaws.problems.dtypes import round_to
from attnlaws.problems.wants import ALL, Wants
from attnlaws.targets.call import Call, TargetRaised, WrongResult


@law("layout.result", "the result has the shape, dtype, device and type of its inputs, and memory of its own")
def test_result(trial: Trial) -> None:
    """o has shape (B, H, L, Dv) in the target's layout, the dtype and device of q, the plain tensor type, no alias."""
    call, answer = trial.call, trial.run()
    trial.require(answer.shape_as_expected, f"the output has shape {answer.raw_shape}")
    trial.require(answer.dtype == call.dtype, f"{call.dtype} inputs give a {answer.dtype} output")
    plain = trial.target.framework.kind_of(trial.target.framework.tensor(np.zeros((1,)), call.dtype))
    trial.require(answer.kind == plain, f"the output is a {answer.kind}, not a plain {plain}")
    device = getattr(trial.target.framework, "device", "cpu").split(":")[0]
    trial.require(answer.device == device, f"the output is on {answer.device}, the inputs on {device}")
    trial.require(not answer.aliases, f"the output shares memory with {', '.join(answer.aliases)}")


@law(
    "layout.strides",
    "strides of the inputs don't matter",
    basis=("weights.oracle",),
    applies=lambda t: None if t.abilities.views else "takes contiguous arrays only",
    share=1.2,
    wants=Wants(options=ALL),
)
def test_strides(trial: Trial) -> None:
    """The same values in another memory layout give the same output: one kind of view on one operand at a time."""
    call = trial.call
    plain = trial.run().output
    views = trial.abilities.views
    operands = ["query", "key", "value"]
    for operand in operands:
        view = views[int(trial.rng.integers(0, len(views)))]
        strided = call.but(views=((operand, view),))
        try:
            answer = trial.run(strided)
        except Crashed:  # a stride that is refused is not a wrong result
            continue
        trial.agree(
            answer.output, strided, plain, call, f"a {view} view of {operand} gives another output", exact_hoped=True
        )
    _expanded(trial)


def _expanded(trial: Trial) -> None:
    """Stride 0 along heads or batch: as one key head expanded over all heads, or one sample over the batch."""
    call = trial.call
    heads_axis = {"BHSD": 1, "BSHD": 2}.get(trial.conventions.layout)
    if heads_axis is None or call.key.size == 0:
        return
    along_heads = bool(trial.rng.integers(0, 2))
    axis, own = (heads_axis, 1) if along_heads else (0, 0)
    alike = call.but(
        key=np.repeat(call.key.take([0], own), call.key.shape[own], own),
        value=np.repeat(call.value.take([0], own), call.value.shape[own], own),
    )
    view = f"expanded{axis}"
    strided = alike.but(views=(("key", view), ("value", view)))
    try:
        answer = trial.run(strided)
    except Crashed:
        return
    trial.agree(
        answer.output,
        strided,
        trial.run(alike).output,
        alike,
        "keys and values expanded with stride 0 give another output",
    )


SIZES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 61, 63, 64, 65, 127, 128, 129, 257, 521)


@law(
    "layout.sizes",
    "any length and head size is computed, and no batch, no query, no key give nothing",
    wants=Wants(small=True, masks=("none",), bias=False, grouped=False, regimes=("normal", "integer")),
    basis=("weights.oracle", "layout.result"),
    share=0.8,
)
def test_sizes(trial: Trial) -> None:
    """L, S, D, B or H is 1, odd, prime, a power of two or beside one, 521; B, L or S is 0: an empty output, or no key: zeros or NaN.

    A size that is refused (a ValueError, say) shows nothing; one that crashes is a break.
    """
    call, rng, a = trial.call, trial.rng, trial.abilities
    size = SIZES[int(rng.integers(0, len(SIZES)))]
    which = ("keys", "queries", "width", "samples", "heads")[int(rng.integers(0, 5))]
    if which in ("samples", "heads"):
        _many(trial, which, min(size, 129))
    elif which == "width" and not a.head_dims:
        wide = [np.resize(x, (*x.shape[:3], size)) for x in (call.query, call.key, call.value)]
        _as_the_oracle(trial, call.but(query=wide[0], key=wide[1], value=wide[2]), f"a head size of {size}")
    elif a.rectangular and a.rectangular_causal:
        longer = _of_length(call, which if which != "width" else "keys", size)
        fits = trial.conventions.alignment != "bottom-right" or longer.query.shape[2] <= longer.key.shape[2]
        if fits or not trial.triangle_applies():
            _as_the_oracle(trial, longer, f"a length of {size}")
    _empty(trial)


LONG = (257, 300, 521, 1025, 1100)


@law(
    "layout.long",
    "long rows and many queries are computed like short ones",
    wants=Wants(small=True, masks=("none",), bias=False, grouped=False, regimes=("normal", "flat")),
    basis=("weights.oracle", "layout.sizes", "scores.default-scale"),
    share=0.15,
)
def test_long(trial: Trial) -> None:
    """One query, or a few, against n keys in every dtype, all weights nearly equal: a running sum in 16 bits stalls at 256.

    Then n queries against few keys, or n against n: past a chunk of queries, past a tile of tiles. n = 257 to 1100.
    """
    call, rng, a = trial.call, trial.rng, trial.abilities
    size = LONG[int(rng.integers(0, len(LONG)))]
    one = call.but(query=call.query[:1, :1], key=call.key[:1, :1], value=call.value[:1, :1], slopes=None, sinks=None)
    square = not a.rectangular or (trial.triangle_applies() and not a.rectangular_causal)
    for dtype in () if square else a.dtypes:
        rows = one.query.shape[2] if rng.random() < 0.5 else 1
        row = _in(one.but(query=one.query[:, :, :rows] / 64.0, value=np.abs(one.value)), dtype)
        _as_the_oracle(trial, _of_length(row, "keys", size, turned=False), f"{rows} queries of {size} keys")
    long = _of_length(_in(one, a.dtypes[int(rng.integers(0, len(a.dtypes)))]), "queries", size)
    rows_only = not square and not (trial.triangle_applies() and trial.conventions.alignment == "bottom-right")
    if not rows_only or rng.random() < 0.5:
        long = _of_length(long, "keys", size)
    _as_the_oracle(trial, long, f"{size} queries of {long.key.shape[2]} keys")


def _in(call: Call, dtype: str) -> Call:
    """The call in another dtype."""
    return call.but(
        query=round_to(call.query, dtype), key=round_to(call.key, dtype), value=round_to(call.value, dtype), dtype=dtype
    )


def _many(trial: Trial, which: str, size: int) -> None:
    """Many samples, or many heads, of few short rows."""
    call, a = trial.call, trial.abilities
    if not (a.batch if which == "samples" else a.heads):
        return
    axis = 0 if which == "samples" else 1
    turn = (1.0 - 2.0 * (np.arange(size) % 2)).reshape((-1, 1, 1, 1) if axis == 0 else (1, -1, 1, 1))
    many = [np.take(x, np.arange(size) % x.shape[axis], axis) * turn for x in (call.query, call.key, call.value)]
    _as_the_oracle(trial, call.but(query=many[0], key=many[1], value=many[2]), f"{size} {which}")


def _of_length(call: Call, which: str, size: int, turned: bool = True) -> Call:
    """The call with as many keys or queries, repeated, every second one with the other sign where `turned`."""
    turn = 1.0 - 2.0 * (np.arange(size) % 2)[:, None] * turned
    rows = np.arange(size)
    if which == "queries":
        return call.but(query=call.query[:, :, rows % call.query.shape[2]] * turn)
    at = rows % call.key.shape[2]
    return call.but(key=call.key[:, :, at] * turn, value=call.value[:, :, at] * turn)


#: what a size is refused with in clear words; a head size may be refused by a check of the framework too
REFUSALS = ("ValueError", "TypeError", "AssertionError")


def _as_the_oracle(trial: Trial, call: Call, what: str) -> None:
    """The output is the oracle's; a size that is refused is no wrong result, one that crashes is."""
    try:
        output = trial.run(call).output
    except Crashed as failure:
        if failure.line.startswith(REFUSALS) or what.startswith("a head size"):
            return
        raise
    trial.agrees_with_oracle(output, call, f"{what} is not computed as the formula says")


def _empty(trial: Trial) -> None:
    """No sample, no query or no key at all: the right shape, and zeros or NaN where no key is there to see."""
    call = trial.call
    nothing = slice(0, 0)
    cases = [("keys", call.but(key=call.key[:, :, nothing], value=call.value[:, :, nothing]))]
    cases.append(("queries", call.but(query=call.query[:, :, nothing])))
    if trial.abilities.batch and trial.conventions.layout != "packed":
        cases.append(("samples", call.but(query=call.query[:0], key=call.key[:0], value=call.value[:0])))
    for what, empty in cases:
        try:
            answer = trial.target(empty)
        except TargetRaised:
            trial.evidence.add(1, 0.0)
            continue
        except WrongResult as failure:
            raise Crashed(f"without {what}: {failure}", empty) from failure
        trial.require(answer.shape_as_expected, f"without {what} the output has shape {answer.raw_shape}", empty)
        blank = bool((np.isnan(answer.output) | (answer.output == 0)).all())
        trial.require(blank, "without any key the output is neither zeros nor NaN", empty)
