"""Faults of tiles and sizes: keys left out or counted twice, rescalings forgotten, one size taken for another."""

from __future__ import annotations

import numpy as np

from .case import Array, Bools, Case, Fault, Output, attend, mixed, scores_of, weights_of
from .steps import SIZE_FIX, TAIL_FIX, fault, finished, hiding, lengths, where

ONLINE_FIX = "when the running maximum grows, rescale the running sum and the running output by exp(old - new)"
MERGE_FIX = "weigh partial outputs by exp(lse - lse of all)"


def _last(case: Case) -> Bools:
    return np.asarray(np.arange(case.shape[3]) == case.shape[3] - 1)


def _alone_in_tile(case: Case) -> bool:
    """S % 64 = 1: the last tile holds one key."""
    return case.shape[3] > 1 and case.shape[3] % 64 == 1


def _past(limit: int) -> Output:
    """Keys from this one on are left out."""
    return hiding(lambda c: np.asarray(np.arange(c.shape[3]) >= limit))


def _past_queries(case: Case) -> Bools | None:
    queries, keys = lengths(case)
    return np.asarray(np.arange(keys) >= queries) if keys > queries > 1 else None


def _padded(tile: int) -> Output:
    """Zero keys that fill the last tile are counted in the softmax."""

    def output(case: Case) -> Array | None:
        missing = -case.shape[3] % tile
        if not missing or case.call.bias is not None or case.call.slopes is not None or case.band is not None:
            return None
        columns = ((0, 0), (0, 0), (0, 0), (0, missing))
        rows = ((0, 0), (0, 0), (0, missing), (0, 0))
        key, value = (np.pad(case.grouped(x), rows) for x in (case.call.key, case.call.value))
        return attend(case, key=key, value=value, visible=np.pad(case.pairs(), columns, constant_values=True))

    return output


