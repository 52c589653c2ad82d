"""How the choices of a problem are made: dealt from decks, or by Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

P = TypeVar("P")
#: one of some options, for a choice of a name
Pick = Callable[[str, Sequence[Any]], Any]


def far_lengths(near: Sequence[int], far: int, window: int | None) -> list[int]:
    """Lengths beyond those near ones, up to the far one: behind a block of 64, and at the edge of a window."""
    edges = [] if window is None else [window + 1, window + 2]
    return [n for n in dict.fromkeys([65, far, *edges]) if 33 < n <= far and n not in near]


def places(rng: np.random.Generator, length: int, some: int) -> list[int]:
    """Places in a text to look at: all where it is short, else both ends, those about a block of 64, and some others."""
    if length <= 9:
        return list(range(length))
    edges = {n for n in (0, 1, 63, 64, length - 1) if n < length}
    return sorted({*edges, *rng.integers(1, length, some).tolist()})


def dealer(seed: int, stream: int) -> Pick:
    """A covering design: each option of each choice comes up equally often, pairs in random balance."""
    rng = np.random.Generator(np.random.Philox(key=[seed, stream]))
    decks: dict[tuple[str, int], list[int]] = {}

    def pick(name: str, options: Sequence[Any]) -> Any:
        if len(options) > 64:
            return options[int(rng.integers(0, len(options)))]
        deck = decks.setdefault((name, len(options)), [])
        if not deck:
            deck.extend(int(i) for i in rng.permutation(len(options)))
        return options[deck.pop()]

    return pick


@st.composite
def drawn_by(draw: st.DrawFn, build: Callable[[Pick], P]) -> P:
    """Hypothesis' strategy: what is built where it makes every choice."""

    def pick(_: str, options: Sequence[Any]) -> Any:
        return draw(one_of(options))

    return build(pick)


@lru_cache(maxsize=None, typed=True)
def _among(*options: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(options)


def one_of(options: Sequence[Any]) -> st.SearchStrategy[Any]:
    """One of some options that can be hashed; the strategy is made once, which costs more than a draw from it."""
    return st.sampled_from(options) if isinstance(options, range) else _among(*options)
