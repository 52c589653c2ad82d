"""Laws of generation: which tokens may come next is told by the logits."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnlaws.laws.model_law import model_law
from attnlaws.laws.model_trial import ModelTrial
from attnlaws.problems.model_problem import ModelWants
from attnlaws.targets.call import Array
from attnlaws.targets.model import ModelTarget
from attnlaws.targets.model_inputs import Inputs, IntArray
from attnlaws.targets.model_instance import ModelInstance

DECODERS = ("decoder", "encoder-decoder")
SHORT = ModelWants(kinds=DECODERS, texts=("random",), max_length=9)
#: tokens drawn after one prompt: a token of probability 1/8 is missed by all of them once in 10^14 times
DRAWS = 256


def _generates(target: ModelTarget) -> str | None:
    if target.generate is not None:
        return None
    if why := target.known.get("generate"):
        return why
    return "its generate method was not understood" if "generate" in target.unclear else "has no generate method"


def _greedy(target: ModelTarget) -> str | None:
    way = target.generate
    return _generates(target) or (None if way and way.greedy is not None else "nothing asks for the most likely token")


def _takes(*roles: str) -> Any:
    def applies(target: ModelTarget) -> str | None:
        way = target.generate
        if way is None:
            return _generates(target)
        missing = [role for role in roles if role not in way.roles]
        return (
            f"generate takes no {missing[0]}" if missing else None if way.sampling is not None else "it never samples"
        )

    return applies


def _prompt(trial: ModelTrial, batch: int | None = None) -> Inputs:
    """The problem's tokens, or its source and the token that a decoder starts with; one sample again and again."""
    way, inputs = trial.target.generate, trial.inputs
    if way is not None and not way.many:
        batch = 1
    if batch is not None:
        inputs = inputs.samples(np.zeros(batch, dtype=np.int64))
    if trial.target.source and way is not None:
        inputs = inputs.but(ids=np.full((inputs.batch, 1), way.start, dtype=np.int64))
    return inputs


def _count(trial: ModelTrial, prompt: Inputs) -> int:
    """How many new tokens fit."""
    count = min(4, trial.target.longest - prompt.length)
    trial.suitable(count > 0)
    return count


def _next(trial: ModelTrial, model: ModelInstance, prompt: Inputs) -> Array:
    """The logits (V,) of the token after the prompt, of its first sample."""
    return trial._told(lambda: model.run(prompt.samples(slice(0, 1)), grad=False))[0, -1]


def _drawn(trial: ModelTrial, model: ModelInstance, **options: Any) -> IntArray:
    """DRAWS tokens that were generated after the first prompt."""
    way = trial.target.generate
    assert way is not None
    given = {**(way.sampling or {}), **options}
    prompt, seed = _prompt(trial, DRAWS), int(trial.rng.integers(0, 1 << 31))
    _count(trial, prompt)
    if prompt.batch == 1:
        several = [trial.generate(model, prompt, 1, seed=seed + n, **given) for n in range(DRAWS)]
        return np.concatenate(several)[:, 0]
    return trial.generate(model, prompt, 1, seed=seed, **given)[:, 0]


@model_law(
    "generation.greedy",
    "the most likely token is that of the largest logit, step by step",
    wants=SHORT,
    applies=_greedy,
    share=0.25,
    rejects=("random tokens", "one token always"),
)
def test_greedy(trial: ModelTrial) -> None:
    """x_n+1 = argmax of f(x_1..x_n), for the text as it grows; where two logits are nearer than rounding, either. The prompt
    stays, as many tokens come as were asked for, and with or without a cache they are the same.
    """
    way, model, prompt = trial.target.generate, trial.model(), _prompt(trial)
    assert way is not None
    count = _count(trial, prompt)
    caches: list[dict[str, Any]] = [{"use_cache": on} for on in (True, False)] if "use_cache" in way.roles else [{}]
    for cache in caches:
        new = trial.generate(model, prompt, count, **{**(way.greedy or {}), **cache})
        told = f" with {way.roles['use_cache']}={cache['use_cache']}" if cache else ""
        trial.require(new.shape == (prompt.batch, count), f"{count} tokens were asked for{told}, {new.shape[1]} came")
        logits = _logits_after(trial, model, prompt, new)
        chosen = np.take_along_axis(logits, new[..., None], -1)[..., 0]
        behind = logits.max(-1) - chosen
        trial.evidence.add(behind.size, 0.0)
        if (behind > 2 * trial.slack(trial.units[-1])).any():
            b, n = (int(i) for i in np.argwhere(behind > 2 * trial.slack(trial.units[-1]))[0])
            trial.require(
                False,
                f"new token {n} of sample {b}{told} is {new[b, n]}, the largest logit is that of {logits[b, n].argmax()}",
            )


