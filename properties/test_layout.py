"""Laws of layout: what comes back, and that strides don't matter."""

from __future__ import annotations

import numpy as np

from attnlaws.laws.law import law
from attnlaws.laws.trial import Crashed, Trial


@law("layout.result", "the result has the shape, dtype, device and type of its inputs, and memory of its own")
def test_result(trial: Trial) -> None:
    """o has shape (B, H, L, Dv) in the target's layout, the dtype and device of q, the plain tensor type, no alias."""
    call, answer = trial.call, trial.run()
    trial.require(answer.shape_as_expected, f"the output has shape {answer.raw_shape}")
    trial.require(answer.dtype == call.dtype, f"{call.dtype} inputs give a {answer.dtype} output")
    plain = trial.target.framework.kind_of(trial.target.framework.tensor(np.zeros((1,)), call.dtype))
    trial.require(answer.kind == plain, f"the output is a {answer.kind}, not a plain {plain}")
    device = getattr(trial.target.framework, "device", "cpu").split(":")[0]
    trial.require(answer.device == device, f"the output is on {answer.device}, the inputs on {device}")
    trial.require(not answer.aliases, f"the output shares memory with {', '.join(answer.aliases)}")


@law(
    "layout.strides",
    "strides of the inputs don't matter",
    basis=("weights.oracle",),
    applies=lambda t: None if t.abilities.views else "takes contiguous arrays only",
    share=1.2,
)
def test_strides(trial: Trial) -> None:
    """The same values in another memory layout give the same output: one kind of view on one operand at a time."""
    call = trial.call
    plain = trial.run().output
    views = trial.abilities.views
    operands = ["query", "key", "value"]
    for operand in operands:
        view = views[int(trial.rng.integers(0, len(views)))]
        strided = call.but(views=((operand, view),))
        try:
            answer = trial.run(strided)
        except Crashed:  # a stride that is refused is not a wrong result
            continue
        trial.agree(
            answer.output, strided, plain, call, f"a {view} view of {operand} gives another output", exact_hoped=True
        )
    _expanded(trial)


def _expanded(trial: Trial) -> None:
    """Stride 0 along heads or batch: as one key head expanded over all heads, or one sample over the batch."""
    call = trial.call
    heads_axis = {"BHSD": 1, "BSHD": 2}.get(trial.conventions.layout)
    if heads_axis is None or call.key.size == 0:
        return
    along_heads = bool(trial.rng.integers(0, 2))
    axis, own = (heads_axis, 1) if along_heads else (0, 0)
    alike = call.but(
        key=np.repeat(call.key.take([0], own), call.key.shape[own], own),
        value=np.repeat(call.value.take([0], own), call.value.shape[own], own),
    )
    view = f"expanded{axis}"
    strided = alike.but(views=(("key", view), ("value", view)))
    try:
        answer = trial.run(strided)
    except Crashed:
        return
    trial.agree(
        answer.output,
        strided,
        trial.run(alike).output,
        alike,
        "keys and values expanded with stride 0 give another output",
    )
