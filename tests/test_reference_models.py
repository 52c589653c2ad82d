"""The reference models hold what is said of them without another implementation: caches, padding, causality, sizes, errors."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from attnlaws.reference import bert as bert_module
from attnlaws.reference import t5 as t5_module
from attnlaws.reference.bert import Bert, BertConfig
from attnlaws.reference.cache import Cache
from attnlaws.reference.gpt import GPT, GPTConfig
from attnlaws.reference.llama import Llama, LlamaConfig
from attnlaws.reference.masks import visible
from attnlaws.reference.objectives import (
    causal_loss,
    corrupt_spans,
    mask_tokens,
    shift_right,
    span_mask,
    stack_examples,
    token_loss,
)
from attnlaws.reference.t5 import T5, T5Config
from hypothesis import given, settings
from hypothesis import strategies as st
from model_configs import allowed, redraw
from torch import Tensor, nn

from attnlaws import reference

DOUBLE = 2.0**-53
V = 19
GPT_SMALL = GPTConfig(vocab_size=V, context_length=16, d_model=12, num_layers=2, num_heads=3, d_ff=20)
LLAMA_SMALL = LlamaConfig(vocab_size=V, d_model=10, num_layers=2, num_heads=6, num_kv_heads=2, d_head=4, d_ff=14)
BERT_SMALL = BertConfig(vocab_size=V, context_length=16, d_model=12, num_layers=2, num_heads=3, d_ff=20)
T5_SMALL = T5Config(
    vocab_size=V,
    d_model=10,
    d_head=4,
    num_heads=3,
    d_ff=14,
    num_layers=2,
    num_decoder_layers=3,
    num_buckets=8,
    max_distance=9,
)


def drawn(model: nn.Module, seed: int = 0) -> Any:
    """In float64 and in eval mode, with parameters that all matter."""
    redraw(model, torch.Generator().manual_seed(seed))
    return model.double().eval()


def gpt() -> Any:
    return drawn(GPT(GPT_SMALL))


def llama() -> Any:
    return drawn(Llama(LLAMA_SMALL))


def windowed(window: int) -> Any:
    return drawn(Llama(replace(LLAMA_SMALL, window=window)))


def t5() -> Any:
    return drawn(T5(T5_SMALL))


DECODERS: dict[str, Callable[[], Any]] = {
    "gpt": gpt,
    "llama": llama,
    **{f"window {w}": lambda w=w: windowed(w) for w in (1, 2, 3, 4)},
}


def tokens_of(B: int, L: int, seed: int = 0) -> Tensor:
    return torch.randint(V, (B, L), generator=torch.Generator().manual_seed(seed))


def agree(model: nn.Module, one: Callable[[Any], Tensor], other: Callable[[Any], Tensor], length: int = 16) -> None:
    """Two ways to the same logits, within what rounding in float64 can do."""
    (first,), (limit,) = allowed(model, lambda m: [one(m).detach()], DOUBLE, length)
    distance = float((first - other(model).detach()).abs().max())
    assert limit < 1e-9
    assert distance <= limit, f"{distance} apart, {limit} allowed"


# -- caches ----------------------------------------------------------------------------------------------------------------


def in_chunks(model: Any, tokens: Tensor, cuts: tuple[int, ...]) -> Tensor:
    cache = model.new_cache()
    return torch.cat([model(tokens[:, a:b], cache=cache) for a, b in pairwise(cuts)], dim=1)


@pytest.mark.parametrize("name", DECODERS)
def test_every_split_into_chunks_gives_the_full_pass(name: str) -> None:
    """All 16 compositions of 5 tokens, also where the window is shorter, as long, and longer than what is read."""
    model, tokens = DECODERS[name](), tokens_of(2, 5)
    for size in range(5):
        for inner in combinations(range(1, 5), size):
            agree(model, lambda m: m(tokens), lambda m, cuts=(0, *inner, 5): in_chunks(m, tokens, cuts))


def test_a_cache_that_loses_its_place_is_seen() -> None:
    """The comparison above fails for a model that starts at position 0 again in each chunk."""
    model, tokens = gpt(), tokens_of(2, 5)

    def restarting(m: Any) -> Tensor:
        cache = m.new_cache()
        parts = [m(tokens[:, i : i + 1], cache=cache, position_ids=torch.zeros(1, 1).long()) for i in range(5)]
        return torch.cat(parts, dim=1)

    with pytest.raises(AssertionError, match="apart"):
        agree(model, lambda m: m(tokens), restarting)


def test_the_decoder_of_t5_reads_its_memory_once() -> None:
    """Step by step with a cache = all at once; the memory given later is not looked at again."""
    model, source, target = t5(), tokens_of(2, 6), tokens_of(2, 5, seed=1)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])

    def steps(m: Any) -> Tensor:
        memory, cache = m.encode(source, attention_mask=mask), m.new_cache()
        first = m.decode(target[:, :2], memory, attention_mask=mask, cache=cache)
        rest = [m.decode(target[:, i : i + 1], 0 * memory, attention_mask=mask, cache=cache) for i in range(2, 5)]
        return torch.cat([first, *rest], dim=1)

    agree(model, lambda m: m(source, target, attention_mask=mask), steps)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from([None, 2, 3, 5]), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=8)
)
def test_a_cache_follows_a_script(window: int | None, script: list[tuple[int, int]]) -> None:
    """Append, go back, fork, reorder, reset: the next logits are those of the whole text that the cache stands for."""
    model = llama() if window is None else windowed(window)
    cache, text, rng = model.new_cache(), tokens_of(3, 0), torch.Generator().manual_seed(len(script))
    for action, number in script:
        L = text.shape[1]
        if action == 0:
            back = number % (L + 1)
            try:
                cache.crop(back)
            except ValueError:
                assert window is not None
                assert L - cache.keys_kept > max(0, back + 1 - window)
            else:
                text = text[:, :back]
        elif action == 1:
            other = cache.fork()
            if L:
                model(tokens_of(3, 1), cache=other)
                assert cache.length == other.length - 1
        elif action == 2:
            rows = torch.randperm(3, generator=rng)
            cache.reorder(rows)
            text = text[rows]
        elif action == 3 and number > 6:
            cache.reset()
            text = text[:, :0]
        new = tokens_of(3, 1 + number % 3, seed=number)
        text = torch.cat([text, new], dim=1)
        got = model(new, cache=cache)
        assert cache.length == text.shape[1]
        assert cache.keys_kept <= (window or 99)
        want = model(text)[:, -new.shape[1] :]
        # 1e-10: rounding is a few 1e-15 of logits of size 1 here, and a wrong key changes them by 1e-2
        assert float((got - want).abs().max()) < 1e-10


def test_a_cache_refuses_what_does_not_fit() -> None:
    cache = Cache(1, window=2)
    key = torch.zeros(2, 1, 3, 4)
    cache.extend(0, key, key)
    with pytest.raises(ValueError, match="batch"):
        cache.extend(0, key[:1], key[:1])
    with pytest.raises(ValueError, match="layers"):
        cache.extend(1, key, key)
    with pytest.raises(ValueError, match="length"):
        cache.crop(4)
    with pytest.raises(ValueError, match="dropped"):
        cache.crop(1)
    with pytest.raises(ValueError, match="window"):
        Cache(1, window=0)


# -- who sees whom ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DECODERS)
def test_logits_do_not_depend_on_later_tokens(name: str) -> None:
    """Bit for bit, at every position; and they do depend on the token at the position itself."""
    model, tokens = DECODERS[name](), tokens_of(2, 6)
    before = model(tokens)
    for j in range(6):
        other = tokens.clone()
        other[:, j] = (other[:, j] + 1) % V
        after = model(other)
        assert torch.equal(after[:, :j], before[:, :j])
        assert not torch.equal(after[:, j], before[:, j])


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_window_reaches_as_far_as_its_layers(window: int) -> None:
    """Two layers of a window w see 2 (w - 1) tokens back, and no further."""
    model, tokens = windowed(window), tokens_of(1, 8)
    before = model(tokens)
    for j in range(8):
        other = tokens.clone()
        other[:, j] = (other[:, j] + 1) % V
        moved = (model(other) != before).any(-1)[0].tolist()
        assert moved == [j <= i <= j + 2 * (window - 1) for i in range(8)]


def test_bert_sees_both_sides_and_t5s_decoder_one() -> None:
    bert, model, tokens = drawn(Bert(BERT_SMALL)), t5(), tokens_of(1, 5)
    other = tokens.clone()
    other[:, 2] = (other[:, 2] + 1) % V
    assert bool((bert(other) != bert(tokens)).any(-1).all())
    assert bool((model(other, tokens) != model(tokens, tokens)).any(-1).all())
    moved = (model(tokens, other) != model(tokens, tokens)).any(-1)[0].tolist()
    assert moved == [False, False, True, True, True]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["gpt", "llama", "window 3", "bert", "t5"])
def test_padding_changes_nothing(name: str, side: str) -> None:
    """Rows of 3, 6 and 4 tokens together, whatever stands in the padding, are the rows alone."""
    lengths, L = (3, 6, 4), 6
    model = {**DECODERS, "bert": lambda: drawn(Bert(BERT_SMALL)), "t5": t5}[name]()
    place = torch.arange(L)[None] if side == "right" else torch.arange(L - 1, -1, -1)[None]
    mask = (place < torch.tensor(lengths)[:, None]).long()
    target = tokens_of(3, 4, seed=5)

    def logits(m: Any, tokens: Tensor, mask: Tensor | None, row: slice = slice(None)) -> Tensor:
        if name == "t5":
            return m(tokens, target[row], attention_mask=mask)
        if name == "bert" and mask is not None:  # its positions count from the first column unless they are given
            return m(tokens, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
        return m(tokens, attention_mask=mask)

    def together(m: Any, content: int = 0) -> Tensor:
        tokens = torch.where(mask.bool(), tokens_of(3, L), tokens_of(3, L, seed=10 + content))
        got = logits(m, tokens, mask)
        return got.flatten(0, 1) if name == "t5" else got[mask.bool()]

    def alone(m: Any) -> Tensor:
        rows = [tokens_of(3, L)[b : b + 1, mask[b].bool()] for b in range(3)]
        return torch.cat([logits(m, row, None, slice(b, b + 1))[0] for b, row in enumerate(rows)])

    agree(model, together, alone)
    assert torch.equal(together(model), together(model, content=1))


def test_segments_and_positions_matter() -> None:
    bert, tokens = drawn(Bert(BERT_SMALL)), tokens_of(1, 4)
    zeros = torch.zeros_like(tokens)
    assert torch.equal(bert(tokens), bert(tokens, segments=zeros))
    assert not torch.equal(bert(tokens), bert(tokens, segments=zeros + 1))
    assert not torch.equal(bert(tokens), bert(tokens, position_ids=torch.tensor([[1, 2, 3, 4]])))


# -- writing ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt", "llama", "window 3"])
def test_writing_with_and_without_the_cache_is_the_same(name: str) -> None:
    """The same draws, from unlike prompts padded on the left; each row as if it were alone, if greedy."""
    model, tokens = DECODERS[name](), tokens_of(3, 4)
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]])

    def write(**options: Any) -> Tensor:
        written: Tensor = model.generate(
            tokens, 6, attention_mask=mask, generator=torch.Generator().manual_seed(1), **options
        )
        return written

    assert torch.equal(write(top_k=5, top_p=0.9), write(top_k=5, top_p=0.9, use_cache=False))
    assert torch.equal(write(temperature=0), write(top_k=1))
    assert torch.equal(write(temperature=0)[:, :4], tokens)
    for b in range(3):
        prompt = tokens[b : b + 1, mask[b].bool()]
        assert torch.equal(model.generate(prompt, 6, temperature=0)[0, -6:], write(temperature=0)[b, -6:])


def test_greedy_is_the_largest_logit_each_time() -> None:
    model, tokens = gpt(), tokens_of(2, 3)
    written = model.generate(tokens, 4, temperature=0)
    for n in range(3, 7):
        assert torch.equal(model(written[:, :n])[:, -1].argmax(-1), written[:, n])


def test_a_row_that_stopped_stays_stopped() -> None:
    model, tokens = gpt(), tokens_of(3, 3)
    free = model.generate(tokens, 8, temperature=0)
    stop = int(free[0, 4])
    written = model.generate(tokens, 8, temperature=0, stop_id=stop)
    for b in range(3):
        after = free[b, 3:].tolist()
        end = after.index(stop) if stop in after else len(after)
        length = written.shape[1] - 3
        assert written[b, 3:].tolist() == (after[:end] + [stop] * 8)[:length]
    alone = model.generate(tokens[:1], 8, temperature=0, stop_id=stop)
    assert alone.shape[1] == 3 + free[0, 3:].tolist().index(stop) + 1
    memory = t5()
    first = memory.generate(tokens, 5, temperature=0)
    assert first.shape == (3, 6)
    assert memory.generate(tokens[:1], 5, temperature=0, stop_id=int(first[0, 1])).tolist() == [first[0, :2].tolist()]


# -- dropout, dtypes, devices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["embedding_dropout", "attention_dropout", "residual_dropout"])
def test_each_dropout_of_gpt_drops_in_training_alone(where: str) -> None:
    off = {"embedding_dropout": 0.0, "attention_dropout": 0.0, "residual_dropout": 0.0}
    model = drawn(GPT(replace(GPT_SMALL, **{**off, where: 0.5})))
    plain = drawn(GPT(replace(GPT_SMALL, **off))).train()
    tokens = tokens_of(2, 5)
    before = model(tokens)
    assert torch.equal(plain(tokens), before)
    model.train()
    torch.manual_seed(0)
    assert not torch.equal(model(tokens), before)
    assert torch.equal(model.eval()(tokens), before)


@pytest.mark.parametrize("make", [Bert, T5])
def test_dropout_of_bert_and_t5(make: Any) -> None:
    """Each of the rates alone does something in training, none does in eval."""
    base = BERT_SMALL if make is Bert else T5_SMALL
    rates = ["dropout", "attention_dropout"] if make is Bert else ["dropout"]
    tokens = tokens_of(2, 5)
    inputs = (tokens,) if make is Bert else (tokens, tokens)
    for rate in rates:
        model = drawn(make(replace(base, **{**dict.fromkeys(rates, 0.0), rate: 0.5})))
        before = model(*inputs)
        torch.manual_seed(0)
        assert not torch.equal(model.train()(*inputs), before)
        assert torch.equal(model.eval()(*inputs), before)


def every_model() -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
    tokens = tokens_of(2, 6)
    made: list[tuple[nn.Module, tuple[Tensor, ...]]] = [
        (gpt(), (tokens,)),
        (windowed(3), (tokens,)),
        (t5(), (tokens, tokens)),
    ]
    return [*made, (drawn(Bert(BERT_SMALL)), (tokens,))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_is_near_float64(dtype: torch.dtype) -> None:
    """Within what moving the parameters by its roundoff does to float64's logits, and in its own dtype."""
    unit = torch.finfo(dtype).eps / 2
    for model, inputs in every_model():
        model.to(dtype).double()  # parameters that the dtype holds
        (exact,), (limit,) = allowed(model, lambda m, i=inputs: [m(*i).detach()], unit, 6)
        got = model.to(dtype)(*inputs)
        assert got.dtype == dtype
        assert float((got.double() - exact).abs().max()) <= limit


