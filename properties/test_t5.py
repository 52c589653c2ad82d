"""Laws of encoder-decoders, such as T5: a decoder that sees the whole source. What decoders obey stands in test_gpt.py."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.model_law import model_law
from attnlaws.laws.model_trial import ModelTrial
from attnlaws.problems.model_problem import ModelWants

BOTH = ("encoder-decoder",)


@model_law(
    "t5.cross",
    "the logits depend on every token of the source",
    wants=ModelWants(kinds=BOTH, texts=("random",), redrawn=True, max_length=9),
    share=0.5,
    rejects=("the source ignored", "zeros"),
)
def test_cross(trial: ModelTrial) -> None:
    """Each token of the source has a weight > 0 in cross-attention, so another one moves the logits at every position."""
    model, inputs = trial.model(trial.target.dtypes[-1], calm=True), trial.inputs
    assert inputs.source is not None
    before = trial.run(model)
    for j in range(inputs.source.shape[1]):
        moved = np.zeros(inputs.ids.shape, dtype=bool)
        for _ in range(2):
            other = trial.other(inputs.source, (slice(None), slice(j, j + 1)), source=True)
            moved |= (trial.run(model, inputs.but(source=other)) != before).any(-1)
        trial.evidence.add(moved.size, 0.0)
        if not moved.all():
            b, i = (int(n) for n in np.argwhere(~moved)[0])
            trial.require(False, f"the logits at {i} of sample {b} don't depend on token {j} of the source")
