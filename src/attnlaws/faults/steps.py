"""What the entries of the catalogue are made of: where a fault shows, and attention with one step replaced."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .case import Array, Bools, Case, Fault, Gradients, Output, attend

Ints = NDArray[np.intp]

SCALE_FIX = "multiply q k^T by 1/sqrt(D), D the size of one head"
SOFTMAX_FIX = "take the softmax over the keys, the last axis"
CAUSAL_FIX = "let query i see key j where j <= i (+ S - L for the bottom-right alignment)"
BOTH_FIX = "let a pair attend where both the mask and the triangle allow it"
MASK_FIX = "put -inf in the place of masked scores before the softmax"
GROUP_FIX = "repeat_interleave the key heads: query head h reads key head h // (H / Hkv)"
TAIL_FIX = "loop over all keys, the last partial tile too, and mask what lies past the last key"
SIZE_FIX = "take every size from the operand it belongs to"
DERIVATIVE_FIX = "ds = w (dw - sum_k w_k dw_k), dq = scale ds k, dk = scale ds^T q, dv = w^T do, with the weights of the forward pass"


def fault(
    name: str, sentence: str, fix: str, output: Output, *sources: str, law: str = "", **conventions: str
) -> Fault:
    """A fault of one step."""
    return Fault(name, sentence, fix, sources, output, conventions=conventions, law=law)


def backward(
    name: str, sentence: str, gradients: Callable[[Case, Array], Gradients | None], *sources: str, law: str = ""
) -> Fault:
    """A fault of the gradients, with the fix of all of them."""
    return Fault(name, sentence, DERIVATIVE_FIX, sources, gradients=gradients, law=law)


def where(condition: Callable[[Case], bool], output: Output) -> Output:
    """A fault that shows only under a condition."""
    return lambda case: output(case) if condition(case) else None


def scaled(factor: Callable[[Case], float | None]) -> Output:
    """Another scale than the right one; None for the right one."""

    def output(case: Case) -> Array | None:
        scale = factor(case)
        return None if scale is None or scale == case.scale else attend(case, scale=scale)

    return output


def default_scale(change: Callable[[Case], float]) -> Output:
    """A fault of the default scale: it shows only where none is given."""
    return scaled(lambda case: change(case) if case.call.scale is None else None)


def given_scale(change: Callable[[Case, float], float]) -> Output:
    """A fault of the scale argument: it shows only where one is given."""
    return scaled(lambda case: None if case.call.scale is None else change(case, case.call.scale))


def rescored(change: Callable[[Case, Array], Array]) -> Output:
    """A change of scale q k^T."""
    return lambda case: attend(case, scores=lambda raw: change(case, raw))


def causal(pattern: Callable[[Case], Bools | None]) -> Output:
    """Another pattern (L, S) than the triangle, in causal calls."""

    def output(case: Case) -> Array | None:
        other = None if case.triangle is None else pattern(case)
        return None if other is None else attend(case, visible=case.pairs(causal=other))

    return output


def masked(change: Output) -> Output:
    """A fault in the reading of masks that hide pairs."""
    return where(lambda case: case.call.visible is not None, change)


def boolean(change: Output) -> Output:
    """A fault in the reading of boolean masks: additive ones are read well."""
    return where(lambda case: case.has_boolean_mask, change)


def biased(change: Callable[[Array], Array]) -> Output:
    """A change of the finite values of an additive mask."""
    return where(lambda case: case.call.bias is not None, lambda case: attend(case, bias=change(np.asarray(case.bias))))


def reread(change: Callable[[Case], Bools]) -> Output:
    """A mask in the place of the one that is given, (B, H, L, S) or what broadcasts to it."""
    return masked(lambda case: attend(case, visible=case.pairs(mask=change(case))))


def hiding(columns: Callable[[Case], Bools | None]) -> Output:
    """Keys, (S,) or pairs (L, S), that are left out; None where none is."""

    def output(case: Case) -> Array | None:
        lost = columns(case)
        return None if lost is None or not lost.any() else attend(case, visible=case.pairs() & ~lost)

    return output


def finished(change: Callable[[Case, Array], Array | None]) -> Output:
    """A change of the right output (B, H, L, Dv)."""
    return lambda case: change(case, attend(case))


def lengths(case: Case) -> tuple[int, int]:
    """L and S."""
    return case.shape[2], case.shape[3]


def positions(case: Case) -> tuple[Ints, Ints]:
    """The positions i (L, 1) of the queries and j (S,) of the keys."""
    queries, keys = lengths(case)
    return np.arange(queries)[:, None], np.arange(keys)


def below(case: Case, shift: int) -> Bools:
    """The triangle j <= i + shift, (L, S)."""
    return np.tri(*lengths(case), shift, dtype=np.bool_)


def free(case: Case) -> Bools:
    """No triangle at all, (L, S)."""
    return np.ones(lengths(case), dtype=np.bool_)