def test_autocast_trains_in_16_bits() -> None:
    """Logits and gradients under autocast: finite, and near float32's within bfloat16's roundoff."""
    for model, inputs in every_model():
        (exact,), (limit,) = allowed(model, lambda m, i=inputs: [m(*i).detach()], 2.0**-8, 6)
        model.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(*inputs)
        logits.float().sum().backward()
        assert float((logits.double() - exact).abs().max()) <= limit
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_a_model_on_cuda_is_the_model_on_the_cpu() -> None:
    """Logits, the cache and greedy writing, in float32."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and there is none")
    for model, inputs in every_model():
        (exact,), (limit,) = allowed(model, lambda m, i=inputs: [m(*i).detach()], 2.0**-24, 6)
        model.float().cuda()
        moved = tuple(i.cuda() for i in inputs)
        assert float((model(*moved).cpu().double() - exact).abs().max()) <= limit
        if hasattr(model, "generate"):
            generator = torch.Generator("cuda").manual_seed(0)
            written = model.generate(moved[0], 4, generator=generator, top_k=5, top_p=0.9)
            assert written.device.type == "cuda"


def test_the_seed_decides_the_weights() -> None:
    first, again, other = (GPT(GPT_SMALL, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.wte.weight, other.wte.weight)
    other.load_state_dict(first.state_dict())
    assert torch.equal(first.eval()(tokens_of(1, 4)), other.eval()(tokens_of(1, 4)))


# -- training --------------------------------------------------------------------------------------------------------------

LINES = ["the cat sat on the mat", "the dog lay on the rug", "a bird sang in a tree"]


def letters() -> Tensor:
    """The lines (B, L), a to z as 1 to 26, space 27."""
    L = min(map(len, LINES))
    return torch.tensor([[27 if ch == " " else ord(ch) - 96 for ch in line[:L]] for line in LINES])


def steps(model: nn.Module, loss: Callable[[], Tensor], count: int = 25) -> tuple[float, float]:
    """The loss before and after so many steps of Adam, all parameters having had a gradient that is finite."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    first = 0.0
    for step in range(count):
        optimiser.zero_grad()
        value = loss()
        value.backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
        optimiser.step()
        first = first if step else float(value)
    return first, float(loss())


