"""Programs of any language, asked through their standard input and output with .npz files.

A message is its length, 8 bytes, little endian, and then so many bytes of an .npz file (a zip of .npy files, not compressed). The
program reads a request, writes an answer, and goes on until its input ends. A request holds `query` (B, H, L, D), `key` (B, Hkv, S,
D) and `value` (B, Hkv, S, Dv), in float32, float64 or float16; `mask`, added to the scores, of an axis 1 where it is shared
(B|1, H|1, L|1, S), where there is one; `causal`, 1 or 0; and `scale`. An answer holds `output` (B, H, L, Dv), or `declined`, which is anything.
"""

from __future__ import annotations

import contextlib
import io
import os
import selectors
import shlex
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from .signature import CannotAdapt

#: seconds after which a program that says nothing is taken for hanging
PATIENCE = 60.0
_LARGEST = 1 << 30


class Broke(Exception):
    """The program ended, hung, or answered what can't be read; the message says which, with its last words."""


class _Program:
    """One running program; started again after it broke."""

    def __init__(self, command: list[str], patience: float) -> None:
        self.command, self.patience = command, patience
        self._running: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        weakref.finalize(self, self._words.close)

    def ask(self, request: bytes) -> bytes:
        """The answer to a request. Raises Broke."""
        self._started()
        try:
            self._write(len(request).to_bytes(8, "little") + request)
            size = int.from_bytes(self._read(8), "little")
            if size > _LARGEST:
                raise Broke(f"the program announces {size} bytes: its answer must begin with its length")
            return self._read(size)
        except (BrokenPipeError, Broke) as error:
            raise Broke(self._ended(error)) from error

    def _started(self) -> subprocess.Popen[bytes]:
        if self._running is None or self._running.poll() is not None:
            self._words.seek(0)
            self._words.truncate()
            pipe = subprocess.PIPE
            self._running = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, stderr=self._words, bufsize=0)
            weakref.finalize(self, _stop, self._running)
        return self._running

    def _write(self, data: bytes) -> None:
        """All of the request into the program's input, within its time."""
        assert self._running is not None
        assert self._running.stdin is not None
        into, left = self._running.stdin, memoryview(data)
        os.set_blocking(into.fileno(), False)
        deadline = time.monotonic() + self.patience
        with selectors.DefaultSelector() as selector:
            selector.register(into, selectors.EVENT_WRITE)
            while left:
                if not selector.select(max(deadline - time.monotonic(), 0.0)):
                    raise Broke(f"the program reads nothing for {self.patience:g} s")
                left = left[os.write(into.fileno(), left[: 1 << 16]) :]

    def _read(self, size: int) -> bytes:
        """So many bytes of the program's output, within its time."""
        assert self._running is not None
        assert self._running.stdout is not None
        out = self._running.stdout
        deadline = time.monotonic() + self.patience
        parts: list[bytes] = []
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while size:
                if not selector.select(max(deadline - time.monotonic(), 0.0)):
                    raise Broke(f"the program says nothing for {self.patience:g} s")
                part = os.read(out.fileno(), min(size, 1 << 20))
                if not part:
                    raise Broke("the program's output ends")
                parts.append(part)
                size -= len(part)
        return b"".join(parts)

    def _ended(self, error: Exception) -> str:
        """What became of the program, which is stopped now, and the end of what it wrote to its standard error."""
        assert self._running is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._running.wait(1.0)
        code = self._running.poll()
        _stop(self._running)
        self._words.seek(0)
        said = " ".join(self._words.read().decode("utf-8", "replace").split())[-200:]
        how = f"{error}" if code is None else f"the program ended with {code}"
        return f"{how}; it said: {said}" if said else how


def _stop(running: subprocess.Popen[bytes]) -> None:
    """End the program, and wait for it."""
    if running.poll() is None:
        running.kill()
    for stream in (running.stdin, running.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    running.wait()


def program_function(command: str, patience: float = PATIENCE) -> Callable[..., Any]:
    """A program as a function of NumPy arrays (B, H, L, D). Raises CannotAdapt where it can't be started."""
    words = shlex.split(command)
    if not words:
        raise CannotAdapt("'process:' names no program; write 'process: ./my_program'")
    program = _Program(words, patience)
    try:
        program._started()
    except OSError as error:
        raise CannotAdapt(f"{words[0]} can't be started: {error.strerror}") from error

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False, scale: float | None = None
    ) -> Any:
        if attn_mask is not None and attn_mask.dtype != query.dtype:
            raise TypeError("masks are added to the scores, in the dtype of the query")
        given = {"query": query, "key": key, "value": value, "causal": np.array(int(is_causal))}
        given["scale"] = np.array(float(max(query.shape[-1], 1)) ** -0.5 if scale is None else float(scale))
        if attn_mask is not None:
            given["mask"] = attn_mask.reshape((1,) * (4 - attn_mask.ndim) + attn_mask.shape)
        request = io.BytesIO()
        arrays: dict[str, Any] = {name: np.ascontiguousarray(x).reshape(np.shape(x)) for name, x in given.items()}
        np.savez(request, **arrays)
        answer = program.ask(request.getvalue())
        try:
            found = dict(np.load(io.BytesIO(answer), allow_pickle=False))
        except Exception as error:
            raise Broke(f"the program's answer is no .npz file: {error}") from error
        if "declined" in found:
            raise NotImplementedError(f"the program declines: {found['declined']}")
        if "output" not in found:
            raise Broke(f"the program's answer holds {', '.join(found) or 'nothing'}, not output")
        return found["output"]

    return attention
