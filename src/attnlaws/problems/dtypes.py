"""Number formats: their unit roundoffs, and rounding to them.

Unit roundoff u = 2**-p for a significand of p bits (Higham, Accuracy and Stability of Numerical Algorithms, 2002, sections
2.1 and 2.2).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# dtype: (bits of the significand, exponent of the smallest normal, exponent of the largest binade)
_FORMATS: Final[dict[str, tuple[int, int, int]]] = {
    "float64": (53, -1022, 1023),
    "float32": (24, -126, 127),
    "bfloat16": (8, -126, 127),
    "float16": (11, -14, 15),
}

UNIT_ROUNDOFF: Final[dict[str, float]] = {name: 2.0**-bits for name, (bits, _, _) in _FORMATS.items()}
LARGEST: Final[dict[str, float]] = {
    name: (2.0 - 2.0 ** (1 - bits)) * 2.0**top for name, (bits, _, top) in _FORMATS.items()
}

# The largest absolute error of a rounding below the normal range. float16 always underflows gradually (half
# of its smallest subnormal); the formats with a wide exponent may flush to zero, which costs nothing there.
UNDERFLOW: Final[dict[str, float]] = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "bfloat16": 2.0**-126,
    "float16": 2.0**-25,
}


def round_to(array: Array, dtype: str) -> Array:
    """Each element rounded once to `dtype`, to nearest with ties to even, returned in float64 (any shape).

    Subnormals are kept; what lies beyond the largest finite number by half a unit or more becomes infinite;
    NaN, infinities and the sign of zero pass through. bfloat16 is rounded directly from float64, never
    twice: x -> rint(x / q) q with q = 2**(max(e, e_min) - p + 1), e the exponent of x (IEEE 754-2019,
    4.3.1).
    """
    exact = np.asarray(array, dtype=np.float64)
    if dtype == "float64":
        return exact.copy()
    with np.errstate(all="ignore"):
        if dtype == "float32":
            return exact.astype(np.float32).astype(np.float64)
        if dtype == "float16":
            return exact.astype(np.float16).astype(np.float64)
        bits, lowest, _ = _FORMATS[dtype]
        _, above = np.frexp(exact)
        quantum = np.maximum(above - 1, lowest) - (bits - 1)
        rounded: Array = np.asarray(np.ldexp(np.rint(np.ldexp(exact, -quantum)), quantum), dtype=np.float64)
        beyond = np.abs(rounded) > LARGEST[dtype]
        return np.where(beyond, np.copysign(np.inf, rounded), rounded)
