"""The reference answers for itself: two oracles written apart, closed forms, derivatives, and PyTorch.

Comparisons of float64 results allow 64 eps M. A score is a sum of at most D + 4 <= 9 rounded terms no larger
than M = 1 + scale |q|.|k| + |cap| + |slope| max|j - i| + |bias|, so off by at most 9 eps M; exp turns it into
a relative error of the weights, twice (numerator and normaliser), and sums of S <= 7 terms add 2 S. That is
32 eps M for each of the two sides, times the largest value for an output.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import pytest
import torch
from attnlaws.reference import definition, oracle
from attnlaws.reference.attention import attention, chunked_attention
from attnlaws.reference.heads import CausalAttention, MultiHeadAttention, StackedHeads, split_weights
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

EPS = float(np.finfo(np.float64).eps)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    query: Floats
    key: Floats
    value: Floats
    options: dict[str, Any]

    @property
    def magnitude(self) -> float:
        """M, what the scores are made of."""
        D = self.query.shape[-1]
        scale = self.options.get("scale") or 1 / np.sqrt(D)
        longest = float(np.abs(self.query).sum(-1).max(initial=0) * np.abs(self.key).max(initial=0))
        bias = np.asarray(self.options.get("bias", 0.0))
        reach = self.query.shape[2] + self.key.shape[2]
        slopes = np.abs(np.asarray(self.options.get("alibi_slopes", 0.0))).max(initial=0)
        sinks = np.abs(np.asarray(self.options.get("sinks", 0.0))).max(initial=0)
        capped = self.options.get("softcap") or 0.0
        own = float(np.abs(bias[np.isfinite(bias)]).max(initial=0))
        return float(1 + abs(scale) * longest + capped + slopes * 2 * reach + own + sinks)

    @property
    def bound(self) -> float:
        return 64 * EPS * self.magnitude

    @property
    def largest(self) -> float:
        kept: float = 1 / (1 - self.options.get("dropout_p", 0.0))
        return float(np.abs(self.value).max(initial=0)) * kept


@st.composite
def problems(draw: st.DrawFn, smallest: int = 0, torch_only: bool = False, sink: bool = True) -> Problem:
    """Structure is drawn, values come from a seed. torch_only leaves out what PyTorch does not take."""
    B, Hkv, G = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    H = Hkv * G
    L, S = draw(st.integers(smallest, 5)), draw(st.integers(smallest, 7))
    D, Dv = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.sampled_from([1.0, 8.0, 0.0]))  # normal, peaked, flat
    query = size * rng.normal(size=(B, H, L, D))
    key = rng.normal(size=(B, Hkv, S, D))
    value = rng.normal(size=(B, Hkv, S, Dv))

    options: dict[str, Any] = {}
    causal: list[str] = ["top-left"] if torch_only else ["top-left", "bottom-right"]
    if draw(st.booleans()):
        options["causal"] = draw(st.sampled_from(causal))
    if draw(st.booleans()):
        end = st.none() | st.integers(0, 4)
        options["window"] = (draw(end), draw(end))
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.25, 1.0, -0.5]))
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([0.0, 0.5, 3.0]))
    mask = draw(st.sampled_from(["none", "visible", "bias", "holes"] + ([] if torch_only else ["both"])))
    shape = draw(st.sampled_from([(B, H, L, S), (1, 1, L, S), (L, S), (B, 1, 1, S), (H, L, 1)]))
    if mask in ("visible", "both"):
        options["visible"] = rng.random(shape) < 0.6
    if mask in ("bias", "holes", "both"):
        bias = rng.normal(size=shape)
        options["bias"] = np.where(rng.random(shape) < 0.3, -np.inf, bias) if mask != "bias" else bias
    if not torch_only:
        if draw(st.booleans()):
            options["alibi_slopes"] = rng.normal(size=H)
        if sink and draw(st.booleans()):
            options["sinks"] = rng.normal(size=H)
        if draw(st.booleans()):
            options["dropout_keep"] = rng.random((B, H, L, S)) < 0.7
            options["dropout_p"] = draw(st.sampled_from([0.0, 0.25, 0.5]))
        options["empty_row"] = draw(st.sampled_from(["zeros", "nan", "uniform", "unmasked"]))
    return Problem(query, key, value, options)


def close(got: Any, expected: Any, bound: float) -> None:
    """Same shape, same NaN, same infinities, and elsewhere within the bound."""
    a, b = np.asarray(got, dtype=np.float64), np.asarray(expected, dtype=np.float64)
    assert a.shape == b.shape
    assert np.array_equal(np.isnan(a), np.isnan(b)), (a, b)
    assert np.array_equal(np.isinf(a), np.isinf(b)), (a, b)
    infinite = np.isinf(a)
    assert np.array_equal(a[infinite], b[infinite]), (a, b)
    finite = np.isfinite(a)
    worst = np.abs(a[finite] - b[finite]).max(initial=0)
    assert worst <= bound, f"off by {worst}, allowed {bound}"


def agree(one: oracle.Attended, other: oracle.Attended, bound: float, largest: float) -> None:
    assert np.array_equal(one.visible, other.visible)
    close(one.output, other.output, bound * largest)
    for name in ("weights", "scores", "scaled", "lse"):
        close(getattr(one, name), getattr(other, name), bound)


def oracle_of(problem: Problem) -> oracle.Attended:
    return oracle.attention(problem.query, problem.key, problem.value, **problem.options)


# -------------------- two oracles


@settings(deadline=None, max_examples=400)
@given(problems())
def test_the_oracle_agrees_with_the_definition(problem: Problem) -> None:
    expected = definition.attention(problem.query, problem.key, problem.value, **problem.options)
    agree(oracle_of(problem), expected, problem.bound, problem.largest)


@settings(deadline=None, max_examples=200)
@given(problems(smallest=1), st.data())
def test_they_agree_on_poison(problem: Problem, data: st.DataObject) -> None:
    poison = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    name = data.draw(st.sampled_from(["key", "value"]))
    poisoned = getattr(problem, name)
    poisoned[0, 0, data.draw(st.integers(0, poisoned.shape[2] - 1)), 0] = poison
    ours = oracle_of(problem)
    theirs = definition.attention(problem.query, problem.key, problem.value, **problem.options)
    poisoned[~np.isfinite(poisoned)] = 0.0  # for the bound only
    clean = Problem(problem.query, problem.key, problem.value, problem.options)
    close(ours.output, theirs.output, clean.bound * clean.largest)
    close(ours.weights, theirs.weights, clean.bound)
    close(ours.lse, theirs.lse, clean.bound)


def test_every_field_is_float64_or_bool_and_shaped() -> None:
    rng = np.random.default_rng(0)
    seen = oracle.attention(
        rng.normal(size=(2, 6, 3, 4)).astype(np.float32),
        rng.normal(size=(2, 2, 5, 4)),
        rng.normal(size=(2, 2, 5, 7)),
    )
    shapes = {field.name: (2, 6, 3, 5) for field in fields(seen)} | {"output": (2, 6, 3, 7), "lse": (2, 6, 3)}
    for name, shape in shapes.items():
        assert getattr(seen, name).shape == shape
        assert getattr(seen, name).dtype == (np.bool_ if name == "visible" else np.float64)


# -------------------- closed forms


@settings(deadline=None)
@given(problems(smallest=1, torch_only=True), st.booleans())
def test_a_zero_query_gives_the_mean_of_the_visible_values(problem: Problem, causal: bool) -> None:
    rng = np.random.default_rng(1)
    B, H, L, _ = problem.query.shape
    Hkv, S = problem.key.shape[1:3]
    visible = rng.random((B, H, L, S)) < 0.6
    seen = oracle.attention(np.zeros_like(problem.query), problem.key, problem.value, visible=visible)
    for b, h, i in np.ndindex(B, H, L):
        chosen = problem.value[b, h // (H // Hkv)][visible[b, h, i]]
        expected = chosen.mean(axis=0) if len(chosen) else np.zeros(problem.value.shape[3])
        close(seen.output[b, h, i], expected, 64 * EPS * problem.largest)
    assert np.array_equal(seen.visible, visible)


def test_a_large_score_picks_one_value() -> None:
    """Scores 0 but for 800: exp(-800) is below the smallest float64, so the output is exactly that value."""
    value = np.random.default_rng(2).normal(size=(1, 1, 5, 3))
    for chosen in range(5):
        seen = oracle.attention(
            np.full((1, 1, 1, 5), 800.0), np.eye(5)[None, None] * (np.arange(5) == chosen), value, scale=1.0
        )
        assert np.array_equal(seen.output[0, 0, 0], value[0, 0, chosen])
        assert np.array_equal(seen.weights[0, 0, 0], np.arange(5) == chosen)


@settings(deadline=None)
@given(problems(smallest=1, torch_only=True), st.integers(2, 5))
def test_a_key_given_m_times_is_a_bias_of_log_m(problem: Problem, m: int) -> None:
    rest = {name: x for name, x in problem.options.items() if name in ("scale", "softcap")}
    times = np.ones(problem.key.shape[2], dtype=int)
    times[0] = m
    many = oracle.attention(
        problem.query, problem.key.repeat(times, axis=2), problem.value.repeat(times, axis=2), **rest
    )
    once = oracle.attention(problem.query, problem.key, problem.value, bias=np.log(times), **rest)
    bound = 2 * problem.bound  # up to S + 4 keys, and log m
    close(many.output, once.output, bound * problem.largest)
    close(many.lse, once.lse, bound)


@settings(deadline=None)
@given(problems(smallest=1, torch_only=True), st.floats(-30, 30))
def test_a_shift_of_a_row_of_scores_changes_only_its_lse(problem: Problem, shift: float) -> None:
    before = oracle_of(problem)
    bias = np.asarray(problem.options.get("bias", 0.0))
    after = oracle_of(Problem(problem.query, problem.key, problem.value, problem.options | {"bias": bias + shift}))
    bound = 64 * EPS * (problem.magnitude + abs(shift))
    close(after.output, before.output, bound * problem.largest)
    close(after.lse, before.lse + shift, bound)


@settings(deadline=None)
@given(problems(sink=False), st.data())
def test_the_merge_of_parts_is_the_whole(problem: Problem, data: st.DataObject) -> None:
    B, H, L, S = *problem.query.shape[:3], problem.key.shape[2]
    options = problem.options | {"empty_row": "zeros"}
    whole = oracle_of(Problem(problem.query, problem.key, problem.value, options))
    part_of = np.asarray(data.draw(st.lists(st.integers(0, 2), min_size=S, max_size=S)), dtype=int)
    shown = options.pop("visible", np.ones((B, H, L, S), dtype=bool))
    parts = [
        oracle.attention(problem.query, problem.key, problem.value, visible=shown & (part_of == n), **options)
        for n in range(3)
    ]
    spoiled = [np.where(np.isneginf(part.lse)[..., None], np.nan, part.output) for part in parts]
    output, lse = oracle.merge(spoiled, [part.lse for part in parts])
    close(output, whole.output, problem.bound * problem.largest)
    close(lse, whole.lse, problem.bound)


def test_a_sink_is_a_key_without_a_value() -> None:
    rng = np.random.default_rng(3)
    query, key, value = (
        rng.normal(size=(1, 2, 3, 4)),
        rng.normal(size=(1, 2, 5, 4)),
        rng.normal(size=(1, 2, 5, 2)),
    )
    sinks = np.array([0.3, -1.2])
    with_sink = oracle.attention(query, key, value, sinks=sinks)
    more = [np.concatenate([x, np.zeros_like(x[:, :, :1])], axis=2) for x in (key, value)]
    bias = np.zeros((1, 2, 3, 6))
    bias[..., 5] = sinks[:, None]
    as_key = oracle.attention(query, *more, bias=bias)
    bound = Problem(query, key, value, {"sinks": sinks}).bound
    close(with_sink.output, as_key.output, bound * float(np.abs(value).max()))
    close(with_sink.lse, as_key.lse, bound)
    assert (with_sink.weights.sum(-1) < 1 - 0.01).all()


# -------------------- masks, by hand on 2 x 4 and 4 x 2


@pytest.mark.parametrize(
    ("L", "S", "options", "expected"),
    [
        (2, 4, {"causal": "top-left"}, ["1000", "1100"]),
        (2, 4, {"causal": "bottom-right"}, ["1110", "1111"]),
        (4, 2, {"causal": "top-left"}, ["10", "11", "11", "11"]),
        (4, 2, {"causal": "bottom-right"}, ["00", "00", "10", "11"]),
        (4, 4, {"window": (1, 0)}, ["1000", "1100", "0110", "0011"]),
        (4, 4, {"window": (0, 1)}, ["1100", "0110", "0011", "0001"]),
        (4, 4, {"window": (None, 0)}, ["1000", "1100", "1110", "1111"]),
        (4, 4, {"window": (1, None)}, ["1111", "1111", "0111", "0011"]),
        (2, 4, {"window": (1, 1)}, ["1100", "1110"]),
        (2, 4, {"window": (1, 1), "causal": "bottom-right"}, ["0110", "0011"]),
        (2, 3, {"bias": np.array([0.0, -np.inf, 1.0])}, ["101", "101"]),
    ],
)
def test_visible_pairs(L: int, S: int, options: dict[str, Any], expected: list[str]) -> None:
    table = np.array([[c == "1" for c in row] for row in expected])
    for attend in (oracle.attention, definition.attention):
        seen = attend(np.ones((1, 1, L, 1)), np.ones((1, 1, S, 1)), np.ones((1, 1, S, 1)), **options)
        assert np.array_equal(seen.visible[0, 0], table)
        assert np.array_equal(seen.weights[0, 0] > 0, table)
        assert np.array_equal(np.isneginf(seen.scores[0, 0]), ~table)


def test_alibi_lowers_keys_further_back() -> None:
    zeros = np.zeros((1, 1, 2, 1)), np.zeros((1, 1, 4, 1)), np.zeros((1, 1, 4, 1))
    for attend in (oracle.attention, definition.attention):
        top = attend(*zeros, alibi_slopes=[0.5])
        assert np.array_equal(top.scores[0, 0], [[0.0, 0.5, 1.0, 1.5], [-0.5, 0.0, 0.5, 1.0]])
        bottom = attend(*zeros, alibi_slopes=[0.5], causal="bottom-right")
        assert np.array_equal(bottom.scores[0, 0], [[-1.0, -0.5, 0.0, -np.inf], [-1.5, -1.0, -0.5, 0.0]])


# -------------------- empty rows


@pytest.mark.parametrize("attend", [oracle.attention, definition.attention])
@pytest.mark.parametrize("how", ["visible", "bias", "causal"])
def test_what_an_empty_row_returns(attend: Any, how: str) -> None:
    rng = np.random.default_rng(4)
    query, key, value = (
        rng.normal(size=(1, 1, 3, 2)),
        rng.normal(size=(1, 1, 2, 2)),
        rng.normal(size=(1, 1, 2, 3)),
    )
    row = np.array([[False], [True], [True]])
    masks: dict[str, dict[str, Any]] = {
        "visible": {"visible": row},
        "bias": {"bias": np.where(row, 0.0, -np.inf)},
        "causal": {"causal": "bottom-right"},
    }
    mask = masks[how]
    free = oracle.attention(query, key, value)
    bound = Problem(query, key, value, {}).bound
    expected = {
        "zeros": np.zeros(3),
        "nan": np.full(3, np.nan),
        "uniform": value[0, 0].mean(axis=0),
        "unmasked": free.output[0, 0, 0],
    }
    for empty_row, output in expected.items():
        seen = attend(query, key, value, empty_row=empty_row, **mask)
        close(seen.output[0, 0, 0], output, bound * float(np.abs(value).max()))
        assert np.isfinite(seen.output[0, 0, 1:]).all()
        assert np.isneginf(seen.lse[0, 0, 0])
        assert not seen.visible[0, 0, 0].any()
        assert np.isneginf(seen.scores[0, 0, 0]).all()
        assert not np.isnan(seen.lse).any()


@pytest.mark.parametrize("empty_row", ["zeros", "nan", "uniform", "unmasked"])
@pytest.mark.parametrize("attend", [oracle.attention, definition.attention])
def test_without_keys_the_output_is_zero(attend: Any, empty_row: str) -> None:
    seen = attend(np.ones((1, 2, 3, 4)), np.ones((1, 1, 0, 4)), np.ones((1, 1, 0, 5)), empty_row=empty_row)
    assert np.array_equal(seen.output, np.zeros((1, 2, 3, 5)))
    assert np.isneginf(seen.lse).all()


def test_a_sink_leaves_an_empty_row_at_zero() -> None:
    ones = np.ones((1, 1, 2, 1))
    for attend in (oracle.attention, definition.attention):
        seen = attend(ones, ones, ones, sinks=[0.5], visible=np.array([[False], [True]]), empty_row="uniform")
        assert seen.output[0, 0, 0, 0] == 0
        assert abs(seen.lse[0, 0, 0] - 0.5) <= 2 * EPS


# -------------------- poison


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize(
    ("how", "where"),
    [(how, where) for how in ("visible", "bias", "causal", "window") for where in ("key", "value", "both")]
    + [("dropout", "value")],
)
def test_poison_at_masked_pairs_changes_nothing(poison: float, where: str, how: str) -> None:
    rng = np.random.default_rng(5)
    query, key, value = (
        rng.normal(size=(1, 2, 3, 2)),
        rng.normal(size=(1, 1, 4, 2)),
        rng.normal(size=(1, 1, 4, 3)),
    )
    shown = np.array([True, True, True, False])
    masks: dict[str, dict[str, Any]] = {
        "visible": {"visible": shown},
        "bias": {"bias": np.where(shown, 0.0, -np.inf)},
        "causal": {"causal": "top-left"},
        "window": {"window": (None, 0)},
        "dropout": {"dropout_keep": shown, "dropout_p": 0.5},
    }
    options = masks[how]
    upstream = rng.normal(size=(1, 2, 3, 3))
    before = oracle.attention(query, key, value, **options)
    slopes = oracle.gradients(query, key, value, upstream, **options)
    for name, x in (("key", key), ("value", value)):
        if where in (name, "both"):
            x[:, :, 3] = poison
    after = oracle.attention(query, key, value, **options)
    assert np.isfinite(before.output).all()
    # BLAS may choose another order of summation for another content of memory: never by more than the bound
    clean = Problem(query, key[:, :, :3], value[:, :, :3], options)
    close(after.output, before.output, clean.bound * clean.largest)
    close(after.weights, before.weights, clean.bound)
    close(after.lse, before.lse, clean.bound)
    for field in fields(slopes):
        got = getattr(oracle.gradients(query, key, value, upstream, **options), field.name)
        close(got, getattr(slopes, field.name), clean.bound * gradient_size(clean, upstream))


def test_poison_at_visible_pairs_is_not_hidden() -> None:
    rng = np.random.default_rng(6)
    query, key, value = (
        rng.normal(size=(1, 1, 3, 2)),
        rng.normal(size=(1, 1, 3, 2)),
        rng.normal(size=(1, 1, 3, 2)),
    )
    value[0, 0, 1, 0] = np.nan
    seen = oracle.attention(query, key, value, causal="top-left")
    assert np.array_equal(np.isnan(seen.output[0, 0]), [[False, False], [True, False], [True, False]])
    value[0, 0, 1, 0] = 0.0
    key[0, 0, 1, 0] = np.nan
    seen = oracle.attention(query, key, value, causal="top-left")
    assert np.array_equal(np.isnan(seen.output[0, 0]), [[False, False], [True, True], [True, True]])


# -------------------- gradients


def gradient_size(problem: Problem, upstream: Floats) -> float:
    """No gradient is larger: sums over rows of |upstream| |v|, times 2 and |q| or |k|, or |upstream|."""
    scale = abs(problem.options.get("scale") or 1.0)
    factor: float = scale * float(max(np.abs(problem.query).max(initial=1), np.abs(problem.key).max(initial=1)))
    kept: float = 1 / (1 - problem.options.get("dropout_p", 0.0))
    return float(2 * np.abs(upstream).sum() * max(problem.largest, 1.0) * max(factor, 1.0) * kept)


@settings(deadline=None, max_examples=100)
@given(problems(smallest=1))
def test_gradients_agree_with_central_differences(problem: Problem) -> None:
    """The slope along a random direction, at two steps: they differ by 3/4 of the larger truncation error."""
    options = problem.options
    if options["empty_row"] == "nan":
        options["empty_row"] = "zeros"
    rng = np.random.default_rng(7)
    inputs: dict[str, Any] = {"query": problem.query, "key": problem.key, "value": problem.value}
    shape = (*problem.query.shape[:3], problem.key.shape[2])
    inputs["bias"] = np.broadcast_to(options.pop("bias", 0.0), shape).copy()
    upstream = rng.normal(size=(*problem.query.shape[:3], problem.value.shape[3]))
    slopes = oracle.gradients(**inputs, upstream=upstream, empty_row_gradient="derivative", **options)
    for name in inputs:
        if name == "bias" and options["empty_row"] == "unmasked":
            continue  # dbias is 0 where masked by decree
        direction = rng.normal(size=inputs[name].shape)

        def at(step: float, name: str = name, direction: Floats = direction) -> float:
            moved = inputs | {name: inputs[name] + step * direction}
            return float((upstream * oracle.attention(**moved, **options).output).sum())

        step = EPS ** (1 / 3) / problem.magnitude
        coarse = (at(step) - at(-step)) / (2 * step)
        fine = (at(step / 2) - at(-step / 2)) / step
        rounding = problem.bound * float(np.abs(upstream).sum()) * problem.largest / step
        got = float((getattr(slopes, name) * direction).sum())
        assert abs(got - fine) <= abs(coarse - fine) + rounding


@settings(deadline=None, max_examples=200)
@given(problems(torch_only=True))
def test_gradients_agree_with_autograd(problem: Problem) -> None:
    tensors, kwargs = as_torch(problem, torch.float64)
    upstream = np.random.default_rng(8).normal(size=(*problem.query.shape[:3], problem.value.shape[3]))
    expected = oracle.gradients(problem.query, problem.key, problem.value, upstream, **problem.options)
    bias = kwargs["attn_mask"]
    learns = bias is not None and bias.dtype != torch.bool
    if learns:
        bias.requires_grad_()
    for attend in (attention, chunked):
        inputs = [x.clone().requires_grad_() for x in tensors]
        wanted = [*inputs, bias] if learns else inputs
        got = torch.autograd.grad(attend(*inputs, **kwargs), wanted, torch.from_numpy(upstream))
        allowed = problem.bound * gradient_size(problem, upstream)
        for name, x in zip(("query", "key", "value"), got, strict=False):
            close(x, getattr(expected, name), allowed)
        if learns:
            full = np.broadcast_shapes(bias.shape, expected.bias.shape)
            lead = expected.bias.reshape(full)
            axes = tuple(a for a in range(4) if a < 4 - bias.ndim or bias.shape[a - 4] == 1)
            close(got[3].reshape(-1), lead.sum(axis=axes, keepdims=True).reshape(-1), allowed)


def test_gradients_of_an_empty_row() -> None:
    """Zero unless asked for; then that of what the row returned."""
    rng = np.random.default_rng(9)
    query, key, value = (
        rng.normal(size=(1, 1, 1, 2)),
        rng.normal(size=(1, 1, 3, 2)),
        rng.normal(size=(1, 1, 3, 2)),
    )
    upstream = rng.normal(size=(1, 1, 1, 2))
    for empty_row in ("zeros", "nan", "uniform", "unmasked"):
        slopes = oracle.gradients(query, key, value, upstream, visible=False, empty_row=empty_row)
        for field in fields(slopes):
            assert np.array_equal(getattr(slopes, field.name), np.zeros_like(getattr(slopes, field.name)))
    slopes = oracle.gradients(
        query, key, value, upstream, visible=False, empty_row="uniform", empty_row_gradient="derivative"
    )
    close(slopes.value[0, 0], np.tile(upstream[0, 0] / 3, (3, 1)), 64 * EPS * float(np.abs(upstream).max()))
    assert not slopes.query.any()
    assert not slopes.key.any()


# -------------------- PyTorch


def chunked(*inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    """In chunks of 3 keys, so that 7 keys make a full chunk, another, and one of a single key."""
    return chunked_attention(*inputs, chunk=3, **options)


def as_torch(problem: Problem, dtype: torch.dtype) -> tuple[list[torch.Tensor], dict[str, Any]]:
    options = dict(problem.options)
    mask = options.pop("visible", None)
    bias = options.pop("bias", None)
    attn_mask = None
    if mask is not None:
        attn_mask = torch.from_numpy(mask)
    elif bias is not None:
        attn_mask = torch.from_numpy(bias).to(dtype)
    causal = options.pop("causal", None) is not None
    softcap = options.pop("softcap", 0.0) or None  # 0 is none for the oracle, and refused by ours
    kwargs = {"attn_mask": attn_mask, "is_causal": causal, "enable_gqa": True, "softcap": softcap, **options}
    return [torch.from_numpy(x).to(dtype) for x in (problem.query, problem.key, problem.value)], kwargs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@settings(deadline=None, max_examples=150)
@given(problem=problems(torch_only=True))
def test_torch_agrees_with_the_oracle(dtype: torch.dtype, problem: Problem) -> None:
    """The oracle sees the rounded inputs. 64 eps M for what is inside, at the precision used inside; then one
    rounding of each weight and one of the output, at the dtype's eps / 2 of a mean of values, or among
    subnormal numbers at their spacing for each key."""
    tensors, kwargs = as_torch(problem, dtype)
    mask = kwargs["attn_mask"]
    seen = {name: x for name, x in problem.options.items() if name != "bias"}
    if mask is not None and mask.dtype != torch.bool:
        seen["bias"] = mask.double().numpy()
    q, k, v = (x.double().numpy() for x in tensors)
    rounded = Problem(q, k, v, seen)
    inside = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    outside = torch.finfo(dtype)
    S = problem.key.shape[2]
    bound = 64 * inside * rounded.magnitude + outside.eps + (S + 1) * outside.smallest_normal * outside.eps
    expected = oracle_of(rounded).output
    for attend in (attention, chunked):
        got = attend(*tensors, **kwargs)
        assert got.dtype == dtype
        close(got.double(), expected, bound * rounded.largest)


@settings(deadline=None, max_examples=100)
@given(problems(smallest=1, torch_only=True))
def test_torch_agrees_with_torch(problem: Problem) -> None:
    tensors, kwargs = as_torch(problem, torch.float64)
    for name in ("window", "softcap"):
        kwargs.pop(name, None)
        problem.options.pop(name, None)
    if problem.options.get("scale", 1.0) < 0:  # their CPU kernel scales the causal -inf to +inf: NaN
        kwargs["scale"] = problem.options["scale"] = -problem.options["scale"]
    if kwargs["attn_mask"] is not None:  # theirs refuses a mask together with is_causal
        kwargs["is_causal"] = False
    q, k, v = tensors
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, **kwargs)
    for attend in (attention, chunked):
        close(attend(*tensors, **kwargs), expected, problem.bound * problem.largest)


@pytest.mark.parametrize("attend", [attention, chunked])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_an_empty_row_has_zero_output_and_gradients(attend: Any, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 1, 4, 3, generator=generator).to(dtype).requires_grad_() for _ in range(3)]
    bias = torch.zeros(4, 4, dtype=dtype)
    bias[1] = -torch.inf
    bias[2, 0] = -torch.inf
    bias.requires_grad_()
    for mask in (bias, bias.detach() == 0, torch.zeros(4, 4, dtype=torch.bool)):
        output = attend(*tensors, attn_mask=mask)
        assert torch.equal(output[0, 0, 1], torch.zeros(3, dtype=dtype))
        wanted = [*tensors, bias] if mask is bias else tensors
        for slope in torch.autograd.grad(output.sum() + (output**2).sum(), wanted):
            assert torch.isfinite(slope).all()
            if mask.dtype == torch.bool and not mask.any():
                assert not slope.any()
        if mask is bias:
            assert not torch.autograd.grad(attend(*tensors, attn_mask=bias).square().sum(), [bias])[0][1].any()


@pytest.mark.parametrize("attend", [attention, chunked])
@pytest.mark.parametrize(("L", "S"), [(0, 3), (3, 0), (0, 0)])
def test_no_queries_or_no_keys(attend: Any, L: int, S: int) -> None:
    q, k, v = (torch.ones(2, 2, n, 4, requires_grad=True) for n in (L, S, S))
    output = attend(q, k, v, is_causal=True)
    assert output.shape == (2, 2, L, 4)
    assert not output.any()
    for slope, x in zip(torch.autograd.grad(output.sum(), [q, k, v]), (q, k, v), strict=True):
        assert slope.shape == x.shape
        assert not slope.any()


@pytest.mark.parametrize("attend", [attention, chunked])
def test_nothing_is_drawn_changed_or_shared(attend: Any) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(1, 1, 1, 1) for _ in range(3)]
    before = [x.clone() for x in tensors]
    state = torch.get_rng_state()
    output = attend(*tensors)
    assert torch.equal(state, torch.get_rng_state())
    output.fill_(99.0)
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True))


@pytest.mark.parametrize("attend", [attention, chunked])
def test_dropout_keeps_the_mean_and_drops_weights(attend: Any) -> None:
    """With V = identity the output is the dropped weights: 0, or exactly p / (1 - 0.5)."""
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 50, 4, dtype=torch.float64), torch.randn(1, 1, 40, 4, dtype=torch.float64)
    eye = torch.eye(40, dtype=torch.float64)[None, None]
    weights, dropped = attend(q, k, eye), attend(q, k, eye, dropout_p=0.5)
    kept = dropped != 0
    assert abs(float(kept.double().mean()) - 0.5) < 6 * 0.5 / 2000**0.5  # 6 standard deviations of 2000 coins
    close(dropped[kept], 2 * weights[kept], 2 * 64 * EPS * 40)
    assert not attend(q, k, eye, dropout_p=1.0).any()


@pytest.mark.parametrize("attend", [attention, chunked])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": torch.ones(2, 3, 4)}, "4 axes"),
        ({"query": torch.ones(1, 2, 3, 5)}, "head sizes"),
        ({"query": torch.ones(2, 2, 3, 4)}, "batches"),
        ({"query": torch.ones(1, 4, 3, 4)}, "enable_gqa"),
        ({"query": torch.ones(1, 3, 3, 4), "enable_gqa": True}, "shared out"),
        ({"query": torch.ones(1, 5, 3, 4)}, r"transpose\(1, 2\) if yours are \(B, L, H, D\)"),
        ({"query": torch.ones(1, 3, 3, 4), "enable_gqa": True}, r"transpose\(1, 2\)"),
        ({"softcap": 0.0}, "softcap must be above 0"),
        ({"softcap": -1.0}, "softcap must be above 0"),
        ({"key": torch.ones(1, 2, 4, 4)}, "agree on heads and length"),
        ({"key": torch.ones(1, 2, 5, 4, dtype=torch.float64)}, "float64"),
        ({"query": torch.ones(1, 2, 3, 4, dtype=torch.int64)}, "floating"),
        ({"attn_mask": torch.ones(3, 4)}, "broadcast"),
        ({"attn_mask": torch.ones(3, 5, dtype=torch.int64)}, "bool"),
        ({"window": 3}, "pair"),
        ({"window": (-1, 0)}, "included"),
        ({"window": (1.5, 0)}, "included"),
        ({"window": (True, 0)}, "included"),
        ({"dropout_p": 1.5}, "dropout_p"),
    ],
)
def test_what_does_not_fit_is_refused(attend: Any, change: dict[str, Any], words: str) -> None:
    fitting = {
        "query": torch.ones(1, 2, 3, 4),
        "key": torch.ones(1, 2, 5, 4),
        "value": torch.ones(1, 2, 5, 4),
    }
    attend(*fitting.values())
    given_ = fitting | change
    with pytest.raises(ValueError, match=words):
        attend(given_.pop("query"), given_.pop("key"), given_.pop("value"), **given_)


@pytest.mark.parametrize("chunk", [0, -1, 1.5, True])
def test_a_chunk_is_a_count(chunk: Any) -> None:
    with pytest.raises(ValueError, match="chunk"):
        chunked_attention(*[torch.ones(1, 1, 2, 2)] * 3, chunk=chunk)


def test_chunks_of_every_size_agree() -> None:
    """Scores grow along the keys, so that the running maximum moves at every chunk; first chunks masked."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 9, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    k = k + 50 * torch.arange(9, dtype=torch.float64)[:, None] * q.mean()
    mask = torch.ones(9, 9, dtype=torch.bool)
    mask[:, :4] = False
    problem = Problem(q.numpy(), k.numpy(), v.numpy(), {})
    for options in ({}, {"attn_mask": mask}, {"is_causal": True}, {"window": (2, 0)}):
        whole = attention(q, k, v, **options)
        for chunk in range(1, 12):
            got = chunked_attention(q, k, v, chunk=chunk, **options)
            close(got, whole, 2 * problem.bound * problem.largest)  # up to 9 keys


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": np.ones((2, 3, 4))}, "4 axes"),
        ({"query": np.ones((1, 3, 3, 4))}, "shared out"),
        ({"query": np.ones((1, 2, 3, 5))}, "head size"),
        ({"value": np.ones((1, 2, 4, 4))}, "length"),
        ({"visible": np.ones((3, 4), dtype=bool)}, "visible"),
        ({"visible": np.ones((3, 5))}, "boolean"),
        ({"bias": np.ones((2, 1, 1, 1))}, "bias"),
        ({"causal": "lower"}, "causal"),
        ({"window": (-1, 0)}, "window"),
        ({"alibi_slopes": [1.0]}, "alibi_slopes"),
        ({"sinks": [1.0]}, "sinks"),
        ({"dropout_p": 0.5}, "dropout_keep"),
        ({"empty_row": "mean"}, "empty_row"),
    ],
)
def test_the_oracle_refuses_what_does_not_fit(change: dict[str, Any], words: str) -> None:
    fitting: dict[str, Any] = {
        "query": np.ones((1, 2, 3, 4)),
        "key": np.ones((1, 2, 5, 4)),
        "value": np.ones((1, 2, 5, 4)),
    }
    oracle.attention(**fitting)
    with pytest.raises(ValueError, match=words):
        oracle.attention(**(fitting | change))


