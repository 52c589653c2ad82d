"""Decoding with a cache: tokens are fed in chunks, and what the cache offers is done to it."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .call import Array, BoolArray, TargetRaised
from .model_inputs import Inputs, IntArray, places_of
from .model_names import CACHE_LENGTHS, CACHE_RESETS, CROPS, REORDERS
from .module_copy import copied

if TYPE_CHECKING:
    from .model import CacheWay
    from .model_instance import ModelInstance


class NotOffered(Exception):
    """The cache doesn't offer this, or declined it."""


class Decoding:
    """A model and a cache that holds the tokens fed so far. The source of an encoder-decoder is given with every chunk."""

    def __init__(self, instance: ModelInstance, frame: Inputs) -> None:
        """`frame` holds what is the same for every chunk: the batch, the source."""
        way = instance.target.cache
        assert way is not None, "a model without a cache is not asked to decode"
        self.instance, self.frame, self.way = instance, frame, way
        self.value: Any = None
        self.real: BoolArray | None = None
        self.count = 0
        self._begin()

    def _begin(self) -> None:
        self.value, self.count, self.real = None, 0, None
        if self.way.reset:
            self._raised(getattr(self.instance.module, self.way.reset))
        if self.way.form == "made":
            self.value = made_cache(self.instance, self.way, self.frame.batch)

    def feed(self, ids: IntArray, real: BoolArray | None = None) -> Array:
        """The logits of the tokens fed, (B, n, V), or of the last alone, (B, 1, V); `real` (B, n) where some are padding."""
        way, target, length = self.way, self.instance.target, ids.shape[1]
        seen = np.ones((ids.shape[0], self.count), dtype=bool) if self.real is None else self.real
        places = None
        if real is not None:
            self.real = np.concatenate([seen, real], axis=1)
            places = places_of(self.real)[:, -length:] + target.first_place if target.positions else None
        inputs = Inputs(
            ids, real=self.real, places=places, source=self.frame.source, source_real=self.frame.source_real
        )
        extra: dict[str, Any] = {}
        if way.parameter and self.value is not None:
            extra[way.parameter] = self.value
        if way.asked_by:
            extra[way.asked_by] = True
        if way.start:
            extra[way.start] = self.count
        if way.places:
            extra[way.places] = self.instance.torch.arange(self.count, self.count + length, device=target.device)
        with self.instance.torch.no_grad():
            found = self.instance.call(inputs, **extra)
            if way.form == "passed" or (way.form == "made" and found.cache is not None):
                self.value = found.cache
        self.count += length
        return self.instance.numbers(found.logits)

    # -- what a cache may offer ------------------------------------------------------------------------------------

    def fork(self) -> Decoding:
        """Another decoding that goes on from here by itself."""
        other = copy.copy(self)
        if self.way.form == "inside":
            module = copied(self.instance.module, None)
            other.instance = type(self.instance)(self.instance.target, module, self.instance.dtype)
        with self.instance.torch.no_grad():
            other.value = copy.deepcopy(self.value)
        return other

    def crop(self, count: int) -> None:
        """Forget the tokens from this one on. Raises NotOffered."""
        if self.way.form == "inside":
            if not (self.way.start or self.way.places):
                raise NotOffered
        elif is_plain(self.value, self.instance.torch):
            axis = self.way.length_axis
            if axis is None or {t.shape[axis] for t in leaves(self.value, self.instance.torch)} != {self.count}:
                raise NotOffered
            self.value = mapped(self.value, lambda t: t.narrow(axis, 0, count).clone(), self.instance.torch)
        else:
            self._method(CROPS, count)
        self.count = count
        self.real = None if self.real is None else self.real[:, :count]

    def reorder(self, order: IntArray) -> None:
        """Sample b becomes sample order[b]. Raises NotOffered."""
        index = self.instance.torch.from_numpy(np.array(order))
        axis = self.way.batch_axis
        if self.way.form == "inside":
            raise NotOffered
        if is_plain(self.value, self.instance.torch):
            if axis is None:
                raise NotOffered
            self.value = mapped(self.value, lambda t: t.index_select(axis, index), self.instance.torch)
        else:
            self._method(REORDERS, index)
        self.real = None if self.real is None else self.real[order]

    def reset(self) -> None:
        """Forget everything. Raises NotOffered."""
        if self.way.form == "inside":
            if not (self.way.reset or self.way.start or self.way.places):
                raise NotOffered
            self._begin()
            return
        if is_plain(self.value, self.instance.torch):
            raise NotOffered
        self._method(CACHE_RESETS)
        self.count, self.real = 0, None

    def length(self) -> int | None:
        """How many tokens the cache says that it holds; None where it doesn't say."""
        for name in CACHE_LENGTHS:
            found = getattr(self.value, name, None)
            if found is not None and not isinstance(self.value, list | tuple | dict):
                said = self._raised(found) if callable(found) else found
                return int(said) if isinstance(said, int) or hasattr(said, "item") else None
        return None

    def _method(self, names: tuple[str, ...], *arguments: Any) -> None:
        if isinstance(self.value, dict | list | tuple):  # whose clear() is not the cache's
            raise NotOffered
        found = next((getattr(self.value, n) for n in names if callable(getattr(self.value, n, None))), None)
        if found is None:
            raise NotOffered
        try:
            with self.instance.torch.no_grad():
                given = found(*arguments)
        except (NotImplementedError, ValueError, RuntimeError, TypeError) as error:  # a refusal, which a cache may make
            raise NotOffered from error
        if type(given) is type(self.value):
            self.value = given

    @staticmethod
    def _raised(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise TargetRaised(error) from error


def made_cache(instance: ModelInstance, way: CacheWay, batch: int) -> Any:
    """An empty cache from the model's own method, which takes nothing, or the batch, and perhaps a length; or from the
    class of caches beside the model, which takes nothing, the configuration, or the number of layers.
    """
    module, longest = instance.module, instance.target.longest
    place = sys.modules.get(type(module).__module__)
    method = getattr(module, way.maker, None) or getattr(place, way.maker)
    config = getattr(module, "config", None)
    refusal: Exception | None = None
    for arguments in ((), (batch,), (batch, longest), (config,), (_layers(module),)):
        if None in arguments:
            continue
        try:
            return method(*arguments)
        except TypeError as error:
            refusal = error
        except Exception as error:
            raise TargetRaised(error) from error
    assert refusal is not None
    raise TargetRaised(refusal)


def _layers(module: Any) -> int | None:
    """The length of the first list of modules, which are the layers."""
    return next((len(part) for part in module.modules() if type(part).__name__ in ("ModuleList", "Sequential")), None)


def leaves(value: Any, torch: Any) -> list[Any]:
    """The tensors in nested tuples, lists and dictionaries."""
    found: list[Any] = []
    mapped(value, lambda t: found.append(t) or t, torch)  # type: ignore[func-returns-value]
    return found


def is_plain(value: Any, torch: Any) -> bool:
    """Whether a cache is made of tuples, lists, dictionaries and tensors alone: whoever uses it cuts it by slices."""
    if isinstance(value, dict):
        return type(value) is dict and all(is_plain(v, torch) for v in value.values())
    if isinstance(value, tuple | list):
        return all(is_plain(v, torch) for v in value)
    return isinstance(value, torch.Tensor)


def mapped(value: Any, change: Callable[[Any], Any], torch: Any) -> Any:
    """The same nest with each tensor changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: mapped(item, change, torch) for name, item in value.items()}
    if hasattr(value, "_fields"):
        return type(value)(*(mapped(item, change, torch) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(mapped(item, change, torch) for item in value)
    return value
