"""Faults of the values and of the output, and answers that are none."""

from __future__ import annotations

import numpy as np

from .case import Array, Case, Fault, attend, mixed, scores_of, softmax, weights_of
from .steps import fault, finished, lengths, rescored

USE = "compute softmax(scale q k^T + mask) v"


def _exchanged(case: Case) -> Array | None:
    """Queries in the place of keys and keys in the place of queries."""
    queries, keys = lengths(case)
    if queries != keys or case.call.key.shape[1] != case.shape[1]:
        return None
    return attend(case.with_call(query=case.call.key, key=case.call.query))


def _values_as_keys(case: Case) -> Array | None:
    """The scores are q v^T."""
    return attend(case.with_call(key=case.call.value)) if case.call.value.shape[-1] == case.width else None


def _keys_as_values(case: Case) -> Array | None:
    return attend(case.with_call(value=case.call.key)) if case.call.value.shape[-1] == case.width else None


def _mean(case: Case, out: Array) -> Array:
    value = case.grouped(case.call.value)
    return np.broadcast_to(value.mean(2, keepdims=True), out.shape)


def _own_value(case: Case) -> Array:
    """Row i is value i, over again where there are fewer."""
    queries, keys = lengths(case)
    return np.asarray(case.grouped(case.call.value)[:, :, np.arange(queries) % max(keys, 1)])


def _own_query(case: Case) -> Array:
    return np.asarray(case.call.query[..., np.arange(case.call.value.shape[-1]) % max(case.width, 1)])


def _residual(case: Case, out: Array) -> Array:
    """A thousandth of the value at the query's own position is added."""
    queries, keys = lengths(case)
    out = out.copy()
    shared = min(queries, keys)
    out[:, :, :shared] += 1e-3 * case.grouped(case.call.value)[:, :, :shared]
    return out


def _three_bits(array: Array) -> Array:
    """Rounded to float8 e4m3: 4 significant bits, exponents from -6, up to 448."""
    _, above = np.frexp(array)
    quantum = np.ldexp(1.0, np.maximum(above - 1, -6) - 3)
    return np.asarray(np.clip(np.rint(array / quantum) * quantum, -448.0, 448.0))


def _without_v(case: Case) -> Array:
    """Each row is its scores' weighted mean, not that of V."""
    made = scores_of(case)
    mean = np.where(case.pairs(), softmax(np.where(case.pairs(), made, -np.inf)) * made, 0.0).sum(-1, keepdims=True)
    return np.broadcast_to(mean, (*case.shape[:3], case.call.value.shape[-1]))


FAULTS: tuple[Fault, ...] = (
    fault("queries and keys exchanged", "the scores are k q^T", "multiply q by k transposed", _exchanged),
    fault("values as keys", "the scores are q v^T", "multiply q by k transposed", _values_as_keys, "awslabs/sockeye#731"),
    fault("keys as values", "the weights meet the keys, not the values", "multiply the weights by v", _keys_as_values, "awslabs/sockeye#731"),
    fault("values cut at 8", "values are cut to [-8, 8]", "multiply the weights by v as it is", lambda c: attend(c.with_call(value=np.clip(c.call.value, -8.0, 8.0))), law="weights.value-linear"),
    fault("8-bit values", "values pass through float8 e4m3", "keep values in the working precision", lambda c: attend(c.with_call(value=_three_bits(c.call.value)))),
    fault("key j favoured by j / 100", "j / 100 is added to the score of key j", "add nothing that is not asked for", rescored(lambda c, raw: raw + 0.01 * np.arange(c.shape[3]))),
    fault("residual added", "a thousandth of the value at the query's own position is added", "leave the residual to the caller", finished(_residual)),
    fault("values shifted", "the weight of a key meets the value of the next", "pair key j with value j", lambda c: mixed(c, np.roll(weights_of(c), 1, -1)), alignment="top-left", mask_means="attend"),
    fault("output divided by S", "the output is divided by the number of keys", USE, finished(lambda c, out: out / max(c.shape[3], 1))),
    fault("mean of V", "the output is the mean of all values", USE, finished(_mean)),
    fault("V itself", "the output is V", USE, lambda c: _own_value(c)),
    fault("q itself", "the output is q", USE, lambda c: _own_query(c)),
    fault("constant", "the output is 1 everywhere", USE, finished(lambda c, out: np.ones_like(out))),
    fault("V not used", "each output is the mean score of its row", USE, _without_v),
    fault("zeros", "the output is zero", "write the output", finished(lambda c, out: np.zeros_like(out)), "lucidrains/audiolm-pytorch#265"),
)  # fmt: skip
