"""Faults of the scale, and of the scores it multiplies."""

from __future__ import annotations

import math

import numpy as np

from .case import Array, Case, Fault, attend, scores_of
from .steps import SCALE_FIX, biased, default_scale, fault, given_scale, rescored, scaled, where

ARGUMENT_FIX = "use the scale argument where it is not None, and the default where it is"
AS_THEY_ARE = "leave the scores as they are"


def _unit(array: Array) -> Array:
    length = np.sqrt((array * array).sum(-1, keepdims=True))
    return np.asarray(array / np.where(length > 0, length, 1.0))


def _normalised(case: Case) -> Array:
    return attend(case.with_call(query=_unit(case.call.query), key=_unit(case.call.key)))


def _keys_cut(case: Case) -> Array:
    """Keys longer than 2 sqrt(D) are cut to that length."""
    key, limit = case.call.key, 2.0 * math.sqrt(case.width)
    return attend(case.with_call(key=key * (limit / np.maximum(np.sqrt((key * key).sum(-1, keepdims=True)), limit))))


def _by_head(case: Case, raw: Array) -> Array:
    return np.asarray(raw * (1.0 + np.arange(case.shape[1]) / 100.0)[:, None, None])


def _model_width(case: Case) -> float:
    return float((case.width * case.shape[1]) ** -0.5)


def _base_two(case: Case) -> Array:
    # The scores as they enter the softmax, times ln 2.
    return attend(case, scores=lambda raw: np.log(2.0) * scores_of(case), cap=0.0, bias=0.0, slopes=0.0)


def _ignored_if(condition: str) -> str:
    return f"the scale that is given is ignored {condition}"


FAULTS: tuple[Fault, ...] = (
    fault("no scale", "the scores are not scaled", SCALE_FIX, default_scale(lambda c: 1.0)),
    fault("scale 1/D", "the scores are divided by D instead of sqrt(D)", SCALE_FIX, default_scale(lambda c: 1.0 / c.width)),
    fault("scale reversed", "the scores are multiplied by sqrt(D)", SCALE_FIX, default_scale(lambda c: c.width**0.5), "AI-Hypercomputer/maxtext#1370"),
    fault("scale of D + 1", "the scale is 1/sqrt(D + 1)", SCALE_FIX, default_scale(lambda c: (c.width + 1.0) ** -0.5)),
    fault(
        "scale of the padded size", "the scale is 1/sqrt(D) of a head size rounded up to a multiple of 8", SCALE_FIX,
        default_scale(lambda c: (-(-c.width // 8) * 8) ** -0.5),
    ),
    fault("scale of a whole root", "the scale is 1/floor(sqrt(D))", SCALE_FIX, default_scale(lambda c: 1.0 / math.isqrt(c.width))),
    fault(
        "scale of the model width", "the scale is 1/sqrt(H D), of the whole embedding", SCALE_FIX, default_scale(_model_width),
        "lucidrains/vit-pytorch#65", "FrancescoSaverioZuppichini/ViT#1", "FareedKhan-dev/train-llm-from-scratch#3",
        "omihub777/ViT-CIFAR#12", "Graylab/DL4Proteins-notebooks#12",
    ),
    fault("scale of the value size", "the scale is 1/sqrt(Dv)", SCALE_FIX, default_scale(lambda c: c.call.value.shape[-1] ** -0.5)),
    fault("scale of the number of keys", "the scale is 1/sqrt(S), of the number of keys", SCALE_FIX, default_scale(lambda c: max(c.shape[3], 1) ** -0.5)),
    fault(
        "scale ignored without a mask", _ignored_if("where there is no mask"), ARGUMENT_FIX,
        where(lambda c: not c.has_mask, given_scale(lambda c, given: c.default_scale)), "pytorch/pytorch#174049",
    ),
    fault(
        "scale ignored if causal", _ignored_if("under the causal flag"), ARGUMENT_FIX,
        where(lambda c: c.triangle is not None, given_scale(lambda c, given: c.default_scale)), "tenstorrent/tt-metal#33304",
    ),
    fault(
        "scale argument ignored", "the scale that is given is ignored", ARGUMENT_FIX,
        given_scale(lambda c, given: c.default_scale), "tenstorrent/tt-metal#33304", "pytorch/pytorch#174049",
    ),
    fault(
        "scale argument on top", "the scale that is given is applied on top of 1/sqrt(D)", "let the argument replace the default",
        given_scale(lambda c, given: given * c.default_scale),
    ),
    fault("scale argument squared", "the scale that is given multiplies both q and k", "scale queries or scores, not both", given_scale(lambda c, given: given * given)),
    fault("scale argument divides", "the scores are divided by the scale that is given", "multiply by the scale argument", given_scale(lambda c, given: 1.0 / given if given else 0.0)),
    fault("scale squared", "the scale is applied twice", "scale queries or scores, not both", scaled(lambda c: c.scale**2)),
    fault("scale grows with length", "past 32 keys the scores grow with log(S) / log(32)", AS_THEY_ARE, scaled(lambda c: c.scale * math.log(max(c.shape[3], 32)) / math.log(32))),
    fault("mask scaled", "the additive mask is multiplied by the scale too", "add the mask after scaling", lambda c: biased(lambda bias: c.scale * bias)(c), "tenstorrent/tt-metal#42891"),
    fault("temperature by head", "head h has a temperature of its own, 1 + h / 100", AS_THEY_ARE, where(lambda c: c.shape[1] > 1, rescored(_by_head))),
    fault("base 2", "the exponential is 2^s", "multiply the scores by log2(e) before exp2", _base_two),
    fault("queries and keys normalised", "queries and keys are brought to length 1 before the product", "multiply q by k as they are", _normalised),
    fault("long keys cut", "keys longer than 2 sqrt(D) are cut to that length", "multiply q by k as they are", _keys_cut),
    fault(
        "queries centred", "the mean query is subtracted from each query", "let a row depend on its own query alone",
        lambda c: attend(c.with_call(query=c.call.query - c.call.query.mean(2, keepdims=True))),
    ),
    fault("scores cut at 50", "the scores are cut to [-50, 50]", "subtract the maximum of the row before exp, and cut nothing", rescored(lambda c, raw: np.clip(raw, -50.0, 50.0)), law="scores.magnitude"),
    fault("soft cap 50", "the scores are capped by 50 tanh(s / 50)", AS_THEY_ARE, rescored(lambda c, raw: 50 * np.tanh(raw / 50))),
    fault("soft cap 30", "the scores are capped by 30 tanh(s / 30)", AS_THEY_ARE, rescored(lambda c, raw: 30 * np.tanh(raw / 30))),
)  # fmt: skip
