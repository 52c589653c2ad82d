"""A kernel that never changes, timed beside the target: seconds of two runs differ by what the machine did, ratios to it less."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cases import MODEL_PASSES, Case
from .roof import LAYERS
from .timing import Run, Side

#: another number whenever a kernel below changes: ratios to another calibration can't be compared
VERSION = 1


def calibration(case: Case, device: str = "cpu") -> Side:
    """softmax(q k^T / sqrt(D)) v on inputs of the case's size; for a GPT, its feed-forward layers on as many tokens.

    In float32 whatever the case's dtype, without a mask and without a backward pass.
    """
    import torch

    def inputs(block: int, *shapes: tuple[int, ...]) -> list[Any]:
        rng = np.random.Generator(np.random.Philox(key=[block, 0]))
        return [torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).to(device) for shape in shapes]

    def attention(block: int) -> Run:
        rows = (case.batch, case.heads)
        keys = (*rows, case.keys, case.head_dim)
        q, k, v = inputs(block, (*rows, case.queries, case.head_dim), keys, keys)
        return lambda: torch.softmax(q @ k.mT / case.head_dim**0.5, dim=-1) @ v

    def layers(block: int) -> Run:
        width = case.heads * case.head_dim
        x, up, down = inputs(block, (case.batch * case.queries, width), (width, 4 * width), (4 * width, width))

        def forward() -> Any:
            y = x
            for _ in range(3 * LAYERS):
                y = torch.nn.functional.gelu(y @ up) @ down / width
            return y

        return forward

    return Side("calibration", layers if case.kind in MODEL_PASSES else attention)
