"""A target: a third party's attention function, called with arrays in one order whatever its own."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .call import Answer, Array, BoolArray, Call, WrongResult
from .conventions import Abilities, Conventions
from .frameworks import Framework, Pull, first_of
from .options import option_arguments, packed_arguments
from .quiet import target_code
from .reading import read_result
from .signature import Signature


@dataclass(frozen=True)
class Target:
    """A function with its framework, signature, conventions and abilities. Frozen: the probe returns a new one."""

    #: the kind of the laws that are about it
    LAWS: ClassVar[str] = "attention"

    name: str
    function: Callable[..., Any]
    framework: Framework
    signature: Signature
    conventions: Conventions = field(default_factory=Conventions)
    abilities: Abilities = field(default_factory=Abilities)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    declared_precision: Mapping[str, str] = field(default_factory=dict)
    #: exponents of cost that were declared: "memory", "time", "decode", "window"
    cost: Mapping[str, float] = field(default_factory=dict)
    #: conventions that were declared, and those among them of which the probe saw something else
    declared: tuple[str, ...] = ()
    contradicted: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    #: how to find the target again in another process; None where it was given as an object
    address: str | None = None
    #: global settings that were others after the probe than before
    disturbed: tuple[str, ...] = ()

    def but(self, **changes: Any) -> Target:
        """This target with some fields changed."""
        return replace(self, **changes)

    def __call__(
        self,
        call: Call,
        *,
        upstream: Array | None = None,
        wanted: tuple[str, ...] = ("query", "key", "value"),
        watch: bool = False,
        weights: bool = False,
        lse: bool = False,
    ) -> Answer:
        """Call the target. With `upstream` (B, H, L, Dv) the gradients of `wanted` operands come back too.

        Raises TargetRaised with the target's own exception, WrongResult where no output can be read.
        """
        (positional, keywords), operands = self.arguments(call, wanted if upstream is not None else (), weights, lse)
        before = {role: self._bits(value) for role, value in operands.items()} if watch else {}
        roles = [role for role in wanted if role in operands] if upstream is not None else []
        pull: Pull | None = None
        with self._calling(call.dtype):
            if upstream is None:
                result = self.framework.call(self.function, positional, keywords)
            else:
                inputs = [operands[role] for role in roles]
                result, pull = self.framework.recorded(self.function, positional, keywords, inputs)
        answer, raw = read_result(self, result, call, operands)
        if watch:
            after = {role: self._bits(value) for role, value in operands.items()}
            answer = replace(answer, mutated=tuple(role for role in before if before[role] != after[role]))
        if upstream is not None and pull is not None:
            answer = replace(answer, gradients=self._gradients(raw, pull, upstream, call, roles))
        return answer

    @contextlib.contextmanager
    def _calling(self, dtype: str) -> Iterator[None]:
        """Quiet, with what the framework needs for this dtype; whatever is raised inside is the target's."""
        with target_code(), np.errstate(all="ignore"), self.framework.calling(dtype):
            yield

    def ready(self, call: Call, upstream: Array | None = None) -> tuple[Callable[[], Any], dict[str, Any]]:
        """A call without arguments, to be timed, and its tensors by role. With `upstream` it gives (output, [dq, dk, dv])."""
        roles = ("query", "key", "value") if upstream is not None else ()
        (positional, keywords), operands = self.arguments(call, roles, False)
        if upstream is None:
            return lambda: self.framework.call(self.function, positional, keywords), operands
        above = self.framework.tensor(self._upstream(upstream), call.dtype)

        def both() -> tuple[Any, list[Any]]:
            result, pull = self.framework.recorded(self.function, positional, keywords, [operands[r] for r in roles])
            raw = first_of(result)
            return raw, pull(raw, above.reshape(raw.shape))

        return both, operands

    def kept(self, call: Call, other: Call, times: int = 4) -> bool:
        """Whether the result of a call still holds its values after so many other calls (buffers may take turns).

        Raises as a plain call does.
        """
        (positional, keywords), _ = self.arguments(call, (), False)
        (others, named), _ = self.arguments(other, (), False)
        with self._calling(call.dtype):
            raw = first_of(self.framework.call(self.function, positional, keywords))
            before = self._bits(raw)
            for _ in range(times):
                self.framework.call(self.function, others, named)
            return before == self._bits(raw)

    def refilled(self, call: Call, other: Call) -> Answer:
        """The answer to `other` when its values are written into the very tensors of `call`, after a first call with those.

        Both calls have the same sizes. Raises as a plain call does.
        """
        (positional, keywords), operands = self.arguments(call, (), False)
        _, fresh = self.arguments(other, (), False)
        with self._calling(call.dtype):
            self.framework.call(self.function, positional, keywords)
            for role, tensor in operands.items():
                self.framework.refill(tensor, self.framework.to_numpy(fresh[role]))
            result = self.framework.call(self.function, positional, keywords)
        return read_result(self, result, other, operands)[0]

    def transformed(self, kind: str) -> Target:
        """This target compiled, mapped over its batch, under autocast or without gradients recorded, by its framework."""
        return self.but(function=self.framework.transformed(kind, self.function))

    def second(self, call: Call, upstream: Array, directions: list[Array]) -> list[Array | None]:
        """The second derivative along `directions` of (q, k, v): the gradient of sum_n direction_n . d_n, by q, k and v.

        Raises TargetRaised where the target has none.
        """
        (positional, keywords), operands = self.arguments(call, ("query", "key", "value"), False)
        inputs = [operands[role] for role in ("query", "key", "value")]
        laid = [self.into_layout(direction) for direction in directions]
        above = self.framework.tensor(self._upstream(upstream), call.dtype)
        with self._calling(call.dtype):
            found = self.framework.second(self.function, positional, keywords, inputs, above, laid)
        return [None if g is None else self.from_layout(self.framework.to_numpy(g), call.sizes[0]) for g in found]

    def packed(self, pieces: list[Call], tail: int) -> list[Array]:
        """Sequences of different lengths in one packed call, each (1, H, L, D); `tail` rows of NaN follow the last.

        Returns the output of each. Raises as a plain call does.
        """
        first = pieces[0]
        batched = {
            role: np.concatenate([getattr(piece, role)[0].swapaxes(0, 1) for piece in pieces])
            for role in ("query", "key", "value")
        }
        rows = {role: np.concatenate([x, np.full((tail, *x.shape[1:]), np.nan)]) for role, x in batched.items()}
        (positional, keywords), _ = self.arguments(first, (), False)
        given: dict[str, Any] = {r: self.framework.tensor(x, first.dtype) for r, x in rows.items()}
        queries, keys = ([getattr(piece, role).shape[2] for piece in pieces] for role in ("query", "key"))
        given.update(packed_arguments(self, queries, keys))
        positional, keywords = self.replaced(positional, keywords, given)
        with self._calling(first.dtype):
            raw = first_of(self.framework.call(self.function, positional, keywords))
        values = self.framework.to_numpy(raw)
        if values.ndim != 3 or values.shape[0] < sum(queries):
            raise WrongResult(f"returned shape {values.shape} for {sum(queries)} packed queries")
        ends = np.cumsum([0, *queries])
        return [values[a:b].swapaxes(0, 1)[None] for a, b in itertools.pairwise(ends)]

    # -- arguments ---------------------------------------------------------------------------------------------

    def arguments(
        self, call: Call, grads: tuple[str, ...], weights: bool, lse: bool = False
    ) -> tuple[tuple[list[Any], dict[str, Any]], dict[str, Any]]:
        """Positional and keyword arguments, and the tensors among them by role."""
        views = dict(call.views)
        operands: dict[str, Any] = {
            role: self.framework.tensor(
                self.into_layout(array), call.dtype, view=views.get(role, "plain"), grad=role in grads
            )
            for role, array in (("query", call.query), ("key", call.key), ("value", call.value))
        }
        given: dict[str, Any] = {**operands, **self._mask_arguments(call, operands, grads)}
        if self.signature.has("causal") and (call.causal or not self.signature.roles["causal"].off):
            given["causal"] = call.causal
        if call.scale is not None or (self.signature.has("scale") and self.signature.roles["scale"].required):
            given["scale"] = call.scale if call.scale is not None else float(call.query.shape[-1]) ** -0.5
        if self.signature.has("grouped") and call.key.shape[1] != call.query.shape[1]:
            given["grouped"] = True
        if self.signature.has("weights"):
            given["weights"] = weights
        if self.signature.has("lse"):
            given["lse"] = lse
        if self.signature.has("module"):
            given["module"] = _stand_in_module(call)
        given.update(option_arguments(self, call))
        if self.conventions.layout == "packed":
            batch, _, _, queries, keys, _, _ = call.sizes
            given.update(packed_arguments(self, [queries] * batch, [keys] * batch))
        operands.update({role: given[role] for role in ("alibi", "sinks") if role in given})
        given.update(dict(call.extra))
        return self._placed(given), operands

    def replaced(
        self, positional: list[Any], keywords: Mapping[str, Any], given: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call with others for some roles."""
        names = [p.name for p in self.signature.by_position]
        changed = {self.signature.roles[role].name: value for role, value in given.items()}
        placed = [changed.get(name, value) for name, value in zip(names, positional, strict=False)]
        rest = {name: value for name, value in changed.items() if name not in names[: len(placed)]}
        return placed, {**keywords, **rest}

    def _placed(self, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """By keyword where possible, by position where the signature allows nothing else."""
        keywords = {**self.fixed}
        positional: list[Any] = []
        for role, parameter in self.signature.roles.items():
            if role in given:
                keywords[parameter.name] = given[role]
            elif parameter.required and parameter.name not in keywords:
                keywords[parameter.name] = None
        for parameter in self.signature.by_position:
            if parameter.name not in keywords:
                break
            positional.append(keywords.pop(parameter.name))
        return positional, keywords

    def _mask_arguments(self, call: Call, operands: dict[str, Any], grads: tuple[str, ...]) -> dict[str, Any]:
        """The mask and bias of a call, as the target wants them."""
        given: dict[str, Any] = {}
        bias = call.bias
        if call.padding is not None:
            given["padding"] = self._padding(call.padding, call.dtype)
        if call.visible is not None:
            visible, route = call.visible, call.route
            if route == "additive":
                additive = np.where(visible, 0.0 if bias is None else bias, -np.inf)
                bias = additive
            elif route == "padding":
                row = np.broadcast_to(visible, (call.sizes[0], 1, 1, call.sizes[4]))[:, 0, 0, :]
                given["padding"] = self._padding(row, call.dtype)
            elif route == "keep":
                given["mask"] = self.framework.tensor(self._mask_shape(visible.astype(np.float64), call), call.dtype)
            else:
                shown = visible if self.conventions.mask_means == "attend" else ~visible
                given["mask"] = self.framework.boolean(self._mask_shape(shown, call))
            if "mask" in given:
                operands["mask"] = given["mask"]
        if bias is not None:
            dtype = call.mask_dtype or call.dtype
            tensor = self.framework.tensor(self._mask_shape(bias, call), dtype, grad="bias" in grads)
            operands["bias"] = tensor
            given["bias" if self.bias_has_own_parameter else "mask"] = tensor
        return given

    def _padding(self, row: BoolArray, dtype: str) -> Any:
        """A key padding mask (B, S), True = attend, in the target's polarity and type."""
        shown = row if self.conventions.padding_means == "attend" else ~row
        if self.abilities.padding_numbers:
            return self.framework.tensor(shown.astype(np.float64), dtype)
        return self.framework.boolean(shown)

    @property
    def untried(self) -> tuple[str, ...]:
        """Parameters that no law tries: options without a law yet, unknown ones, and those whose every use is refused."""
        a, c = self.abilities, self.conventions
        used = {
            "mask": bool(set(a.routes) - {"padding"}),
            "bias": a.bias,
            "padding": "padding" in a.routes,
            "causal": c.causal == "flag",
            "scale": a.scale,
            **dict.fromkeys(("window", "window_left", "window_right"), a.window),
            **{role: getattr(a, role) for role in ("softcap", "alibi", "sinks", "dropout", "lse")},
        }
        roles = self.signature.roles
        names = [roles[role].name for role in roles if not used.get(role, True)]
        return (*names, *self.signature.unknown)

    @property
    def output_axes(self) -> str:
        """The axes of the output, named as layouts are."""
        layout = self.conventions.layout
        if self.conventions.output_layout == "as the input":
            return layout
        if self.heads_merged:
            return "BSHD"
        return {"BHSD": "BSHD", "BSHD": "BHSD", "SHD": "HSD"}.get(layout, layout)

    @property
    def heads_merged(self) -> bool:
        """Whether the output is (B, L, H*D)."""
        return self.conventions.output_layout == "heads merged"

    @property
    def bias_has_own_parameter(self) -> bool:
        """Whether additive values travel apart from the mask, as in JAX and Keras."""
        return self.signature.has("bias")

    def _mask_shape(self, mask: NDArray[Any], call: Call) -> NDArray[Any]:
        """A (L, S) or four-axis mask as the target's layout has it."""
        layout = self.conventions.layout
        if layout in ("BHSD", "BSHD", "SBHD") or mask.ndim == 2:
            drop = self.abilities.mask_without_heads and mask.ndim == 4 and mask.shape[1] == 1
            return mask[:, 0] if drop else mask
        full = call.full(mask)
        own: dict[str, NDArray[Any]] = {"SHD": full[0], "HSD": full[0], "BSD": full[:, 0], "SD": full[0, 0]}
        return own[layout]

    def into_layout(self, array: Array) -> Array:
        """(B, H, L, D) into the axes of the target."""
        layout = self.conventions.layout
        if layout == "BHSD":
            return array
        if layout == "BSHD":
            return np.ascontiguousarray(array.swapaxes(1, 2))
        if layout == "SBHD":
            return np.ascontiguousarray(array.transpose(2, 0, 1, 3))
        if layout == "packed":
            return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(-1, array.shape[1], array.shape[3])
        if layout == "SHD":
            return np.ascontiguousarray(array[0].swapaxes(0, 1))
        if layout == "HSD":
            return np.asarray(array[0])
        return np.asarray(array[:, 0] if layout == "BSD" else array[0, 0])

    def from_layout(self, array: Array, batch: int, *, output: bool = False) -> Array:
        """The axes of the target into (B, H, L, D)."""
        layout = self.output_axes if output else self.conventions.layout
        if layout == "SBHD":
            return array.transpose(1, 2, 0, 3)
        if layout == "packed":
            return array.reshape(batch, array.shape[0] // max(batch, 1), *array.shape[1:]).swapaxes(1, 2)
        if layout == "BHSD":
            return array
        if layout == "BSHD":
            return array.swapaxes(1, 2)
        if layout == "SHD":
            return array.swapaxes(0, 1)[None]
        if layout == "HSD":
            return array[None]
        return array[:, None] if layout == "BSD" else array[None, None]

    # -- gradients ---------------------------------------------------------------------------------------------

    def _gradients(
        self, raw: Any, pull: Pull, upstream: Array, call: Call, roles: list[str]
    ) -> dict[str, Array | None]:
        """Gradients of the operands of these roles; None for one that the output doesn't depend on by the framework's word."""
        laid = self._upstream(upstream)
        view = dict(call.views).get("upstream", "plain")
        tensor = self.framework.tensor(np.ascontiguousarray(laid).reshape(raw.shape), call.dtype, view=view)
        with self._calling(call.dtype):
            found = pull(raw, tensor)
        out: dict[str, Array | None] = {}
        for role, gradient in zip(roles, found, strict=True):
            if gradient is None:
                out[role] = None
            elif role in ("bias", "alibi", "sinks"):
                out[role] = self.framework.to_numpy(gradient)
            else:
                out[role] = self.from_layout(self.framework.to_numpy(gradient), call.sizes[0])
        return out

    def _upstream(self, upstream: Array) -> Array:
        """An upstream gradient (B, H, L, Dv) in the axes of the output."""
        if self.conventions.output_layout == "as the input":
            return np.ascontiguousarray(self.into_layout(upstream))
        if self.heads_merged:
            return np.ascontiguousarray(upstream.swapaxes(1, 2))
        laid = self.but(conventions=replace(self.conventions, output_layout="as the input")).into_layout(upstream)
        return np.ascontiguousarray(laid.swapaxes(0, 1) if laid.ndim == 3 else laid.swapaxes(1, 2))

    def _bits(self, tensor: Any) -> bytes:
        return self.framework.to_numpy(tensor).tobytes()


class _StandIn:
    """What a function of transformers' attention interface reads from its module."""

    def __init__(self, groups: int, training: bool) -> None:
        self.training = training
        self.num_key_value_groups = groups
        self.is_causal = False
        self.attention_dropout = 0.0
        self.layer_idx = 0
        self.config = self


def _stand_in_module(call: Call) -> Any:
    return _StandIn(call.query.shape[1] // max(call.key.shape[1], 1), call.training)
