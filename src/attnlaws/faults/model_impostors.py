"""Trivial wrong models: the target itself in a disguise. Each law must reject some of them on the problems it held on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..laws.trial import Unsuitable
from ..targets.call import Array
from ..targets.model_inputs import Inputs, IntArray
from ..targets.model_instance import ModelInstance

if TYPE_CHECKING:
    from ..targets.model_cache import Decoding

Run = Callable[[ModelInstance, Inputs], Array]


@dataclass(frozen=True)
class Impostor:
    """What it does in the place of the target: its logits, the logits of a chunk, its loss, what it generates."""

    run: Run | None = None
    feed: Callable[[Decoding, IntArray], Array] | None = None
    loss: Callable[[float, Array, IntArray], float] | None = None
    generate: Callable[[ModelInstance, Inputs, int, int], IntArray] | None = None


def _alone(instance: ModelInstance, inputs: Inputs) -> Array:
    """Each position from its own token alone; a window of one is right to do so."""
    if instance.target.dependence.alone:
        raise Unsuitable
    columns = [instance.run(inputs.cut(slice(i, i + 1)), grad=False) for i in range(inputs.length)]
    return np.concatenate(columns, axis=1)


def _next(instance: ModelInstance, inputs: Inputs) -> Array:
    """Each position has a little of the next one's logits: the causal mask off by one."""
    logits = instance.run(inputs, grad=False)
    mixed = logits.copy()
    mixed[:, :-1] += 0.25 * logits[:, 1:]
    return mixed


def _told(instance: ModelInstance, inputs: Inputs) -> Array:
    """The next token is known, and has the largest logit by far."""
    logits = instance.run(inputs, grad=False)
    b, i = np.ogrid[: inputs.batch, : inputs.length - 1]
    logits[b, i, inputs.ids[:, 1:]] = logits.max() + 20.0
    return logits


def _last(instance: ModelInstance, inputs: Inputs) -> Array:
    """All but the first token: what stands there is always the same."""
    ids = inputs.ids.copy()
    ids[:, 0] = instance.target.real_ids[0]
    return instance.run(inputs.but(ids=ids), grad=False)


def _mixed(instance: ModelInstance, inputs: Inputs) -> Array:
    """Each sample has a little of the mean over the batch."""
    logits = instance.run(inputs, grad=False)
    return np.asarray(logits + 0.25 * np.nan_to_num(logits).mean(axis=0, keepdims=True))


def _without(*names: str) -> Run:
    def run(instance: ModelInstance, inputs: Inputs) -> Array:
        return instance.run(inputs.but(**dict.fromkeys(names)), grad=False)

    return run


def _unpadded(instance: ModelInstance, inputs: Inputs) -> Array:
    """Padding counts as tokens; where that shows at no real token, as on the right of a decoder, nobody can tell."""
    seen, unseen = instance.run(inputs, grad=False), _without("real", "source_real")(instance, inputs)
    rows = np.ones(inputs.ids.shape, dtype=bool) if inputs.real is None else inputs.real
    if np.abs(seen - unseen)[rows].max(initial=0.0) <= 1e-4 * np.abs(seen[rows]).max(initial=0.0):
        raise Unsuitable
    return unseen


def _one_source(instance: ModelInstance, inputs: Inputs) -> Array:
    """The source is taken to be one token again and again."""
    assert inputs.source is not None
    return instance.run(inputs.but(source=np.full(inputs.source.shape, instance.target.real_ids[0])), grad=False)


def _forgets(decoding: Decoding, ids: IntArray) -> Array:
    """Each chunk as if nothing had been before it; in a window of one nothing of it is seen."""
    if decoding.instance.target.dependence.alone:
        raise Unsuitable
    return decoding.instance.run(decoding.frame.but(ids=ids), grad=False)


def _zeros(instance: ModelInstance, inputs: Inputs) -> Array:
    return np.zeros((*inputs.ids.shape, instance.target.width or 1))


def _random(instance: ModelInstance, prompt: Inputs, count: int, seed: int) -> IntArray:
    rng = np.random.Generator(np.random.Philox(key=[seed, 17]))
    return np.asarray(rng.integers(0, instance.target.vocabulary, (prompt.batch, count)), dtype=np.int64)


def _always(instance: ModelInstance, prompt: Inputs, count: int, seed: int) -> IntArray:
    return np.full((prompt.batch, count), instance.target.real_ids[0], dtype=np.int64)


IMPOSTORS: dict[str, Impostor] = {
    "zeros": Impostor(run=_zeros),
    "each token alone": Impostor(run=_alone),
    "the next token seen": Impostor(run=_next),
    "the next token known": Impostor(run=_told),
    "the first token not seen": Impostor(run=_last),
    "samples mixed": Impostor(run=_mixed),
    "padding not hidden": Impostor(run=_unpadded),
    "position ids ignored": Impostor(run=_without("places")),
    "segments ignored": Impostor(run=_without("segments")),
    "the source ignored": Impostor(run=_one_source),
    "the cache forgotten": Impostor(feed=_forgets),
    "the loss a little off": Impostor(loss=lambda loss, logits, labels: 1.01 * loss + 0.01),
    "random tokens": Impostor(generate=_random),
    "one token always": Impostor(generate=_always),
}
