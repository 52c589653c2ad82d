"""Laws of what a model holds: its state dict, tied weights, gradients, buffers, dtype."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.model_law import model_law
from attnlaws.laws.model_trial import ModelTrial
from attnlaws.problems.model_problem import ModelWants
from attnlaws.targets.model import ModelTarget

TWO = ModelWants(min_length=2, padding=None, max_length=33)


@model_law("models.state-dict", "the state dict holds all that the logits depend on", exact=True, wants=TWO, share=0.2)
def test_state_dict(trial: ModelTrial) -> None:
    """A fresh model with the state dict of another gives the same logits, bit for bit: weights, tables and all."""
    model = trial.model()
    first = trial.run(model)
    other = trial.target.another(trial.problem.seed + 1, trial.problem.dtype)
    refusal = other.load(model.state())
    trial.require(not refusal, f"its own state dict is refused: {refusal}")
    trial.equal(trial.run(other), first, "a fresh model with the same state dict gives other logits", trial.rows)
    trial.equal(trial.run(model), first, "the model gives other logits after its state was taken", trial.rows)


def _tied(target: ModelTarget) -> str | None:
    return None if target.tied or target.says_tied else "no weights are tied, and none are said to be"


@model_law(
    "models.tied",
    "tied weights are one tensor, and stay one",
    wants=ModelWants(min_length=2, max_length=9),
    applies=_tied,
    exact=True,
    share=0.1,
)
def test_tied(trial: ModelTrial) -> None:
    """Where weights are said to be tied they are the same tensor: in a copy, moved to another dtype and back, after its state
    was loaded, and in a model that is built anew. What changes the one changes the other.
    """
    target, model = trial.target, trial.model()
    trial.require(bool(target.tied), f"{target.says_tied} says that weights are tied, and no two parameters are one")
    groups = set(target.tied)
    trial.require(set(model.shared()) == groups, "in a copy of the model other weights are tied")
    for dtype in reversed(target.dtypes):
        trial.move(model, dtype)
        trial.require(set(model.shared()) == groups, f"moved to {dtype} other weights are tied")
    other = target.another(trial.problem.seed, target.dtypes[0])
    refusal = other.load(model.state())
    trial.require(not refusal, f"its own state dict is refused: {refusal}")
    trial.require(set(other.shared()) == groups, "in a model built anew other weights are tied")


@model_law(
    "models.gradients-reach",
    "every parameter gets a gradient, and it is finite",
    wants=ModelWants(min_length=3, min_source=3, texts=("random",), redrawn=True, max_length=17),
    share=0.2,
)
def test_gradients_reach(trial: ModelTrial) -> None:
    """d sum(f(x) u) / d theta exists, is finite and not 0 all over, for every parameter theta that wants one. With one token
    alone its weight is 1 whatever the scores; here are three or more. Keys' biases and tables of other lengths may have 0, and
    in a window of one all that scores come from.
    """
    model = trial.model(calm=True)
    upstream = trial.rng.standard_normal(trial.run(model).shape)
    _, found = trial.differentiate(model, upstream)
    for name, gradient in found.items():
        trial.require(gradient is not None, f"no gradient reaches {name}")
        assert gradient is not None
        trial.require(bool(np.isfinite(gradient).all()), f"the gradient of {name} is not finite")
        if gradient.ndim >= 2 and not trial.target.dependence.alone:
            trial.require(bool(gradient.any()), f"the gradient of {name} is 0 all over")


@model_law(
    "models.gradients-match",
    "the gradients are the slope of the logits",
    wants=ModelWants(min_length=2, texts=("random",), dtypes=("float64",), redrawn=True, padding=None, max_length=9),
    applies=lambda t: None if "float64" in t.dtypes else "doesn't answer in float64",
    basis=("models.gradients-reach",),
    share=0.2,
)
def test_gradients_match(trial: ModelTrial) -> None:
    """<d F / d theta, e> = (F(theta + h e) - F(theta - h e)) / 2h for F = sum(f(x) u), along a random e of length 1.

    What is allowed: the difference of the two one-sided slopes (the curvature, and a kink) for h and for h / 2, that of the
    slopes for h and h / 2, four times each, and the rounding of F, 32 u sum |f(x) u| over h. h is the third root of u.
    """
    model = trial.model(calm=True)
    first = trial.run(model)
    upstream = trial.rng.standard_normal(first.shape) * trial.rows[..., None]
    trial.suitable(bool(np.isfinite(first).all()))  # a padded row may be NaN, and so are its gradients
    first = np.where(trial.rows[..., None], first, 0.0)
    _, found = trial.differentiate(model, upstream)
    gradients = {name: g for name, g in found.items() if g is not None}
    along = {name: trial.rng.standard_normal(g.shape) for name, g in gradients.items()}
    length = np.sqrt(sum(float((e * e).sum()) for e in along.values()))
    slope = sum(float((g * along[name]).sum()) for name, g in gradients.items()) / length
    values = model.parameters()

    def at(h: float) -> float:
        model.set({n: values[n] + h / length * e for n, e in along.items()})
        return float((np.where(trial.rows[..., None], trial.run(model), 0.0) * upstream).sum())

    limits = []
    for unit in trial.units:
        h, here = np.cbrt(unit), float((first * upstream).sum())
        up, down, up2, down2 = at(h), at(-h), at(h / 2), at(-h / 2)
        central, half = (up - down) / (2 * h), (up2 - down2) / h
        curved = abs((up + down - 2 * here) / h) + abs((up2 + down2 - 2 * here) / (h / 2)) + abs(central - half)
        limits.append((half, 4 * curved + 32 * unit * float(np.abs(first * upstream).sum()) / h))
    trial.close(slope, limits, "the gradients are not the slope of the logits")


@model_law(
    "models.buffers", "no saved buffer changes, and nothing grows, from call to call", exact=True, wants=TWO, share=0.2
)
def test_buffers(trial: ModelTrial) -> None:
    """After a first call, calls of the same size in eval mode leave every buffer of the state dict as it is, bit for bit, and no
    attribute that holds tensors holds more of them. A table that is made for a length, or grows with it, is no break, nor is a cache.
    """
    model = trial.model()
    trial.run(model)
    before, held, saved = model.buffers(), model.kept(), model.state()
    for _ in range(3):
        trial.run(model, trial.inputs.but(ids=trial.other(trial.inputs.ids, slice(None))))
        now = model.buffers()
        grown = sorted(name for name in {*before, *now} if before.get(name, ((),))[0] != now.get(name, ((),))[0])
        trial.require(not grown, f"the buffer {', '.join(grown)} has another size after another call")
        changed = sorted(name for name in now if name in saved and before[name] != now[name])
        trial.require(not changed, f"the buffer {', '.join(changed)} changes in a call in eval mode")
        trial.require(model.kept() <= held, "the model holds more tensors after each call")


@model_law(
    "models.dtype-move",
    "moved to float64 the model computes the same, and moved back it is as it was",
    wants=ModelWants(min_length=2, padding=None, dtypes=("float32",), max_length=33),
    applies=lambda t: None if "float64" in t.dtypes else "doesn't answer in float64",
    share=0.15,
    basis=("models.finite", "models.padding"),
)
def test_dtype_move(trial: ModelTrial) -> None:
    """One model, called in float32, moved to float64, called, moved back, called: the second is the first but for rounding in
    float32, the third is the first bit for bit. Tables and what is kept between calls move along.
    """
    model = trial.model("float32")
    first = trial.run(model)
    trial.move(model, "float64")
    wide = trial.run(model)
    trial.agree(wide, first, "moved to float64 the model gives other logits", rows=trial.rows)
    trial.move(model, "float32")
    trial.equal(trial.run(model), first, "moved to float64 and back the model gives other logits", trial.rows)
