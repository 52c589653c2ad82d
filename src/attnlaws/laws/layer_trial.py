"""A trial of a layer: one law on one problem. Comparisons happen here, and each leaves evidence."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..faults.layer_impostors import IMPOSTORS
from ..judge.chance import EFFECT, reach, size_for_scale
from ..judge.chance import generator as generator_of_chance
from ..judge.layer_bounds import heads_error, output_error, projection_error
from ..judge.precision import PROFILES, Precision
from ..problems.layer_problem import LayerProblem, generator, padding_of, parameters, tokens
from ..targets.call import Array, BoolArray, TargetRaised, WrongResult
from ..targets.initial import sample, slots
from ..targets.instance import Instance
from ..targets.layer import Dependence, LayerTarget
from ..targets.layer_weights import Computed, Slot, oracle_layer
from .module_trial import UNITS, ModuleTrial
from .trial import Crashed, Evidence, Refused, Session, worst


class LayerTrial(ModuleTrial):
    """One law on one problem of a layer: the input `x`, what is real of it, and copies of the module."""

    def __init__(self, target: LayerTarget, problem: LayerProblem, session: Session, evidence: Evidence) -> None:
        super().__init__(problem, session, evidence)
        self.target = target
        self.x: Array = tokens(problem, target.width)
        self.rng = generator(problem, 2)
        self.padding = padding_of(problem)
        own = target.itself()
        self.changed = parameters(problem, own.parameters(), own.trainable())

    # -- the layer -------------------------------------------------------------------------------------------------

    def layer(self, dtype: str | None = None, *, training: bool = False) -> Instance:
        """A fresh copy with the problem's parameters, in eval mode unless `training`."""
        made = self.target.fresh(dtype or self.problem.dtype, training=training)
        made.set(self.changed)
        return made

    def run(
        self, instance: Instance, x: Array | None = None, *, visible: BoolArray | None = None, **options: Any
    ) -> Array:
        """Its output for x, or for the problem's input under the problem's mask.

        Raises Crashed where it raises or returns no output, Refused for NotImplementedError.
        """
        self.evidence.calls += 1
        given = {"grad": self.problem.grad, "causal": self.flag, **options}
        if visible is None and x is None:
            visible = self.visible()
        try:
            return instance.run(self.x if x is None else x, visible=visible, **given)
        except TargetRaised as failure:
            if isinstance(failure.error, NotImplementedError):
                raise Refused(failure.cause_line) from failure
            raise Crashed(failure.cause_line, None) from failure
        except WrongResult as failure:
            raise Crashed(str(failure), None) from failure

    @property
    def flag(self) -> bool:
        """Whether causality is asked for by a flag."""
        return self.problem.causal and bool(self.target.flag)

    def visible(
        self, rows: BoolArray | None = None, length: int | None = None, batch: int | None = None
    ) -> BoolArray | None:
        """The mask of this problem (B, L) or (B, L, L), for other real tokens or sizes where they are given; or None."""
        real = self.padding if rows is None else rows
        size = self.problem.length if length is None else length
        if not self.problem.causal or self.target.flag:
            return real
        many = self.problem.batch if batch is None else batch
        triangle = np.broadcast_to(np.tri(size, dtype=bool), (many, size, size))
        return np.array(triangle if real is None else triangle & real[:, None, :])

    @property
    def dependence(self) -> Dependence:
        """Which tokens an output may depend on in this problem."""
        target = self.target
        if self.problem.causal:
            return Dependence(causal=True)
        if self.padding is not None and target.with_mask is not None:
            return target.with_mask
        return target.dependence

    def sees(self) -> BoolArray:
        """(B, L, L), True where output i sees token j as a key."""
        shown = np.broadcast_to(
            self.dependence.pattern(self.problem.length), (self.problem.batch, *2 * (self.problem.length,))
        )
        return np.array(shown if self.padding is None else shown & self.padding[:, None, :])

    def real(self) -> BoolArray:
        """(B, L), True for a real token that sees a real token: what is said of others is a convention."""
        shown = np.ones(self.x.shape[:2], dtype=bool) if self.padding is None else self.padding.copy()
        return shown & self.sees().any(-1)

    # -- comparisons -----------------------------------------------------------------------------------------------

    def slack(self, unit: float, x: Array | None = None, visible: BoolArray | None = None) -> float:
        """How far two right computations of the same output may be apart in arithmetic of this unit roundoff.

        A chain of products and sums of length n gives the exact result for parameters and inputs that are moved by a
        relative lambda sqrt(n) u at most, with lambda = 6 but for chance 1e-7 (Higham & Mary 2019). They are moved at
        random by that much, in the widest dtype that the layer takes; the output moves by m. What is allowed is four
        times the largest m of three, for each of the two, and the rounding of the output.
        """
        widest = self.target.dtypes[-1]
        exact = self.layer(widest)
        given = self.x if x is None else x
        visible = self.visible() if visible is None and x is None else visible
        moved_by = 6.0 * np.sqrt(self.target.width + given.shape[1] + 16.0) * unit
        base = self.run(exact, given, visible=visible)
        values, names = exact.parameters(), exact.trainable()
        rng, largest = generator(self.problem, 3), 0.0
        for _ in range(3):
            exact.set({n: values[n] * (1.0 + moved_by * rng.uniform(-1, 1, values[n].shape)) for n in names})
            other = self.run(exact, given * (1.0 + moved_by * rng.uniform(-1, 1, given.shape)), visible=visible)
            change = np.abs(other - base)
            largest = max(largest, float(change[np.isfinite(change)].max(initial=0.0)))
        size = float(np.abs(base[np.isfinite(base)]).max(initial=0.0))
        return 8.0 * largest + 8.0 * unit * size

    def within(self, got: Array, want: Array, allowed: Array, rows: BoolArray | None = None) -> bool:
        """Each element within its bound; False, without evidence, where one is not."""
        chosen = np.ones(got.shape[:2], dtype=bool) if rows is None else rows
        ratio, _, _ = worst(got[chosen], want[chosen], allowed[chosen])
        if ratio > 1.0:
            return False
        self.evidence.add(got[chosen].size, ratio, (self.problem.dtype, self.problem.length))
        return True

    def _impostors(self, exact: Computed, allowed: Array, values: dict[str, Array]) -> None:
        """Hold trivial wrong answers against the same bound, where the problem can show them."""
        if self.problem.length < 2 or not self.problem.redrawn:
            return
        for name, impostor in IMPOSTORS.items():
            answer = impostor(self, exact, values)
            if answer is not None:
                tally = self.session.impostors.setdefault(name, [0, 0])
                real = self.real()
                tally[0] += 1
                tally[1] += worst(answer[real], exact.output[real], allowed[real])[0] > 1.0

    # -- gradients -------------------------------------------------------------------------------------------------

    def differentiate(self, layer: Instance, upstream: Array) -> tuple[Array, dict[str, Array | None], Array | None]:
        """Output and gradients for the problem's input. Raises Crashed where the layer has none."""
        try:
            return layer.gradients(self.x, upstream, self.visible(), self.flag)
        except (TargetRaised, WrongResult) as failure:
            raise Crashed(f"for its gradients: {failure}", None) from failure

    # -- other builds ------------------------------------------------------------------------------------------------

    def built(self, seed: int) -> dict[str, Array]:
        """The parameters of a layer of the same kind, as it is built under a seed."""
        return self.target.built(seed)

    def initial(self, stage: int) -> dict[str, Array]:
        """Initial values (builds, out, in) of q, k, v, o, enough to see a deviation that is 2 % off; kept for the session."""
        p, key = self.target.projections, f"initial {self.problem.seed} {stage}"
        assert p is not None
        if key not in self.session.kept:
            values = self.target.itself().parameters()
            smallest = min(slot.matrix(values).size for slot in slots(p).values())
            rows, columns = p.q.matrix(values).shape
            d = rows // p.heads
            matrices = 2.0 * (2 * columns + d + 1) / (columns**2 * d) * (reach(stage) / np.log1p(EFFECT)) ** 2 / 4.0
            builds = max(-(-size_for_scale(3.0, stage) // smallest), int(np.ceil(matrices / p.kv_heads)))
            seed = int(generator_of_chance("initial", self.problem.seed, stage).integers(1 << 40))
            self.session.kept[key] = sample(self.target.built, p, builds, seed)
        return self.session.kept[key]

    def heads_of(self, values: dict[str, Array]) -> dict[str, Array]:
        """The initial weights (builds, out, in) of each head of q, k and v, flat."""
        p = self.target.projections
        assert p is not None
        return {
            f"{name} of head {h}": part.ravel()
            for name, heads in (("q", p.heads), ("k", p.kv_heads), ("v", p.kv_heads))
            for h, part in enumerate(np.split(values[name], heads, axis=1))
        }

    # -- with the weights found ------------------------------------------------------------------------------------

    def exact(self, layer: Instance, x: Array | None = None) -> Computed:
        """The oracle's layer with the layer's own weights, under the problem's mask."""
        assert self.target.projections is not None
        values = layer.parameters()
        return oracle_layer(self.target.projections, values, self.x if x is None else x, self.sees())

    def bound(self, layer: Instance, exact: Computed, precision: Precision) -> Array:
        """How far a correct layer of that precision may be from the oracle's, element by element (B, L, E')."""
        p, values, unit = self.target.projections, layer.parameters(), precision.u_a
        assert p is not None

        def error(slot: Slot, heads: int) -> Array:
            flat = projection_error(self.x, slot.matrix(values), slot.offset(values), unit)
            return flat.reshape(*flat.shape[:2], heads, -1).swapaxes(1, 2)

        errors = error(p.q, p.heads), error(p.k, p.kv_heads), error(p.v, p.kv_heads)
        heads = heads_error((exact.q, exact.k, exact.v), errors, exact.attended, p.scale, precision)
        merged = heads.swapaxes(1, 2).reshape(exact.merged.shape)
        if p.o is None:
            return merged
        return output_error(exact.merged, merged, p.o.matrix(values), p.o.offset(values), unit)

    def only_head(self, values: dict[str, Array], head: int) -> dict[str, Array]:
        """The parameters with the columns of Wo of all other heads, and bo, set to 0."""
        p = self.target.projections
        assert p is not None
        changed = dict(values)
        if p.o is not None:
            matrix = p.o.matrix(values)
            kept = np.zeros(matrix.shape)
            own = slice(head * p.head_dim, (head + 1) * p.head_dim)
            kept[:, own] = matrix[:, own]
            p.o.changed(changed, kept, 0.0 * p.o.offset(values))
        return changed

    def transparent(self, length: int) -> dict[str, Array]:
        """Parameters that show the attention weights of tokens e_0, e_1, ...: out[i, h D + j] is the weight w_ij of head h.

        Queries are 0, so the weights are equal; values and the output are the identity; there are no biases.
        """
        p, values = self.target.projections, dict(self.target.itself().parameters())
        assert p is not None
        width, d = self.target.width, p.head_dim
        assert length <= min(d, width)
        for slot, heads in ((p.q, p.heads), (p.k, p.kv_heads), (p.v, p.kv_heads)):
            shown = np.tile(np.eye(d, width), (heads, 1)) if slot is p.v else np.zeros((heads * d, width))
            slot.changed(values, shown, np.zeros(heads * d))
        if p.o is not None:
            p.o.changed(values, np.eye(len(p.o.rows), p.heads * d), np.zeros(len(p.o.rows)))
        return values

    def other_heads_changed(self, values: dict[str, Array], head: int) -> dict[str, Array]:
        """The parameters with other rows of Wq, Wk, Wv for the heads that a head doesn't use."""
        p = self.target.projections
        assert p is not None
        changed = dict(values)
        for slot, heads, own in (
            (p.q, p.heads, head),
            (p.k, p.kv_heads, head // (p.heads // p.kv_heads)),
            (p.v, p.kv_heads, head // (p.heads // p.kv_heads)),
        ):
            of = np.arange(len(slot.rows)) // (len(slot.rows) // heads) != own
            matrix, offset = slot.matrix(changed), slot.offset(changed)
            matrix[of] = (-1.5 * matrix[of]).astype(np.float32)
            offset[of] = (offset[of] + 0.5).astype(np.float32)
            slot.changed(changed, matrix, offset)
        return changed

    def agrees_with_oracle(self, layer: Instance, got: Array, what: str) -> None:
        """The output within its bound of the oracle's layer (twice the bound in float64, where the oracle errs too)."""
        exact, dtype = self.exact(layer), self.problem.dtype
        factor = 2.0 if dtype == "float64" else 1.0
        first = self.session.precision.get(dtype, 0)
        for step, precision in enumerate(PROFILES[dtype][: len(UNITS[dtype])][first:]):
            allowed = factor * self.bound(layer, exact, precision)
            if self.within(got, exact.output, allowed, rows=self.real()):
                if step:
                    self.session.precision[dtype] = first + step
                self._impostors(exact, allowed, layer.parameters())
                return
        self.broken(got, exact.output, allowed, what, rows=self.real())
