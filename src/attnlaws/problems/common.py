"""What two targets both take: problems that can be given to either, and the same call in the words of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from ..targets.call import Call
from ..targets.conventions import Abilities, Conventions
from ..targets.target import Target
from .draw import covering
from .problem import EMPTY_MASKS, MASKS, Problem
from .values import call_of, window_of
from .wants import ALL, OPTIONS, Wants

#: the values on which a row without a key is certain to follow its convention: a finite fill swallows them
MILD = ("normal", "integer", "flat")
PAIR = "left and right"
ARTICLE = {"bool": "a", "additive": "an", "keep": "a", "padding": "a key"}


class NothingInCommon(Exception):
    """Two targets take no call in common; the message says in what they don't meet."""


@dataclass(frozen=True)
class Ground:
    """What two targets both take. `conventions` are those under which no row loses its last key by accident.

    `routes` translates the route of a problem's mask for the second target, where both share none.
    """

    first: Target
    second: Target
    abilities: Abilities
    conventions: Conventions
    routes: dict[str, str] = field(default_factory=dict)

    def of(self, problem: Problem, side: int) -> Problem:
        """The problem with its mask on the route that a side (0 or 1) takes."""
        return problem.but(route=self.routes.get(problem.route, problem.route)) if side else problem

    def call(self, problem: Problem, conventions: Conventions) -> Call:
        """The call of a problem, the same for both, but that a window of one number counts by these conventions."""
        call = call_of(problem, self.conventions)
        one_number = PAIR not in (self.first.conventions.window, self.second.conventions.window)
        choice = conventions.window if one_number else self.conventions.window
        return call.but(window=window_of(problem, choice))

    def takes(self, problem: Problem) -> bool:
        """Whether both targets take a problem, and it is one on which their conventions say what must come out."""
        ends = {t.conventions.alignment for t in (self.first, self.second)}
        plain = problem.mask == "none" and not (problem.bias or problem.padding) and problem.regime in MILD
        if problem.causal and "bottom-right" in ends and problem.queries > problem.keys and not plain:
            return False
        if problem.window and problem.mask != "none" and self._windows_differ():
            return False
        sides = enumerate((self.first, self.second))
        return all(self._side_takes(self.of(problem, side), target) for side, target in sides)

    def _windows_differ(self) -> bool:
        a, b = self.first.conventions, self.second.conventions
        return (a.window, a.window_anchor, a.alignment) != (b.window, b.window_anchor, b.alignment)

    def _side_takes(self, problem: Problem, target: Target) -> bool:
        conventions = target.conventions
        if conventions.mask_and_causal == "the mask alone":
            conventions = replace(conventions, mask_and_causal="intersection")
        if self.conventions.causal == "not offered":  # one of them is always causal all the same
            conventions = replace(conventions, causal="not offered")
        if problem.mask == "none" and not problem.window:  # rows without a key are wanted: they show a convention
            conventions = replace(conventions, alignment="top-left")
        return Wants(options=ALL).fits(problem, target.abilities, conventions)


def meet(first: Target, second: Target) -> Ground:
    """The common ground of two targets. Raises NothingInCommon."""
    a, b = first.abilities, second.abilities
    routes, pairs = _routes(a, b)
    causal, both = _causal(first, second)
    mixed = causal == "not offered" and "always" in (first.conventions.causal, second.conventions.causal)
    shapes = tuple(s for s in a.mask_shapes if s in b.mask_shapes)
    routes = () if mixed or (causal == "always" and not both) else routes if shapes else _only_padding(routes)
    rectangular_causal = a.rectangular_causal and b.rectangular_causal
    window = _window(first, second)
    names = ("grouped", "value_width", "heads", "batch", "scale", "softcap", "alibi", "sinks", "padding")
    abilities = Abilities(
        dtypes=_dtypes(first, second),
        routes=routes,
        mask_shapes=shapes,
        bias=a.bias and b.bias and "additive" in routes,
        causal=causal != "not offered",
        rectangular=a.rectangular and b.rectangular and (rectangular_causal or not mixed),
        rectangular_causal=rectangular_causal,
        mask_with_causal=both,
        window=window is not None,
        window_right=a.window_right and b.window_right,
        refused_pairs=a.refused_pairs | b.refused_pairs,
        head_dims=_head_dims(first, second),
        **{name: getattr(a, name) and getattr(b, name) for name in names},
    )
    return Ground(first, second, abilities, _conventions(first, second, causal, window or PAIR), pairs)


def _dtypes(first: Target, second: Target) -> tuple[str, ...]:
    a, b = first.abilities.dtypes, second.abilities.dtypes
    common = tuple(d for d in a if d in b)
    if not common:
        taken = [f"{t.name} takes {', '.join(t.abilities.dtypes)}" for t in (first, second)]
        raise NothingInCommon(f"no dtype is taken by both: {'; '.join(taken)}")
    return common


def _head_dims(first: Target, second: Target) -> tuple[int, ...]:
    a, b = first.abilities.head_dims, second.abilities.head_dims
    if not a or not b:
        return a or b
    common = tuple(n for n in a if n in b)
    if not common:
        taken = [f"{t.name} takes {', '.join(map(str, t.abilities.head_dims))}" for t in (first, second)]
        raise NothingInCommon(f"no head size that was tried is taken by both: {'; '.join(taken)}")
    return common


