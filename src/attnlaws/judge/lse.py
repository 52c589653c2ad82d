"""How far a correct kernel's log-sum-exp may be from the exact one, and what merging by it may cost."""

from __future__ import annotations

import numpy as np

from attnlaws.judge.exponent import Attended, exponent_error, gamma, rows_of, sink_error
from attnlaws.judge.precision import Precision
from attnlaws.problems.dtypes import UNIT_ROUNDOFF, Array


def lse_worst(
    query: Array, key: Array, value: Array, exact: Attended, scale: float, precision: Precision, stored: str
) -> Array:
    """Largest |lse_hat - lse| of any correct kernel of this precision (B, H, L), stored in the dtype `stored`.

    log sum_j e^(s_j + delta_j) moves by max_j |delta_j| <= max_j D_j at most; the sum of n exponentials and its logarithm
    add gamma_{n+8} + e_exp + 8u_a (|lse| + |max| + 1), rounding max and sum, and the storing u |lse|.
    """
    with np.errstate(all="ignore"):
        rows = rows_of(query, key, value, exact)
        spread = exponent_error(rows, scale, precision).max(-1, initial=0.0)
        apart = sink_error(rows, precision)
        if apart is not None:
            spread = np.maximum(spread, apart[..., 0])
        size = np.abs(rows.lse[..., 0])
        unit = precision.u_a
        sums = gamma(rows.probs.shape[-1] + 8, unit) + precision.exp_error + 8 * unit * (size + rows.peak[..., 0] + 1.0)
        kept = max(UNIT_ROUNDOFF.get(stored, 0.0), precision.u_scores)
        return np.asarray(spread + sums + 2 * kept * (size + spread + 1.0))
