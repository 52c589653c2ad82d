"""Laws of models, whatever their kind: from tokens (B, L) to logits (B, L, V), with any weights."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.model_law import model_law
from attnlaws.laws.model_trial import ModelTrial
from attnlaws.laws.trial import Ignored
from attnlaws.problems.model_problem import ModelWants, paddings
from attnlaws.targets.model import LossWay, ModelTarget
from attnlaws.targets.model_names import role_of
from attnlaws.targets.probe_model_options import cross_entropy

TWO = ModelWants(min_length=2, padding=None, max_length=33)


@model_law("models.finite", "the logits at real tokens are numbers", wants=ModelWants(padding=None), share=0.35)
def test_finite(trial: ModelTrial) -> None:
    """f(x)_i is not NaN where token i is real: what a row gives that sees nothing is a choice, and must not reach the others.
    Minus infinity is a number here: a token that can't come.
    """
    logits = trial.run(trial.model())[trial.rows]
    trial.evidence.add(logits.size, 0.0)
    trial.require(not np.isnan(logits).any(), "there are NaN among the logits at real tokens")


@model_law("models.repeatable", "in eval mode the same tokens give the same bits", wants=TWO, exact=True, share=0.2)
def test_repeatable(trial: ModelTrial) -> None:
    """f(x) = f(x), bit for bit, after other tokens, other lengths, and another state of the random generator."""
    model, inputs = trial.model(), trial.inputs
    first = trial.run(model)
    trial.run(model, inputs.but(ids=trial.other(inputs.ids, slice(None))))
    for length in (trial.problem.length - 1, trial.target.longest):
        longer = np.resize(inputs.ids, (trial.problem.batch, length))
        trial.run(
            model, inputs.but(ids=longer, real=None if inputs.real is None else np.ones(longer.shape, dtype=bool))
        )
    trial.equal(trial.run(model, seed=1), first, "in eval mode the same tokens give other logits", trial.rows)


@model_law(
    "models.batch",
    "a sample gives in a batch what it gives alone",
    wants=ModelWants(min_batch=2, padding=None),
    basis=("models.repeatable",),
    share=0.35,
    rejects=("samples mixed",),
)
def test_batch(trial: ModelTrial) -> None:
    """f(x)[b] = f(x[b] alone), and the same for samples that stand in another order."""
    model, inputs = trial.model(), trial.inputs
    whole = trial.run(model)
    for b in range(trial.problem.batch):
        wide = whole.copy()
        wide[b : b + 1] = trial.run(model, inputs.samples(slice(b, b + 1)))
        trial.agree(wide, whole, f"sample {b} gives other logits alone than in the batch", rows=trial.rows)
    turned = trial.run(model, inputs.samples(slice(None, None, -1)))[::-1]
    trial.agree(turned, whole, "samples in another order give other logits", rows=trial.rows)


#: the most samples in one call of any law: caches are made for so many
SAMPLES = 4


@model_law(
    "models.every-id",
    "each token id gives logits of its own",
    wants=ModelWants(min_length=1, max_length=1, redrawn=True),
    share=0.2,
    rejects=("zeros",),
)
def test_every_id(trial: ModelTrial) -> None:
    """f(a) != f(b) for two ids a != b: no id is clipped, taken for another, or out of the table; the last one too."""
    real = np.array(trial.target.real_ids)
    some = np.unique([*trial.rng.choice(real, min(len(real), 16), replace=False), real[-1], real[0]])
    model = trial.model(trial.target.dtypes[-1], calm=True)
    rows = []
    for start in range(0, len(some), SAMPLES):
        ids = some[start : start + SAMPLES, None]
        inputs = trial.inputs.samples(np.zeros(len(ids), dtype=np.int64)).but(ids=ids)
        rows.append(trial.run(model, inputs)[:, 0])
    logits = np.concatenate(rows)
    for n, a in enumerate(some[:-1]):
        same = (logits[n + 1 :] == logits[n]).all(-1)
        trial.evidence.add(logits[n + 1 :].size, 0.0)
        if same.any():
            b = some[n + 1 + int(np.argmax(same))]
            trial.require(False, f"the tokens {a} and {b} give the same logits")


# -- padding --------------------------------------------------------------------------------------------------------


def _pads(target: ModelTarget) -> str | None:
    if any(way is not None and way.kind == "by id" for way in (target.pad, target.source_pad)):
        return "what holds the pad id is padding"
    if paddings(target) or target.ignored:
        return None
    return (
        f"takes no padding mask whose meaning was found ({', '.join(target.unclear)})"
        if target.unclear
        else "takes no padding mask"
    )


@model_law(
    "models.pad-content",
    "what stands at padded places doesn't matter",
    wants=ModelWants(min_length=2, padding=None),
    applies=_pads,
    exact=True,
    basis=("models.finite",),
    rejects=("padding not hidden",),
)
def test_pad_content(trial: ModelTrial) -> None:
    """The logits at real tokens are the same, bit for bit, whatever ids stand at padded ones; left, right and in between."""
    target, inputs, model = trial.target, trial.inputs, trial.model()
    if target.ignored:
        raise Ignored(f"takes {', '.join(target.ignored)}, and a token that it hides counts as before")
    trial.suitable(trial.problem.padding != "none")
    for source, real in ((False, inputs.real), (True, inputs.source_real)):
        if real is None or real.all():
            continue
        name = "source" if source else "ids"
        filled = inputs.but(**{name: trial.other(getattr(inputs, name), ~real, source=source)})
        before = trial.run(model, filled)
        again = filled.but(**{name: trial.other(getattr(filled, name), ~real, source=source)})
        what = f"the logits at real tokens move with what stands at padded places{' of the source' if source else ''}"
        trial.agree(trial.run(model, again), before, what, hoped=True, rows=trial.rows)


@model_law(
    "models.padding",
    "padding is as if it were not there",
    wants=ModelWants(min_length=2, padding=True),
    basis=("models.finite", "models.pad-content", "models.batch"),
    share=0.4,
    rejects=("padding not hidden",),
)
def test_padding(trial: ModelTrial) -> None:
    """f(x, padding) = f(x) at the real tokens, sample by sample; padding on the left as well, with position ids that count
    the real tokens where the model takes them. A model that takes none may let padding on the left count as places.
    """
    problem, inputs = trial.problem, trial.inputs
    trial.suitable(problem.padding == "right" or (problem.padding == "left" and trial.target.left_padding == "absent"))
    model = trial.model()
    whole = trial.run(model, trial.placed(inputs))
    for b in range(problem.batch):
        sample = inputs.samples(slice(b, b + 1))
        if sample.real is not None:
            sample = sample.but(ids=sample.ids[sample.real][None], real=None)
        if sample.source is not None and sample.source_real is not None:
            sample = sample.but(source=sample.source[sample.source_real][None], source_real=None)
        rows = np.zeros(inputs.ids.shape, dtype=bool)
        rows[b] = trial.rows[b]
        wide = whole.copy()
        wide[rows] = trial.run(model, sample)[0]
        trial.agree(wide, whole, f"real tokens give other logits with padding on the {problem.padding}", rows=rows)


@model_law(
    "models.mask-of-ones",
    "a mask that hides nothing changes nothing",
    wants=ModelWants(min_length=1),
    applies=_pads,
    share=0.25,
)
def test_mask_of_ones(trial: ModelTrial) -> None:
    """f(x, all real) = f(x): a mask of ones hides no key, and moves no position."""
    target, inputs, model = trial.target, trial.inputs, trial.model()
    shown = inputs.but(real=np.ones(inputs.ids.shape, dtype=bool) if target.pad else None)
    if inputs.source is not None and target.source_pad:
        shown = shown.but(source_real=np.ones(inputs.source.shape, dtype=bool))
    trial.agree(trial.run(model, shown), trial.run(model), "a mask that hides nothing changes the logits", hoped=True)


# -- position ids -------------------------------------------------------------------------------------------------------


def _positions(target: ModelTarget) -> str | None:
    if target.positions:
        return None
    unclear = [name for name in target.unclear if role_of(name) == "positions"]
    return f"takes no position ids whose meaning was found ({unclear[0]})" if unclear else "takes no position ids"


@model_law(
    "models.position-ids",
    "position ids say where tokens stand, and none is 0, 1, 2, ...",
    wants=ModelWants(min_length=3, redrawn=True, max_length=17),
    applies=_positions,
    share=0.3,
    rejects=("position ids ignored",),
)
def test_position_ids(trial: ModelTrial) -> None:
    """f(x, 0..L-1) = f(x), and with gaps between the places the last logits are others."""
    trial.suitable(trial.target.longest >= 2 * trial.problem.length)
    model, inputs, length = trial.model(trial.target.dtypes[-1], calm=True), trial.inputs, trial.problem.length
    rows = np.broadcast_to(np.arange(length), inputs.ids.shape) + trial.target.first_place
    told, first = trial.run(model, inputs.but(places=rows)), trial.run(model)
    trial.agree(told, first, "position ids 0, 1, 2, ... give other logits than none", hoped=True)
    moved = trial.run(model, inputs.but(places=2 * rows - trial.target.first_place))
    trial.require(bool((moved[:, -1] != first[:, -1]).any()), "position ids change nothing")


@model_law(
    "models.shift",
    "with relative positions, all places moved by the same change nothing",
    wants=ModelWants(min_length=2, max_length=17),
    applies=lambda t: _positions(t) or (None if t.placed == "relative" else "its positions are absolute"),
    basis=("models.position-ids",),
    share=0.3,
)
def test_shift(trial: ModelTrial) -> None:
    """A rotation gives scores q_i R(i - j) k_j, so f(x, p + c) = f(x, p) for every c."""
    trial.suitable(trial.target.longest > trial.problem.length)
    model, inputs = trial.model(), trial.inputs
    places = np.array(np.broadcast_to(np.arange(trial.problem.length), inputs.ids.shape), dtype=np.int64)
    places += trial.target.first_place
    by = int(trial.rng.integers(1, trial.target.longest - trial.problem.length + 1))
    moved = trial.run(model, inputs.but(places=places + by))
    trial.agree(
        moved, trial.run(model, inputs.but(places=places)), f"all places moved by {by} change the logits", times=4.0
    )


def _order(target: ModelTarget) -> str | None:
    if target.dependence.alone and not target.source:
        return "no token sees another"
    return None if "positions" in target.known else "nothing in it speaks of positions"


@model_law(
    "models.order",
    "a model that has positions tells the order of its tokens",
    wants=ModelWants(min_length=4, min_source=3, texts=("random",), redrawn=True, max_length=9),
    applies=_order,
    share=0.2,
)
def test_order(trial: ModelTrial) -> None:
    """f(P x) != P f(x) for tokens moved round by one, beyond rounding; not backwards, which keeps distances. A decoder of one
    layer without positions gives the last logits whatever the order of the tokens before; a deeper one tells it by its mask,
    and nothing is shown.
    """
    target, inputs, length = trial.target, trial.inputs, trial.problem.length
    moved = length if target.kind == "encoder" else length - 1
    order = np.array([*np.roll(np.arange(moved), 1), *range(moved, length)])
    turned, rows = inputs.but(ids=np.array(inputs.ids[:, order])), slice(-1, None)
    if target.source and inputs.source is not None:
        turned = inputs.but(source=np.roll(inputs.source, 1, axis=1))
        trial.suitable(bool((turned.source != inputs.source).any()))
    elif target.kind == "encoder":
        rows = slice(None)
    seen = trial.sees()[rows].any(0)  # in a window the last token sees some alone
    trial.suitable(target.source != "" or bool((turned.ids != inputs.ids)[:, seen].any()))
    model = trial.model()
    first, got = trial.run(model), trial.run(model, turned)
    want = first if target.source else first[:, order]
    same = trial.near(got[:, rows], want[:, rows], trial.slack(trial.units[-1]))
    trial.require(not same, "tokens in another order give the same logits")


# -- the loss --------------------------------------------------------------------------------------------------------------


def _loss(target: ModelTarget) -> str | None:
    if not target.labels:
        return "takes no labels"
    known = target.known.get("loss", "")
    return f"its loss is {known}" if known not in ("", "unclear", "declared") else None


@model_law(
    "models.loss",
    "the loss is the mean of -log p(label) over the labels that count",
    wants=ModelWants(min_length=2, max_length=17),
    applies=_loss,
    share=0.3,
    rejects=("the loss a little off",),
)
def test_loss(trial: ModelTrial) -> None:
    """loss = mean over i of log sum_v exp f(x)_iv - f(x)_i,label, for the label of position i or of the next one; labels with
    the value to ignore are left out of sum and count. The label 0 counts like any other.

    The mean moves by twice the logits' slack at most; the sum over n labels rounds by n u.
    """
    target, inputs, way = trial.target, trial.inputs, trial.target.loss
    model = trial.model()
    ids = [i for i in range(target.width or 1) if way is None or i not in way.ignore]
    labels = trial.rng.choice(ids, inputs.ids.shape)
    labels[:, -1] = trial.rng.choice([ids[0], ids[-1]])
    if way is None:
        trial.loss(model, inputs.but(labels=labels))
        trial.require(False, "the loss is no mean or sum of -log p(label), with labels shifted by one or as they stand")
    assert way is not None
    if way.ignore and trial.problem.seed % 2:
        hidden = trial.rng.random(labels.shape) < 0.4
        hidden[:, -1] = False
        labels[hidden] = trial.rng.choice(way.ignore)
    loss, logits = trial.loss(model, inputs.but(labels=labels))
    want = cross_entropy(logits, labels, LossWay(way.shift, way.ignore, way.reduction))
    count = labels.size if way.reduction == "sum" else 1
    size = np.abs(logits).max() + np.log(target.width or 1)
    limits = [
        (want, count * (2 * trial.slack(u) + 8 * u * (labels.size + (target.width or 1)) * size)) for u in trial.units
    ]
    trial.close(
        loss, limits, f"the loss is not the {way.reduction} of -log p(label) over the labels that count", "loss"
    )


# -- state ------------------------------------------------------------------------------------------------------------------


@model_law(
    "models.modes",
    "training and eval, with gradients and labels or not, agree where nothing is dropped",
    wants=TWO,
    share=0.2,
    basis=("models.repeatable",),
)
def test_modes(trial: ModelTrial) -> None:
    """eval, with and without gradients recorded, with and without labels: the same logits. train() and eval() again: the same
    bits. Without dropout, training gives them as well.
    """
    model, rows, inputs = trial.model(), trial.rows, trial.inputs
    first = trial.run(model)
    for grad in (True, False):
        what = f"the logits are others {'with' if grad else 'without'} gradients recorded"
        trial.agree(trial.run(model, grad=grad), first, what, rows=rows)
    if trial.target.loss is not None:
        what = "the logits are others where labels are given"
        trial.agree(trial.run(model, inputs.but(labels=inputs.ids)), first, what, rows=rows)
    free = trial.model(training=True)
    free.without_dropout()
    trial.suitable(not free.keeps_statistics())
    model.train()
    trial.run(model, seed=3)
    model.train(False)
    what = "the logits in eval mode are others after a call in training mode"
    trial.equal(trial.run(model), first, what, rows)
    if np.array_equal(trial.run(free, seed=1)[rows], trial.run(free, seed=2)[rows]):  # nothing is drawn any more
        what = "the logits in training mode without dropout are others than in eval mode"
        trial.agree(trial.run(free), first, what, rows=rows)