def test_a_few_steps_on_a_few_lines() -> None:
    """GPT and Llama from near ln V to half of it; BERT and T5 likewise on one masked and one corrupted text each."""
    text, generator, size = letters(), torch.Generator().manual_seed(0), 40
    still = {"embedding_dropout": 0.0, "attention_dropout": 0.0, "residual_dropout": 0.0}
    gpt_small = GPT(replace(GPT_SMALL, vocab_size=size, context_length=32, d_model=24, **still), generator)
    llama_small = Llama(replace(LLAMA_SMALL, vocab_size=size, d_model=24), generator)
    for model in (gpt_small, llama_small):
        first, last = steps(model, lambda m=model: causal_loss(m(text), text))
        assert abs(first - math.log(size)) < 0.1
        assert last < 0.5 * math.log(size)
    config = replace(BERT_SMALL, vocab_size=size, context_length=32, d_model=24, dropout=0.0, attention_dropout=0.0)
    bert = Bert(config, generator)
    masked = mask_tokens(text, mask_id=28, vocab_size=28, generator=generator)
    first, last = steps(bert, lambda: token_loss(bert(masked.inputs), masked.labels))
    assert last < 0.5 * first
    reader = T5(replace(T5_SMALL, vocab_size=size, d_model=24, dropout=0.0), generator)
    pairs = [corrupt_spans(line, span_mask(len(line), generator=generator), first_sentinel=39) for line in text]
    source, target = torch.stack([p.inputs for p in pairs]), torch.stack([p.labels for p in pairs])
    first, last = steps(reader, lambda: token_loss(reader(source, shift_right(target, 0)), target))
    assert last < 0.5 * first


