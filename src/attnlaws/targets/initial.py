"""Rules of initialisation: the distribution and the size of initial weights as a function of fan-in and fan-out.

A rule is declared, or recognised on builds that no test uses again. Which rule a layer follows is a convention.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special

from .call import Array
from .layer_weights import Projections, Slot

ROOT_3 = math.sqrt(3.0)
#: the deviation of N(0, 1) cut at +-2, and its kurtosis
CUT, CUT_KURTOSIS = 0.87962566103423978, 2.3655


@dataclass(frozen=True)
class Family:
    """A distribution with mean square 1: its distribution function and E x^4."""

    name: str
    kurtosis: float
    cdf: Callable[[Array], Array]


def _cut_cdf(x: Array) -> Array:
    low, high = special.ndtr(-2.0), special.ndtr(2.0)
    return np.asarray((special.ndtr(np.clip(x * CUT, -2.0, 2.0)) - low) / (high - low))


NORMAL = Family("normal", 3.0, lambda x: np.asarray(special.ndtr(x)))
UNIFORM = Family("uniform", 1.8, lambda x: np.asarray(np.clip((x / ROOT_3 + 1.0) / 2.0, 0.0, 1.0)))
TRUNCATED = Family("truncated normal", CUT_KURTOSIS, _cut_cdf)
POSITIVE = Family("uniform from 0", 1.8, lambda x: np.asarray(np.clip(x / ROOT_3, 0.0, 1.0)))
FAMILIES = (NORMAL, UNIFORM, TRUNCATED, POSITIVE)

#: root mean squares by fan-in and fan-out. Glorot & Bengio 2010; He et al. 2015, arXiv:1502.01852; LeCun et al. 1998;
#: torch.nn.Linear draws from U(-1/sqrt(fan_in), 1/sqrt(fan_in))
SIZES: dict[str, Callable[[int, int], float]] = {
    "xavier": lambda i, o: math.sqrt(2.0 / (i + o)),
    "1/sqrt(fan_in)": lambda i, _: 1.0 / math.sqrt(i),
    "linear": lambda i, _: 1.0 / math.sqrt(3.0 * i),
    "kaiming": lambda i, _: math.sqrt(2.0 / i),
    "1/sqrt(fan_out)": lambda _, o: 1.0 / math.sqrt(o),
    "kaiming fan_out": lambda _, o: math.sqrt(2.0 / o),
}
#: fixed sizes in common use: GPT-2 and BERT, torch.randn, torch.rand
FIXED = (0.02, 1.0, 1.0 / ROOT_3, 0.01)


@dataclass(frozen=True)
class Rule:
    """The law of the entries of one matrix: a family, and its root mean square."""

    name: str
    family: Family
    size: float

    def __str__(self) -> str:
        return self.name


class UnknownRule(ValueError):
    """A declared rule that can't be read; the message names those that can."""


_WORDS = {
    "xavier_uniform": (UNIFORM, "xavier"),
    "xavier_normal": (NORMAL, "xavier"),
    "kaiming_uniform": (UNIFORM, "kaiming"),
    "kaiming_normal": (NORMAL, "kaiming"),
    "lecun_uniform": (UNIFORM, "1/sqrt(fan_in)"),
    "lecun_normal": (NORMAL, "1/sqrt(fan_in)"),
    "linear": (UNIFORM, "linear"),
}
_NUMBERED = {"normal": NORMAL, "uniform": UNIFORM, "truncated": TRUNCATED}


def declared_rules(text: str, p: Projections, values: Mapping[str, Array]) -> dict[str, Rule]:
    """The rules in words such as "xavier_uniform" or "normal(0.02), o normal(0.004)", by the names q, k, v, o.

    normal(s) has the deviation s, uniform(a) lies in +-a, truncated(s) is N(0, s^2) cut at +-2 s; the others are those of
    torch.nn.init, with the fans of the whole parameter, "linear" that of torch.nn.Linear. Raises UnknownRule.
    """
    found: dict[str, Rule] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(?:(?P<slot>[qkvo])\s+)?(?P<word>\w+)\s*(?:\((?P<number>[-+.\deE]+)\))?\s*", part)
        if match is None or match["word"] not in {**_WORDS, **_NUMBERED}:
            known = ", ".join([*(f"{w}(number)" for w in _NUMBERED), *_WORDS])
            raise UnknownRule(
                f"initialisation {part.strip()!r} is no rule; possible: {known}, each after q, k, v or o, or for all"
            )
        for name, slot in slots(p).items():
            if match["slot"] in (None, name):
                found[name] = _read(match["word"], match["number"], part.strip(), slot, values)
    return found


