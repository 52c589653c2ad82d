"""Laws of layers: modules from (B, L, E) to (B, L, E'), whatever their weights."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.layer_law import layer_law
from attnlaws.laws.layer_trial import LayerTrial
from attnlaws.laws.trial import Ignored
from attnlaws.problems.choices import places
from attnlaws.problems.layer_problem import LayerWants
from attnlaws.targets.call import Array
from attnlaws.targets.instance import Instance
from attnlaws.targets.layer import LayerTarget

TWO = LayerWants(min_length=2, padding=None)


def _sees_all(target: LayerTarget) -> str | None:
    limited = target.dependence.causal or target.asks_causal or target.dependence.left is not None
    return None if limited else "each output sees all tokens, and causality can't be asked for"


@layer_law(
    "layers.causality",
    "an output doesn't depend on tokens that it may not see",
    wants=LayerWants(min_length=2, padding=None, far=True),
    applies=_sees_all,
    exact=True,
    share=0.75,
)
def test_causality(trial: LayerTrial) -> None:
    """Another token j leaves y_i as it was, bit for bit, for every i that may not see j (i < j, or beyond a window): each j
    in turn, then all that are later.
    """
    sees, length = trial.sees().any(0) | np.eye(trial.problem.length, dtype=bool), trial.problem.length
    trial.suitable(trial.problem.causal or trial.dependence.causal or trial.dependence.left is not None)
    layer, visible = trial.layer(), trial.visible()
    before = trial.run(layer)
    for j in places(trial.rng, length, 4):
        for changed in (slice(j, j + 1), slice(j, length)):
            blind = np.broadcast_to(~sees[:, changed].any(-1), (trial.problem.batch, length)) & trial.real()
            if not blind.any():
                continue
            x = trial.x.copy()
            x[:, changed] = np.float32(2.0) * x[:, changed] + trial.rng.integers(-3, 4, x[:, changed].shape)
            later = " and those after it change" if changed.stop > j + 1 else " changes"
            what = f"the output moves when a token that it may not see{later} (token {j})"
            trial.agree(trial.run(layer, x, visible=visible), before, what, hoped=True, rows=blind)


def _own_pattern(target: LayerTarget) -> str | None:
    word = target.known.get("pattern")
    return f"it sees a pattern of its own ({word})" if word and not target.dependence.clear else None


@layer_law(
    "layers.every-token",
    "an output depends on every token that it may see",
    wants=LayerWants(min_length=2, padding=None, values=("normal",), redrawn=True, far=True),
    applies=_own_pattern,
)
def test_every_token(trial: LayerTrial) -> None:
    """Each visible key has a weight > 0, so another token j moves y_i, for every i that may see j: its own and the first too.
    The input is small, so that no weight is too small to be seen.
    """
    sees, layer, visible = trial.sees(), trial.layer(trial.target.dtypes[-1]), trial.visible()
    small = trial.x / 16.0
    before = trial.run(layer, small, visible=visible)
    length = trial.problem.length
    for j in range(length) if length <= 33 else places(trial.rng, length, 5):
        x = small.copy()
        x[:, j] = trial.rng.standard_normal(x[:, j].shape) / 16.0
        moved = (trial.run(layer, x, visible=visible) != before).any(-1)
        missing = sees[:, :, j] & trial.real() & ~moved
        trial.evidence.add(moved.size, 0.0)
        if missing.any():
            b, i = (int(n) for n in np.argwhere(missing)[0])
            trial.require(False, f"output {i} of sample {b} may see token {j}, but doesn't depend on it")


def _padding(target: LayerTarget) -> str | None:
    if target.padding is None and not target.ignored:
        unclear = f" whose meaning was found ({', '.join(target.unclear)})" if target.unclear else ""
        return f"takes no padding mask{unclear}"
    return None


@layer_law(
    "layers.padding",
    "what stands at padded tokens doesn't matter",
    wants=LayerWants(min_length=2, padding=None, far=True),
    applies=_padding,
    exact=True,
)
def test_padding(trial: LayerTrial) -> None:
    """y at real tokens is the same, bit for bit, whatever the padded tokens hold; padding right, left and in between."""
    if trial.target.padding is None:
        raise Ignored(f"takes {', '.join(trial.target.ignored)}, and a key that it hides has the weight it had")
    trial.suitable(trial.padding is not None and not trial.padding.all())
    layer, visible = trial.layer(), trial.visible()
    before, hidden = trial.run(layer), ~trial.padding  # type: ignore[operator]
    for size in (1.0, 100.0):
        x = trial.x.copy()
        x[hidden] = np.rint(size * trial.rng.standard_normal(x[hidden].shape))
        what = "the output at real tokens moves with what stands at padded ones"
        trial.agree(trial.run(layer, x, visible=visible), before, what, hoped=True, rows=trial.real())


@layer_law(
    "layers.padding-is-absence",
    "padding on the right gives what the real tokens alone give",
    wants=LayerWants(min_length=2, padding=True),
    basis=("layers.padding", "layers.batch"),
)
def test_padding_is_absence(trial: LayerTrial) -> None:
    """y(x_1..x_n, padding)[:n] = y(x_1..x_n), sample by sample."""
    trial.suitable(trial.problem.padding == "right" and not trial.target.only_length)
    layer, whole = trial.layer(), trial.run(trial.layer())
    assert trial.padding is not None
    for b in range(trial.problem.batch):
        n = int(trial.padding[b].sum())
        everything = trial.visible(np.ones((1, n), dtype=bool), length=n, batch=1)
        alone = trial.run(layer, trial.x[b : b + 1, :n], visible=everything)
        rows = np.zeros(trial.x.shape[:2], dtype=bool)
        rows[b, :n] = True
        wide = whole.copy()
        wide[b, :n] = alone[0]
        trial.agree(wide, whole, "real tokens give another output where padding follows them", rows=rows & trial.real())


@layer_law(
    "layers.batch",
    "a sample gives in a batch what it gives alone",
    wants=LayerWants(min_batch=2, padding=None),
    basis=("layers.repeatable",),
)
def test_batch(trial: LayerTrial) -> None:
    """y[b] = y(x[b] alone), and the same for two samples that stand in another order."""
    layer, visible, whole = trial.layer(), trial.visible(), trial.run(trial.layer())
    b = int(trial.rng.integers(0, trial.problem.batch))
    one = slice(b, b + 1)
    wide = whole.copy()
    wide[one] = trial.run(layer, trial.x[one], visible=None if visible is None else visible[one])
    rows = trial.real()
    trial.agree(wide, whole, f"sample {b} gives something else alone than in the batch", rows=rows)
    turned = trial.run(layer, trial.x[::-1].copy(), visible=None if visible is None else visible[::-1].copy())[::-1]
    trial.agree(turned, whole, "samples in another order give other outputs", rows=rows)


def _no_positions(target: LayerTarget) -> str | None:
    if target.dependence.left is not None:
        return "sees a window"
    word = target.known.get("positions", "")
    return f"uses positions ({word or 'declared'})" if target.positions == "used" else None


@layer_law(
    "layers.permutation",
    "without positions, permuting the tokens permutes the outputs",
    wants=LayerWants(min_length=3),
    applies=_no_positions,
    basis=("layers.repeatable", "layers.oracle"),
)
def test_permutation(trial: LayerTrial) -> None:
    """y(P x) = P y(x) for a layer that sees all tokens; where it is causal, the last output is the same for every order of
    the tokens before it.
    """
    trial.suitable(not trial.problem.causal)
    length, layer = trial.problem.length, trial.layer()
    whole = trial.run(layer)
    rows = np.ones(trial.x.shape[:2], dtype=bool)
    order = trial.rng.permutation(length)
    if trial.dependence.causal:
        order = np.array([*trial.rng.permutation(length - 1), length - 1])
        rows[:, :-1] = False
    got = trial.run(layer, trial.x[:, order])
    trial.agree(
        got,
        whole[:, order],
        "tokens in another order give other outputs, though nothing says where a token is",
        rows=rows,
    )


@layer_law("layers.repeatable", "in eval mode the same input gives the same bits", wants=TWO, exact=True)
def test_repeatable(trial: LayerTrial) -> None:
    """y(x) = y(x), bit for bit, after other inputs, another length, and another state of the random generator."""
    layer, visible = trial.layer(), trial.visible()
    first = trial.run(layer)
    trial.run(layer, -trial.x[::-1].copy(), visible=visible)
    if not trial.target.only_length:
        shorter = trial.x[:, : trial.problem.length - 1]
        real = np.ones(shorter.shape[:2], dtype=bool)
        trial.run(layer, shorter, visible=None if visible is None else trial.visible(real, length=shorter.shape[1]))
    trial.equal(trial.run(layer, seed=1), first, "in eval mode the same input gives another output", trial.real())


@layer_law(
    "layers.modes",
    "training and eval, with gradients recorded or not, agree where nothing is dropped",
    wants=TWO,
    share=0.6,
    basis=("layers.repeatable",),
)
def test_modes(trial: LayerTrial) -> None:
    """eval, with and without gradients, with and without weights asked for: one output. train() and eval() again: the same
    bits. Without dropout, training gives it as well.
    """
    layer, rows = trial.layer(), trial.real()
    first = trial.run(layer)
    _each_way(trial, layer, first, "in eval mode")
    free = trial.layer(training=True)
    free.without_dropout()
    trial.suitable(not free.keeps_statistics())  # a batch norm rightly gives another output after a call in training
    layer.train()
    trial.run(layer, seed=3)
    layer.train(False)
    what = "the output in eval mode is another one after a call in training mode"
    trial.equal(trial.run(layer), first, what, rows)
    if np.array_equal(trial.run(free, seed=1)[rows], trial.run(free, seed=2)[rows]):  # nothing is drawn any more
        _each_way(trial, free, first, "in training mode without dropout")


def _each_way(trial: LayerTrial, layer: Instance, first: Array, mode: str) -> None:
    """The output with and without gradients, and with and without weights asked for, is the first."""
    for weights in (None, True, False) if trial.target.weights_parameter else (None,):
        for grad in (True, False):
            asked = "" if weights is None else f", weights asked for: {weights}"
            what = f"the output is another one {mode}, {'with' if grad else 'without'} gradients recorded{asked}"
            trial.agree(trial.run(layer, grad=grad, weights=weights), first, what, rows=trial.real())


@layer_law(
    "layers.state-dict",
    "the state dict holds all that the output depends on",
    exact=True,
    wants=LayerWants(padding=None),
)
def test_state_dict(trial: LayerTrial) -> None:
    """A fresh layer with the state dict of another gives the same output, bit for bit: weights, tables and all."""
    layer = trial.layer()
    first = trial.run(layer)
    other = trial.target.another(trial.problem.seed + 1, trial.problem.dtype)
    refusal = other.load(layer.state())
    trial.require(not refusal, f"its own state dict is refused: {refusal}")
    got = trial.run(other)
    trial.equal(got, first, "a fresh layer with the same state dict gives another output", trial.real())
    trial.equal(trial.run(layer), first, "the layer gives another output after its state was taken", trial.real())


@layer_law(
    "layers.gradients-reach",
    "every parameter gets a gradient, and it is finite",
    wants=LayerWants(min_length=2, padding=None),
)
def test_gradients_reach(trial: LayerTrial) -> None:
    """d sum(y u) / d theta exists and is finite for every parameter theta that wants one, and for x."""
    trial.suitable(bool(trial.sees().any(-1).all()))  # what a row that sees nothing gives is a choice, NaN among them
    layer = trial.layer()
    upstream = trial.rng.standard_normal(trial.run(layer).shape) * trial.real()[..., None]
    _, found, by_input = trial.differentiate(layer, upstream)
    for name, gradient in [*found.items(), ("the input", by_input)]:
        trial.require(gradient is not None, f"no gradient reaches {name}")
        assert gradient is not None
        finite = np.isfinite(gradient)
        trial.require(
            bool(finite.all() if name != "the input" else finite[trial.real()].all()),
            f"the gradient of {name} is not finite",
        )
        trial.evidence.add(gradient.size, 0.0)


@layer_law(
    "layers.gradients-match",
    "the gradients are the slope of the output",
    wants=LayerWants(min_length=2, values=("normal",), dtypes=("float64",), redrawn=True),
    basis=("layers.gradients-reach",),
    share=0.35,
)
def test_gradients_match(trial: LayerTrial) -> None:
    """<d F / d theta, e> = (F(theta + h e) - F(theta - h e)) / 2h for F = sum(y u), along a random e of length 1 of all
    parameters and x.

    What is allowed: the difference of the two one-sided slopes (the curvature, and a kink) for h and for h / 2, that of the
    slopes for h and h / 2, four times each, and the rounding of F, 32 u sum |y u| over h. h is the third root of u.
    """
    layer = trial.layer()
    first = trial.run(layer)
    upstream = trial.rng.standard_normal(first.shape)
    _, found, by_input = trial.differentiate(layer, upstream)
    gradients = {name: g for name, g in {**found, "": by_input}.items() if g is not None}
    along = {name: trial.rng.standard_normal(g.shape) for name, g in gradients.items()}
    length = np.sqrt(sum(float((e * e).sum()) for e in along.values()))
    slope = sum(float((g * along[name]).sum()) for name, g in gradients.items()) / length
    values = layer.parameters()

    def at(h: float) -> float:
        layer.set({n: values[n] + h / length * e for n, e in along.items() if n})
        x = trial.x + h / length * along.get("", np.zeros(trial.x.shape))
        return float((trial.run(layer, x, visible=trial.visible()) * upstream).sum())

    limits = []
    for unit in trial.units:
        h, here = np.cbrt(unit), float((first * upstream).sum())
        up, down, up2, down2 = at(h), at(-h), at(h / 2), at(-h / 2)
        central, half = (up - down) / (2 * h), (up2 - down2) / h
        curved = abs((up + down - 2 * here) / h) + abs((up2 + down2 - 2 * here) / (h / 2)) + abs(central - half)
        limits.append((half, 4 * curved + 32 * unit * float(np.abs(first * upstream).sum()) / h))
    trial.close(slope, limits, "the gradients are not the slope of the output")


@layer_law("layers.buffers", "no buffer changes, and nothing grows, from call to call", exact=True, wants=TWO)
def test_buffers(trial: LayerTrial) -> None:
    """After a first call, calls of the same size in eval mode leave every buffer as it is, bit for bit, and no attribute that
    holds tensors holds more of them. A table that is made for a length, or grows with it, is no break.
    """
    layer, visible = trial.layer(), trial.visible()
    trial.run(layer)
    before, held = layer.buffers(), layer.kept()
    for n in range(3):
        trial.run(layer, trial.x + n, visible=visible)
        now = layer.buffers()
        grown = sorted(name for name in {*before, *now} if before.get(name, ((),))[0] != now.get(name, ((),))[0])
        trial.require(not grown, f"the buffer {', '.join(grown)} has another size after another call")
        changed = sorted(name for name in now if before[name] != now[name])
        trial.require(not changed, f"the buffer {', '.join(changed)} changes in a call in eval mode")
        trial.require(layer.kept() <= held, "the layer holds more tensors after each call")


@layer_law(
    "layers.dtype-move",
    "moved to float64 the layer computes the same, and moved back it is as it was",
    wants=LayerWants(min_length=2, padding=None, dtypes=("float32",)),
    applies=lambda t: None if "float64" in t.dtypes else "doesn't answer in float64",
)
def test_dtype_move(trial: LayerTrial) -> None:
    """One layer, called in float32, moved to float64, called, moved back, called: the second is the first but for rounding in
    float32, the third is the first bit for bit. Tables and what is kept between calls move along.
    """
    layer = trial.layer("float32")
    first, visible = trial.run(layer), trial.visible()
    trial.move(layer, "float64")
    wide = trial.run(layer, trial.x, visible=visible)
    trial.agree(wide, first, "moved to float64 the layer gives another output", rows=trial.real())
    trial.move(layer, "float32")
    trial.equal(trial.run(layer), first, "moved to float64 and back the layer gives another output", trial.real())