def test_a_batch_of_unlike_texts_has_the_loss_of_each() -> None:
    """T5 on stacked examples: the mean over all labels, nothing of the padding."""
    model, rng = t5(), torch.Generator().manual_seed(3)
    examples = [
        corrupt_spans(tokens_of(1, L)[0] % 10, span_mask(L, density=0.3, generator=rng), first_sentinel=V - 1)
        for L in (4, 9, 14)
    ]

    def loss(m: Any, chosen: list[Any]) -> Tensor:
        inputs, labels, mask = stack_examples(chosen)
        return token_loss(m(inputs, shift_right(labels, 0), attention_mask=mask), labels)

    def each(m: Any) -> Tensor:
        counts = [len(e.labels) for e in examples]
        return sum((n * loss(m, [e]) for n, e in zip(counts, examples, strict=True)), torch.zeros(())) / sum(counts)

    assert len({len(e.inputs) for e in examples}) == len({len(e.labels) for e in examples}) == 3
    agree(model, lambda m: loss(m, examples), each)


@pytest.mark.parametrize("module", [reference, bert_module, t5_module])
def test_the_examples_of_the_docstrings_run(module: Any) -> None:
    failed, attempted = doctest.testmod(module)
    assert attempted >= 5
    assert failed == 0


# -- errors ----------------------------------------------------------------------------------------------------------------


