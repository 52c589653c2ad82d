"""Laws of caches: keys and values of earlier tokens, kept, give what the whole text gives."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from attnlaws.laws.model_law import model_law
from attnlaws.laws.model_trial import ModelTrial
from attnlaws.problems.model_problem import ModelWants
from attnlaws.targets.call import Array
from attnlaws.targets.model import ModelTarget
from attnlaws.targets.model_cache import Decoding, NotOffered
from attnlaws.targets.model_inputs import Inputs, IntArray

DECODERS = ("decoder", "encoder-decoder")


def _cache(target: ModelTarget) -> str | None:
    if target.cache is not None:
        return None
    why = target.known.get("cache")
    return f"no way to use its cache was found ({why})" if why else "takes no cache"


def _splits(trial: ModelTrial, length: int) -> list[tuple[int, ...]]:
    """Ways to cut a text into chunks, as the places of the cuts: all where it is short, else some."""
    inner = range(1, length)
    if length <= 5:
        return [cuts for n in range(length) for cuts in combinations(inner, n)]
    some = [tuple(sorted(trial.rng.choice(inner, n, replace=False).tolist())) for n in (1, 2, min(4, length - 1))]
    return [tuple(inner), (length - 1,), *some]


def _fed(trial: ModelTrial, decoding: Decoding, ids: IntArray, whole: Array, at: int, what: str) -> None:
    """A chunk's logits are those of the whole text at its places."""
    got = trial.feed(decoding, ids)
    n = got.shape[1]
    trial.require(n in (1, ids.shape[1]), f"with a cache the model gives logits of {n} tokens for {ids.shape[1]}")
    rows = np.zeros(whole.shape[:2], dtype=bool)
    rows[:, at + ids.shape[1] - n : at + ids.shape[1]] = True
    wide = whole.copy()
    wide[:, at + ids.shape[1] - n : at + ids.shape[1]] = got
    trial.agree(wide, whole, what, rows=rows)


@model_law(
    "cache.equals-full",
    "fed in chunks with a cache, a text gives the logits that it gives at once",
    wants=ModelWants(kinds=DECODERS, min_length=2, max_length=40, far=True),
    applies=_cache,
    basis=("gpt.causality", "gpt.cutoff"),
    share=0.4,
    rejects=("the cache forgotten",),
)
def test_equals_full(trial: ModelTrial) -> None:
    """f(x)_i from the tokens up to i at once = f from a chunk after chunk, for every way to cut a text of 5 tokens or fewer,
    and for some of longer ones: token by token, all but the last, in between. Lengths are drawn about the window.
    """
    model, ids, length = trial.model(), trial.inputs.ids, trial.problem.length
    whole = trial.run(model)
    for cuts in _splits(trial, length):
        decoding = trial.decode(model)
        for start, end in zip((0, *cuts), (*cuts, length), strict=True):
            chunks = "+".join(str(b - a) for a, b in zip((0, *cuts), (*cuts, length), strict=True))
            what = f"fed in chunks of {chunks} with a cache the logits are others (tokens {start} to {end - 1})"
            _fed(trial, decoding, ids[:, start:end], whole, start, what)


@model_law(
    "cache.batch",
    "padding before the texts of a batch is no part of the cache",
    wants=ModelWants(kinds=("decoder",), min_length=2, min_batch=2, max_length=12),
    applies=lambda t: (
        _cache(t) or (None if t.pad is not None and t.left_padding == "absent" else "takes no padding on the left")
    ),
    basis=("cache.equals-full", "models.padding"),
    share=0.2,
)
def test_batch(trial: ModelTrial) -> None:
    """Texts of different lengths, padded on the left, fed with a cache token by token after the first chunk, give what each
    gives alone: the mask covers what is in the cache as well, position ids count the real tokens.
    """
    model, ids, length = trial.model(), trial.inputs.ids, trial.problem.length
    padding = trial.rng.integers(0, length, trial.problem.batch)
    padding[0] = length - 1
    real = np.arange(length) >= padding[:, None]
    first = int(trial.rng.integers(1, length + 1))
    chunks = [(0, first), *((i, i + 1) for i in range(first, length))]
    decoding, found = trial.decode(model), []
    for start, end in chunks:
        found.append(trial.feed(decoding, ids[:, start:end], real[:, start:end]))
    for b in range(trial.problem.batch):
        alone = trial.run(model, Inputs(ids[b : b + 1, padding[b] :]))
        whole = np.zeros((1, length, alone.shape[2]))
        whole[:, padding[b] :] = alone
        got, rows = whole.copy(), np.zeros((1, length), dtype=bool)
        for (_, end), logits in zip(chunks, found, strict=True):
            got[0, end - logits.shape[1] : end] = logits[b]
            rows[0, max(end - logits.shape[1], padding[b]) : end] = True
        trial.agree(
            got, whole, "padded on the left and fed with a cache, a text gives other logits than alone", rows=rows
        )


