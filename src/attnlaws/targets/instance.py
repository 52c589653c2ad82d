"""One copy of a layer, in a dtype and a mode, called with NumPy arrays. Knows no law.

Tensors are float64 arrays here whatever the dtype of the module; x is (B, L, E), in the module's own axes only inside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .call import Array, BoolArray, WrongResult
from .module_copy import ModuleCopy, tensors_in
from .quiet import target_code

if TYPE_CHECKING:
    from .layer import LayerTarget


class Instance(ModuleCopy):
    """A copy of a layer, and how it is called."""

    def __init__(self, target: LayerTarget, module: Any, dtype: str) -> None:
        super().__init__(module, dtype, target.device)
        self.target = target

    # -- calls -----------------------------------------------------------------------------------------------------

    def run(
        self,
        x: Array,
        *,
        visible: BoolArray | None = None,
        grad: bool = True,
        weights: bool | None = None,
        causal: bool = False,
        seed: int = 0,
    ) -> Array:
        """The output (B, L, E') for x (B, L, E); `visible` is (B, L) for keys or (B, L, L) for pairs, True = attend.

        Raises TargetRaised with the module's own exception, WrongResult where no output can be read.
        """
        context = self.torch.enable_grad if grad else self.torch.no_grad
        with context(), self._seeded(seed):
            return self._array(self._raw(self._tensor(x), visible, weights, causal))

    def gradients(
        self, x: Array, upstream: Array, visible: BoolArray | None = None, causal: bool = False
    ) -> tuple[Array, dict[str, Array | None], Array | None]:
        """The output, the gradient of sum(output * upstream) by each parameter that wants one, and by x."""
        given = self._tensor(x).requires_grad_()
        wanted = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        with self.torch.enable_grad(), self._seeded(0):
            raw = self._raw(given, visible, None, causal)
            with target_code():
                above = self._tensor(upstream)
                found = self.torch.autograd.grad(raw, [*wanted.values(), given], above, allow_unused=True)
        arrays = [None if g is None else self._numbers(g) for g in found]
        by_input = arrays.pop()
        if by_input is not None and self.target.axes == "LBE":
            by_input = by_input.swapaxes(0, 1)
        return self._array(raw), dict(zip(wanted, arrays, strict=True)), by_input

    def _raw(self, x: Any, visible: BoolArray | None, weights: bool | None, causal: bool) -> Any:
        keywords: dict[str, Any] = dict(self.target.fixed)
        keywords.update(self.target.masked(visible, self.dtype, self.torch))
        if weights is not None and self.target.weights_parameter:
            keywords[self.target.weights_parameter] = weights
        if causal:
            keywords[self.target.flag] = True
        positional = [x] * self.target.inputs
        with target_code(), np.errstate(all="ignore"):
            result = self.module(*positional, **keywords)
        batch, length = x.shape[:2] if self.target.axes == "BLE" else (x.shape[1], x.shape[0])
        return self._picked(result, int(batch), int(length))

    def _picked(self, result: Any, batch: int, length: int) -> Any:
        """The first tensor of three axes with the batch and the length in their places."""
        wanted = (batch, length) if self.target.axes == "BLE" else (length, batch)
        tensors = [t for t in tensors_in(result, self.torch) if t.ndim == 3]
        width = self.target.width_out
        for tensor in tensors:
            if tuple(tensor.shape[:2]) == wanted and width in (None, tensor.shape[2]):
                return tensor
        if isinstance(result, self.torch.Tensor):
            raise WrongResult(f"returned shape {tuple(result.shape)} for an input of {batch} x {length} tokens")
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors_in(result, self.torch)) or "no tensor"
        raise WrongResult(f"returned {type(result).__name__} of {shapes} for an input of {batch} x {length} tokens")

    # -- tensors ---------------------------------------------------------------------------------------------------

    def _tensor(self, array: Array) -> Any:
        laid = array if self.target.axes == "BLE" else array.swapaxes(0, 1)
        values = self.torch.from_numpy(np.ascontiguousarray(laid, dtype=np.float64).copy())
        return values.to(dtype=getattr(self.torch, self.dtype), device=self.target.device)

    def _array(self, tensor: Any) -> Array:
        values = self._numbers(tensor)
        return values if self.target.axes == "BLE" else values.swapaxes(0, 1)
