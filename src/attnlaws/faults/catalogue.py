"""The catalogue of faults: attention with one step replaced, each with a name, a sentence and its fix.

A fault gives what an implementation with this one fault would give on a call, or None where it can't differ from the
truth there. Where two explain what is seen, the more specific comes first.
"""

from __future__ import annotations

from . import (
    causality,
    dropout,
    gradients,
    heads,
    masks,
    memory,
    options,
    overflow,
    packed,
    results,
    scale,
    softmax,
    state,
    tiles,
    values,
)
from .case import Fault

FAULTS: tuple[Fault, ...] = (
    *scale.FAULTS,
    *causality.FAULTS,
    *masks.FAULTS,
    *softmax.FAULTS,
    *heads.FAULTS,
    *tiles.FAULTS,
    *values.FAULTS,
    *options.FAULTS,
    *gradients.FAULTS,
    *overflow.FAULTS,
    *results.FAULTS,
    *memory.FAULTS,
    *state.FAULTS,
    *dropout.FAULTS,
    *packed.FAULTS,
)


def names() -> list[str]:
    """The names of all faults."""
    return [fault.name for fault in FAULTS]