def test_configurations_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="d_model = 10"):
        GPTConfig(d_model=10, num_heads=3)
    with pytest.raises(ValueError, match="d_model = 10"):
        BertConfig(d_model=10, num_heads=3)
    with pytest.raises(ValueError, match="d_model = 10"):
        LlamaConfig(d_model=10, num_heads=3)
    with pytest.raises(ValueError, match="num_kv_heads = 4"):
        LlamaConfig(d_model=12, num_heads=6, num_kv_heads=4)
    with pytest.raises(ValueError, match="even"):
        LlamaConfig(d_model=9, num_heads=3)
    with pytest.raises(ValueError, match="activation"):
        GPT(replace(GPT_SMALL, activation="swoosh"))


def test_inputs_that_do_not_fit_are_refused() -> None:
    model, tokens = gpt(), tokens_of(2, 5)
    bert, reader = drawn(Bert(BERT_SMALL)), t5()
    for bad in (tokens[0], tokens.float(), tokens[:, :0], tokens + V, tokens - V):
        for call in (model, bert, llama()):
            with pytest.raises(ValueError, match="tokens"):
                call(bad)
        with pytest.raises(ValueError, match="target"):
            reader(tokens, bad)
        with pytest.raises(ValueError, match="source"):
            reader(bad, tokens)
    with pytest.raises(ValueError, match=r"17 tokens are more than context_length = 16: .* tokens\[:, -16:\]"):
        model(tokens_of(1, 17))
    with pytest.raises(ValueError, match="context_length"):
        bert(tokens_of(1, 17))
    with pytest.raises(ValueError, match=r"attention mask of tokens must be .* = \(2, 5\), not \(2, 4\)"):
        model(tokens, attention_mask=torch.ones(2, 4).long())
    with pytest.raises(ValueError, match="segments"):
        bert(tokens, segments=tokens[:, :2])
    with pytest.raises(ValueError, match="memory"):
        reader.decode(tokens, torch.zeros(3, 2, 10).double())
    with pytest.raises(ValueError, match="pad prompts on the left"):
        model.generate(tokens, 2, attention_mask=torch.tensor([[1, 1, 1, 1, 0]] * 2))
    with pytest.raises(ValueError, match="max_new_tokens"):
        model.generate(tokens, -1)
    with pytest.raises(ValueError, match=r"add a batch axis, tokens\[None\]"):
        model(tokens[0])
    with pytest.raises(ValueError, match="max_new_tokens"):
        reader.generate(tokens, -1)
    for bad in (-1, V):
        with pytest.raises(ValueError, match="start_id"):
            replace(T5_SMALL, start_id=bad)