# -------------------- heads


@pytest.mark.parametrize("out_proj", [True, False])
@pytest.mark.parametrize("qkv_bias", [True, False])
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_stacked_heads_are_split_heads(heads: int, qkv_bias: bool, out_proj: bool) -> None:
    torch.manual_seed(0)
    stacked = StackedHeads(5, 6, 7, heads, qkv_bias=qkv_bias, out_proj=out_proj).double()
    split = split_weights(stacked)
    x = torch.randn(2, 4, 5, dtype=torch.float64)
    expected = stacked(x)
    # weights below 1 and |x| below 4: scores below 5 * 5 * 4 * 4, and an output projection of 6 terms
    close(split(x).detach(), expected.detach(), 64 * EPS * 400)
    assert float(expected.detach().abs().max()) > 1e-3
    with torch.no_grad():
        next(stacked.heads[0].parameters()).add_(1.0)
    assert not torch.allclose(stacked(x), split(x))  # copied, not shared


@pytest.mark.parametrize("make", [CausalAttention, StackedHeads, MultiHeadAttention])
def test_heads_do_not_see_the_future(make: Any) -> None:
    torch.manual_seed(0)
    layer = make(4, 6, 8) if make is CausalAttention else make(4, 6, 8, 2)
    x = torch.randn(2, 5, 4)
    y = x.clone()
    y[:, 3] += 1.0
    before, after = layer(x), layer(y)
    assert before.shape == (2, 5, 6)
    assert torch.equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).any(-1).all()
    with pytest.raises(ValueError, match="context_length"):
        layer(torch.randn(1, 9, 4))