def _read(word: str, number: str | None, text: str, slot: Slot, values: Mapping[str, Array]) -> Rule:
    if word in _NUMBERED:
        try:
            size = float(number or "")
        except ValueError as error:
            raise UnknownRule(f"initialisation {text!r} lacks its number, as in {word}(0.02)") from error
        size *= {"normal": 1.0, "uniform": 1.0 / ROOT_3, "truncated": CUT}[word]
        return Rule(f"{word}({number})", _NUMBERED[word], size)
    family, size_name = _WORDS[word]
    return Rule(word, family, SIZES[size_name](*whole_fans(slot, values)))


def slots(p: Projections) -> dict[str, Slot]:
    """The matrices by name."""
    found = {"q": p.q, "k": p.k, "v": p.v}
    return found if p.o is None else {**found, "o": p.o}


def whole_fans(slot: Slot, values: Mapping[str, Array]) -> tuple[int, int]:
    """Fan-in and fan-out of the parameter that a matrix lies in: of all three where q, k and v are fused."""
    rows, columns = values[slot.weight].shape
    return (rows, columns) if slot.turned else (columns, rows)


def recognised_rules(p: Projections, values: Mapping[str, Array], samples: Mapping[str, Array]) -> dict[str, Rule]:
    """The rule of each matrix whose sample of initial values follows a known one; a matrix that follows none is left out.

    The family is the nearest by Kolmogorov's distance, and within 2.5 / sqrt(n) of it; the size within 5 standard errors.
    """
    found = {}
    for name, slot in slots(p).items():
        w = samples[name]
        size = float(np.sqrt((w**2).mean()))
        if size == 0.0 or np.unique(w).size < 16:
            continue
        distance, family = min(((_distance(w / size, f), f) for f in FAMILIES), key=lambda pair: pair[0])
        if distance > 2.5 / math.sqrt(w.size):
            continue
        error = math.sqrt((family.kurtosis - 1.0) / w.size) / 2.0
        heads = p.heads if name in ("q", "o") else p.kv_heads
        for words, wanted in candidates(slot, values, heads, family):
            if abs(math.log(size / wanted)) <= 5.0 * error:
                found[name] = Rule(words, family, wanted)
                break
    return found


def candidates(slot: Slot, values: Mapping[str, Array], heads: int, family: Family) -> Iterator[tuple[str, float]]:
    """Names and root mean squares of the known rules for one matrix, the usual ones first."""
    factor = CUT if family is TRUNCATED else 1.0
    whole = whole_fans(slot, values)
    own = slot.matrix(values).shape[::-1]
    fans = {"": whole}
    if own != whole:
        fans[" of each matrix"] = own
    fans[" of each head"] = (own[0], own[1] // heads)
    for of, (fan_in, fan_out) in fans.items():
        for name, rule in SIZES.items():
            yield f"{family.name} {name}{of}", rule(fan_in, fan_out)
            if factor != 1.0:
                yield f"{family.name} {name}{of}, cut", factor * rule(fan_in, fan_out)
    for fixed in FIXED:
        yield f"{family.name} {fixed:.3g}", fixed
        if factor != 1.0:
            yield f"{family.name} {fixed:.3g}, cut", factor * fixed


def _distance(values: Array, family: Family) -> float:
    at = family.cdf(np.sort(values))
    steps = np.arange(values.size + 1) / values.size
    return float(max((steps[1:] - at).max(), (at - steps[:-1]).max()))


#: the most builds that one sample takes
MOST_BUILDS = 600


def sample(
    make: Callable[[int], Mapping[str, Array]], p: Projections, builds: int, first_seed: int
) -> dict[str, Array]:
    """Initial values (builds, out, in) of each matrix, from builds with seeds one after another."""
    parts: dict[str, list[Array]] = {name: [] for name in slots(p)}
    for seed in range(first_seed, first_seed + min(builds, MOST_BUILDS)):
        values = make(seed)
        for name, slot in slots(p).items():
            parts[name].append(slot.matrix(values))
    return {name: np.stack(found) for name, found in parts.items()}
