"""Faults of the softmax: its axis, its normaliser, the precision of its weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..problems.dtypes import round_to
from .case import Array, Case, Fault, Output, attend, mixed, scores_of, softmax, weights_of
from .steps import MASK_FIX, SOFTMAX_FIX, fault, rescored, where

SUM_FIX = "divide by the sum of the exponentials"
KEEP_FIX = "keep scores, weights and sums in the working precision"


def _exponentials(case: Case) -> tuple[Array, Array]:
    """exp(s - max) where the case allows, and the maximum of each row."""
    made = np.where(case.pairs(), scores_of(case), -np.inf)
    with np.errstate(all="ignore"):
        peak = made.max(-1, keepdims=True)
        return np.exp(made - peak), peak


def _denominator(extra: Callable[[Array], Array]) -> Output:
    """Something added to the sum of exp(s - max)."""

    def output(case: Case) -> Array:
        weights, peak = _exponentials(case)
        with np.errstate(all="ignore"):
            total = weights.sum(-1, keepdims=True) + extra(peak)
            if case.call.sinks is not None:
                total = total + np.exp(case.call.sinks[:, None, None] - peak)
            weights = weights / total
        return mixed(case, np.nan_to_num(weights))

    return output


def _reweighted(change: Callable[[Case, Array], Array]) -> Output:
    """A change of the weights."""
    return lambda case: mixed(case, change(case, weights_of(case)))


def _after_softmax(again: Callable[[Case, Array], Array]) -> Output:
    """Weights of all pairs, zeroed where they are masked, and then `again`."""

    def output(case: Case) -> Array | None:
        shown = case.pairs()
        if shown.all():
            return None
        kept = np.where(shown, weights_of(case, case.everything()), 0.0)
        return mixed(case, again(case, kept))

    return output


def _sum(case: Case) -> Array:
    with np.errstate(all="ignore"):
        return mixed(case, np.where(case.pairs(), np.exp(np.clip(scores_of(case), None, 700.0)), 0.0))


def _both_axes(case: Case) -> Array:
    """One softmax over queries and keys together."""
    made = np.where(case.pairs(), scores_of(case), -np.inf)
    return mixed(case, softmax(made.reshape(*made.shape[:2], -1)).reshape(made.shape))


def _twice(case: Case) -> Array:
    return mixed(case, softmax(np.where(case.pairs(), weights_of(case), -np.inf)))


def _sigmoid(case: Case) -> Array:
    with np.errstate(all="ignore"):
        return mixed(case, np.where(case.pairs(), 1.0 / (1.0 + np.exp(-scores_of(case))), 0.0))


def _best_only(case: Case) -> Array:
    made = np.where(case.pairs(), scores_of(case), -np.inf)
    best = np.arange(made.shape[-1]) == made.argmax(-1)[..., None]
    return mixed(case, np.where(case.pairs().any(-1, keepdims=True), best.astype(np.float64), np.nan))


def _best_keys(count: int) -> Output:
    """Only the highest scores of a row are kept."""

    def output(case: Case) -> Array | None:
        if case.shape[3] <= count:
            return None
        made = np.where(case.pairs(), scores_of(case), -np.inf)
        lowest = np.sort(made, -1)[..., -count, None]
        return mixed(case, softmax(np.where(made >= lowest, made, -np.inf), sinks=case.call.sinks))

    return output


def _rounded(dtype: str) -> Callable[[Array], Array]:
    return lambda array: round_to(array, dtype)


def _inputs_rounded(dtype: str) -> Output:
    change = _rounded(dtype)
    return lambda c: attend(c.with_call(query=change(c.call.query), key=change(c.call.key), value=change(c.call.value)))


def _accumulated(case: Case) -> Array:
    """The output summed in bfloat16 over tiles of 16 keys."""
    weights, value = weights_of(case), case.grouped(case.call.value)
    out = np.zeros((*weights.shape[:-1], value.shape[-1]))
    for start in range(0, weights.shape[-1], 16):
        part = np.matmul(weights[..., start : start + 16], value[..., start : start + 16, :])
        out = round_to(out + round_to(part, "bfloat16"), "bfloat16")
    return out


def _grid(step: float) -> Output:
    """Weights rounded to a grid before they meet V."""
    return _reweighted(lambda c, w: np.asarray(np.rint(w / step) * step))


def _eight_bit_keys(case: Case) -> Array:
    """Keys in int8, with one unit for all positions of a head."""
    key = case.call.key
    unit = np.maximum(np.abs(key).max((2, 3), keepdims=True) / 127.0, 1e-30)
    return attend(case.with_call(key=np.rint(key / unit) * unit))


def _plus_one(case: Case, weights: Array) -> Array:
    keys = case.shape[3]
    return np.asarray(weights * keys / (keys + 1.0))


def _sum_of(weights: Array) -> Array:
    return np.asarray(weights.sum(-1, keepdims=True))


def _by_hidden(case: Case, weights: Array) -> Array:
    return np.asarray(weights * (case.shape[3] / np.maximum(case.pairs().sum(-1, keepdims=True), 1)))


FAULTS: tuple[Fault, ...] = (
    fault("softmax over queries", "the softmax runs over the queries", SOFTMAX_FIX, lambda c: attend(c, axis=-2), "nerdai/llms-from-scratch-rs#30"),
    fault("softmax over heads", "the softmax runs over the heads", SOFTMAX_FIX, lambda c: attend(c, axis=1), "FudanNLP/fastNLP#254"),
    fault("softmax over the batch", "the softmax runs over the batch", SOFTMAX_FIX, lambda c: attend(c, axis=0), "PetrochukM/PyTorch-NLP#2"),
    fault("softmax over queries and keys", "one softmax runs over queries and keys together", SOFTMAX_FIX, _both_axes),
    fault("every weight one", "every visible key has the weight 1", SOFTMAX_FIX, lambda c: mixed(c, c.pairs().astype(np.float64)), "catalyst-team/catalyst#285"),
    fault("softmax twice", "the softmax is taken twice", "hand the scores to the softmax, not the weights", _twice),
    fault("sigmoid", "each weight is a sigmoid, and the row is not normalised", SUM_FIX, _sigmoid),
    fault("sum in the place of a mean", "the weights are not normalised: exp(s) v", SUM_FIX, _sum),
    fault("best key only", "each query takes the value of its best key", SUM_FIX, _best_only),
    fault("best 32 keys", "only the 32 highest scores of a row are kept", "let every allowed key take part", _best_keys(32)),
    fault("uniform weights", "all visible keys weigh the same", "use q k^T", rescored(lambda c, raw: np.zeros_like(raw))),
    fault("one per cent too much", "the denominator is one per cent too large", SUM_FIX, _reweighted(lambda c, w: w / 1.01)),
    fault("one added to the denominator", "the softmax is off by one: 1 / (1 + sum exp s)", SUM_FIX, _denominator(lambda peak: np.exp(-peak))),
    fault("epsilon in the denominator", "one is added to the sum of exp(s - max)", SUM_FIX, _denominator(np.ones_like)),
    fault("one query badly normalised", "the row of a single query is divided by S + 1 in the place of S", SUM_FIX, where(lambda c: c.shape[2] == 1, _reweighted(_plus_one))),
    fault("mask after softmax", "weights are masked after the softmax and not renormalised", MASK_FIX, _after_softmax(lambda c, w: w)),
    fault("renormalised with an epsilon", "masked weights are zeroed and the rest divided by their sum + 0.001", MASK_FIX, _after_softmax(lambda c, w: w / (_sum_of(w) + 1e-3))),
    fault("renormalised by the number of keys", "masked weights are zeroed and the rest multiplied by S / visible keys", MASK_FIX, _after_softmax(_by_hidden)),
    fault("3-bit weights", "the weights are rounded to eighths", KEEP_FIX, _grid(0.125)),
    fault("8-bit weights", "the weights are rounded to multiples of 1/255", KEEP_FIX, _grid(1.0 / 255.0)),
    fault("bfloat16 weights", "the weights pass through bfloat16", KEEP_FIX, _reweighted(lambda c, w: round_to(w, "bfloat16"))),
    fault("float16 weights", "the weights pass through float16", KEEP_FIX, _reweighted(lambda c, w: round_to(w, "float16"))),
    fault("bfloat16 scores", "the scores pass through bfloat16", KEEP_FIX, rescored(lambda c, raw: round_to(raw, "bfloat16"))),
    fault("float16 scores", "the scores pass through float16", KEEP_FIX, rescored(lambda c, raw: round_to(raw, "float16"))),
    fault("bfloat16 inputs", "queries, keys and values are computed in bfloat16, whatever they come in", KEEP_FIX, _inputs_rounded("bfloat16")),
    fault("bfloat16 accumulator", "the output is summed in bfloat16 over tiles of 16 keys", KEEP_FIX, _accumulated),
    fault("8-bit keys", "keys are rounded to 8 bits with one unit for all positions", KEEP_FIX, _eight_bit_keys),
)  # fmt: skip
