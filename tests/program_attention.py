"""A program that attnlaws asks through its standard input and output: needs NumPy, and nothing of attnlaws.

program_attention.py [right | scale | die | hang | chatter | decline]
"""

from __future__ import annotations

import io
import os
import sys
import time
from typing import Any

import numpy as np


def attention(given: dict[str, Any], scale: float) -> Any:
    query, key, value = (given[name].astype(np.float64) for name in ("query", "key", "value"))
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat(groups, 1), value.repeat(groups, 1)
    scores = query @ key.swapaxes(-1, -2) * scale
    if "mask" in given:
        scores = scores + given["mask"]
    if given["causal"]:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    largest = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0.0))
    total = weights.sum(-1, keepdims=True)
    return (weights @ value / np.where(total > 0, total, 1.0)).astype(given["query"].dtype)


def main(kind: str) -> None:
    into, out = sys.stdin.buffer, sys.stdout.buffer
    while length := into.read(8):
        given = dict(np.load(io.BytesIO(into.read(int.from_bytes(length, "little")))))
        masked = "mask" in given
        if kind == "die" and masked:
            sys.stderr.write("out of tiles")
            os._exit(3)
        if kind == "hang" and masked:
            time.sleep(600)
        if kind == "chatter" and masked:
            out.write(b"here is the answer: ")
        answer = io.BytesIO()
        if kind == "decline" and given["causal"]:
            np.savez(answer, declined="no causal attention here")
        else:
            np.savez(answer, output=attention(given, 1.0 if kind == "scale" else float(given["scale"])))
        out.write(len(answer.getvalue()).to_bytes(8, "little") + answer.getvalue())
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "right")
