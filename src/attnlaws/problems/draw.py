"""Drawing problems: one builder, fed by Hypothesis or by a covering design.

Lists ascend, so that shrinking aims at the first item. Sizes are pairwise different as a rule, equal on purpose now and
then, near tile edges often.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

from ..targets.conventions import Abilities, Conventions
from .choices import Pick, dealer, drawn_by
from .problem import EMPTY_MASKS, MASKS, Problem
from .wants import OPTIONS, Wants, asked_for

T = TypeVar("T")
EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
SCALES = (0.125, 0.3, 1.0, 1.5)
CAPS = (1.5, 4.0, 30.0)
#: products in one sample up to which more samples cost next to nothing: each holds its own draw of the values
TINY = 4096
#: how many times the samples are taken then, by the seed of the values
DRAWS = (1, 4, 8)


def _draws(problem: Problem, a: Abilities) -> Problem:
    """The problem with more samples where they are all but free. The seed decides, so that no other choice changes."""
    p = problem
    products = p.heads * p.queries * p.keys * max(p.head_dim, p.value_dim)
    if not (a.batch and a.samples_are_free) or products > TINY:
        return p
    return p.but(batch=p.batch * DRAWS[p.seed % len(DRAWS)])


def build(pick: Pick, wants: Wants, target_abilities: Abilities, conventions: Conventions) -> Problem:
    """One problem, every choice made by `pick(name, options)`."""
    a = target_abilities
    pick = _few_sizes(pick) if a.costly_sizes else pick
    causal = _causal(pick, wants, a, conventions)
    mask, route, shape = _mask(pick, wants, a, conventions, causal)
    queries, keys = _lengths(pick, wants, a, conventions, causal, mask)
    long = max(queries, keys) > 40
    large = min(queries, keys) > 70
    batch = (
        pick("batch", _at_least(wants.min_batch, (1,) if large else (1, 2) if long else (1, 2, 3))) if a.batch else 1
    )
    heads, kv_heads = _heads(pick, wants, a, long)
    head_dim = pick("head_dim", _allowed((4, 1, 8) if long else (1, 2, 3, 4, 5, 8, 16, 12, 64, 80, 128, 256), a))
    value_dim = head_dim if not a.value_width else pick("value_dim", _allowed((1, 2, 3, 6, head_dim), a))
    if not long and pick("coincide", (0, 0, 0, 1)):
        batch, queries, keys = _coincide(pick, wants, a, (batch, heads, queries, keys), head_dim)
    bias_allowed = a.bias and route in ("additive", "bool") and (mask == "none" or route == "additive")
    if (
        causal
        and conventions.causal == "flag"
        and not (a.mask_with_causal and conventions.mask_and_causal == "intersection")
    ):
        bias_allowed = False
    bias = bias_allowed and wants.bias is not False and (wants.bias is True or bool(pick("bias", (0, 0, 0, 1))))
    if bias and mask == "none":
        shape = pick("shape", a.mask_shapes)
    scale = None
    if a.scale and wants.scale is not False:
        scale = pick("scale", SCALES if wants.scale else (None, None, *SCALES))
    dtypes = [d for d in a.dtypes if wants.dtypes is None or d in wants.dtypes]
    made = _draws(
        Problem(
            batch,
            heads,
            kv_heads,
            queries,
            keys,
            head_dim,
            value_dim,
            pick("dtype", dtypes[:1] * 3 + dtypes),
            causal,
            mask,
            route,
            shape,
            bias,
            scale,
            pick("regime", wants.regimes),
            pick("seed", range(1 << 16)),
        ),
        a,
    )
    return _with_options(pick, made, wants, a, conventions) if wants.options or wants.option else made


#: sets of sizes for targets to which new sizes are costly: a few that come up often, more that come up now and then
WORLDS = (*[world for world in range(6) for _ in range(16)], *range(6, 30))
#: where the numbering starts: there the frequent six hold tiny, small, tile-edge and decoding lengths, most dtypes, and grouped heads
_FIRST_WORLD = 79935
#: what follows from the number of the set
_SIZES = (
    "lengths",
    "long",
    "queries",
    "keys",
    "square",
    "batch",
    "grouped",
    "groups",
    "heads",
    "head_dim",
    "value_dim",
)
_OF_THE_WORLD = frozenset((*_SIZES, "coincide", "which", "shape", "dtype", "scale", "left", "right", "cap"))


def _few_sizes(pick: Pick) -> Pick:
    """All sizes follow from one number, so that programs compiled for one problem serve others; the rest is picked freely."""
    world = pick("world", WORLDS)

    def tied(name: str, options: Sequence[Any]) -> Any:
        if name not in _OF_THE_WORLD:
            return pick(name, options)
        return Random(f"{name} {_FIRST_WORLD + world}").choice(options)

    return tied


def _with_options(pick: Pick, made: Problem, wants: Wants, a: Abilities, conventions: Conventions) -> Problem:
    """The problem with the option it must ask for, and now and then others; what is refused beside them is left out."""
    for option in [*([wants.option] if wants.option else []), *wants.options]:
        must = option == wants.option
        if option in made.options or not getattr(a, option) or not (must or pick(option, (0, 0, 0, 1))):
            continue
        asking = _option(pick, made, option, a, conventions)
        if asking is None:
            continue
        clashes = [pair for pair in a.refused_pairs if pair <= asked_for(asking)]
        if clashes and not must:
            continue
        for pair in clashes:
            for other in pair - {option}:
                asking = _leave_out(asking, other)
        made = asking
    return made


def _option(pick: Pick, made: Problem, option: str, a: Abilities, conventions: Conventions) -> Problem | None:
    """The problem asking for one more option; None where it doesn't fit."""
    if option == "window":
        if made.padding or made.mask in EMPTY_MASKS:
            return None
        if made.queries > made.keys:
            made = made.but(queries=made.keys, keys=made.queries)
        if made.mask_shape == "B11S" and made.mask != "none":
            made = made.but(mask="none", route="bool", mask_shape="LS")
        if (
            made.causal and conventions.alignment != conventions.window_anchor
        ):  # a row may lie outside of one of the two
            made = made.but(queries=made.keys)
        if a.window_causal and not made.causal:
            if made.mask != "none" or (made.queries != made.keys and not a.rectangular_causal):
                made = made.but(mask="none", route="bool", mask_shape="LS", bias=False, queries=made.keys)
            made = made.but(causal=True)
        two = conventions.window == "left and right"
        left = pick("left", (1, 2, 0, 3, 4, 5) if two else (1, 2, 3, 4, 5))
        return made.but(left=left, right=pick("right", (0, 1, 2, 3, 5)) if two and a.window_right else -1)
    if option == "softcap":
        return made.but(softcap=pick("cap", CAPS))
    if option == "padding":
        if made.mask in EMPTY_MASKS or made.route == "padding":
            return None
        # padding keeps the first keys: a window or a causal row beyond them sees none
        return None if made.window else made.but(padding=True)
    return made.but(**{option: True})


