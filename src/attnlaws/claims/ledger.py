"""The ledger: all claims, measured one after another, and printed.

At most LIMIT two-stage tests of chance at 1e-8 each (see `chance`): the family-wise false alarm is at most 1e-6.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from . import (  # noqa: F401  each module enters its claims
    blocks,
    causality,
    corruption,
    directions,
    dot_products,
    dropout,
    heads,
    initialisation,
    parameters,
    scaling,
    temperature,
    weights,
)
from .claim import ENTERED, Claim, Measured


def _order(claim: Claim) -> tuple[str, int]:
    return claim.id[0], int(claim.id[1:])


CLAIMS: tuple[Claim, ...] = tuple(sorted(ENTERED.values(), key=_order))


class UnknownClaim(ValueError):
    """An id that is not in the ledger."""


@dataclass(frozen=True)
class Result:
    """A claim and what was measured."""

    claim: Claim
    measured: Measured
    seconds: float


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of PyTorch inside: the tensors are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(claim: Claim) -> Result:
    """Run the check of one claim."""
    start = time.perf_counter()
    with one_thread():
        measured = claim.check()
    return Result(claim, measured, time.perf_counter() - start)


def select(ids: Iterable[str] = ()) -> tuple[Claim, ...]:
    """The claims of these ids, in the order of the ledger; all without ids. A letter means a whole text."""
    wanted = [i.upper() for i in ids]
    known = {c.id for c in CLAIMS} | {c.id[0] for c in CLAIMS}
    unknown = [i for i in wanted if i not in known]
    if unknown:
        spans = ", ".join(f"{t}1..{t}{sum(c.id[0] == t for c in CLAIMS)}" for t in sorted({c.id[0] for c in CLAIMS}))
        raise UnknownClaim(f"there is no claim {', '.join(unknown)}; the ledger has {spans}")
    return tuple(c for c in CLAIMS if not wanted or c.id in wanted or c.id[0] in wanted)


def run(ids: Iterable[str] = ()) -> Iterator[Result]:
    """Measure the claims one after another, each given as soon as it is known."""
    return (measure(claim) for claim in select(ids))


def table(results: Iterable[Result] | None = None, width: int = 120) -> str:
    """For the terminal: id, claim, verdict and what was found, one block a claim, and the count of verdicts."""
    done = list(run() if results is None else results)
    lines, text = [], ""
    for result in done:
        if result.claim.text != text:
            text = result.claim.text
            lines += [text, ""]
        lines += [*row(result, width), ""]
    return "\n".join([*lines, summary(done)])


def row(result: Result, width: int = 120) -> list[str]:
    """One claim of the table."""
    claim, measured = result.claim, result.measured
    mark = "✓" if measured.shows else "✗"
    cells = (("", claim.claim), ("verdict", claim.judged), ("found", str(measured)))
    lines = []
    for name, words in cells:
        head = f"{mark} {claim.id:<4}" if not name else " " * 6
        body = textwrap.wrap(f"{name:<9}{words}" if name else words, width - 6, subsequent_indent=" " * 9 * bool(name))
        lines += [head + body[0], *(" " * 6 + line for line in body[1:])]
    return lines


def summary(results: Iterable[Result], timed: bool = True) -> str:
    """How many claims of each verdict, and how many were shown."""
    done = list(results)
    counts: dict[str, int] = {}
    for result in done:
        counts[result.claim.verdict] = counts.get(result.claim.verdict, 0) + 1
    verdicts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items(), key=lambda item: -item[1]))
    missing = [r.claim.id for r in done if not r.measured.shows]
    shown = f"not shown: {', '.join(missing)}" if missing else "each shown"
    tests = sum(r.measured.tests for r in done)
    took = f", in {sum(r.seconds for r in done):.1f} s" if timed else ""
    alarm = f"{tests} tests of chance, false alarm at most {tests * 1e-8:.1g}"
    return f"{len(done)} claims: {verdicts}; {shown}. {alarm}{took}."


def detail(result: Result, width: int = 120) -> str:
    """All of one claim: where it is from, what it says precisely, what is right, why, and what was found."""
    claim = result.claim
    parts = (
        ("text", claim.text),
        ("claim", claim.claim),
        ("precisely", claim.statement),
        ("verdict", claim.judged),
        ("right", claim.right),
        ("why", re.sub(r"\s+", " ", inspect.getdoc(claim.check) or "")),
        ("kind", claim.kind),
        ("found", str(result.measured)),
    )
    lines = [f"{'✓' if result.measured.shows else '✗'} {claim.id}"]
    for name, words in parts:
        lines += textwrap.wrap(f"{name:<11}{words}", width - 4, initial_indent="    ", subsequent_indent=" " * 15)
    return "\n".join(lines)
