"""One copy of a model, in a dtype and a mode, called with NumPy arrays. Knows no law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .call import Array, WrongResult
from .model_inputs import Inputs, IntArray
from .model_reading import Read, read
from .module_copy import ModuleCopy
from .quiet import target_code

if TYPE_CHECKING:
    from .model import ModelTarget


class ModelInstance(ModuleCopy):
    """A copy of a model, and how it is called."""

    def __init__(self, target: ModelTarget, module: Any, dtype: str) -> None:
        super().__init__(module, dtype, target.device)
        self.target = target

    # -- calls -----------------------------------------------------------------------------------------------------

    def run(self, inputs: Inputs, *, grad: bool = True, seed: int = 0) -> Array:
        """The logits (B, L, V) for tokens (B, L) and what stands beside them.

        Raises TargetRaised with the module's own exception, WrongResult where no logits can be read.
        """
        context = self.torch.enable_grad if grad else self.torch.no_grad
        with context(), self._seeded(seed):
            return self._numbers(self.logits(inputs))

    def loss(self, inputs: Inputs, seed: int = 0) -> tuple[float, Array]:
        """The loss for the labels in the inputs, and the logits beside it. Raises WrongResult where there is none."""
        with self.torch.no_grad(), self._seeded(seed):
            found = self.call(inputs)
        if found.loss is None or found.loss.numel() != 1:
            raise WrongResult("returned no loss, though labels were given")
        return float(found.loss), self._numbers(found.logits)

    def gradients(self, inputs: Inputs, upstream: Array) -> tuple[Array, dict[str, Array | None]]:
        """The logits, and the gradient of sum(logits * upstream) by each parameter that wants one."""
        wanted = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        with self.torch.enable_grad(), self._seeded(0):
            logits = self.logits(inputs)
            with target_code():
                above = self.torch.from_numpy(upstream).to(logits)
                found = self.torch.autograd.grad(logits, list(wanted.values()), above, allow_unused=True)
        arrays = [None if g is None else self._numbers(g.to_dense() if g.is_sparse else g) for g in found]
        return self._numbers(logits), dict(zip(wanted, arrays, strict=True))

    def logits(self, inputs: Inputs) -> Any:
        """The logits (B, L, V) as a tensor; where the model gives those of the last token alone, one call a prefix."""
        if self.target.reads != "last":
            return self.whole(self.call(inputs), inputs.length)
        prefixes = [inputs.cut(slice(0, n + 1)) for n in range(inputs.length)]
        return self.torch.cat([self.call(prefix).logits[:, -1:] for prefix in prefixes], dim=1)

    @staticmethod
    def whole(found: Read, length: int) -> Any:
        """Its logits, where they are those of all tokens. Raises WrongResult."""
        if found.logits.shape[1] != length:
            raise WrongResult(f"returned the logits of {found.logits.shape[1]} tokens for an input of {length}")
        return found.logits

    def call(self, inputs: Inputs, **extra: Any) -> Read:
        """One call, read. Raises TargetRaised or WrongResult."""
        keywords = {**self.keywords(inputs), **extra}
        with target_code(), np.errstate(all="ignore"):
            result = self.module(**keywords) if self.target.tokens else self.module(self.ids(inputs.ids), **keywords)
        return read(result, inputs.batch, inputs.length, self.target.width, self.target.axes, self.torch)

    def keywords(self, inputs: Inputs) -> dict[str, Any]:
        """The arguments of a call."""
        from .model import pad_tensor

        t, torch = self.target, self.torch
        made: dict[str, Any] = dict(t.fixed)
        if t.tokens:
            made[t.tokens] = self.ids(inputs.ids)
        if t.source and inputs.source is not None:
            made[t.source] = self.ids(inputs.source)
        for way, real in ((t.pad, inputs.real), (t.source_pad, inputs.source_real)):
            if way is not None and real is not None and way.kind != "by id":
                made[way.parameter] = pad_tensor(way, real, self.dtype, torch, t.device)
        if t.positions and inputs.places is not None:
            places = self.ids(inputs.places)
            made[t.positions] = {"BL": places, "1L": places[:1], "L": places[0]}[t.positions_shape]
        if t.segments and inputs.segments is not None:
            made[t.segments] = self.ids(inputs.segments)
        labels = inputs.labels if inputs.labels is not None else inputs.ids if t.reads == "with labels" else None
        if t.labels and labels is not None:
            made[t.labels] = self.ids(labels)
        return made

    def ids(self, array: IntArray) -> Any:
        """Integers as a tensor, in the model's own axes."""
        laid = array if self.target.axes == "BL" else array.T
        return self.torch.from_numpy(np.ascontiguousarray(laid, dtype=np.int64).copy()).to(self.target.device)

    def numbers(self, tensor: Any) -> Array:
        """A tensor as a float64 array."""
        return self._numbers(tensor)