def _routes(a: Abilities, b: Abilities) -> tuple[tuple[str, ...], dict[str, str]]:
    """The common routes of a mask; where there is none, the first of each, which carry the same mask."""
    common = tuple(r for r in a.routes if r in b.routes)
    mine, other = (next((r for r in x.routes if r != "padding"), None) for x in (a, b))
    if set(common) <= {"padding"} and mine is not None and other is not None:
        return (*common, mine), {mine: other}
    return common, {}


def _only_padding(routes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(r for r in routes if r == "padding")


def _causal(first: Target, second: Target) -> tuple[str, bool]:
    """How causal problems are asked for, and whether they may have a mask."""
    ways = {t.conventions.causal if t.abilities.causal else "not offered" for t in (first, second)}
    both = all(
        t.conventions.causal != "flag"
        or (t.abilities.mask_with_causal and t.conventions.mask_and_causal in ("intersection", "the mask alone"))
        for t in (first, second)
    )
    if "not offered" in ways:
        return "not offered", both
    return ("always" if "always" in ways else "flag"), both


def _window(first: Target, second: Target) -> str | None:
    """What the numbers of a problem's window count; None where a window can't be given to both."""
    if not (first.abilities.window and second.abilities.window):
        return None
    choices = [t.conventions.window for t in (first, second)]
    if PAIR not in choices:
        return choices[0]
    pairs = [t.abilities for t in (first, second) if t.conventions.window == PAIR]
    number = next((c for c in choices if c != PAIR), None)
    right = number is not None and number.endswith(("none after", "each side"))
    open_end = (number is not None and not right) or len({p.window_right for p in pairs}) > 1
    if right and not all(p.window_right for p in pairs):
        return None
    if open_end and any(p.window_right and not p.window_open for p in pairs):
        return None
    return number or PAIR


def _conventions(first: Target, second: Target, causal: str, window: str) -> Conventions:
    """For each convention that decides which pairs are visible the choice that shows less."""
    a, b = first.conventions, second.conventions

    def least(name: str, more: str, less: str) -> str:
        return more if getattr(a, name) == getattr(b, name) == more else less

    return Conventions(
        causal=causal,
        alignment=least("alignment", "bottom-right", "top-left"),
        single_query=least("single_query", "all keys", "as aligned"),
        window=window,
        window_anchor=least("window_anchor", "bottom-right", "top-left"),
    )


# -- problems ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Section:
    """A part of the design: its weight, what it wants, and a change that makes its point."""

    weight: int
    wants: Wants
    change: Callable[[Problem, int], Problem] = lambda problem, _: problem


def _tall(problem: Problem, number: int) -> Problem:
    """More queries than keys every other time: under the bottom-right alignment rows are without a key."""
    return problem.but(queries=problem.keys, keys=problem.queries) if number % 2 else problem


def _single(problem: Problem, _: int) -> Problem:
    return problem.but(queries=1)


def _sections(ground: Ground) -> Iterator[_Section]:
    """All calls in common, and those on which conventions show."""
    a, c = ground.abilities, ground.conventions
    yield _Section(8, Wants(options=ALL))
    yield _Section(1, Wants(scale=False, masks=("none",)))
    if a.causal and a.rectangular and a.rectangular_causal:
        bare = Wants(causal=True, masks=("none",), rectangular=True, bias=False, regimes=MILD)
        yield _Section(2, bare, _tall)
        yield _Section(1, replace(bare, rectangular=None), _single)
    if a.routes and c.causal != "always":
        yield _Section(2, Wants(causal=False, masks=EMPTY_MASKS, bias=False, regimes=MILD))
    if a.routes and a.causal and a.mask_with_causal:
        yield _Section(1, Wants(causal=True, masks=MASKS[1:]))
    for option in OPTIONS:
        if getattr(a, option):
            yield _Section(1, Wants(option=option, options=ALL))
    if a.window:
        yield _Section(1, Wants(option="window", masks=("none",)))


def drawn(ground: Ground, seed: int, count: int) -> list[Problem]:
    """About `count` problems that both targets take, each once: small worlds first in each part of the design."""
    sections = list(_sections(ground))
    weights = sum(section.weight for section in sections)
    found: dict[Problem, None] = {}
    for section in sections:
        wanted = max(1, round(count * section.weight / weights))
        design = enumerate(islice(covering(section.wants, ground.abilities, ground.conventions, seed), 6 * wanted))
        made = (section.change(problem, number) for number, problem in design)
        fresh = (problem for problem in made if problem not in found and ground.takes(problem))
        found.update(dict.fromkeys(islice(fresh, wanted)))
    return list(found)


#: abilities in words
WORDS = {
    "bias": "a bias",
    "scale": "a scale",
    "grouped": "grouped heads",
    "value_width": "Dv != D",
    "rectangular": "Lq != Lk",
    "heads": "several heads",
    "batch": "a batch",
    **OPTIONS,
}


def only_one_takes(mine: Target, other: Target) -> list[str]:
    """What a target takes and the other doesn't, in words: it is not compared."""
    a, b = mine.abilities, other.abilities
    pairs = _routes(a, b)[1]
    found = [d for d in a.dtypes if d not in b.dtypes]
    found += [f"{ARTICLE[r]} {r} mask" for r in a.routes if r not in b.routes and r not in {*pairs, *pairs.values()}]
    found += [words for name, words in WORDS.items() if getattr(a, name) and not getattr(b, name)]
    if mine.conventions.causal == "flag" and not b.causal:
        found.append("a causal flag")
    lost = [n for n in a.head_dims if n not in b.head_dims] if b.head_dims else []
    if b.head_dims and (lost or not a.head_dims):
        found.append(f"head sizes {', '.join(map(str, lost))}" if lost else "any head size")
    return found
