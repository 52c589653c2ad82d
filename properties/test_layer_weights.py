"""Laws of layers whose projections were found: q, k, v and o by name and shape, held against the module's own output."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.layer_law import layer_law
from attnlaws.laws.layer_trial import LayerTrial
from attnlaws.problems.layer_problem import LayerWants
from attnlaws.targets.layer import LayerTarget


def _found(target: LayerTarget) -> str | None:
    if target.projections is None:
        return "its projections were not found by name and shape"
    if target.recognised == "no":
        return (
            f"its projections look like {target.projections}, but the oracle's layer with them gives another output; "
            f"where that is what they are, declare weights = {target.projections.style.split(',')[0]!r}"
        )
    return None


def _several(target: LayerTarget) -> str | None:
    missing = _found(target)
    if missing or target.projections is None:
        return missing
    return None if target.projections.heads > 1 else "has one head"


def _fused(target: LayerTarget) -> str | None:
    missing = _found(target)
    if missing or target.projections is None:
        return missing
    return None if target.projections.fused else "its projections are separate parameters"


@layer_law(
    "layers.oracle",
    "the output is the oracle's layer with the layer's own weights",
    wants=LayerWants(padding=None, far=True),
    applies=_found,
)
def test_oracle(trial: LayerTrial) -> None:
    """y = concat_h(softmax(s q_h k_h^T) v_h) Wo^T + bo with q = x Wq^T + bq and so on, in float64, within the bound of the
    projections, the kernel and the output projection (judge/layer_bounds.py).
    """
    layer = trial.layer()
    trial.agrees_with_oracle(layer, trial.run(layer), "the output is not that of the oracle's layer with these weights")


@layer_law(
    "layers.head-split",
    "the output is the sum of what each head gives alone, and a head depends on its own weights",
    wants=LayerWants(min_length=2, padding=None),
    applies=_several,
    basis=("layers.oracle",),
    exact=True,
)
def test_head_split(trial: LayerTrial) -> None:
    """y - bo = sum_h o_h Wo_h^T: each summand with the other heads' columns of Wo set to 0. It stays the same, bit for bit,
    when the rows of Wq, Wk, Wv of other heads change.
    """
    p = trial.target.projections
    assert p is not None
    layer = trial.layer()
    values, whole, rows = layer.parameters(), trial.run(layer), trial.real()
    total = np.zeros(whole.shape)
    constant = 0.0 if p.o is None else p.o.offset(values)
    for head in range(p.heads):
        alone = trial.only_head(values, head)
        layer.set(alone)
        part = trial.run(layer)
        layer.set(trial.other_heads_changed(alone, head))
        got = trial.run(layer)
        own = slice(head * p.head_dim, (head + 1) * p.head_dim) if p.o is None else slice(None)
        what = f"what head {head} gives moves with the weights of other heads"
        trial.agree(_part(got, own), _part(part, own), what, hoped=True, rows=rows)
        total += _part(part, own)
    layer.set(values)
    trial.agree(
        total + constant, whole, "the output is not the sum of what its heads give alone", rows=rows, times=p.heads + 1
    )


def _part(output: np.ndarray, own: slice) -> np.ndarray:  # type: ignore[type-arg]
    """The channels of one head where heads are not mixed afterwards, else all."""
    found = np.zeros(output.shape)
    found[..., own] = output[..., own]
    return found


@layer_law(
    "layers.fused-is-separate",
    "the parts of a fused projection are q, k and v",
    wants=LayerWants(padding=None),
    applies=_fused,
    basis=("layers.oracle",),
)
def test_fused_is_separate(trial: LayerTrial) -> None:
    """With the part of v set to 0 the output is bo. With that of q doubled and that of k halved it is what it was: both are
    exact in binary.
    """
    p = trial.target.projections
    assert p is not None
    layer = trial.layer()
    values, whole, rows = layer.parameters(), trial.run(layer), trial.real()
    empty = dict(values)
    p.v.changed(empty, 0.0 * p.v.matrix(values), 0.0 * p.v.offset(values))
    layer.set(empty)
    constant = np.zeros(whole.shape) + (0.0 if p.o is None else p.o.offset(values))
    trial.agree(
        trial.run(layer), constant, "without values the output is not the bias of the output projection", rows=rows
    )
    turned = dict(values)
    p.q.changed(turned, 2.0 * p.q.matrix(values), 2.0 * p.q.offset(values))
    p.k.changed(turned, 0.5 * p.k.matrix(turned), 0.5 * p.k.offset(turned))
    layer.set(turned)
    what = "with q doubled and k halved the output is another one"
    trial.agree(trial.run(layer), whole, what, hoped=True, rows=rows)