@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "t5"])
def test_a_mask_that_is_added_is_refused(name: str) -> None:
    """0 for a token and -inf, or a large negative number, for padding: the opposite of 1 and 0."""
    model = {**DECODERS, "bert": lambda: drawn(Bert(BERT_SMALL)), "t5": t5}[name]()
    tokens = tokens_of(2, 5)
    inputs = (tokens, tokens) if name == "t5" else (tokens,)
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ValueError, match=f"not an additive mask of {dtype}"):
            model(*inputs, attention_mask=torch.zeros(2, 5, dtype=dtype))
    with pytest.raises(ValueError, match="must be 1 for tokens and 0 for padding"):
        model(*inputs, attention_mask=torch.tensor([[-10_000, 0, 0, 0, 0]] * 2))
    if name == "t5":
        with pytest.raises(ValueError, match="additive"):
            model(tokens, tokens, target_mask=torch.zeros(2, 5))
    mask = torch.tensor([[0, 1, 1, 1, 1]] * 2)
    for kind in (torch.bool, torch.int8, torch.int32):
        assert torch.equal(model(*inputs, attention_mask=mask.to(kind)), model(*inputs, attention_mask=mask))


def test_masks_of_another_width_are_refused() -> None:
    """One column would have been taken for all of them."""
    reader, source, target = t5(), tokens_of(2, 6), tokens_of(2, 4)
    memory = reader.encode(source)
    for shape in ((2, 1), (2, 5), (2, 7), (1, 6)):
        with pytest.raises(ValueError, match=r"attention mask of memory must be \(B, T\) = \(2, 6\), not"):
            reader.decode(target, memory, attention_mask=torch.ones(shape).long())
    with pytest.raises(ValueError, match="additive"):
        reader.decode(target, memory, attention_mask=torch.zeros(2, 6))
    with pytest.raises(ValueError, match=r"\(B, 3 or more\), not \(2, 1\)"):
        visible(2, 3, causal=True, attention_mask=torch.ones(2, 1).long())
    for model in (gpt(), llama(), windowed(2)):
        cache = model.new_cache()
        model(source, cache=cache)
        for width in (4, 6, 11):
            with pytest.raises(ValueError, match=r"= \(2, 10\), not"):
                model(target, attention_mask=torch.ones(2, width).long(), cache=cache)


