"""Trying a model: small inputs that fit it, and a copy with calm parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from .call import BoolArray
from .model import ModelTarget
from .model_inputs import Inputs, IntArray
from .model_instance import ModelInstance
from .redraw import CALM, redrawn


def probing(target: ModelTarget, dtype: str | None = None) -> ModelInstance:
    """A copy with calm parameters, in the widest dtype that it takes, for looking at what depends on what."""
    instance = target.fresh(dtype or target.dtypes[-1])
    instance.set(redrawn(instance.parameters(), instance.trainable(), 3, size=CALM))
    return instance


def plain_inputs(target: ModelTarget, batch: int, length: int, seed: int = 1) -> Inputs:
    """Random tokens, none of them the pad id, and a source of 4 where there is one."""
    rng = np.random.Generator(np.random.Philox(key=[seed, 13]))
    ids = rng.choice(target.real_ids, (batch, length)).astype(np.int64)
    if not target.source:
        return Inputs(ids)
    others = [i for i in range(target.source_vocabulary) if i != target.pad_id]
    return Inputs(ids, source=rng.choice(others, (batch, 4)).astype(np.int64))


def sees_others(instance: ModelInstance) -> bool:
    """Whether any of four tokens moves the logits of another: where none does, nothing tells what a mask hides."""
    inputs = plain_inputs(instance.target, 1, min(4, instance.target.longest))
    moved = moves(instance, inputs)
    return bool((moved & ~np.eye(inputs.length, dtype=bool)).any())


def moves(instance: ModelInstance, inputs: Inputs) -> BoolArray:
    """(L, L), True where another token j moves the logits at i, in some sample. Raises TargetRaised or WrongResult."""
    base = instance.run(inputs, grad=False)
    least = (1e-10 if instance.dtype == "float64" else 1e-5) * float(np.nanmax(np.abs(base)))
    found = np.zeros((inputs.length, inputs.length), dtype=bool)
    for j in range(inputs.length):
        other = inputs.but(ids=changed(inputs.ids, instance.target, (slice(None), j)))
        found[:, j] = (np.abs(instance.run(other, grad=False) - base).max(-1) > least).any(0)
    return found


def changed(ids: IntArray, target: ModelTarget, where: Any, by: int = 1) -> IntArray:
    """The ids with others at some places: the next real id, or the one after so many."""
    real = np.array(target.real_ids)
    other = ids.copy()
    other[where] = real[(np.searchsorted(real, ids[where]) + by) % len(real)]
    return other
