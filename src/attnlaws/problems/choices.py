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
