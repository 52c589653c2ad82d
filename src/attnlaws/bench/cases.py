"""What is timed: sizes, a dtype and a pass. A case is a line of text, and goes to a file and back by it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from ..problems.problem import Problem
from ..targets.target import Target

#: passes of a function of query, key and value, and those of a whole GPT with the function inside
FUNCTION_PASSES = ("forward", "backward")
MODEL_PASSES = ("gpt-step", "generation")
DTYPES = ("float32", "float64", "bfloat16", "float16")


class UnknownCase(ValueError):
    """A case that can't be read; the message says which word, and what is possible."""


@dataclass(frozen=True)
class Case:
    """One thing to time. "backward" is forward and backward together.

    For a function B = batch, H = heads, Hkv = kv_heads, L = queries, S = keys, D = head_dim. For a GPT L is the length of the
    text in training, or of the prompt, S the length at the end, and its width is H D.
    """

    name: str
    kind: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int
    dtype: str = "float32"
    causal: bool = False

    @property
    def sizes(self) -> str:
        """The case in words, such that `case_of` reads it."""
        heads = f"H{self.heads}" + (f" Hkv{self.kv_heads}" if self.kv_heads != self.heads else "")
        words = f"{self.kind} B{self.batch} {heads} L{self.queries} S{self.keys} D{self.head_dim} {self.dtype}"
        return words + (" causal" if self.causal else "")

    def problem(self, seed: int, *, causal: bool | None = None) -> Problem:
        """The problem whose call is timed, for a function of query, key and value."""
        return Problem(
            self.batch,
            self.heads,
            self.kv_heads,
            self.queries,
            self.keys,
            self.head_dim,
            self.head_dim,
            self.dtype,
            causal=self.causal if causal is None else causal,
            seed=seed,
        )


#: Small enough that the whole list takes less than two minutes on one core.
CASES = (
    Case("tiny", "forward", 1, 2, 2, 16, 16, 16),
    Case("forward", "forward", 1, 4, 4, 256, 256, 64),
    Case("bfloat16", "forward", 1, 4, 4, 256, 256, 64, "bfloat16"),
    Case("prefill", "forward", 1, 4, 4, 512, 512, 64, causal=True),
    Case("decode", "forward", 1, 8, 8, 1, 2048, 64),
    Case("grouped", "forward", 1, 8, 2, 1, 4096, 64),
    Case("backward", "backward", 1, 4, 4, 256, 256, 64, causal=True),
    Case("gpt-step", "gpt-step", 1, 4, 4, 64, 64, 32, causal=True),
    Case("generation", "generation", 1, 4, 4, 32, 40, 32, causal=True),
)


def select(texts: Sequence[str] | None) -> tuple[Case, ...]:
    """The cases of these names or sizes, separated by commas; all where none is given. Raises UnknownCase."""
    if not texts:
        return CASES
    words = [part.strip() for text in texts for part in text.split(",")]
    chosen = [case_of(word) for word in words if word]
    if not chosen:
        raise UnknownCase("no case is named")
    return tuple(dict.fromkeys(chosen))


def case_of(text: str) -> Case:
    """The case of a name, or of words such as "forward B1 H8 L512 S512 D64 bfloat16 causal". Raises UnknownCase."""
    known = {case.name: case for case in CASES}
    if text in known:
        return known[text]
    kind, *words = text.split() or [""]
    if kind not in FUNCTION_PASSES + MODEL_PASSES or not words:
        near = get_close_matches(text, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownCase(
            f"unknown case {text!r}{hint}; known: {', '.join(known)}, or 'forward B1 H8 L512 D64 float32'"
        )
    sizes: dict[str, int] = {}
    dtype, causal = "float32", kind in MODEL_PASSES
    for word in words:
        size = re.fullmatch(r"(B|H|Hkv|L|S|D)([1-9]\d*)", word)
        if size:
            sizes[size[1]] = int(size[2])
        elif word in DTYPES:
            dtype = word
        elif word == "causal":
            causal = True
        else:
            raise UnknownCase(
                f"{word!r} in the case {text!r} is no size such as B1, H8, Hkv2, L512, S512, D64, no dtype, and not causal"
            )
    heads, queries = sizes.get("H", 1), sizes.get("L", 1)
    kv_heads, keys = sizes.get("Hkv", heads), sizes.get("S", queries)
    if heads % kv_heads:
        raise UnknownCase(f"H{heads} is no multiple of Hkv{kv_heads} in the case {text!r}")
    if kind == "generation" and keys <= queries:
        raise UnknownCase(
            f"generation goes from a prompt of L to a text of S tokens: S must be above L in the case {text!r}"
        )
    made = Case("", kind, sizes.get("B", 1), heads, kv_heads, queries, keys, sizes.get("D", 64), dtype, causal)
    same = next((c for c in CASES if c.sizes == made.sizes), None)
    return same or Case(made.sizes, *(getattr(made, name) for name in _FIELDS))


_FIELDS = ("kind", "batch", "heads", "kv_heads", "queries", "keys", "head_dim", "dtype", "causal")


def not_taken(case: Case, target: Target) -> str | None:
    """Why a target can't be given a case; None where it can. What it doesn't take is never changed into what it takes."""
    able, conventions = target.abilities, target.conventions
    if case.kind in MODEL_PASSES:
        return _no_model(case, target)
    reasons = (
        (case.dtype not in able.dtypes, f"takes no {case.dtype}"),
        (case.batch > 1 and not able.batch, "takes one sample"),
        (case.heads > 1 and not able.heads, "takes one head"),
        (case.kv_heads != case.heads and not able.grouped, "takes no grouped heads"),
        (case.queries != case.keys and not able.rectangular, "takes equal lengths only"),
        (case.queries == 1 and case.keys > 1 and not able.single_query, "takes no single query"),
        (case.causal and conventions.causal == "not offered", "offers no causality"),
        (not case.causal and conventions.causal == "always", "is always causal"),
        (case.kind == "backward" and not able.gradients, "has no gradients"),
        (bool(able.head_dims) and case.head_dim not in able.head_dims, f"takes no head size of {case.head_dim}"),
    )
    return next((words for holds, words in reasons if holds), None)


def _no_model(case: Case, target: Target) -> str | None:
    able, conventions = target.abilities, target.conventions
    if target.framework.name != "torch" or conventions.layout not in ("BHSD", "BSHD", "SBHD"):
        return "a GPT in PyTorch can't call it"
    if conventions.causal == "not offered" and not {"bool", "additive"} & set(able.routes):
        return "offers no causality by a flag or a mask"
    if conventions.default_scale == "1" and not able.scale:
        return "doesn't scale its scores"
    if case.dtype not in able.dtypes:
        return f"takes no {case.dtype}"
    if not able.heads or (case.batch > 1 and not able.batch):
        return "takes one head or one sample"
    if case.kind == "gpt-step":
        return None if able.gradients else "has no gradients"
    if conventions.causal == "always" or not (able.single_query and able.rectangular):
        return "takes no single query that sees all keys"
    return None