def test_a_head_is_attention_of_its_projections() -> None:
    torch.manual_seed(0)
    head = CausalAttention(4, 3, 8, qkv_bias=True).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    q, k, v = (f(x).detach()[:, None].numpy() for f in (head.W_query, head.W_key, head.W_value))
    expected = oracle.attention(q, k, v, causal="top-left").output[:, 0]
    problem = Problem(q, k, v, {})
    close(head(x).detach(), expected, problem.bound * problem.largest)


def test_dropout_is_for_training_only() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(4, 6, 8, 2, dropout=0.5)
    x = torch.randn(2, 5, 4)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    stacked = StackedHeads(4, 6, 8, 2, dropout=0.5).eval()
    split = split_weights(stacked)
    assert split.dropout.p == 0.5
    assert not split.training


@pytest.mark.parametrize("make", [StackedHeads, MultiHeadAttention])
@pytest.mark.parametrize("heads", [4, 0])
def test_heads_must_divide_the_width(make: Any, heads: Literal[4, 0]) -> None:
    with pytest.raises(ValueError, match="divisible"):
        make(4, 6, 8, heads)


@pytest.mark.parametrize("make", [CausalAttention, StackedHeads, MultiHeadAttention])
def test_heads_refuse_inputs_that_do_not_fit(make: Any) -> None:
    layer = make(4, 6, 8) if make is CausalAttention else make(4, 6, 8, 2)
    with pytest.raises(ValueError, match=r"d_in = 4, not \(2, 5, 3\)"):
        layer(torch.randn(2, 5, 3))
    with pytest.raises(ValueError, match=r"not \(5, 4\): add a batch axis, x\[None\]"):
        layer(torch.randn(5, 4))


def test_the_future_is_what_is_hidden() -> None:
    """(context_length, context_length), True above the diagonal, and no part of the state."""
    layer = MultiHeadAttention(4, 6, 3, 2)
    assert layer.future.tolist() == [[j > i for j in range(3)] for i in range(3)]
    assert "future" not in layer.state_dict()


def test_the_oracle_needs_no_framework() -> None:
    code = (
        "import sys; import attnlaws.reference.oracle, attnlaws.reference.definition;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'jax', 'scipy')))"
    )
    paths = repr([p for p in sys.path if p])
    assert subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = {paths}; {code}"]).returncode == 0
