"""Other values for the parameters of a layer, so that zeros and tiny weights at the start hide nothing.

A matrix keeps its shape of distribution and gets a size that makes scores of order one; a vector of ones or zeros gets
different entries. What a law says holds for every value of the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .call import Array

#: the deviation of a redrawn matrix, times the root of its larger side; with the calm one no weight is near 0
SIZE, CALM = 1.5, 0.4


def redrawn(
    parameters: Mapping[str, Array], names: Sequence[str], seed: int, *, size: float = SIZE
) -> dict[str, Array]:
    """New values of the named parameters, exact in float32."""
    rng = np.random.Generator(np.random.Philox(key=[seed, 11]))
    return {name: _other(parameters[name], rng, size).astype(np.float32).astype(np.float64) for name in names}


def _other(values: Array, rng: np.random.Generator, size: float) -> Array:
    """A matrix with mean 0 and a deviation of size / sqrt(its larger side), anything else moved by up to a half."""
    if values.size == 0 or not np.isfinite(values).all():
        return values
    spread = float(values.std())
    if values.ndim < 2:
        return np.asarray(values + rng.uniform(-0.5, 0.5, values.shape))
    wanted = size / np.sqrt(max(values.shape))
    if spread < 1e-12:
        return np.asarray(values + wanted * rng.standard_normal(values.shape))
    return np.asarray((values - values.mean()) * (wanted / spread))
