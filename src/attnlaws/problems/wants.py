"""What a law of attention functions needs of a problem, and whether a target can be given it."""

from __future__ import annotations

from dataclasses import dataclass

from ..targets.conventions import Abilities, Conventions
from .problem import EMPTY_MASKS, REGIMES, Problem

#: options beside mask, causal flag and scale, and what a target that lacks one is said to lack
OPTIONS = {
    "window": "window",
    "softcap": "soft cap",
    "alibi": "ALiBi slopes",
    "sinks": "sinks",
    "padding": "key padding beside a mask",
}
ALL = tuple(OPTIONS)


@dataclass(frozen=True)
class Wants:
    """What a law needs of a problem. None means either way."""

    causal: bool | None = None
    masks: tuple[str, ...] | None = None
    routes: tuple[str, ...] | None = None
    bias: bool | None = None
    regimes: tuple[str, ...] = REGIMES
    dtypes: tuple[str, ...] | None = None
    grouped: bool | None = None
    scale: bool | None = None
    min_batch: int = 1
    min_heads: int = 1
    min_queries: int = 1
    min_keys: int = 1
    rectangular: bool | None = None
    small: bool = False
    gradients: bool = False
    #: options that a problem may ask for beside mask, causal flag and scale; `option`: one that it must ask for
    options: tuple[str, ...] = ()
    option: str | None = None

    def missing(self, abilities: Abilities, conventions: Conventions) -> str | None:
        """Why a target can't be given such problems; None where it can."""
        a = abilities
        reasons = (
            (self.causal is True and not a.causal, "takes no causal flag and is not always causal"),
            (self.causal is False and conventions.causal == "always", "is always causal"),
            (bool(self.masks) and "none" not in (self.masks or ()) and not a.routes, "takes no mask"),
            (
                bool(self.routes) and not set(self.routes or ()) & set(a.routes),
                f"takes no {' or '.join(self.routes or ())} mask",
            ),
            (self.bias is True and not a.bias, "takes no additive mask"),
            (self.grouped is True and not a.grouped, "takes no grouped heads"),
            (self.scale is True and not a.scale, "takes no scale"),
            (self.min_batch > 1 and not a.batch, "takes no batch"),
            (self.min_heads > 1 and not a.heads, "takes one head"),
            (self.rectangular is True and not a.rectangular, "takes equal lengths only"),
            (self.gradients and not a.gradients, "has no gradients"),
            (
                self.option is not None and not getattr(a, self.option or "scale"),
                f"takes no {OPTIONS.get(self.option or '')}",
            ),
            (self.dtypes is not None and not set(self.dtypes) & set(a.dtypes), "doesn't take the dtype"),
        )
        return next((words for is_so, words in reasons if is_so), None)

    def fits(self, problem: Problem, abilities: Abilities, conventions: Conventions) -> bool:
        """Whether a problem, shrunk perhaps, is still one that `build` could have made for this target."""
        a, p = abilities, problem
        mask = p.mask != "none"
        both = mask and p.causal and conventions.causal == "flag"
        return not (
            (self.causal is not None and conventions.causal != "always" and p.causal is not self.causal)
            or (conventions.causal == "always" and not p.causal)
            or (self.masks is not None and "none" not in self.masks and mask and p.mask not in self.masks)
            or (mask and p.route not in a.routes)
            or (mask and p.mask_shape not in (("B11S",) if p.route == "padding" else a.mask_shapes))
            or (both and not (a.mask_with_causal and conventions.mask_and_causal == "intersection"))
            or (self.bias is True and not p.bias)
            or (self.scale is True and p.scale is None)
            or (self.grouped is True and p.heads == p.kv_heads)
            or p.dtype not in a.dtypes
            or (bool(a.head_dims) and not {p.head_dim, p.value_dim} <= set(a.head_dims))
            or (self.dtypes is not None and p.dtype not in self.dtypes)
            or p.regime not in self.regimes
            or (not a.value_width and p.head_dim != p.value_dim)
            or (not a.heads and p.heads > 1)
            or (
                p.queries != p.keys
                and (not a.rectangular or (p.causal and not a.rectangular_causal) or self.rectangular is False)
            )
            or (
                p.causal
                and conventions.alignment == "bottom-right"
                and p.queries > p.keys
                and p.mask not in EMPTY_MASKS
            )
            or not p.options <= {*self.options, self.option}
            or (self.option is not None and self.option not in p.options)
            or any(pair <= asked_for(p) for pair in a.refused_pairs)
            or (p.window and (p.queries > p.keys or p.padding or (a.window_causal and not p.causal)))
            or (p.window and p.mask != "none" and (p.mask_shape == "B11S" or p.mask in EMPTY_MASKS))
            or (p.window and p.causal and p.queries != p.keys and conventions.alignment != conventions.window_anchor)
            or (p.padding and p.mask in EMPTY_MASKS)
            or p.batch < self.min_batch
            or p.heads < self.min_heads
            or p.queries < self.min_queries
            or p.keys < self.min_keys
        )


def asked_for(problem: Problem) -> set[str]:
    """The names by which a problem's options may be refused together."""
    plain = {
        "causal": problem.causal,
        "scale": problem.scale is not None,
        problem.route: problem.mask != "none",
        "additive": problem.bias or (problem.mask != "none" and problem.route == "additive"),
        "grouped": problem.heads != problem.kv_heads,
        "rectangular": problem.queries != problem.keys,
    }
    return {*problem.options, *(name for name, on in plain.items() if on)}