# -- scripts ------------------------------------------------------------------------------------------------------------


class _Script:
    """A decoding, and the text that its cache should hold; each step says what was done."""

    def __init__(self, trial: ModelTrial) -> None:
        self.trial, self.model = trial, trial.model()
        self.decoding = trial.decode(self.model)
        self.text: IntArray = np.zeros((trial.problem.batch, 0), dtype=np.int64)
        self.frame, self.kept = trial.inputs, [(self.decoding, self.text, trial.inputs)]
        self.done: list[str] = []

    def append(self) -> None:
        """A chunk of one to three tokens: its logits are those of the whole text."""
        trial, n = self.trial, int(self.trial.rng.integers(1, 4))
        n = min(n, trial.target.longest - self.text.shape[1])
        if n < 1:
            return
        chunk = trial.rng.choice(trial.target.real_ids, (trial.problem.batch, n)).astype(np.int64)
        self.done.append(f"append {n}")
        at = self.text.shape[1]
        self.text = np.concatenate([self.text, chunk], axis=1)
        whole = trial.run(self.model, self.frame.but(ids=self.text))
        _fed(
            trial,
            self.decoding,
            chunk,
            whole,
            at,
            f"after {', '.join(self.done)} the logits are not those of the whole text",
        )
        said = self.decoding.length()
        if said is not None and trial.target.dependence.left is None:
            trial.require(
                said == self.text.shape[1],
                f"after {', '.join(self.done)} the cache says it holds {said} tokens, not {self.text.shape[1]}",
            )

    def fork(self) -> None:
        """Go on with a copy; the other is kept for later."""
        if self.text.shape[1]:
            self.kept.append((self.decoding.fork(), self.text, self.frame))
            self.done.append("fork")

    def back(self) -> None:
        """Go on where a fork was left."""
        if len(self.kept) > 1:
            self.decoding, self.text, self.frame = self.kept.pop()
            self.done.append("back to the fork")

    def crop(self) -> None:
        """Forget the last tokens."""
        if self.text.shape[1] > 1:
            count = int(self.trial.rng.integers(1, self.text.shape[1]))
            self.decoding.crop(count)
            self.text = self.text[:, :count]
            self.done.append(f"crop to {count}")

    def reorder(self) -> None:
        """Samples in another order, one of them twice perhaps, as in a beam search."""
        if self.text.shape[1]:
            order = self.trial.rng.integers(0, self.trial.problem.batch, self.trial.problem.batch)
            self.decoding.reorder(order)
            self.text, self.frame = self.text[order], self.frame.samples(order)
            self.decoding.frame = self.frame
            self.done.append(f"reorder {order.tolist()}")

    def reset(self) -> None:
        """Forget everything."""
        if self.text.shape[1]:
            self.decoding.reset()
            self.text = self.text[:, :0]
            self.done.append("reset")


@model_law(
    "cache.script",
    "a cache that is copied, cropped, reordered and emptied holds the text that is left",
    wants=ModelWants(kinds=DECODERS, texts=("random",), max_length=9),
    applies=_cache,
    basis=("cache.equals-full",),
    share=0.4,
)
def test_script(trial: ModelTrial) -> None:
    """A drawn script of L steps of what the cache offers: append, fork, go back, crop, reorder, reset. After each append the
    logits are those of the text that should be in the cache, at once; how many tokens it says it holds is their number.
    """
    script = _Script(trial)
    script.append()
    for _ in range(trial.problem.length):
        step = trial.rng.choice(["fork", "back", "crop", "crop", "reorder", "reset"])
        try:
            getattr(script, str(step))()
        except NotOffered:
            continue
        script.append()
