"""Layouts and dtypes of right code that must be understood, or told, and never accused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import attnlaws
from attnlaws.targets.signature import CannotAdapt
from attnlaws.targets.target import Target


def merged_from_bshd(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.einsum("blhd,bshd->bhls", q, k).div(q.shape[-1] ** 0.5).softmax(-1)
    return torch.einsum("bhls,bshd->blhd", weights, v).flatten(2)


def merged_from_bhsd(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("function", "layout"), [(merged_from_bshd, "BSHD"), (merged_from_bhsd, "BHSD")])
def test_heads_merged_in_the_output_are_understood(function, layout: str) -> None:  # type: ignore[no-untyped-def]
    target = attnlaws.probe(function)
    assert isinstance(target, Target)
    assert (target.conventions.layout, target.conventions.output_layout) == (layout, "heads merged")
    report = attnlaws.check(target, laws=["layout", "weights", "gradients.oracle", "heads"], profile="smoke")
    assert report.exit_code == 0, str(report)


def test_heads_merged_in_the_wrong_order_are_red() -> None:
    def wrong(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
        return out.reshape(q.shape[0], q.shape[2], -1)

    assert attnlaws.check(wrong, laws=["weights.oracle", "layout.result"]).exit_code == 1


def test_the_length_as_the_last_axis_is_told() -> None:
    def with_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (torch.einsum("bhct,bhcs->bhts", q, k) * q.shape[2] ** -0.5).softmax(-1)
        return torch.einsum("bhts,bhcs->bhct", weights, v)

    def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (torch.einsum("bct,bcs->bts", q, k) * q.shape[1] ** -0.5).softmax(-1)
        return torch.einsum("bts,bcs->bct", weights, v)

    with pytest.raises(CannotAdapt, match=r"last axis, \(B, H, D, L\)"):
        attnlaws.probe(with_heads)
    with pytest.raises(CannotAdapt, match=r"last axis, \(B, D, L\)"):
        attnlaws.probe(one_head)


def test_a_dtype_in_which_no_mask_is_taken_is_told() -> None:
    def textbook(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return scores.softmax(-1) @ value

    target = attnlaws.probe(textbook)
    assert isinstance(target, Target)
    assert "float16" not in target.abilities.dtypes
    assert "overflow" in target.abilities.refusals["float16 with a mask"]
    assert attnlaws.check(target, laws=["weights.oracle", "masks"], profile="smoke").exit_code == 0
