"""Laws of heads and batch: each head and each sample by itself."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.law import law
from attnlaws.laws.parts import take
from attnlaws.laws.trial import Trial
from attnlaws.problems.wants import ALL, Wants
from attnlaws.targets.call import Call, TargetRaised, WrongResult


@law(
    "heads.split",
    "H heads in one call are H calls of one head",
    wants=Wants(options=ALL, min_heads=2, grouped=False),
    share=1.2,
)
def test_split(trial: Trial) -> None:
    """o(q, k, v)[:, h] = o(q[:, h], k[:, h], v[:, h]): stacked single heads and one split weight are the same."""
    whole = trial.run().output
    for h in range(trial.problem.heads):
        alone = take(trial.call, heads=np.array([h]))
        trial.agree(
            trial.run(alone).output,
            alone,
            whole,
            trial.call,
            f"head {h} differs from the same head alone",
            part=lambda a: a,
            other=lambda a, h=h: a[:, h : h + 1],  # type: ignore[misc]
        )


@law(
    "heads.permutation",
    "permuting the heads permutes the output",
    wants=Wants(options=ALL, min_heads=2),
    basis=("heads.split",),
)
def test_permutation(trial: Trial) -> None:
    """o(q[:, p], k[:, p], v[:, p]) = o(q, k, v)[:, p]; whole groups move together where heads are grouped."""
    group = trial.problem.heads // trial.problem.kv_heads
    order = trial.rng.permutation(trial.problem.kv_heads)
    heads = (order[:, None] * group + np.arange(group)).reshape(-1)
    moved = take(trial.call, heads=heads)
    trial.agree(
        trial.run(moved).output,
        moved,
        trial.run().output,
        trial.call,
        "permuting the heads does more than permute",
        part=lambda a: a,
        other=lambda a: a[:, heads],
    )


@law(
    "heads.independence",
    "a head depends on its own query, key and value alone",
    exact=True,
    wants=Wants(options=ALL, min_heads=2, grouped=False),
    basis=("heads.split",),
)
def test_independence(trial: Trial) -> None:
    """Replacing everything of head h leaves the output of all other heads as it was, bit for bit."""
    call = trial.call
    h = int(trial.rng.integers(0, trial.problem.heads))
    query, key, value = call.query.copy(), call.key.copy(), call.value.copy()
    query[:, h], key[:, h], value[:, h] = 2.0 * query[:, h] + 1.0, -key[:, h], 64.0 - value[:, h]
    moved = call.but(query=_exact(query, call), key=_exact(key, call), value=_exact(value, call))
    others = [n for n in range(trial.problem.heads) if n != h]
    trial.agree(
        trial.run(moved).output,
        moved,
        trial.run().output,
        call,
        f"changing head {h} changes another head",
        part=lambda a: a[:, others],
        exact_hoped=True,
    )


def _exact(array: np.ndarray, call: Call) -> np.ndarray:  # type: ignore[type-arg]
    from attnlaws.problems.dtypes import round_to

    return round_to(array, call.dtype)


@law("heads.grouped", "query head h reads key head h // (H / Hkv)", wants=Wants(options=ALL, grouped=True))
def test_grouped(trial: Trial) -> None:
    """o(q, k, v) = o(q, repeat_interleave(k), repeat_interleave(v)), not tile: Ainslie et al. 2023, GQA."""
    call = trial.call
    group = trial.problem.heads // trial.problem.kv_heads
    full = call.but(key=np.repeat(call.key, group, axis=1), value=np.repeat(call.value, group, axis=1))
    trial.agree(
        trial.run().output,
        call,
        trial.run(full).output,
        full,
        "grouped heads differ from heads repeated one after the other",
    )


@law(
    "heads.indivisible",
    "H that is no multiple of Hkv is a clear error",
    wants=Wants(grouped=True, small=True, masks=("none",)),
    share=0.3,
)
def test_indivisible(trial: Trial) -> None:
    """H = 3 query heads can't read Hkv = 2 key heads in equal groups: raise, never answer."""
    call = trial.call
    three = np.resize(np.arange(call.query.shape[1]), 3)
    two = np.resize(np.arange(call.key.shape[1]), 2)
    odd = call.but(query=call.query[:, three], key=call.key[:, two], value=call.value[:, two], visible=None, bias=None)
    try:
        trial.target(odd)
    except (TargetRaised, WrongResult):
        trial.evidence.add(1, 0.0)
        return
    trial.require(False, "3 query heads with 2 key heads are answered instead of refused", odd)


@law("batch.slices", "a sample in a batch is that sample alone", wants=Wants(options=ALL, min_batch=2), share=1.2)
def test_slices(trial: Trial) -> None:
    """o(batch)[b] = o(sample b alone), with unlike masks in the samples."""
    whole = trial.run().output
    for b in range(trial.problem.batch):
        alone = take(trial.call, batch=slice(b, b + 1))
        trial.agree(
            trial.run(alone).output,
            alone,
            whole,
            trial.call,
            f"sample {b} differs from the same sample alone",
            part=lambda a: a,
            other=lambda a, b=b: a[b : b + 1],  # type: ignore[misc]
        )