def _leave_out(problem: Problem, name: str) -> Problem:
    plain: dict[str, dict[str, Any]] = {
        "causal": {"causal": False},
        "scale": {"scale": None},
        "grouped": {"kv_heads": problem.heads},
        "rectangular": {"queries": problem.keys},
    }
    if name in OPTIONS:
        return problem.without(name)
    return problem.but(**plain.get(name, {"mask": "none", "route": "bool", "mask_shape": "LS", "bias": False}))


def _allowed(sizes: Sequence[int], a: Abilities) -> Sequence[int]:
    """The head sizes among these that the target takes, or the smallest that it takes."""
    if not a.head_dims:
        return sizes
    return [n for n in sizes if n in a.head_dims] or list(a.head_dims[:2])


def _at_least(minimum: int, options: Sequence[int]) -> Sequence[int]:
    return [n for n in options if n >= minimum] or [minimum]


def _causal(pick: Pick, wants: Wants, a: Abilities, conventions: Conventions) -> bool:
    if conventions.causal == "always":
        return True
    if not a.causal or wants.causal is False:
        return False
    return True if wants.causal else bool(pick("causal", (0, 1)))


def _mask(pick: Pick, wants: Wants, a: Abilities, conventions: Conventions, causal: bool) -> tuple[str, str, str]:
    """Kind, route and broadcast shape of the mask."""
    routes = [r for r in a.routes if wants.routes is None or r in wants.routes]
    both = a.mask_with_causal and conventions.mask_and_causal == "intersection"
    if not routes or (causal and conventions.causal == "flag" and not both):
        return "none", "bool", "LS"
    kinds = list(wants.masks if wants.masks is not None else ("none", *MASKS))
    kind = pick("mask", kinds)
    if kind == "none":
        return "none", "bool", "LS"
    route = pick("route", routes)
    if route == "padding":
        kinds = [k for k in kinds if k.startswith("padding") or k in ("empty-sample", "empty-all")]
        if not kinds:
            routes = [r for r in routes if r != "padding"]
            return ("none", "bool", "LS") if not routes else (kind, routes[0], pick("shape", a.mask_shapes))
        kind = kind if kind in kinds else pick("padding kind", kinds)
        shape = "B11S"
    else:
        shape = pick("shape", a.mask_shapes)
    if causal and shape == "B11S" and kind in ("padding-left", "first-half", "random", "banded"):
        kind = "padding-right"  # the first key must stay, or the first rows see nothing
    if kind in ("padding-left", "padding-right") and shape in ("LS", "11LS", "1HLS"):
        kind = "random" if kind == "padding-left" and "random" in kinds else kind
    if (kind == "empty-sample" and shape in ("LS", "11LS", "1HLS")) or (kind == "empty-row" and shape == "B11S"):
        kind = "empty-row" if shape != "B11S" else "empty-sample"
    return kind, route, shape


