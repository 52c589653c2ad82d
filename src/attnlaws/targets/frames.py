"""Messages between the judge and the process of what it judges: JSON and bytes, nothing that runs when it is read.

A message is the length of its head and of its body, 8 bytes each, little endian, then the head, a JSON object, then the body, raw
bytes. An answer repeats the `nonce` of the request, and its `digest` is that of the body with the nonce as the key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGEST = 1 << 32


class BadMessage(Exception):
    """Bytes that are no message, or not the answer to the request."""


class Body:
    """The bytes of a message as they gather: each array is told by where it stands."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, array: NDArray[Any]) -> dict[str, Any]:
        """Take an array of float64, bool or int64 in; what the head says of it."""
        data = np.ascontiguousarray(array).tobytes()
        said = {"at": self._size, "shape": list(array.shape), "type": str(array.dtype)}
        self._parts.append(data)
        self._size += len(data)
        return said

    def message(self, head: dict[str, Any], nonce: str) -> bytes:
        """The whole message."""
        body = b"".join(self._parts)
        told = json.dumps({**head, "nonce": nonce, "digest": digest(body, nonce)}).encode()
        return len(told).to_bytes(8, "little") + len(body).to_bytes(8, "little") + told + body


def digest(body: bytes, nonce: str) -> str:
    """The digest of a body."""
    return hashlib.blake2b(body, key=nonce.encode(), digest_size=16).hexdigest()


def array_in(body: bytes, said: dict[str, Any]) -> NDArray[Any]:
    """The array that a head tells of. Raises BadMessage where it lies outside of the body."""
    try:
        dtype, shape = np.dtype(str(said["type"])), tuple(int(n) for n in said["shape"])
        if dtype.kind not in "fbi" or min(shape, default=0) < 0:
            raise ValueError
        size = int(np.prod(shape, dtype=object))
        return np.frombuffer(body, dtype, size, int(said["at"])).reshape(shape).copy()
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadMessage(f"no array is at {said!r}") from error


def receive(read: Callable[[int], bytes], nonce: str | None = None) -> tuple[dict[str, Any], bytes]:
    """The next message, as its head and its body; `read` gives exactly so many bytes. Raises BadMessage."""
    sizes = read(16)
    head_size, body_size = int.from_bytes(sizes[:8], "little"), int.from_bytes(sizes[8:], "little")
    if head_size + body_size > _LARGEST:
        raise BadMessage("what came is no message")
    try:
        head = json.loads(read(head_size))
    except ValueError as error:
        raise BadMessage("what came is no message") from error
    body = read(body_size)
    if not isinstance(head, dict) or not isinstance(head.get("nonce"), str):
        raise BadMessage("what came is no message")
    if nonce is not None and head["nonce"] != nonce:
        raise BadMessage("what came is no answer to the last request")
    if head.get("digest") != digest(body, head["nonce"]):
        raise BadMessage("an answer is not what was sent")
    return head, body
