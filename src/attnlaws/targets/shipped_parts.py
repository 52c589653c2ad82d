"""The parts of the reference models that the laws of parts are tried on where no target is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..reference import initialise, objectives, positions
from ..reference.bert import Bert, BertConfig
from ..reference.gpt import GPT, GPTConfig
from ..reference.norms import RMSNorm
from ..reference.sampling import sample
from .call import Array
from .initial import CUT, NORMAL, TRUNCATED, UNIFORM
from .part import (
    Part,
    PreNorm,
    torch_buckets,
    torch_dropout,
    torch_initialiser,
    torch_loss,
    torch_masking,
    torch_norm,
    torch_rotation,
    torch_sampler,
    torch_sinusoids,
    torch_slopes,
    torch_spans,
    torch_stack,
    torch_weights,
)

#: a GPT for its initial weights, and one wide and deep enough for its variances to be near their expectations
SMALL = GPTConfig(vocab_size=97, context_length=16, d_model=64, num_layers=6, num_heads=4)
DEEP = GPTConfig(vocab_size=63, context_length=4, d_model=64, num_layers=8, num_heads=4, attention_dropout=0.0,
                 embedding_dropout=0.0, residual_dropout=0.0)  # fmt: skip
NORMED = BertConfig(vocab_size=31, context_length=4, d_model=64, num_layers=8, num_heads=4, d_ff=128)


def spans(tokens: torch.Tensor, *, first_sentinel: int) -> objectives.Example:
    """Choice and corruption in one."""
    mask = objectives.span_mask(len(tokens))
    return objectives.corrupt_spans(tokens, mask, first_sentinel=first_sentinel, final_sentinel=False)


def gpt2_deviation(name: str) -> float | None:
    """0.02, and 0.02 / sqrt(2 layers) for the last matrix of a residual branch; None for biases and norms."""
    if name.endswith("bias") or "ln_" in name:
        return None
    return 0.02 / math.sqrt(2 * SMALL.num_layers) if name.endswith("c_proj.weight") else 0.02


def stream(model: nn.Module, blocks: Sequence[nn.Module], tokens: torch.Tensor) -> list[Array]:
    """What goes into the first block and comes out of each, (N, E), at the first token."""
    seen: list[Array] = []

    def keep(_: nn.Module, given: tuple[Any, ...], out: torch.Tensor) -> None:
        if not seen:
            seen.append(given[0][:, 0].double().numpy())
        seen.append(out[:, 0].double().numpy())

    handles = [block.register_forward_hook(keep) for block in blocks]
    with torch.no_grad():
        model.eval()(tokens)
    for handle in handles:
        handle.remove()
    return seen


def gpt_stream(model: GPT) -> list[Array]:
    """The residual stream of all tokens of the vocabulary, each as the first of a text."""
    return stream(model, list(model.h), torch.arange(model.config.vocab_size)[:, None])


def bert_stream(model: Bert) -> list[Array]:
    """The same of an encoder."""
    return stream(model, list(model.layers), torch.arange(model.config.vocab_size)[:, None])


@cache
def shipped_parts() -> dict[str, Part]:
    """By name."""
    rules: dict[str, tuple[initialise.Rule, Any, Any]] = {
        "normal": (initialise.Normal(0.02), NORMAL, lambda i, o: 0.02),
        "uniform": (initialise.Uniform(0.1), UNIFORM, lambda i, o: 0.1 / math.sqrt(3)),
        "truncated": (initialise.TruncatedNormal(0.02), TRUNCATED, lambda i, o: 0.02 * CUT),
        "truncated, corrected": (initialise.TruncatedNormal(0.02, corrected=True), TRUNCATED, lambda i, o: 0.02),
        "xavier normal": (initialise.Xavier(), NORMAL, lambda i, o: math.sqrt(2 / (i + o))),
        "xavier uniform": (initialise.Xavier(uniform=True), UNIFORM, lambda i, o: math.sqrt(2 / (i + o))),
        "he normal": (initialise.he(), NORMAL, lambda i, o: math.sqrt(2 / i)),
        "he uniform": (initialise.he(uniform=True), UNIFORM, lambda i, o: math.sqrt(2 / i)),
        "1/sqrt(d)": (initialise.fan_in_normal(), NORMAL, lambda i, o: 1 / math.sqrt(i)),
        "torch linear": (initialise.torch_linear(), UNIFORM, lambda i, o: 1 / math.sqrt(3 * i)),
    }
    layers = DEEP.num_layers
    depth = PreNorm(DEEP.d_model, 4 * DEEP.d_model, layers, 0.02, 0.02 / math.sqrt(2 * layers), DEEP.eps)
    parts = [
        torch_sampler("reference.sampling.sample", sample),
        torch_masking("reference.objectives.mask_tokens", objectives.mask_tokens),
        torch_masking("reference.objectives.mask_tokens_exactly", objectives.mask_tokens_exactly),
        torch_spans("reference.objectives.corrupt_spans", spans),
        torch_dropout("torch.nn.functional.dropout", lambda x, p: F.dropout(x, p)),
        torch_weights("reference.gpt.GPT", lambda: GPT(SMALL), gpt2_deviation),
        torch_stack("reference.gpt.GPT by depth", lambda: GPT(DEEP), gpt_stream, depth),
        torch_stack("reference.bert.Bert by depth", lambda: Bert(NORMED), bert_stream),
        torch_rotation("reference.positions.rotary", positions.rotary),
        torch_rotation("reference.positions.rotary, interleaved", partial(positions.rotary, pairing="interleaved")),
        torch_rotation("reference.positions.rotary, base 500,000", partial(positions.rotary, base=5e5), 5e5),
        torch_slopes("reference.positions.alibi_slopes", positions.alibi_slopes),
        torch_buckets("reference.positions.relative_buckets", positions.relative_buckets),
        torch_sinusoids("reference.positions.sinusoidal", positions.sinusoidal),
        torch_norm("torch.nn.LayerNorm", nn.LayerNorm),
        torch_norm("reference.norms.RMSNorm", RMSNorm, "rms norm"),
        torch_loss("reference.objectives.causal_loss", objectives.causal_loss),
        *(
            torch_initialiser(f"reference.initialise {name}", rule.fill_, (family, size))
            for name, (rule, family, size) in rules.items()
        ),
    ]
    return {part.name: part for part in parts}
