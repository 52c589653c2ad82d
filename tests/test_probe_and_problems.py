"""The probe finds conventions from the black box; problems are drawn, stored and shrunk."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlaws import api
from attnlaws.judge.precision import round_to
from attnlaws.problems.draw import covering, problems
from attnlaws.problems.problem import CorruptCase, Problem
from attnlaws.problems.values import call_of, causal_triangle, tensors
from attnlaws.problems.wants import Wants
from attnlaws.run.minimise import minimise
from attnlaws.targets.conventions import TABLE, Abilities, Conventions, UnknownChoice, declared
from attnlaws.targets.signature import CannotAdapt

FULL = Abilities(
    dtypes=("float32", "bfloat16"),
    routes=("bool", "additive"),
    mask_shapes=("LS", "BHLS", "B11S"),
    bias=True,
    causal=True,
    grouped=True,
    scale=True,
    gradients=True,
)
FLAG = Conventions(causal="flag")


def test_sdpa_is_read_from_its_docstring_and_probed() -> None:
    target = api.target_of(torch.nn.functional.scaled_dot_product_attention)
    c = target.conventions
    assert (c.layout, c.causal, c.alignment, c.mask_means) == ("BHSD", "flag", "top-left", "attend")
    assert c.empty_bool == "zeros"
    assert target.abilities.grouped
    assert target.abilities.scale


def test_masked_is_true_inside_multihead_attention() -> None:
    assert api.target_of("torch.mha").conventions.mask_means == "masked"


def test_transformers_functions_return_another_layout() -> None:
    pytest.importorskip("transformers")
    target = api.target_of("transformers.eager")
    assert target.conventions.output_layout == "heads and length exchanged"
    assert target.abilities.routes == ("additive",)


def attend(q, k, v, mask=None, scale=None):  # type: ignore[no-untyped-def]
    scores = q @ np.swapaxes(k, -1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if mask is None else np.where(mask, scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


def bottom_right(query, key, value, causal=False):  # type: ignore[no-untyped-def]
    L, S = query.shape[-2], key.shape[-2]
    return attend(query, key, value, np.tri(L, S, S - L, dtype=bool) if causal else None)


def bshd(query, key, value, mask=None):  # type: ignore[no-untyped-def]
    query, key, value = (np.swapaxes(x, 1, 2) for x in (query, key, value))
    return np.swapaxes(attend(query, key, value, mask), 1, 2)


def two_dimensional(q, k, v):  # type: ignore[no-untyped-def]
    assert q.ndim == 2
    return attend(q, k, v)


def always(q, k, v):  # type: ignore[no-untyped-def]
    return attend(q, k, v, np.tri(q.shape[-2], k.shape[-2], dtype=bool))


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (bottom_right, {"alignment": "bottom-right", "empty_causal": "nan"}),
        (bshd, {"layout": "BSHD", "mask_means": "attend"}),
        (two_dimensional, {"layout": "SD"}),
        (always, {"causal": "always"}),
    ],
)
def test_conventions_of_numpy_functions(function, found) -> None:  # type: ignore[no-untyped-def]
    target = api.target_of(function)
    assert target.framework.name == "numpy"
    assert {name: getattr(target.conventions, name) for name in found} == found


def test_a_declared_convention_that_the_target_contradicts_is_a_break() -> None:
    report = api.check(
        bottom_right, laws=["causality", "weights.oracle"], profile="smoke", conventions={"alignment": "top-left"}
    )
    assert report.exit_code == 1


@pytest.mark.parametrize(
    ("convention", "choice"),
    [
        ("zero_scale", "refused"),
        ("finite_mask", "masks unless 0"),
        ("alignment", "bottom-right"),
        ("mask_means", "masked"),
        ("causal", "always"),
        ("empty_bool", "nan"),
    ],
)
def test_sdpa_contradicts_what_is_declared_wrongly(convention: str, choice: str) -> None:
    math = api.target_of("torch.sdpa[math]").function
    report = api.check(math, laws=["conventions"], conventions={convention: choice})
    assert report.exit_code == 1
    assert f"{convention} is declared {choice!r}" in str(report)


def test_a_right_declaration_is_green() -> None:
    right = {"layout": "BHSD", "alignment": "top-left", "mask_means": "attend"}
    report = api.check(torch.nn.functional.scaled_dot_product_attention, laws=["conventions"], conventions=right)
    assert report.exit_code == 0
    assert "(declared)" in str(report)


def test_the_table_of_conventions_is_closed() -> None:
    with pytest.raises(UnknownChoice, match="unknown convention 'masks'"):
        declared({"masks": "x"})
    with pytest.raises(UnknownChoice, match="is not one of"):
        declared({"alignment": "middle"})
    assert all(choice.source for choice in TABLE.values())


@settings(max_examples=300, deadline=None)
@given(problems(Wants(), FULL, FLAG))
def test_problems_go_to_json_and_back_and_fit_their_dtype(problem: Problem) -> None:
    assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem
    for array in tensors(problem):
        assert np.array_equal(array, round_to(array, problem.dtype))
        assert np.isfinite(array).all()


@settings(max_examples=300, deadline=None)
@given(problems(Wants(), FULL, FLAG), st.sampled_from(["top-left", "bottom-right"]))
def test_every_row_sees_a_key_unless_its_mask_is_meant_to_be_empty(problem: Problem, alignment: str) -> None:
    if alignment == "bottom-right" and problem.queries > problem.keys:
        return
    call = call_of(problem, Conventions(alignment=alignment))
    shown = np.ones((problem.batch, problem.heads, problem.queries, problem.keys), dtype=bool)
    if call.visible is not None:
        shown = shown & call.full(call.visible)
    if problem.causal:
        shown = shown & causal_triangle(problem.queries, problem.keys, alignment)
    assert shown.any(-1).all()


def test_the_same_seed_gives_the_same_values() -> None:
    problem = Problem(2, 3, 3, 4, 5, 6, 7, seed=12345)
    first, second = tensors(problem), tensors(problem)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(first[0], tensors(problem.but(seed=12346))[0])


def test_the_covering_design_reaches_the_edges() -> None:
    drawn = list(islice(covering(Wants(), FULL, FLAG, 0), 400))
    assert drawn[:40] == list(islice(covering(Wants(), FULL, FLAG, 0), 40))
    assert {p.keys for p in drawn} >= {1, 2, 3, 4, 16, 17, 63, 64, 65, 128, 129, 513}
    assert any(p.queries == 1 and p.keys > 100 for p in drawn)
    assert any(1 < p.kv_heads < p.heads for p in drawn)
    assert any(p.batch == p.heads > 1 for p in drawn)
    assert {p.mask for p in drawn} >= {"none", "random", "padding-right", "banded", "first-half"}
    assert {p.dtype for p in drawn} == {"float32", "bfloat16"}


def test_shrinking_keeps_the_trigger_and_drops_the_rest() -> None:
    def fails(problem: Problem) -> Exception | None:
        return ValueError("x") if problem.keys % 16 == 1 and problem.keys > 1 and problem.heads > 1 else None

    start = Problem(3, 5, 5, 33, 65, 16, 8, "bfloat16", True, "random", scale=0.3, regime="peaked", seed=999)
    found, _ = minimise(start, ValueError("x"), fails, limit=400)
    assert found == Problem(1, 2, 2, 1, 17, 1, 1)


def test_a_problem_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(CorruptCase, match="no multiple"):
        Problem(heads=3, kv_heads=2)
    with pytest.raises(CorruptCase, match="negative"):
        Problem(keys=-1)


def test_a_padding_mask_under_the_name_of_a_mask_is_found() -> None:
    from right_attention import additive_finfo_min

    target = api.target_of(additive_finfo_min)
    assert target.abilities.routes == ("padding",)
    assert target.abilities.padding_numbers
    assert target.conventions.padding_means == "attend"


def test_restricted_head_sizes_are_found_and_said() -> None:
    from right_attention import restricted_kernel

    target = api.target_of(restricted_kernel)
    assert target.abilities.head_dims == (8, 16, 32, 64, 80, 128, 256)
    assert target.abilities.dtypes == ("float32",)
    assert "head_dim must be a multiple of 8" in api.card(target)


def test_arguments_that_go_by_position_only_do() -> None:
    def attention(q, k, v, /, mask=None):  # type: ignore[no-untyped-def]
        return attend(q, k, v, mask)

    target = api.target_of(attention)
    assert [p.name for p in target.signature.by_position] == ["q", "k", "v"]
    assert api.check(target, profile="smoke", laws=["weights.oracle", "masks"]).exit_code == 0


def test_options_without_a_law_are_named() -> None:
    def attention(q, k, v, return_lse=False, block_size=64):  # type: ignore[no-untyped-def]
        return attend(q, k, v)

    assert api.target_of(attention).untried == ("return_lse", "block_size")


def test_heads_inside_the_last_axis_are_told() -> None:
    def two_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if q.dim() != 3:
            raise ValueError("three axes")
        q, k, v = (x.unflatten(-1, (2, -1)).transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    with pytest.raises(CannotAdapt, match="splits E into heads itself"):
        api.target_of(two_heads)
