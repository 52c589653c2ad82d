"""The limit of the machine for a case: the least work it can be done with, at rates measured in the same run.

Letters: B batch, H query heads, Hkv key heads, L queries, S keys, D head size, e bytes an element.
Sources: the roofline, Williams et al. 2009; counts of FLOPs as in arXiv:2205.14135 and arXiv:2307.08691.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from .cases import MODEL_PASSES, Case
from .timing import Run

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
#: width, layers and words of the GPT that is timed, as `model.py` builds it
LAYERS, VOCABULARY = 2, 256


def visible_pairs(queries: int, keys: int, causal: bool) -> int:
    """P, the (query, key) pairs that count: L S, or the sum over i < L of min(i + 1, S) under the triangle."""
    if not causal:
        return queries * keys
    full = min(queries, keys)
    return full * (full + 1) // 2 + max(queries - keys, 0) * keys


def attention_flops(case: Case) -> int:
    """Forward 2 B H P (D + Dv): a multiplication and an addition each for q k^T and for w v; here Dv = D.

    Backward 2 times that where the weights are kept, 2.5 times where they are computed again; the lesser counts.
    """
    forward = 4 * case.batch * case.heads * visible_pairs(case.queries, case.keys, case.causal) * case.head_dim
    return forward * 3 if case.kind == "backward" else forward


def attention_bytes(case: Case) -> int:
    """Forward e B (H L + Hkv S) 2D: query, key and value read and the output written, once each.

    Backward: these and the upstream gradient read again, three gradients written: 2 H L + 2 Hkv S rows of D more than
    forward's H L, and the row sums in float32, 4 B H L, written and read.
    """
    e, rows = BYTES[case.dtype], case.batch * case.head_dim
    queries, keys = case.heads * case.queries, case.kv_heads * case.keys
    if case.kind != "backward":
        return e * rows * (2 * queries + 2 * keys)
    return e * rows * (6 * queries + 6 * keys) + 8 * case.batch * queries


def parameters(case: Case) -> int:
    """Weights of the GPT without its embeddings of positions, which are read by row: 12 layers E^2 and the tied words E V."""
    width = case.heads * case.head_dim
    return 12 * LAYERS * width**2 + VOCABULARY * width


def model_flops(case: Case) -> int:
    """2 FLOPs a parameter and token, and the attention of each layer; three times that for forward and backward."""
    heads = case.batch * case.heads * case.head_dim
    if case.kind == "gpt-step":
        pairs = visible_pairs(case.queries, case.queries, True)
        return 3 * (2 * parameters(case) * case.batch * case.queries + 4 * LAYERS * heads * pairs)
    read = case.keys - 1  # the last token that is written is not read
    return 2 * parameters(case) * case.batch * read + 4 * LAYERS * heads * visible_pairs(read, read, True)


def model_bytes(case: Case) -> int:
    """The weights once for a pass: the prompt, then each new token but the last; a step reads them twice and writes gradients."""
    weights = BYTES[case.dtype] * parameters(case)
    return 3 * weights if case.kind == "gpt-step" else weights * (case.keys - case.queries)


def flops(case: Case) -> int:
    """The least floating-point operations."""
    return model_flops(case) if case.kind in MODEL_PASSES else attention_flops(case)


def traffic(case: Case) -> int:
    """The least bytes read and written."""
    return model_bytes(case) if case.kind in MODEL_PASSES else attention_bytes(case)


@dataclass(frozen=True)
class Rates:
    """What the machine does at best: FLOP/s of a matrix product, bytes/s of a copy as large as the case, seconds of a launch."""

    gemm: float
    copy: float
    launch: float


@dataclass(frozen=True)
class Roof:
    """The least time of a case in seconds, and which limit it is: "compute", "memory" or "launch"."""

    seconds: float
    limit: str

    def share(self, seconds: float) -> float:
        """How near to it a time is; 1 is the limit."""
        return self.seconds / seconds


def roof_of(case: Case, rates: Rates) -> Roof:
    """max(FLOPs / GEMM rate, bytes / copy rate, one launch)."""
    least = {
        "compute": flops(case) / rates.gemm,
        "memory": traffic(case) / rates.copy,
        "launch": rates.launch,
    }
    limit = max(least, key=lambda name: least[name])
    return Roof(least[limit], limit)


class Meter:
    """Measures rates on one device, in the dtype and size of a case; the best that was seen counts, of all times asked.

    A rate is what the machine can do, and a disturbance only lowers it: the best of several tries, at the beginning of a run
    and at its end, is nearest.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self._best: dict[tuple[str, str, int], float] = {}

    def rates(self, case: Case) -> Rates:
        """The rates for a case. Times of copies are of buffers as large as what the case moves: a cache is then a cache."""
        size = 1 << max(12, (traffic(case) // 2).bit_length())
        return Rates(self._gemm(case.dtype), self._copy(min(size, 1 << 28)), self._launch())

    def _gemm(self, dtype: str) -> float:
        """In the dtype or in float32, whichever is quicker: a kernel may convert inputs of 16 bits, and some CPUs must."""
        import torch

        own = "float32" if dtype in ("bfloat16", "float16") else dtype
        found = []
        for name in dict.fromkeys((dtype, own)):
            n = 4096 if self.device.startswith("cuda") else 512 if name == own else 128
            x, y = (torch.randn(n, n, device=self.device).to(getattr(torch, name)) for _ in range(2))
            found.append(self._rate(("gemm", name, n), 2.0 * n**3, partial(torch.matmul, x, y)))
        return max(found)

    def _copy(self, size: int) -> float:
        import torch

        x, y = (torch.empty(size, dtype=torch.uint8, device=self.device).fill_(n) for n in range(2))
        return self._rate(("copy", "", size), 2.0 * size, lambda: x.copy_(y))

    def _launch(self) -> float:
        import torch

        x = torch.zeros(1, device=self.device)
        return 1.0 / self._rate(("launch", "", 1), 1.0, lambda: x.add_(1))

    def _rate(self, key: tuple[str, str, int], amount: float, run: Run, tries: int = 7) -> float:
        run()
        for _ in range(tries):
            self._best[key] = max(self._best.get(key, 0.0), amount / self._seconds(run))
        return self._best[key]

    def _seconds(self, run: Run) -> float:
        """Of a call, in a sample of 2 ms or more."""
        times = 1
        while True:
            self._wait()
            cpu, wall = time.thread_time(), time.perf_counter()
            for _ in range(times):
                run()
            self._wait()
            taken = time.perf_counter() - wall if self.device.startswith("cuda") else time.thread_time() - cpu
            if taken > 2e-3:
                return taken / times
            times *= 2

    def _wait(self) -> None:
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.synchronize()