def _logits_after(trial: ModelTrial, model: ModelInstance, prompt: Inputs, new: IntArray) -> Array:
    """The logits (B, n, V) from which each new token was chosen."""
    text = np.concatenate([prompt.ids, new], axis=1)[:, :-1]
    inside = trial._told(lambda: model.run(prompt.but(ids=text), grad=False))
    return inside[:, prompt.length - 1 :]


@model_law(
    "generation.cold",
    "as the temperature goes to 0, the most likely token comes",
    wants=ModelWants(kinds=DECODERS, texts=("random",), max_length=5, redrawn=True),
    applies=_takes("temperature"),
    basis=("generation.greedy",),
    share=0.15,
    rejects=("random tokens", "one token always"),
)
def test_cold(trial: ModelTrial) -> None:
    """softmax(f / T) goes to the argmax: with T a fiftieth of the distance between the two largest logits, another token has a
    chance below e^-50 V. T = 0 gives it as well, where it is not refused.
    """
    model = trial.model()
    logits = _next(trial, model, _prompt(trial))
    gap = float(np.diff(np.sort(logits)[-2:])[0])
    trial.suitable(gap > 8 * trial.slack(trial.units[-1]) and gap > 1e-3)
    drawn = _drawn(trial, model, temperature=gap / 50)
    best = int(logits.argmax())
    strangers = sorted({int(t) for t in drawn} - {best})
    trial.require(
        not strangers,
        f"at the temperature {gap / 50:.2g} the token {strangers[:1]} comes, not {best} of the largest logit",
    )


@model_law(
    "generation.temperature",
    "at a high temperature every token comes, at temperature 1 as often as its probability says",
    wants=ModelWants(kinds=DECODERS, texts=("random",), max_length=5, redrawn=True),
    applies=_takes("temperature"),
    share=0.15,
    rejects=("one token always",),
)
def test_temperature(trial: ModelTrial) -> None:
    """P(v) = softmax(f / T)_v. Of N = 256 tokens, a token of probability p comes within sqrt(N log(2 V / a) / 2) of p N times, but
    for a chance a = 1e-10 (Hoeffding), for T = 1 and T = 2.
    """
    model = trial.model()
    logits = _next(trial, model, _prompt(trial))
    limit = np.sqrt(DRAWS * np.log(2 * len(logits) / 1e-10) / 2)
    for heat in (1.0, 2.0):
        weights = np.exp((logits - logits.max()) / heat)
        want = DRAWS * weights / weights.sum()
        counts = np.bincount(_drawn(trial, model, temperature=heat), minlength=len(logits))
        worst = int(np.abs(counts[: len(logits)] - want).argmax())
        what = f"at the temperature {heat} the token {worst} comes {counts[worst]} times of {DRAWS}, expected {want[worst]:.0f}"
        trial.require(bool(abs(counts[worst] - want[worst]) <= limit), what)


@model_law(
    "generation.top-k",
    "with top-k exactly the k most likely tokens come",
    wants=ModelWants(kinds=DECODERS, texts=("random",), max_length=5, redrawn=True),
    applies=_takes("top_k"),
    share=0.15,
    rejects=("random tokens", "one token always"),
)
def test_top_k(trial: ModelTrial) -> None:
    """The support of the next token is the k largest logits: no other comes, and each of them does where it should be expected
    40 times or more. k is chosen where the k-th and the next logit are apart.
    """
    model = trial.model()
    logits = _next(trial, model, _prompt(trial))
    k = int(trial.rng.integers(2, min(5, len(logits) - 1) + 1))
    order = np.argsort(-logits)
    trial.suitable(bool(logits[order[k - 1]] - logits[order[k]] > 8 * trial.slack(trial.units[-1])))
    _support(trial, model, logits, order[:k], f"top {k}", top_k=k)


@model_law(
    "generation.top-p",
    "with top-p exactly the smallest set of likely tokens that reaches p comes",
    wants=ModelWants(kinds=DECODERS, texts=("random",), max_length=5, redrawn=True),
    applies=_takes("top_p"),
    share=0.15,
    rejects=("random tokens", "one token always"),
)
def test_top_p(trial: ModelTrial) -> None:
    """The support of the next token is the fewest tokens whose probabilities reach p, the most likely first; p lies in the middle
    of what the last of them adds. p = 1 keeps all.
    """
    model = trial.model()
    logits = _next(trial, model, _prompt(trial))
    order = np.argsort(-logits)
    shares = np.exp(logits - logits.max())[order]
    reached = np.cumsum(shares / shares.sum())
    k = int(trial.rng.integers(1, 5))
    apart = np.diff(-logits[order])[k - 1 : k + 1]
    trial.suitable(len(logits) > k + 1 and bool((apart > 8 * trial.slack(trial.units[-1])).all()))
    trial.suitable(bool(reached[k] - reached[k - 1] > 1e-3))
    p = float(reached[k - 1] + reached[k]) / 2
    _support(trial, model, logits, order[: k + 1], f"top p = {p:.3f}", top_p=p)
    _support(trial, model, logits, order, "top p = 1", top_p=1.0)


