"""A trial: one law on one problem of one target. Comparisons happen here, and each leaves evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..judge import backward, bounds
from ..judge.chance import Finding, Sample, looks
from ..judge.precision import PROFILES, Precision, with_storage_grads
from ..problems.problem import Problem
from ..problems.values import call_of, causal_triangle, generator
from ..reference import oracle
from ..reference.oracle import Attended
from ..targets.call import Answer, Array, BoolArray, Call, TargetRaised, WrongResult
from ..targets.options import alibi_bias, structure
from ..targets.recover import recover_weights
from ..targets.target import Target


class Broken(Exception):
    """A law doesn't hold on a problem: what was seen, where, and how far it is from what is allowed."""

    def __init__(
        self,
        what: str,
        *,
        got: float | None = None,
        want: float | None = None,
        allowed: float | None = None,
        where: str = "",
        call: Call | None = None,
        index: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(what)
        self.what, self.got, self.want, self.allowed = what, got, want, allowed
        self.where, self.call, self.index = where, call, index


class Ignored(Broken):
    """An option that the target accepts has no effect where it must have one."""


class Crashed(Exception):
    """The target raised, or returned no output, on a legal problem."""

    def __init__(self, line: str, call: Call | None = None) -> None:
        super().__init__(line)
        self.line, self.call = line, call


class Died(Crashed):
    """The target ended its process, or blocked it; `again` says whether the witness alone does so."""

    again = True


class Unsuitable(Exception):
    """This problem can't show anything about this law; another will."""


class Refused(Exception):
    """The target declined this problem in its own clear words (NotImplementedError)."""


@dataclass
class Evidence:
    """What the comparisons of one law rest on."""

    calls: int = 0
    comparisons: int = 0
    elements: int = 0
    worst: float = 0.0
    not_exact: int = 0
    note: str = ""
    findings: list[Finding] = field(default_factory=list)
    #: the largest error / bound by the dtype and the length of the problem
    margins: dict[tuple[str, int], float] = field(default_factory=dict)

    def chance(self, name: str, seed: int, sample: Sample) -> None:
        """Two looks at quantities of chance: what was found is kept; Broken with the surest refutation, if there is one."""
        found, wrong = looks(name, seed, sample)
        self.findings += found
        self.add(sum(f.size for f in found), 0.0)
        if wrong:
            worst_of_all = min(wrong, key=lambda f: f.p_value)
            raise Broken(
                f"the {worst_of_all.quantity} is not as predicted: {worst_of_all}",
            )

    def add(self, elements: int, ratio: float, at: tuple[str, int] | None = None) -> None:
        """One comparison of that many elements, with the largest error / bound among them, `at` a dtype and a length."""
        self.comparisons += 1
        self.elements += elements
        self.worst = max(self.worst, ratio)
        if at is not None:
            self.margins[at] = max(self.margins.get(at, 0.0), ratio)


@dataclass
class Session:
    """What a whole run shares: the precision found so far for each dtype, impostors met, copies to measure on."""

    precision: dict[str, int] = field(default_factory=dict)
    impostors: dict[str, list[int]] = field(default_factory=dict)
    #: samples that several laws of chance look at
    kept: dict[str, dict[str, Array]] = field(default_factory=dict)
    #: copies of a module that are used again and again to measure what rounding does, by dtype
    scratch: dict[str, Any] = field(default_factory=dict)
    #: told of each problem before it is tried
    on_problem: Callable[[Any], None] | None = None


class Trial:
    """One law on one problem. `call` is the problem's call; laws change it and compare answers."""

    def __init__(self, target: Target, problem: Problem, session: Session, evidence: Evidence) -> None:
        self.target, self.problem, self.session, self.evidence = target, problem, session, evidence
        self.conventions, self.abilities = target.conventions, target.abilities
        self.call = call_of(problem, self.conventions)
        self.rng = generator(problem, 2)

    # -- the target and the oracle ---------------------------------------------------------------------------------

    def run(self, call: Call | None = None, **options: Any) -> Answer:
        """The target's answer. Raises Crashed where it raises or returns no output, Refused for NotImplementedError."""
        call = self.call if call is None else call
        self.evidence.calls += 1
        try:
            return self.target(call, **options)
        except TargetRaised as failure:
            if isinstance(failure.error, NotImplementedError):
                raise Refused(failure.cause_line) from failure
            raise Crashed(failure.cause_line, call) from failure
        except WrongResult as failure:
            raise Crashed(str(failure), call) from failure

    def weights(self, call: Call | None = None) -> Array:
        """The weights (B, H, L, S) recovered with V = one-hot rows."""
        call = self.call if call is None else call
        self.evidence.calls += 1
        try:
            return recover_weights(self.target, call)
        except TargetRaised as failure:
            if isinstance(failure.error, NotImplementedError):
                raise Refused(failure.cause_line) from failure
            raise Crashed(failure.cause_line, call) from failure
        except WrongResult as failure:
            raise Crashed(str(failure), call) from failure

    def one_hot(self, call: Call) -> Call:
        """The call with V = one-hot rows, as wide as there are keys: what `weights` stands for."""
        _, _, kv_heads, _, keys, _, _ = call.sizes
        return call.but(value=np.broadcast_to(np.eye(keys), (call.sizes[0], kv_heads, keys, keys)).copy())

    def exact(self, call: Call | None = None) -> Attended:
        """The float64 oracle under the target's conventions."""
        call = self.call if call is None else call
        return oracle.attention(call.query, call.key, call.value, **self.options(call))

    def exact_gradients(self, call: Call, upstream: Array) -> oracle.Gradients:
        """The oracle's gradients."""
        return oracle.gradients(call.query, call.key, call.value, upstream, **self.options(call))

    def triangle_applies(self) -> bool:
        """Whether this problem is causal."""
        return self.call.causal or self.conventions.causal == "always"

    def options(self, call: Call) -> dict[str, Any]:
        """The oracle's options for a call, under the target's conventions."""
        causal = None
        visible = _meet(call.visible, structure(call, self.conventions), call)
        slopes = alibi_bias(call, self.conventions)
        bias = call.bias if slopes is None else slopes + (0.0 if call.bias is None else call.bias)
        if call.causal or self.conventions.causal == "always":
            single = call.query.shape[2] == 1 and self.conventions.single_query == "all keys"
            dropped = call.visible is not None and self.conventions.mask_and_causal == "the mask alone"
            if not single and not (dropped and self.conventions.causal == "flag"):
                causal = "bottom-right" if self.conventions.alignment == "bottom-right" else "top-left"
        return {
            "visible": visible,
            "bias": bias,
            "causal": causal,
            "scale": self.scale(call),
            "softcap": call.softcap,
            "sinks": call.sinks,
            "empty_row": self.empty_row(call),
        }

    def scale(self, call: Call) -> float:
        """The scale that the call asks for: its own, or the target's default."""
        if call.scale is not None:
            return call.scale
        return 1.0 if self.conventions.default_scale == "1" else float(call.query.shape[-1]) ** -0.5

    def empty_row(self, call: Call) -> str:
        """The convention for rows without a key in this call."""
        if call.visible is not None:
            return self.conventions.empty_row(call.route, call.dtype)
        return self.conventions.empty_row("causal", call.dtype)

    def allowed_pairs(self, call: Call | None = None) -> BoolArray:
        """Which (query, key) pairs may attend, (B, H, L, S): causality, mask and -inf biases."""
        return np.asarray(self.exact(call).visible, dtype=bool)

    def triangle(self) -> BoolArray:
        """The causal triangle (L, S) of the target's convention."""
        p = self.problem
        return causal_triangle(p.queries, p.keys, self.conventions.alignment, self.conventions.single_query)

    def in_shape(self, mask: NDArray[Any]) -> NDArray[Any]:
        """A mask (L, S) in the first shape that the target takes. Raises Unsuitable where it takes none with rows."""
        batch, heads, _, queries, keys, _, _ = self.call.sizes
        sizes = {"LS": (), "11LS": (1, 1), "B1LS": (batch, 1), "1HLS": (1, heads), "BHLS": (batch, heads)}
        shape = next((s for s in sizes if s in self.abilities.mask_shapes), None)
        if shape is None:
            raise Unsuitable
        return np.array(np.broadcast_to(mask, (*sizes[shape], queries, keys)))

    # -- bounds ----------------------------------------------------------------------------------------------------

    def ladder(self, dtype: str) -> list[Precision]:
        """The precisions that may still be the target's, strictest first, from the one found so far."""
        profiles = [p for p in PROFILES[dtype] if p.device in ("any", getattr(self.target.framework, "device", "cpu"))]
        wanted = self.target.declared_precision.get(dtype)
        if wanted is not None:
            return [p for p in profiles if p.name == wanted]
        return profiles[min(self.session.precision.get(dtype, 0), len(profiles) - 1) :]

    def bound(self, call: Call, precision: Precision, exact: Attended | None = None) -> Array:
        """How far a correct output of that precision may be from the oracle, element by element."""
        exact = self.exact(call) if exact is None else exact
        found: Array = bounds.forward_worst(call.query, call.key, call.value, exact, self.scale(call), precision)
        return found

    def gradient_bounds(
        self, call: Call, upstream: Array, grads: oracle.Gradients, precision: Precision, exact: Attended
    ) -> tuple[Array, Array, Array]:
        """The same for dq, dk, dv."""
        if call.dtype in ("bfloat16", "float16"):  # dk, dv kept in storage between tiles: torch's CPU flash kernel
            precision = with_storage_grads(precision)
        slope = None
        if call.softcap is not None:
            slope = np.asarray(1.0 - np.tanh(exact.scaled / call.softcap) ** 2)
        return backward.backward_worst(
            call.query,
            call.key,
            call.value,
            upstream,
            exact,
            (grads.query, grads.key, grads.value),
            self.scale(call),
            precision,
            cap_slope=slope,
        )

    # -- comparisons -----------------------------------------------------------------------------------------------

    def within(
        self,
        got: Array,
        want: Array,
        allowed: Callable[[Precision], Array],
        what: str,
        *,
        call: Call,
        name: str = "out",
        places: NDArray[np.intp] | None = None,
    ) -> None:
        """Each element of `got` within `allowed` of `want`, NaN exactly where it is wanted.

        The precisions are tried from the one found so far to the loosest in the closed list; the first that
        holds is the target's from now on. Raises Broken with the worst element otherwise. Where `got` is a part of
        the output, `places` holds the flat position of each of its elements in the whole (B, H, L, Dv) output.
        """
        ladder = self.ladder(call.dtype)
        for step, precision in enumerate(ladder):
            ratio, index, limit = worst(got, want, allowed(precision))
            if ratio <= 1.0:
                if step:
                    self.session.precision[call.dtype] = self.session.precision.get(call.dtype, 0) + step
                self.evidence.add(got.size, ratio, (call.dtype, call.sizes[4]))
                return
        if np.isfinite(ratio):
            self.evidence.add(got.size, ratio, (call.dtype, call.sizes[4]))
        else:
            self.evidence.add(got.size, 0.0)
        whole = index
        if places is not None:
            shape = (*call.query.shape[:3], call.value.shape[3])
            whole = tuple(int(i) for i in np.unravel_index(int(places[index]), shape))
        place = f"{name}[{', '.join(map(str, whole))}]"
        raise Broken(
            what, got=float(got[index]), want=float(want[index]), allowed=limit, where=place, call=call, index=whole
        )

    def agrees_with_oracle(self, got: Array, call: Call, what: str, exact: Attended | None = None) -> None:
        """The output of a call within its bound of the oracle (twice the bound in float64, where the oracle errs too)."""
        truth = self.exact(call) if exact is None else exact
        factor = 2.0 if call.dtype == "float64" else 1.0
        self.within(got, truth.output, lambda p: factor * self.bound(call, p, truth), what, call=call)

    def agree(
        self,
        first: Array,
        first_call: Call,
        second: Array,
        second_call: Call,
        what: str,
        *,
        part: Callable[[Array], Array] = lambda a: a,
        other: Callable[[Array], Array] | None = None,
        exact_hoped: bool = False,
    ) -> None:
        """Two answers that are equal in exact arithmetic: the same bit for bit, or within the sum of their bounds.

        `part` takes the comparable elements out of the first answer (and its bound), `other` out of the second.
        """
        other = part if other is None else other
        got, want = part(first), other(second)
        if np.array_equal(got, want, equal_nan=False):
            self.evidence.add(got.size, 0.0)
            return
        self.evidence.not_exact += exact_hoped

        loose = self._loose(first, first_call, second, second_call)

        def allowed(precision: Precision) -> Array:
            own = part(self.bound(first_call, precision)) + other(self.bound(second_call, precision))
            return own if loose is None else np.maximum(own, loose(precision))

        places = part(np.arange(first.size, dtype=np.float64).reshape(first.shape)).astype(np.intp)
        self.within(got, want, allowed, what, call=first_call, places=places)

    def _loose(
        self, first: Array, first_call: Call, second: Array, second_call: Call
    ) -> Callable[[Precision], Array] | None:
        """The largest rounding of any row of the two calls, masked or not, where an output already misses the oracle.

        The bound of an element is that of the right output; a wrong one sees other keys, and rounds as they do.
        """
        ladder = self.ladder(first_call.dtype)
        factor = 2.0 if first_call.dtype == "float64" else 1.0
        for output, call in ((first, first_call), (second, second_call)):
            exact = self.exact(call)
            if worst(output, exact.output, factor * self.bound(call, ladder[-1], exact))[0] > 1.0:
                break
        else:
            return None
        calls = [first_call, second_call]
        calls += [call.but(visible=None, bias=None, causal=False, padding=None, window=None) for call in calls]
        return lambda precision: np.asarray(2.0 * max(float(self.bound(c, precision).max(initial=0.0)) for c in calls))

    def equal(
        self,
        got: Array,
        want: Array,
        what: str,
        *,
        call: Call,
        name: str = "out",
        places: NDArray[np.intp] | None = None,
    ) -> None:
        """Bit for bit (a zero of either sign is zero)."""
        self.within(got, want, lambda _: np.zeros(got.shape), what, call=call, name=name, places=places)

    def require(self, holds: bool, what: str, call: Call | None = None) -> None:
        """A plain condition."""
        self.evidence.add(1, 0.0)
        if not holds:
            raise Broken(what, call=call or self.call)

    def suitable(self, condition: bool) -> None:
        """Leave this problem alone unless it can show something."""
        if not condition:
            raise Unsuitable


def _meet(mask: BoolArray | None, shown: BoolArray | None, call: Call) -> BoolArray | None:
    """What both a mask and the structure of a call leave visible."""
    if mask is None or shown is None:
        return mask if shown is None else shown
    return np.asarray(call.full(mask) & shown, dtype=bool)


class NoBound(Exception):
    """A bound is no number where a result differs: a fault of attnlaws, for which no target is blamed."""


def worst(got: Array, want: Array, allowed: Array) -> tuple[float, tuple[int, ...], float]:
    """The largest error / bound, where it is and the bound there. NaN or infinity out of place counts as infinite.

    Raises NoBound.
    """
    if got.size == 0:
        return 0.0, (), 0.0
    with np.errstate(all="ignore"):
        error = np.abs(got - want)
        ratio = np.where(error == 0, 0.0, error / allowed)
    if (np.isfinite(error) & (error > 0) & np.isnan(allowed)).any():
        raise NoBound("a bound is not a number")
    same_nan = np.isnan(want) & np.isnan(got)
    same_inf = np.isinf(want) & (got == want)
    ratio = np.where(same_nan | same_inf, 0.0, np.where(np.isfinite(ratio), ratio, np.inf))
    index = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    place = tuple(int(i) for i in index)
    return float(ratio[place]), place, float(np.broadcast_to(allowed, ratio.shape)[place])
