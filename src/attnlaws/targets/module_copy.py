"""One copy of a module, in a dtype and a mode: its parameters, buffers and state as NumPy arrays. Knows no law."""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .call import Array, TargetRaised
from .signature import CannotAdapt


class ModuleCopy:
    """A module of its own: what is done to it changes no other. Tensors are float64 arrays here, whatever its dtype."""

    def __init__(self, module: Any, dtype: str, device: str) -> None:
        import torch

        self.torch, self.module, self.dtype, self.device = torch, module, dtype, device

    @contextlib.contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        if self.device != "cpu":
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

    def shared(self) -> list[tuple[str, ...]]:
        """The names of parameters that are one and the same tensor, group by group."""
        groups: dict[int, list[str]] = {}
        for name, p in self.module.named_parameters(remove_duplicate=False):
            groups.setdefault(id(p), []).append(name)
        return [tuple(names) for names in groups.values() if len(names) > 1]

    def buffers(self) -> dict[str, tuple[tuple[int, ...], bytes]]:
        """Shape and bits of every buffer by name."""
        found = self.module.named_buffers()
        return {n: (tuple(b.shape), b.detach().cpu().contiguous().view(self.torch.uint8).numpy().tobytes()) if b.ndim
                else (tuple(b.shape), str(b.item()).encode()) for n, b in found}  # fmt: skip

    def kept(self) -> int:
        """How many elements the module's plain attributes hold in tensors, lists of them included."""
        return sum(t.numel() for part in self.module.modules() for t in tensors_in(_plain(part), self.torch))

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

    def _numbers(self, tensor: Any) -> Array:
        return np.array(tensor.detach().to(device="cpu", dtype=self.torch.float64).numpy())


def tensors_in(value: Any, torch: Any, depth: int = 3) -> list[Any]:
    """The tensors in a result: itself, or those in tuples, lists, dicts and model outputs, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if depth and isinstance(value, dict):
        value = list(value.values())
    if depth and isinstance(value, tuple | list):
        return [t for item in value for t in tensors_in(item, torch, depth - 1)]
    return []


def copied(module: Any, make: Callable[[int], Any] | None) -> Any:
    """A module of its own with the same state. Raises CannotAdapt where there is no way to get one."""
    try:
        return _deep(module, {})
    except Exception as error:
        if make is None:
            raise CannotAdapt(
                f"the module can't be copied ({type(error).__name__}); give its class with arguments, "
                "as in mine.py:Layer(width=64), or a factory"
            ) from error
    made = make(0)
    made.load_state_dict(module.state_dict())
    return made


def _deep(module: Any, memo: dict[int, Any]) -> Any:
    """copy.deepcopy of a module, without the way through reduce for the dozen empty dictionaries that each part has."""
    import torch

    kind: Any = type(module)
    plain = torch.nn.Module
    own = any(
        getattr(kind, name) is not getattr(plain, name) for name in ("__reduce_ex__", "__getstate__", "__setstate__")
    )
    if id(module) in memo:
        return memo[id(module)]
    if own or hasattr(kind, "__deepcopy__") or kind.__new__ is not object.__new__ or hasattr(kind, "__slots__"):
        return copy.deepcopy(module, memo)
    made = memo[id(module)] = kind.__new__(kind)
    for name, value in vars(module).items():
        if name == "_modules":
            made.__dict__[name] = type(value)((n, None if m is None else _deep(m, memo)) for n, m in value.items())
        elif type(value) in (dict, OrderedDict) and not value:
            made.__dict__[name] = memo.setdefault(id(value), type(value)())
        else:
            made.__dict__[name] = copy.deepcopy(value, memo)
    return made


def _plain(part: Any) -> dict[str, Any]:
    """The attributes of a module that are neither parameters nor buffers nor modules."""
    return {n: v for n, v in vars(part).items() if n not in ("_parameters", "_buffers", "_modules")}