def _support(
    trial: ModelTrial, model: ModelInstance, logits: Array, allowed: IntArray, told: str, **options: Any
) -> None:
    """No token but the allowed ones comes, and each that is expected 40 times or more does (missed once in 10^17)."""
    counts = np.bincount(_drawn(trial, model, **options), minlength=len(logits))
    strangers = [int(t) for t in np.flatnonzero(counts) if t not in allowed]
    trial.require(
        not strangers, f"with {told} the token {strangers[:1]} comes, which is not among the {len(allowed)} most likely"
    )
    shares = np.exp(logits[allowed] - logits.max())
    expected = DRAWS * shares / shares.sum()
    missing = [int(t) for t, n in zip(allowed, expected, strict=True) if n >= 40 and not counts[t]]
    trial.require(
        not missing, f"with {told} the token {missing[:1]} never comes in {DRAWS} draws, though it is allowed"
    )


@model_law(
    "generation.end",
    "after its end token a sample is over, and the others go on",
    wants=ModelWants(kinds=DECODERS, texts=("random",), min_batch=2, max_length=5, redrawn=True),
    applies=lambda t: (
        _greedy(t) or (None if t.generate and "eos" in t.generate.roles else "generate takes no end token")
    ),
    basis=("generation.greedy",),
    share=0.15,
)
def test_end(trial: ModelTrial) -> None:
    """With the token that comes n-th as the end, a sample is what it was up to it, and then padding or the end again; a sample
    without it is what it was.
    """
    way, model, prompt = trial.target.generate, trial.model(), _prompt(trial)
    assert way is not None
    trial.suitable(way.many)
    count = _count(trial, prompt)
    options = dict(way.greedy or {})
    free = trial.generate(model, prompt, count, **options)
    end = int(free[0, trial.rng.integers(0, free.shape[1])])
    taken = {end, *prompt.ids.ravel().tolist(), *free.ravel().tolist()}
    pad = next(
        (i for i in range(trial.target.vocabulary) if i not in taken), end
    )  # none that is read as padding before
    given = {**options, "eos": end, **({"pad": pad} if "pad" in way.roles else {})}
    got = trial.generate(model, prompt, count, **given)
    for b in range(prompt.batch):
        ends = np.flatnonzero(free[b] == end)
        kept = int(ends[0]) if len(ends) else count
        n = min(kept + 1, got.shape[1])
        trial.require(n >= min(kept, count), f"sample {b} is cut off before its end")
        trial.require(
            bool((got[b, : min(kept, n)] == free[b, : min(kept, n)]).all()),
            f"sample {b} is another one where an end token is given",
        )
        rest = got[b, kept + 1 :]
        trial.require(
            bool(np.isin(rest, (end, pad)).all()), f"sample {b} goes on after its end token with {rest.tolist()}"
        )


@model_law(
    "generation.batch",
    "a text padded on the left goes on as it does alone",
    wants=ModelWants(kinds=("decoder",), texts=("random",), min_length=2, min_batch=2, max_length=7, redrawn=True),
    applies=lambda t: (
        _greedy(t)
        or (None if t.generate and t.generate.many and "mask" in t.generate.roles else "generate takes no padding mask")
        or (None if t.left_padding == "absent" and t.pad is not None else "takes no padding on the left")
    ),
    basis=("generation.greedy", "models.padding"),
    share=0.15,
)
def test_batch(trial: ModelTrial) -> None:
    """Texts of different lengths, padded on the left with their mask, go on with the tokens of the largest logits of each text
    alone.
    """
    way, model, inputs, length = trial.target.generate, trial.model(), trial.inputs, trial.problem.length
    assert way is not None
    count = _count(trial, inputs)
    padding = trial.rng.integers(0, length, trial.problem.batch)
    padding[0] = length - 1
    real = np.arange(length) >= padding[:, None]
    new = trial.generate(model, inputs.but(real=real), count, **(way.greedy or {}))
    trial.require(new.shape == (inputs.batch, count), f"{count} tokens were asked for, {new.shape[1]} came")
    for b in range(inputs.batch):
        alone = Inputs(inputs.ids[b : b + 1, padding[b] :])
        logits = _logits_after(trial, model, alone, new[b : b + 1])[0]
        behind = logits.max(-1) - logits[np.arange(count), new[b]]
        what = f"sample {b}, behind {padding[b]} padded places, goes on with another token than alone"
        trial.require(bool((behind <= 2 * trial.slack(trial.units[-1])).all()), what)
