"""A part of the laws for each of several machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..laws.named import AnyLaw


def part_of(laws: Sequence[AnyLaw], target: Any, number: int, of: int) -> list[AnyLaw]:
    """The laws of machine `number` out of `of`, from 1 on. All parts together are all laws, each once, as without shards.

    The heaviest go first, each to the part with the least so far; those that say nothing about the target weigh nothing. What a law
    tries depends on the seed alone, not on the laws beside it.
    """
    loads = [(0.0, 0)] * of
    mine: set[str] = set()
    weights = {law.name: 0.0 if law.not_applicable(target) else law.share for law in laws}
    for law in sorted(laws, key=lambda law: -weights[law.name]):  # stable: equal ones stay in their order
        lightest = loads.index(min(loads))
        load, count = loads[lightest]
        loads[lightest] = (load + weights[law.name], count + 1)
        if lightest == number - 1:
            mine.add(law.name)
    return [law for law in laws if law.name in mine]