def _lengths(
    pick: Pick, wants: Wants, a: Abilities, conventions: Conventions, causal: bool, mask: str
) -> tuple[int, int]:
    """L and S: small worlds first, then tile edges on one side, then both, then decoding and one long row."""
    kinds = ("tiny", "tiny", "small") if wants.small else ("tiny", "small", "keys", "queries", "both", "decode", "long")
    kind = pick("lengths", kinds)
    if kind == "long":
        kind = pick("long", ("long",) * 7 + ("large",))
    tiny, small = (1, 2, 3, 4), (5, 7, 8, 9, 11, 13)
    options: dict[str, tuple[Sequence[int], Sequence[int]]] = {
        "tiny": (tiny, tiny),
        "small": (small, small),
        "keys": ((2, 3, 5), EDGES),
        "queries": (EDGES, (3, 2, 7)),
        "both": ((16, 17, 31, 33, 65), (17, 16, 33, 32, 65)),
        "decode": ((1,), (5, 8, *EDGES)),
        "long": ((3, 5), (200, 257, 513)),
        "large": ((71, 130, 200), (72, 129, 201)),
    }
    queries = pick("queries", _at_least(wants.min_queries, options[kind][0]))
    keys = pick("keys", _at_least(wants.min_keys, options[kind][1]))
    square_only = not a.rectangular or (causal and not a.rectangular_causal) or wants.rectangular is False
    if square_only or (
        pick("square", (0, 0, 1)) and wants.rectangular is not True and kind in ("tiny", "small", "both")
    ):
        queries = keys = min(max(queries, keys), 129)
        if square_only and kind == "long":
            queries = keys = 65
    elif wants.rectangular is True and queries == keys:
        keys += 1
    if causal and conventions.alignment == "bottom-right" and queries > keys and mask not in EMPTY_MASKS:
        queries, keys = keys, queries
    return max(queries, wants.min_queries), max(keys, wants.min_keys)


def _heads(pick: Pick, wants: Wants, a: Abilities, long: bool) -> tuple[int, int]:
    if not a.heads:
        return 1, 1
    if a.grouped and wants.grouped is not False and (wants.grouped or pick("grouped", (0, 0, 1))):
        heads, kv_heads = pick("groups", ((4, 2), (6, 2), (6, 3), (3, 1), (8, 4), (16, 8)))
        return heads, kv_heads
    several = (3, 5, 6, 12, 1) if wants.option == "alibi" else (1, 2, 3, 5)
    heads = pick("heads", _at_least(wants.min_heads, (1, 2) if long else several))
    return heads, heads


def _coincide(
    pick: Pick, wants: Wants, a: Abilities, sizes: tuple[int, int, int, int], head_dim: int
) -> tuple[int, int, int]:
    """B = H, B = L, H = L or S = D on purpose: where axes are taken for each other, nothing else shows it."""
    batch, heads, queries, keys = sizes
    which = pick("which", ("B=H", "B=L", "H=L", "S=D"))
    if which == "S=D" and max(wants.min_keys, queries) <= head_dim <= 80 and a.rectangular and a.rectangular_causal:
        return (batch, queries, head_dim) if wants.rectangular is not False else (batch, head_dim, head_dim)
    if which == "B=H" and a.batch and heads >= wants.min_batch:
        return heads, queries, keys
    if which == "B=L" and a.batch and 1 < queries <= 4:
        return max(queries, wants.min_batch), queries, keys
    if which == "H=L" and queries != keys and keys >= wants.min_keys and heads >= wants.min_queries and heads <= keys:
        return batch, heads, keys
    return batch, queries, keys


def problems(wants: Wants, abilities: Abilities, conventions: Conventions) -> st.SearchStrategy[Problem]:
    """Hypothesis' strategy over problems that fit a target and a law's wants."""
    return drawn_by(lambda pick: build(pick, wants, abilities, conventions))


def covering(wants: Wants, abilities: Abilities, conventions: Conventions, seed: int) -> Iterator[Problem]:
    """An endless covering design: small worlds first, sizes grow afterwards."""
    pick, tiny = dealer(seed, 77), replace(wants, small=True)
    for number in itertools.count():
        yield build(pick, tiny if number < 12 else wants, abilities, conventions)
