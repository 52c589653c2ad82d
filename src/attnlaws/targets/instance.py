"""One copy of a layer, in a dtype and a mode, called with NumPy arrays. Knows no law.

Tensors are float64 arrays here whatever the dtype of the module; x is (B, L, E), in the module's own axes only inside.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .call import Array, BoolArray, TargetRaised, WrongResult

if TYPE_CHECKING:
    from .layer import LayerTarget


class Instance:
    """A module of its own: what is done to it changes no other."""

    def __init__(self, target: LayerTarget, module: Any, dtype: str) -> None:
        import torch

        self.torch, self.target, self.module, self.dtype = torch, target, module, dtype

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
            try:
                above = self._tensor(upstream)
                found = self.torch.autograd.grad(raw, [*wanted.values(), given], above, allow_unused=True)
            except Exception as error:
                raise TargetRaised(error) from error
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
        try:
            with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
                result = self.module(*positional, **keywords)
        except Exception as error:
            raise TargetRaised(error) from error
        batch, length = x.shape[:2] if self.target.axes == "BLE" else (x.shape[1], x.shape[0])
        return self._picked(result, int(batch), int(length))

    def _picked(self, result: Any, batch: int, length: int) -> Any:
        """The first tensor of three axes with the batch and the length in their places."""
        wanted = (batch, length) if self.target.axes == "BLE" else (length, batch)
        tensors = [t for t in _tensors(result, self.torch) if t.ndim == 3]
        width = self.target.width_out
        for tensor in tensors:
            if tuple(tensor.shape[:2]) == wanted and width in (None, tensor.shape[2]):
                return tensor
        if isinstance(result, self.torch.Tensor):
            raise WrongResult(f"returned shape {tuple(result.shape)} for an input of {batch} x {length} tokens")
        shapes = ", ".join(str(tuple(t.shape)) for t in _tensors(result, self.torch)) or "no tensor"
        raise WrongResult(f"returned {type(result).__name__} of {shapes} for an input of {batch} x {length} tokens")

    @contextlib.contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        if self.target.device != "cpu":
            with self.torch.random.fork_rng():
                self.torch.manual_seed(seed)
                yield
            return
        before = self.torch.get_rng_state()
        self.torch.default_generator.manual_seed(seed)  # torch.manual_seed takes milliseconds
        try:
            yield
        finally:
            self.torch.set_rng_state(before)

    # -- modes and state -------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> None:
        """model.train() or model.eval()."""
        self.module.train(mode)

    def to(self, dtype: str) -> None:
        """module.to(dtype), in place."""
        try:
            self.module.to(getattr(self.torch, dtype))
        except Exception as error:
            raise TargetRaised(error) from error
        self.dtype = dtype

    def without_dropout(self) -> None:
        """Every dropout rate that is found by its name set to 0."""
        for part, name, _ in self._rates():
            setattr(part, name, 0.0)

    def _rates(self) -> Iterator[tuple[Any, str, str]]:
        """Where dropout rates lie: the module, its attribute, and both in words."""
        for path, part in self.module.named_modules():
            if isinstance(part, self.torch.nn.modules.dropout._DropoutNd):
                yield part, "p", path or type(part).__name__
            for name, value in list(vars(part).items()):
                if "drop" in name.lower() and isinstance(value, float):
                    yield part, name, f"{path}.{name}".lstrip(".")

    def dropouts(self) -> dict[str, float]:
        """The rates of dropout of single values by their places; dropping whole paths or channels is another thing."""
        whole = self.torch.nn.modules.dropout
        others = (whole.Dropout1d, whole.Dropout2d, whole.Dropout3d, whole.AlphaDropout, whole.FeatureAlphaDropout)
        return {
            words: float(getattr(part, name))
            for part, name, words in self._rates()
            if not isinstance(part, others) and "path" not in words.lower()
        }

    def only_dropout(self, place: str, rate: float) -> None:
        """This rate at one place, 0 at all others."""
        self.without_dropout()
        for part, name, words in self._rates():
            if words == place:
                setattr(part, name, rate)

    def parameters(self) -> dict[str, Array]:
        """Every parameter by name."""
        return {name: self._numbers(p) for name, p in self.module.named_parameters()}

    def set(self, values: Mapping[str, Array]) -> None:
        """Other values for some parameters, rounded to the dtype."""
        named = dict(self.module.named_parameters())
        with self.torch.no_grad():
            for name, value in values.items():
                named[name].copy_(self.torch.from_numpy(np.ascontiguousarray(value)))

    def trainable(self) -> list[str]:
        """The names of the parameters that want a gradient."""
        return [name for name, p in self.module.named_parameters() if p.requires_grad]

    def buffers(self) -> dict[str, tuple[tuple[int, ...], bytes]]:
        """Shape and bits of every buffer by name."""
        found = self.module.named_buffers()
        return {n: (tuple(b.shape), b.detach().cpu().contiguous().view(self.torch.uint8).numpy().tobytes()) if b.ndim
                else (tuple(b.shape), str(b.item()).encode()) for n, b in found}  # fmt: skip

    def kept(self) -> int:
        """How many elements the module's plain attributes hold in tensors, lists of them included."""
        return sum(t.numel() for part in self.module.modules() for t in _tensors(_plain(part), self.torch))

    def state(self) -> Any:
        """The state dict, copied."""
        return {name: value.clone() for name, value in self.module.state_dict().items() if hasattr(value, "clone")}

    def load(self, state: Any) -> str:
        """Load a state dict; the refusal in one line, or ""."""
        try:
            self.module.load_state_dict(state)
        except Exception as error:
            return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return ""

    def keeps_statistics(self) -> bool:
        """Whether a call in training mode rightly changes the state: running means, spectral norms."""
        kinds = self.torch.nn.modules.batchnorm._NormBase
        parts = list(self.module.modules())
        return any(isinstance(p, kinds) or hasattr(p, "_spectral_norm_iter") or "Spectral" in type(p).__name__
                   or any(n.endswith("weight_u") for n, _ in p.named_buffers(recurse=False)) for p in parts)  # fmt: skip

    # -- tensors ---------------------------------------------------------------------------------------------------

    def _tensor(self, array: Array) -> Any:
        laid = array if self.target.axes == "BLE" else array.swapaxes(0, 1)
        values = self.torch.from_numpy(np.ascontiguousarray(laid, dtype=np.float64).copy())
        return values.to(dtype=getattr(self.torch, self.dtype), device=self.target.device)

    def _array(self, tensor: Any) -> Array:
        values = self._numbers(tensor)
        return values if self.target.axes == "BLE" else values.swapaxes(0, 1)

    def _numbers(self, tensor: Any) -> Array:
        return np.array(tensor.detach().to(device="cpu", dtype=self.torch.float64).numpy())


def _tensors(value: Any, torch: Any, depth: int = 3) -> list[Any]:
    """The tensors in a result: itself, or those in tuples, lists, dicts and model outputs, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if depth and isinstance(value, dict):
        value = list(value.values())
    if depth and isinstance(value, tuple | list):
        return [t for item in value for t in _tensors(item, torch, depth - 1)]
    return []


def _plain(part: Any) -> dict[str, Any]:
    """The attributes of a module that are neither parameters nor buffers nor modules."""
    return {n: v for n, v in vars(part).items() if n not in ("_parameters", "_buffers", "_modules")}