def _overlap(tile: int) -> Output:
    """The last tile is read back from the end: what the tile before has read counts twice."""

    def output(case: Case) -> Array | None:
        keys = case.shape[3]
        if keys <= tile or keys % tile == 0:
            return None
        twice = (np.arange(keys) >= keys - tile) & (np.arange(keys) < keys // tile * tile)
        return attend(case, bias=np.asarray(case.bias) + np.where(twice, np.log(2.0), 0.0))

    return output


def _online(tile: int, *, forget_sum: bool = False, forget_output: bool = False) -> Output:
    """The online softmax over tiles of keys, with a rescaling forgotten."""

    def output(case: Case) -> Array | None:
        keys = case.shape[3]
        if keys <= tile or case.call.sinks is not None:
            return None
        made = np.where(case.pairs(), scores_of(case), -np.inf)
        value = case.grouped(case.call.value)
        peak = np.full((*made.shape[:-1], 1), -np.inf)
        total, out = np.zeros_like(peak), np.zeros((*made.shape[:-1], value.shape[-1]))
        for start in range(0, keys, tile):
            part = made[..., start : start + tile]
            new = np.maximum(peak, part.max(-1, keepdims=True))
            top = np.where(np.isfinite(new), new, 0.0)
            grown, weights = np.exp(peak - top), np.exp(part - top)
            total = total * (1.0 if forget_sum else grown) + weights.sum(-1, keepdims=True)
            out = out * (1.0 if forget_output else grown) + np.matmul(weights, value[..., start : start + tile, :])
            peak = new
        with np.errstate(all="ignore"):
            return np.asarray(out / total)

    return output


def _merged(base: float) -> Output:
    """Keys before and from the 64th on, attended apart and merged by base^lse; 1 gives both parts the same weight."""

    def output(case: Case) -> Array | None:
        keys = case.shape[3]
        if keys <= 64 or case.call.sinks is not None:
            return None
        made = np.where(case.pairs(), scores_of(case), -np.inf)
        outs, totals = [], []
        for part in (np.arange(keys) < 64, np.arange(keys) >= 64):
            here = np.where(part, made, -np.inf)
            peak = here.max(-1, keepdims=True)
            with np.errstate(all="ignore"):
                lse = peak + np.log(np.exp(here - peak).sum(-1, keepdims=True))
                outs.append(np.nan_to_num(mixed(case, np.exp(here - lse))))
            totals.append(np.nan_to_num(lse, nan=-np.inf, neginf=-np.inf))
        top = np.maximum(*totals)
        with np.errstate(all="ignore"):
            first, second = (np.where(np.isfinite(t), np.exp((t - top) * np.log(base)), 0.0) for t in totals)
            return np.asarray((first * outs[0] + second * outs[1]) / (first + second))

    return output


def _narrow(width: int) -> Output:
    """The scores see the first dimensions only."""

    def output(case: Case) -> Array | None:
        if width >= case.width or width == 0:
            return None
        return attend(case.with_call(query=case.call.query[..., :width], key=case.call.key[..., :width]))

    return output


def _by_four(case: Case) -> Array | None:
    return _narrow(case.width // 4 * 4)(case)


def _power_of_two(case: Case) -> Array | None:
    return _narrow(1 << (case.width.bit_length() - 1))(case) if case.width else None


def _not_transposed(case: Case) -> Array | None:
    """Where S = D the keys are taken as already transposed."""
    if case.shape[3] != case.width:
        return None
    return attend(case, key=case.grouped(case.call.key).swapaxes(-1, -2))


def _tail_repeats(case: Case, out: Array) -> Array | None:
    """Past 64 queries the last row of a partial tile repeats the row before."""
    queries = out.shape[2]
    if queries <= 65 or queries % 64 == 0:
        return None
    return np.concatenate((out[:, :, :-1], out[:, :, -2:-1]), axis=2)


def _rows_past_keys(case: Case, out: Array) -> Array | None:
    queries, keys = lengths(case)
    return None if queries <= keys else np.where(np.arange(queries)[:, None] < keys, out, 0.0)


def _tail_of_queries(case: Case, out: Array) -> Array | None:
    """The last partial tile of 16 queries is not written."""
    queries = out.shape[2]
    kept = queries // 16 * 16
    return None if queries < 16 or kept == queries else np.where(np.arange(queries)[:, None] < kept, out, 0.0)


def _columns_past_query(case: Case, out: Array) -> Array | None:
    """The output has room for D columns: the rest of Dv is zero."""
    return None if out.shape[-1] <= case.width else np.where(np.arange(out.shape[-1]) < case.width, out, 0.0)


def _last_values_exchanged(case: Case) -> Array:
    value = case.grouped(case.call.value)
    return np.asarray(np.matmul(weights_of(case), np.concatenate((value[:, :, :-2], value[:, :, :-3:-1]), axis=2)))


def _neighbours_merged(case: Case) -> Array | None:
    """A key equal to the key before is skipped."""
    key = case.grouped(case.call.key)
    same = np.zeros(key.shape[:3], dtype=bool)
    same[:, :, 1:] = (key[:, :, 1:] == key[:, :, :-1]).all(-1)
    return attend(case, visible=case.pairs() & ~same[:, :, None, :]) if same.any() else None


def _hard_coded(case: Case, out: Array) -> Array | None:
    """Right for up to 32 keys, and the plain mean of V above."""
    value = case.grouped(case.call.value)
    return None if case.shape[3] <= 32 else np.broadcast_to(value.mean(2, keepdims=True), out.shape)


FAULTS: tuple[Fault, ...] = (
    fault("lone last key dropped", "a last tile of 64 that holds one key is never visited", TAIL_FIX, where(_alone_in_tile, hiding(_last)), "66RING/tiny-flash-attention#12", law="weights.argmax"),
    fault("odd last key dropped", "keys are read in pairs and an odd last one is lost", TAIL_FIX, where(lambda c: c.shape[3] > 1 and c.shape[3] % 2 == 1, hiding(_last))),
    fault("last key dropped for one query", "the last key is left out for a single query", TAIL_FIX, where(lambda c: c.shape[2] == 1, hiding(_last))),
    fault("last key dropped unless causal", "the last key is left out where the call is not causal", TAIL_FIX, where(lambda c: c.triangle is None, hiding(_last)), "meta-recsys/generative-recommenders#173"),
    fault("last key dropped", "the last key is left out", TAIL_FIX, hiding(_last)),
    fault("first key dropped", "the first key is left out", "start at key 0", hiding(lambda c: np.asarray(np.arange(c.shape[3]) == 0))),
    fault("keys past the queries dropped", "the loop over keys ends at the number of queries", SIZE_FIX, hiding(_past_queries), "thu-ml/SageAttention#26"),
    fault("keys past 64 dropped", "keys after the 64th are left out", TAIL_FIX, _past(64)),
    fault("keys past 128 dropped", "keys after the 128th are left out", TAIL_FIX, _past(128)),
    *(
        fault(f"padding to {tile} counted", f"keys of zeros that fill a tile of {tile} are counted in the softmax", "mask the scores past the last key", _padded(tile), "66RING/tiny-flash-attention#12")
        for tile in (4, 8, 16, 32, 64, 128)
    ),
    *(
        fault(f"last tile of {tile} overlaps", f"the last tile of {tile} keys is read back from the end, and keys that it shares with the tile before count twice", TAIL_FIX, _overlap(tile))
        for tile in (16, 64)
    ),
    *(
        fault(f"sum not rescaled over {tile}", f"the running sum is not rescaled between tiles of {tile} keys", ONLINE_FIX, _online(tile, forget_sum=True))
        for tile in (16, 64)
    ),
    *(
        fault(f"output not rescaled over {tile}", f"the running output is not rescaled between tiles of {tile} keys", ONLINE_FIX, _online(tile, forget_output=True))
        for tile in (16, 64)
    ),
    fault("nothing rescaled over 16", "neither sum nor output is rescaled between tiles of 16 keys", ONLINE_FIX, _online(16, forget_sum=True, forget_output=True)),
    fault("merged in base 2", "the keys from the 64th on are merged by 2^lse with natural lse", MERGE_FIX, _merged(2.0), "flashinfer-ai/flashinfer#2113"),
    fault("merged as a mean", "the outputs of the keys before and from the 64th on are averaged", MERGE_FIX, _merged(1.0)),
    fault("64 dimensions only", "the scores see the first 64 dimensions of a head", "loop over all of D", _narrow(64), "flashinfer-ai/flashinfer#1993"),
    fault("dimensions read by four", "the dimensions after the last multiple of four are not read", "loop over all of D", _by_four, "66RING/tiny-flash-attention#12"),
    fault("dimensions to a power of two", "the scores see the largest power of two of the dimensions", "loop over all of D", _power_of_two, "66RING/tiny-flash-attention#12"),
    fault("keys not transposed where S = D", "the scores are q k where S = D", "transpose the last two axes of k", _not_transposed, "pytorch/pytorch#195320"),
    fault("rows past the keys zero", "the rows after the number of keys are not written", SIZE_FIX, finished(_rows_past_keys), "thu-ml/SageAttention#26"),
    fault("last rows zero", "the last partial tile of 16 queries is not written", "loop over all queries", finished(_tail_of_queries)),
    fault("last row repeats", "past 64 queries the last row of a partial tile repeats the row before", "store each row where it belongs", finished(_tail_repeats)),
    fault("columns past D zero", "the output holds D columns, and the rest of Dv is zero", SIZE_FIX, finished(_columns_past_query), "pytorch/pytorch#176767"),
    fault("last values exchanged", "a last tile of 64 that holds one key exchanges the last two values", TAIL_FIX, where(_alone_in_tile, _last_values_exchanged)),
    fault("equal neighbours merged", "a key equal to the key before it is skipped", "let every key take part", _neighbours_merged, law="weights.duplicate-keys"),
    fault("hard-coded lengths", "past 32 keys the output is the mean of V", "compute every length", finished(_hard_coded)),
)  # fmt: skip
