"""Faults that show only at the sizes of real models: the laws of full size find each of them, with every seed tried."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import attnlaws

LAWS = ["layout.full-size", "gradients.full-size"]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.nan_to_num(scores.softmax(-1)) @ v


def third_sample(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if min(q.shape[2], k.shape[2]) > 70 and len(q) > 2:
        v = torch.cat([v[:2], v[1:2].expand(len(v) - 2, -1, -1, -1)])
    return attend(q, k, v)


def groups_tiled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    groups = q.shape[1] // k.shape[1]
    if groups >= 4:
        k, v = (x.repeat(1, groups, 1, 1) for x in (k, v))
    return attend(q, k, v)


def mask_of_the_first_tile(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    if mask is not None and k.shape[2] > 128 and q.shape[-1] >= 16:
        at = torch.arange(k.shape[2]) % 128
        mask = mask.expand(*mask.shape[:-1], k.shape[2])[..., at]
    return attend(q, k, v, mask)


def flag_lost_beside_a_mask(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    whole = attend(q, k, v, mask, is_causal)
    if mask is None or not is_causal or q.shape[2] <= 128 or q.shape[-1] < 16:
        return whole
    return torch.cat([whole[:, :, :128], attend(q, k, v, mask)[:, :, 128:]], 2)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        return x.clone()

    @staticmethod
    def backward(ctx, upstream: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        more = torch.ones(upstream.shape[2], 1)
        more[64:] = 2.0
        return upstream * more.to(upstream)


def key_gradients_doubled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, _Doubled.apply(k) if q.shape[-1] >= 16 else k, v)


WRONG = [third_sample, groups_tiled, mask_of_the_first_tile, flag_lost_beside_a_mask, key_gradients_doubled]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda f: f.__name__)
def test_a_fault_of_large_sizes_is_found(wrong: Callable[..., Tensor]) -> None:
    target = attnlaws.probe(wrong)
    for seed in range(3):
        report = attnlaws.check(target, laws=LAWS, seed=seed)
        assert report.exit_code == 1, f"seed {seed}: {report}"


@pytest.mark.parametrize("right", [attend, F.scaled_dot_product_attention], ids=["plain", "sdpa"])
def test_right_code_is_green(right: Callable[..., Tensor]) -> None:
    for seed in range(3):
        report = attnlaws.check(right, laws=LAWS, seed=seed)
        assert report.exit_code == 0, str(report)
        assert report.problems >= 10


def test_a_loop_over_samples_is_spared() -> None:
    def loops(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.stack([attend(*(x[None] for x in one))[0] for one in zip(q, k, v, strict=True)])

    report = attnlaws.check(loops, laws=LAWS)
    assert {v.status for v in report.verdicts} == {"not applicable"}
