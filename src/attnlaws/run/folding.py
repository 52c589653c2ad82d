"""Root causes: which broken laws only follow from others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..laws.named import AnyLaw
from .ledger import BROKEN, Verdict

#: what a smallest witness still asks for, and the law that is about it: others that need it too are its shadows
_ABOUT: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("heads.grouped", lambda p: p.heads != p.kv_heads),
    ("causality.future-keys", lambda p: p.causal),
    ("causality.past-matters", lambda p: p.causal),
    ("masks.sensitivity", lambda p: p.mask != "none" or p.bias or p.scale is not None),
    ("scores.scale-argument", lambda p: p.scale is not None),
    ("masks.window", lambda p: p.window),
    ("masks.alibi", lambda p: p.alibi),
    ("masks.sinks", lambda p: p.sinks),
    ("scores.softcap", lambda p: bool(p.softcap)),
)


def shadow(verdict: Verdict, broken: set[str]) -> str | None:
    """The broken law about something that this verdict's smallest witness could not do without."""
    names = [name for name, _ in _ABOUT]
    witness = verdict.witness
    if witness is None or verdict.law in names:
        return None
    return next((name for name, needs in _ABOUT if name in broken and needs(witness)), None)


def folded(verdicts: list[Verdict], laws: Mapping[str, AnyLaw]) -> list[Verdict]:
    """Root causes first: a break of a law whose basis is broken too, or a shadow of another, is folded under it."""
    broken = {v.law for v in verdicts if v.status == BROKEN}
    shadows = {v.law: shadow(v, broken) for v in verdicts if v.law in broken}

    def root(name: str, passed: tuple[str, ...] = ()) -> str:
        above = [*laws[name].basis, shadows.get(name)]
        basis = next((b for b in above if b in broken and b not in passed), None)
        return name if basis is None else root(basis, (*passed, name))

    under = {name: root(name) for name in broken}
    if broken and all(name != top for name, top in under.items()):  # shadows of each other: the first is the root
        first = next(v.law for v in verdicts if v.law in broken)
        under = dict.fromkeys(broken, first)
    return [
        replace(v, under=under[v.law] if under[v.law] != v.law else None) if v.law in broken else v for v in verdicts
    ]
