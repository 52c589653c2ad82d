"""How long the shipped reference takes beside what others ship: ratios of times taken in turn.

pytest benchmarks/test_reference_speed.py --benchmark-only

The ratio, its interval and both times are in `extra_info`. Models have the same weights; both give the same before they
are timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from attnlaws.reference.import_weights import gpt_from_transformers

from attnlaws import api
from attnlaws.bench.cases import Case
from attnlaws.bench.timing import Race, Run, Side
from attnlaws.bench.verdict import compare
from attnlaws.bench.work import FunctionWork
from attnlaws.run.trying import one_thread
from attnlaws.targets.frameworks import framework_named

pytest.importorskip("pytest_benchmark")

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

#: width, layers, heads, length of the text: from a model whose calls cost most to one whose products do
SIZES = {"small": (64, 2, 4, 32), "middle": (256, 4, 4, 128), "wide": (512, 4, 8, 128)}
BLOCKS = 24
WORDS = 512

CHUNKED = (
    Case("256", "forward", 1, 4, 4, 256, 256, 64),
    Case("1024", "forward", 1, 4, 4, 1024, 1024, 64),
    Case("causal 512", "forward", 1, 4, 4, 512, 512, 64, causal=True),
    Case("decode 2048", "forward", 1, 8, 8, 1, 2048, 64),
)


def _models(size: str) -> tuple[Any, Any]:
    """Ours and transformers' GPT-2 with the same weights, without dropout, in evaluation mode."""
    transformers = pytest.importorskip("transformers")
    width, layers, heads, length = SIZES[size]
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=2 * length, n_embd=width, n_layer=layers, n_head=heads,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config).eval()
    return gpt_from_transformers(theirs), theirs


def _tokens(size: str, block: int) -> torch.Tensor:
    return torch.randint(WORDS, (1, SIZES[size][3] + 1), generator=torch.Generator().manual_seed(block))


def _step(model: torch.nn.Module, logits: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor) -> Any:
    """Gradients of the loss by all parameters."""
    loss = torch.nn.functional.cross_entropy(logits(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    return torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("size", SIZES)
def test_gpt_step(benchmark: BenchmarkFixture, size: str) -> None:
    """Forward and backward of a whole GPT."""
    ours, theirs = _models(size)
    exact = gpt_from_transformers(theirs).double()
    tokens = _tokens(size, 0)
    with torch.no_grad():
        want, got, other = exact(tokens), ours(tokens), theirs(tokens).logits
    rounding = (got - want).abs().max()
    assert (got - other).abs().max() <= 16 * rounding  # as far off as float32 is from float64, some times over
    _compare(
        benchmark,
        lambda block: lambda: _step(ours, ours, _tokens(size, block)),
        lambda block: lambda: _step(theirs, lambda t: theirs(t).logits, _tokens(size, block)),
    )


@pytest.mark.parametrize("size", SIZES)
def test_generation(benchmark: BenchmarkFixture, size: str) -> None:
    """Half a text is read and 16 tokens are written, greedily, with a cache."""
    ours, theirs = _models(size)

    def prompt(block: int) -> torch.Tensor:
        return _tokens(size, block)[:, : SIZES[size][3] // 2]

    def others(block: int) -> Run:
        given = prompt(block)
        mask = torch.ones_like(given)
        return lambda: theirs.generate(
            given, attention_mask=mask, max_new_tokens=16, do_sample=False, eos_token_id=None
        )

    def own(block: int) -> Run:
        return lambda: ours.generate(prompt(block), 16, temperature=0.0)

    assert torch.equal(own(0)(), others(0)())
    _compare(benchmark, own, others)


@pytest.mark.parametrize("case", CHUNKED, ids=lambda case: case.name)
def test_chunked_attention(benchmark: BenchmarkFixture, case: Case) -> None:
    """The online softmax in chunks of keys beside torch's fused kernel."""
    works = [
        FunctionWork(api.function_of(n), case) for n in ("attnlaws.reference.attention:chunked_attention", "torch.sdpa")
    ]
    for work in works:
        work.judge()
    _compare(benchmark, works[0].prepare, works[1].prepare)


def _compare(benchmark: BenchmarkFixture, ours: Callable[[int], Run], theirs: Callable[[int], Run]) -> None:
    """Time both in turn for the ratio, then ours alone for pytest-benchmark's table."""
    with one_thread(framework_named("torch")):
        race = Race([Side("ours", ours), Side("theirs", theirs)])
        race.run(BLOCKS)
        found = compare(race.log_ratios(0, 1))
        benchmark._timer = time.thread_time
        benchmark.pedantic(ours(0), rounds=20, iterations=race.times, warmup_rounds=2)
    medians = [float(sorted(race.seconds(side).reshape(-1))[race.seconds(side).size // 2]) for side in (0, 1)]
    benchmark.extra_info.update(
        ratio=round(found.ratio, 3),
        interval=[round(found.low, 3), round(found.high, 3)],
        ours=medians[0],
        theirs=medians[1],
    )
    print(
        f"\nours over theirs: {found.ratio:.2f} ({found.low:.2f} .. {found.high:.2f}), {1e3 * medians[0]:.3g} and {1e3 * medians[1]:.3g} ms"
    )
