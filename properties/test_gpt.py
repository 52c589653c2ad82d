"""Laws of decoders: GPT, Llama, and the half of a T5 that writes. The logits at i are about the token after i."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.model_law import model_law
from attnlaws.laws.model_trial import ModelTrial
from attnlaws.problems.model_problem import ModelWants

DECODERS = ("decoder", "encoder-decoder")


@model_law(
    "gpt.causality",
    "the logits up to a position don't depend on the tokens after it",
    wants=ModelWants(kinds=DECODERS, min_length=2, padding=None),
    exact=True,
    share=0.5,
    rejects=("the next token seen",),
)
def test_causality(trial: ModelTrial) -> None:
    """Other tokens from j on leave f(x)_i for every i < j as they were, bit for bit: each j in turn, the token j alone and all
    from j on; and beyond the window those that it no longer sees.
    """
    length, inputs, model = trial.problem.length, trial.inputs, trial.model()
    sees = trial.sees()
    before = trial.run(model)
    places = range(length) if length <= 9 else sorted({0, 1, length - 1, *trial.rng.integers(1, length, 5).tolist()})
    for j in places:
        for changed in (slice(j, j + 1), slice(j, length)):
            blind = np.broadcast_to(~sees[:, changed].any(-1), inputs.ids.shape) & trial.rows
            if not blind.any():
                continue
            other = inputs.but(ids=trial.other(inputs.ids, (slice(None), changed)))
            later = " and those after it change" if changed.stop > j + 1 else " changes"
            what = f"the logits move when a token that they may not see{later} (token {j})"
            trial.agree(trial.run(model, other), before, what, hoped=True, rows=blind)


@model_law(
    "gpt.cutoff",
    "a text cut off gives the logits of its beginning",
    wants=ModelWants(kinds=DECODERS, min_length=2),
    basis=("gpt.causality",),
    share=0.3,
    rejects=("the next token seen",),
)
def test_cutoff(trial: ModelTrial) -> None:
    """f(x_1..x_n) = f(x_1..x_L)[:n] for every n < L."""
    model, inputs, length = trial.model(), trial.inputs, trial.problem.length
    whole = trial.run(model)
    for n in (
        range(1, length) if length <= 9 else sorted({1, 2, length - 1, *trial.rng.integers(1, length, 3).tolist()})
    ):
        short = whole.copy()
        short[:, :n] = trial.run(model, inputs.cut(slice(0, n)))
        trial.agree(short, whole, f"cut off after {n} tokens the logits are others")


@model_law(
    "gpt.all-past-matters",
    "the logits depend on every token before, as far as the window reaches",
    wants=ModelWants(kinds=DECODERS, min_length=2, texts=("random",), redrawn=True, max_length=40),
    share=0.4,
    rejects=("each token alone", "zeros", "the first token not seen"),
)
def test_all_past_matters(trial: ModelTrial) -> None:
    """Each visible token has a weight > 0, so another token j moves f(x)_i for every i >= j that may see it: the first one and
    the position's own too. The parameters are calm, so that no weight is too small to be seen.
    """
    model, inputs, sees = trial.model(trial.target.dtypes[-1], calm=True), trial.inputs, trial.sees()
    before, length = trial.run(model), trial.problem.length
    for j in range(length) if length <= 9 else sorted({0, 1, length - 1, *trial.rng.integers(1, length, 5).tolist()}):
        moved = np.zeros(inputs.ids.shape, dtype=bool)
        for _ in range(2):
            other = inputs.but(ids=trial.other(inputs.ids, (slice(None), slice(j, j + 1))))
            moved |= (trial.run(model, other) != before).any(-1)
        missing = sees[:, j][None, :] & ~moved
        trial.evidence.add(moved.size, 0.0)
        if missing.any():
            b, i = (int(n) for n in np.argwhere(missing)[0])
            trial.require(False, f"the logits at {i} of sample {b} may see token {j}, but don't depend on it")
