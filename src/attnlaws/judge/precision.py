"""Number formats, and the closed list of ways in which a correct kernel may round.

A `Precision` names every rounding a correct kernel is allowed: the bounds of `attnlaws.judge.bounds` are
rigorous for each kernel whose roundings it covers, whatever its tiling and its order of summation.

Unit roundoff u = 2**-p for a significand of p bits (Higham, Accuracy and Stability of Numerical Algorithms,
2002, sections 2.1 and 2.2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ..problems.dtypes import LARGEST, UNDERFLOW, UNIT_ROUNDOFF, round_to

__all__ = ["LARGEST", "PROFILES", "UNDERFLOW", "UNIT_ROUNDOFF", "Precision", "round_to", "with_storage_grads"]


@dataclass(frozen=True, slots=True)
class Precision:
    """The roundings a correct kernel may make, each as a unit roundoff (0 where the kernel does not round).

    u_a: every accumulation and every scalar step inside the kernel; u_in: queries and keys before their
    product; u_value: values, and upstream gradients, before theirs; u_scores: each stored score (product,
    scaling, bias); u_probs: the weights before they meet the values; u_grad_scores: the gradient of the
    scores before its products; u_out: the output and the gradients. exp_error bounds the relative error of
    the exponential, exp_rms is its root mean square. tiny_probs and tiny_out are the absolute errors of
    underflow (tiny_probs four times the smallest normal: fast exponentials vanish a little early).
    normalized_probs: the weights are divided by their sum before they are stored. truncates: u_in, u_value
    and u_probs may be truncations. grad_tile: number of query rows after which the gradients of keys and
    values are rounded to storage (0: accumulated with u_a). device: "any", or the only device type it is
    for.
    """

    name: str
    u_a: float
    u_out: float
    u_in: float = 0.0
    u_value: float = 0.0
    u_scores: float = 0.0
    u_probs: float = 0.0
    u_grad_scores: float = 0.0
    exp_error: float = 40 * 2.0**-24
    exp_rms: float = 4 * 2.0**-24
    tiny_probs: float = 2.0**-124
    tiny_out: float = 2.0**-126
    normalized_probs: bool = False
    truncates: bool = False
    grad_tile: int = 0
    device: str = "any"
    note: str = ""


def with_storage_grads(precision: Precision, tile: int = 32) -> Precision:
    """The same precision, but dK and dV are kept in storage precision between tiles of query rows.

    PyTorch's flash backward on the CPU does so in bfloat16 and float16, with tiles of 32 rows or more; the
    error grows by gamma_nb(u_out), nb = ceil(L / tile).
    """
    return replace(precision, name=f"{precision.name}, stored gradients", grad_tile=tile)


def _half(dtype: str) -> tuple[Precision, ...]:
    """The four precisions of a 16-bit `dtype`, strictest first."""
    unit, tiny = UNIT_ROUNDOFF[dtype], UNDERFLOW[dtype]
    fused = Precision(
        "fused",
        u_a=UNIT_ROUNDOFF["float32"],
        u_out=unit,
        u_probs=unit,
        u_grad_scores=unit,
        tiny_probs=max(tiny, 2.0**-124),
        tiny_out=tiny,
        note=f"float32 inside; weights and output rounded to {dtype}",
    )
    naive = replace(
        fused,
        name="naive",
        u_scores=unit,
        normalized_probs=True,
        note=f"every intermediate array stored in {dtype}; products and softmax accumulate in float32",
    )
    prescaled = replace(
        naive,
        name="naive, prescaled",
        u_in=unit,
        note=f"as naive, and queries and keys multiplied by their share of the scale in {dtype}",
    )
    stepwise = replace(
        prescaled,
        name="naive, softmax in steps",
        u_scores=2 * unit,
        u_probs=3 * unit,
        note=f"as naive, and exponential, sum and quotient each stored in {dtype}",
    )
    return fused, naive, prescaled, stepwise


def _single() -> tuple[Precision, ...]:
    """The precisions of float32: tf32 may truncate, so its unit roundoff is 2**-10."""
    unit, truncated = UNIT_ROUNDOFF["float32"], 2.0**-10
    return (
        Precision("float32", u_a=unit, u_out=unit, note="float32 throughout"),
        Precision(
            "tf32",
            u_a=unit,
            u_out=unit,
            u_in=truncated,
            u_value=truncated,
            u_probs=truncated,
            u_grad_scores=truncated,
            truncates=True,
            device="cuda",
            note="factors of every product rounded or truncated to 11 bits; float32 elsewhere",
        ),
    )


def _double() -> tuple[Precision, ...]:
    """The precisions of float64: float64 throughout, or a kernel which works in float32."""
    unit, inside = UNIT_ROUNDOFF["float64"], UNIT_ROUNDOFF["float32"]
    return (
        Precision(
            "float64",
            u_a=unit,
            u_out=unit,
            exp_error=32 * unit,
            exp_rms=4 * unit,
            tiny_probs=4 * UNDERFLOW["float64"],
            tiny_out=UNDERFLOW["float64"],
            note="float64 throughout",
        ),
        Precision(
            "float32 inside",
            u_a=inside,
            u_out=inside,
            u_in=inside,
            u_value=inside,
            u_scores=inside,
            u_probs=inside,
            u_grad_scores=inside,
            note="inputs rounded to float32, float32 throughout, result returned as float64",
        ),
    )


PROFILES: Final[dict[str, tuple[Precision, ...]]] = {
    "float64": _double(),
    "float32": _single(),
    "bfloat16": _half("bfloat16"),
    "float16": _half("float16"),
}
