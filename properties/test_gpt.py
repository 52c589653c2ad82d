"""Laws of decoders: GPT, Llama, and the half of a T5 that writes. The logits at i are about the token after i."""

from __future__ import annotations

import math

import numpy as np

from attnlaws.laws.model_law import model_law
from attnlaws.laws.model_trial import ModelTrial
from attnlaws.problems.choices import places
from attnlaws.problems.model_problem import ModelWants
from attnlaws.targets.model import ModelTarget
from attnlaws.targets.model_inputs import Inputs, IntArray

#: nats beyond the floor that chance grants with probability 1e-9 at most
LIMIT = math.log(1e9)
#: texts to learn from, and to be tried on
STEPS, TEXTS = 150, 300
DECODERS = ("decoder", "encoder-decoder")


@model_law(
    "gpt.causality",
    "the logits up to a position don't depend on the tokens after it",
    wants=ModelWants(kinds=DECODERS, min_length=2, padding=None, far=True),
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
    for j in places(trial.rng, length, 5):
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
    wants=ModelWants(kinds=DECODERS, min_length=2, far=True),
    basis=("gpt.causality",),
    share=0.3,
    rejects=("the next token seen",),
)
def test_cutoff(trial: ModelTrial) -> None:
    """f(x_1..x_n) = f(x_1..x_L)[:n] for every n < L."""
    model, inputs, length = trial.model(), trial.inputs, trial.problem.length
    whole = trial.run(model)
    for n in places(trial.rng, length, 3)[1:]:
        short = whole.copy()
        short[:, :n] = trial.run(model, inputs.cut(slice(0, n)))
        trial.agree(short, whole, f"cut off after {n} tokens the logits are others")


@model_law(
    "gpt.all-past-matters",
    "the logits depend on every token before, as far as the window reaches",
    wants=ModelWants(kinds=DECODERS, min_length=2, texts=("random",), redrawn=True, max_length=40, far=True),
    share=0.4,
    rejects=("each token alone", "zeros", "the first token not seen"),
)
def test_all_past_matters(trial: ModelTrial) -> None:
    """Each visible token has a weight > 0, so another token j moves f(x)_i for every i >= j that may see it: the first one and
    the position's own too. The parameters are calm, so that no weight is too small to be seen.
    """
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
            trial.require(False, f"the logits at {i} of sample {b} may see token {j}, but don't depend on it")


def _learns(target: ModelTarget) -> str | None:
    if target.reads == "last":
        return "gives the logits of the last token alone"
    return None if len(target.real_ids) >= 4 else "has fewer than four ids"


@model_law(
    "gpt.learns",
    "trained on a source of known entropy, the model comes nearer to it and never goes under it",
    wants=ModelWants(kinds=("decoder",), min_length=8, texts=("random",), redrawn=False, dtypes=("float32",)),
    applies=_learns,
    basis=("gpt.causality",),
    rejects=("the next token known",),
    slow=True,
    chance=True,
)
def test_learns(trial: ModelTrial) -> None:
    """For any q that sees the past alone E prod q(x_t | x_<t) / p(x_t | x_<t) = 1, so sum(log q - log p) over new texts exceeds
    log(1e9) with probability 1e-9 at most (Markov's inequality), however q was trained. The source is a Markov chain over four ids;
    150 steps of Adam. A model that peeks at the batch, at what is next, or at its targets learns to exceed it.
    """
    rng, model, length = trial.rng, trial.model(), min(trial.target.longest, 16)
    ids = rng.choice(trial.target.real_ids, 4, replace=False).astype(np.int64)
    logits = 2.5 * rng.standard_normal((4, 4))
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def states(count: int) -> IntArray:
        made = rng.integers(0, 4, (count, length))
        for t in range(1, length):
            made[:, t] = (rng.random(count)[:, None] > np.exp(log_p[made[:, t - 1]]).cumsum(-1)[:, :3]).sum(-1)
        return made

    trial.learn(model, (ids[states(32)] for _ in range(STEPS)))
    new = states(TEXTS)
    q = trial.run(model, Inputs(ids[new]))[:, :-1]
    log_q = q - q.max(-1, keepdims=True)
    log_q -= np.log(np.exp(log_q).sum(-1, keepdims=True))
    known = log_p[new[:, :-1], new[:, 1:]]
    gained = float(np.take_along_axis(log_q, ids[new[:, 1:]][..., None], -1).sum() - known.sum())
    a_token = -gained / known.size
    trial.evidence.add(known.size, max(0.0, gained / LIMIT))
    trial.require(
        gained <= LIMIT, f"after training it is {-a_token:.3g} nats a token under the entropy of its source: it peeks"
    )
    trial.suitable(a_token < 0.5 * (math.log(4) + known.mean()))  # else it has learned too little to show a leak
