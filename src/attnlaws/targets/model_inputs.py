"""What a model is called with, written down without any framework."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .call import BoolArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Tokens and what stands beside them.

    ids (B, L); real (B, L), True for a token that is no padding; places (B, L) position ids; segments (B, L); labels (B, L);
    source (B, S) the encoder's tokens of an encoder-decoder, source_real (B, S).
    """

    ids: IntArray
    real: BoolArray | None = None
    places: IntArray | None = None
    segments: IntArray | None = None
    labels: IntArray | None = None
    source: IntArray | None = None
    source_real: BoolArray | None = None

    @property
    def batch(self) -> int:
        """B."""
        return int(self.ids.shape[0])

    @property
    def length(self) -> int:
        """L."""
        return int(self.ids.shape[1])

    def but(self, **changes: object) -> Inputs:
        """These inputs with some changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def samples(self, chosen: slice | IntArray) -> Inputs:
        """Some samples of the batch."""
        return self._each(lambda array: np.array(array[chosen]), all_of_them=True)

    def cut(self, chosen: slice) -> Inputs:
        """Some tokens of each sample; the source stays whole."""
        return self._each(lambda array: np.array(array[:, chosen]), all_of_them=False)

    def _each(self, change, all_of_them: bool) -> Inputs:  # type: ignore[no-untyped-def]
        names = ["ids", "real", "places", "segments", "labels", *(("source", "source_real") if all_of_them else ())]
        return self.but(**{n: change(getattr(self, n)) for n in names if getattr(self, n) is not None})


def places_of(real: BoolArray) -> IntArray:
    """Position ids (B, L) that count the real tokens alone: 0 at the first, and at what stands before it."""
    return np.asarray(np.maximum(np.cumsum(real, axis=1) - 1, 0), dtype=np.int64)
