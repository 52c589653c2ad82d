"""Which laws are tried: those of a kind of target, or some by name."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from ..laws.load import laws_of
from ..laws.named import AnyLaw


class UnknownLaw(ValueError):
    """A law that doesn't exist; the message names the nearest that does."""


class WrongKind(UnknownLaw):
    """Laws were asked for by name, and none is about targets of this kind."""


def select(names: Sequence[str] | None, kind: str | None = "attention") -> list[AnyLaw]:
    """The laws of these names or families for one kind of target, all of its laws where none is given.

    Raises UnknownLaw for a name that no law of any kind has, WrongKind where all are laws of another kind.
    """
    laws, wanted = laws_of(), laws_of(kind)
    if not names:
        return list(wanted.values())
    chosen: dict[str, AnyLaw] = {}
    families = {name.split(".")[0] for name in laws}
    for name in names:
        if name in laws:
            chosen[name] = laws[name]
        elif name in families:
            chosen.update({n: item for n, item in laws.items() if n.split(".")[0] == name})
        else:
            near = get_close_matches(name, [*laws, *families], n=1, cutoff=0.3)
            hint = f"did you mean {near[0]!r}?" if near else "see attnlaws laws"
            raise UnknownLaw(f"unknown law {name!r}; {hint}")
    fitting = [item for name, item in chosen.items() if name in wanted]
    if not fitting:
        of = {
            "attention": "functions of query, key and value",
            "layer": "layers",
            "model": "models",
            "part": "parts of models",
        }
        raise WrongKind(f"{', '.join(names)}: no law of {of[kind or 'attention']}, which this target is one of")
    return fitting
