"""What frameworks without a tape need: the arguments of a call as a function of the arrays among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Arguments:
    """The arguments of a call, the arrays among them apart from what stays fixed."""

    def __init__(self, positional: Sequence[Any], keywords: Mapping[str, Any], is_array: Callable[[Any], bool]) -> None:
        self.values = [*positional, *keywords.values()]
        self.names = tuple(keywords)
        self.count = len(positional)
        self.places = tuple(n for n, value in enumerate(self.values) if is_array(value))
        self.arrays = [self.values[n] for n in self.places]

    def key(self) -> Any:
        """What a program is compiled for: sizes, dtypes, and the values of all other arguments."""
        shapes = tuple((n, tuple(self.values[n].shape), str(self.values[n].dtype)) for n in self.places)
        fixed = tuple(repr(value) for n, value in enumerate(self.values) if n not in self.places)
        return self.count, self.names, shapes, fixed

    def calling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of the arrays alone."""

        def of_arrays(*arrays: Any) -> Any:
            values = list(self.values)
            for place, array in zip(self.places, arrays, strict=True):
                values[place] = array
            return function(*values[: self.count], **dict(zip(self.names, values[self.count :], strict=True)))

        return of_arrays


def places_of(inputs: Sequence[Any], arrays: Sequence[Any]) -> tuple[int, ...]:
    """Where the inputs stand among the arrays, the same objects."""
    return tuple(next(n for n, array in enumerate(arrays) if array is wanted) for wanted in inputs)


def replaced(arrays: Sequence[Any], places: Sequence[int], changed: Sequence[Any]) -> list[Any]:
    """The arrays with some of them changed."""
    made = list(arrays)
    for place, array in zip(places, changed, strict=True):
        made[place] = array
    return made


def leaves_of(result: Any, is_array: Callable[[Any], bool]) -> list[Any]:
    """The arrays in a result, in order: itself, or those in tuples and lists."""
    if is_array(result):
        return [result]
    return [leaf for item in result for leaf in leaves_of(item, is_array)] if isinstance(result, tuple | list) else []


def over_the_batch(given: Arguments, function: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[int | None, ...]]:
    """A function of one sample's arrays, and the axes along which they are mapped: 0 for arrays of four axes."""
    axes = tuple(0 if len(array.shape) == 4 else None for array in given.arrays)

    def one(*arrays: Any) -> Any:
        whole = [x[None] if axis == 0 else x for x, axis in zip(arrays, axes, strict=True)]
        result = given.calling(function)(*whole)
        return (result[0] if isinstance(result, tuple | list) else result)[0]

    return one, axes
