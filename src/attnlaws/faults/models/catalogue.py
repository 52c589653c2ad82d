"""The catalogue of faults of models, by subject."""

from __future__ import annotations

from . import caches, encoders, generation, losses, masks, positions, wiring
from .fault import ModelFault

MODEL_FAULTS: tuple[ModelFault, ...] = (
    *positions.FAULTS,
    *caches.FAULTS,
    *masks.FAULTS,
    *wiring.FAULTS,
    *losses.FAULTS,
    *generation.FAULTS,
    *encoders.FAULTS,
)