def test_positions_that_do_not_fit_are_refused() -> None:
    tokens = tokens_of(2, 5)
    for model in (gpt(), llama(), drawn(Bert(BERT_SMALL))):
        for shape in ((2, 4), (3, 5), (2, 1), (4,)):
            with pytest.raises(ValueError, match=r"position_ids must be \(B, L\) = \(2, 5\)"):
                model(tokens, position_ids=torch.zeros(shape).long())
        row = torch.arange(5)
        assert torch.equal(model(tokens, position_ids=row[None]), model(tokens, position_ids=row.expand(2, 5)))
    for model in (gpt(), drawn(Bert(BERT_SMALL))):
        for bad in (-1, 16):
            with pytest.raises(ValueError, match=r"position_ids must lie in \[0, context_length = 16\)"):
                model(tokens, position_ids=torch.full((1, 5), bad))
        with pytest.raises(ValueError, match="integers"):
            model(tokens, position_ids=torch.zeros(1, 5))


def test_the_cache_of_another_model_is_refused() -> None:
    tokens = tokens_of(2, 3)
    for model in (gpt(), llama()):
        for layers in (1, 3):
            with pytest.raises(ValueError, match=f"has {layers} layers and the model 2"):
                model(tokens, cache=Cache(layers))
        with pytest.raises(ValueError, match=r"keeps 2 keys, but the model sees all: .* new_cache\(\)"):
            model(tokens, cache=Cache(2, window=2))
    with pytest.raises(ValueError, match="keeps 2 keys, but the model sees 3"):
        windowed(3)(tokens, cache=Cache(2, window=2))
    assert torch.equal(windowed(3)(tokens, cache=Cache(2)), windowed(3)(tokens))
    reader = t5()
    with pytest.raises(ValueError, match="has 2 layers and the model 3"):
        reader.decode(tokens, reader.encode(tokens), cache=Cache(2))
    cache = gpt().new_cache()
    gpt()(tokens, cache=cache)
    other = drawn(GPT(replace(GPT_SMALL, num_heads=2)))
    with pytest.raises(ValueError, match=r"key is .* \(2, 2, 1, 6\), but the cache holds \(2, 3, 3, 4\)"):
        other(tokens[:, :1], cache=cache)
    assert cache.length == cache.keys_kept == 3  # as it was


def test_a_memory_of_another_shape_is_refused() -> None:
    reader, target = t5(), tokens_of(2, 3)
    memory, cache = reader.encode(tokens_of(2, 6)), reader.new_cache()
    reader.decode(target, memory, cache=cache)
    with pytest.raises(ValueError, match=r"memory has \(B, T\) = \(2, 5\), but the cache has read one of \(2, 6\)"):
        reader.decode(target, memory[:, :5], cache=cache)
    with pytest.raises(ValueError, match=r"memory has \(B, T\) = \(1, 6\)"):
        reader.decode(target[:1], memory[:1], cache=cache)


def test_writing_past_the_context_is_refused_before_it_begins() -> None:
    """16 tokens can be read, and the last one written is not read: 10 and 7 fit, 10 and 8 do not."""
    model, tokens = gpt(), tokens_of(1, 10)
    for use_cache in (True, False):
        assert model.generate(tokens, 7, use_cache=use_cache).shape == (1, 17)
        with pytest.raises(ValueError, match=r"10 tokens and 8 new ones .* context_length = 16 .*tokens\[:, -9:\], or"):
            model.generate(tokens, 8, use_cache=use_cache)
        assert model.generate(tokens[:, -9:], 8, use_cache=use_cache).shape == (1, 17)
    with pytest.raises(ValueError, match=r"tokens\[None\]"):
        model.generate(tokens[0], 2)
    with pytest.raises(ValueError, match="additive"):
        model.generate(tokens, 2, attention_mask=torch.zeros(1, 10))
    with pytest.raises(ValueError, match=r"\(B, L\) = \(1, 10\), not \(1, 9\)"):
        model.generate(tokens, 2, attention_mask=torch.ones(1, 9).long())
    with pytest.raises(ValueError, match="not read: generate fewer"):
        model.generate(tokens, 17)
    assert model.generate(tokens_of(1, 20), 0).shape == (1, 20)
    assert llama().generate(tokens, 20).shape == (1, 30)
