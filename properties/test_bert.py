"""Laws of encoders, such as BERT: each position sees all tokens."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.model_law import model_law
from attnlaws.laws.model_trial import ModelTrial
from attnlaws.problems.choices import places
from attnlaws.problems.model_problem import ModelWants
from attnlaws.targets.model import ModelTarget

ENCODERS = ("encoder",)


@model_law(
    "bert.bidirectional",
    "the logits depend on every token, before and after",
    wants=ModelWants(kinds=ENCODERS, min_length=2, texts=("random",), redrawn=True, max_length=40, far=True),
    share=0.5,
    rejects=("each token alone", "zeros", "the first token not seen"),
)
def test_bidirectional(trial: ModelTrial) -> None:
    """Each token has a weight > 0, so another token j moves f(x)_i for every i and j, as far as a window reaches."""
    model, inputs, sees = trial.model(trial.target.dtypes[-1], calm=True), trial.inputs, trial.sees()
    before, length = trial.run(model), trial.problem.length
    for j in places(trial.rng, length, 5):
        moved = np.zeros(inputs.ids.shape, dtype=bool)
        for _ in range(2):
            other = inputs.but(ids=trial.other(inputs.ids, (slice(None), slice(j, j + 1))))
            moved |= (trial.run(model, other) != before).any(-1)
        missing = sees[:, j][None, :] & ~moved
        trial.evidence.add(moved.size, 0.0)
        if missing.any():
            b, i = (int(n) for n in np.argwhere(missing)[0])
            trial.require(False, f"the logits at {i} of sample {b} don't depend on token {j}")


def _segments(target: ModelTarget) -> str | None:
    return None if target.segments else "takes no segment ids"


@model_law(
    "bert.segments",
    "segment ids tell the parts of a text, and none is the first segment",
    wants=ModelWants(kinds=ENCODERS, min_length=2, redrawn=True, max_length=17),
    applies=_segments,
    share=0.3,
    rejects=("segments ignored",),
)
def test_segments(trial: ModelTrial) -> None:
    """f(x, segments 0) = f(x); another segment for the tokens from j on changes the logits, and each segment its own way."""
    model, inputs, length = trial.model(trial.target.dtypes[-1], calm=True), trial.inputs, trial.problem.length
    none = np.zeros(inputs.ids.shape, dtype=np.int64)
    first = trial.run(model)
    trial.agree(trial.run(model, inputs.but(segments=none)), first, "segments 0 give other logits than none")
    j = int(trial.rng.integers(1, length))
    seen = [first]
    for n in range(1, trial.target.segment_count):
        parts = none.copy()
        parts[:, j:] = n
        found = trial.run(model, inputs.but(segments=parts))
        what = f"segment {n} from token {j} on gives the logits of another segment"
        trial.require(all((found != other).any() for other in seen), what)
        seen.append(found)
