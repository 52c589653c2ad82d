"""How many parameters the models have, counted on the meta device, which holds no numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attnlaws.reference.bert import Bert, BertConfig
from attnlaws.reference.gpt import GPT, GPT2, GPT3
from attnlaws.reference.llama import Llama, LlamaConfig
from attnlaws.reference.t5 import T5, T5Config
from torch import nn


def count(model: nn.Module, ending: str = "") -> int:
    """Parameters whose name has that ending; what is tied counts once."""
    return sum(p.numel() for name, p in model.named_parameters() if name.endswith(ending))


@pytest.mark.parametrize(
    ("size", "parameters"),
    [("small", 124_439_808), ("medium", 354_823_168), ("large", 774_030_080), ("xl", 1_557_611_200)],
)
def test_gpt2s_sizes(size: str, parameters: int) -> None:
    """V E + C E + layers (12 E^2 + 13 E) + 2 E: embeddings, positions, blocks, the last norm; the head is the embedding."""
    with torch.device("meta"):
        model = GPT(GPT2[size])
    c = model.config
    E = c.d_model
    assert count(model) == parameters
    assert parameters == (c.vocab_size + c.context_length) * E + c.num_layers * (12 * E * E + 13 * E) + 2 * E


@pytest.mark.parametrize(
    ("size", "millions"),
    [
        ("small", 125), ("medium", 356), ("large", 760), ("xl", 1316),
        ("2.7b", 2652), ("6.7b", 6658), ("13b", 12853), ("175b", 174604),
    ],
)  # fmt: skip
def test_gpt3s_family(size: str, millions: int) -> None:
    """The names of the sizes are these counts, rounded: 125M, 350M, 760M, 1.3B, 2.7B, 6.7B, 13B, 175B."""
    with torch.device("meta"):
        model = GPT(GPT3[size])
    assert round(count(model) / 1e6) == millions
    E, c = model.config.d_model, model.config
    assert count(model) == (c.vocab_size + c.context_length) * E + c.num_layers * (12 * E * E + 13 * E) + 2 * E


def test_gpt3s_table_of_matrices() -> None:
    """The eight lines that sum to 175,181,291,520. A complete count has more and less: the unembedding is the embedding
    (-617,558,016), biases (+10,616,832), norms (+4,743,168) and positions (+25,165,824) are there: 174,604,259,328.
    """
    with torch.device("meta"):
        model = GPT(replace(GPT3["175b"], tied=False))
        tied = GPT(GPT3["175b"])
    c_attn = count(model, "attn.c_attn.weight")
    table = {
        "embedding": count(model, "wte.weight"),
        "key": c_attn // 3,
        "query": c_attn // 3,
        "value": c_attn // 3,
        "output": count(model, "attn.c_proj.weight"),
        "up": count(model, "c_fc.weight"),
        "down": count(model, "mlp.c_proj.weight"),
        "unembedding": count(model, "lm_head.weight"),
    }
    assert table == {
        "embedding": 617_558_016,
        "key": 14_495_514_624,
        "query": 14_495_514_624,
        "value": 14_495_514_624,
        "output": 14_495_514_624,
        "up": 57_982_058_496,
        "down": 57_982_058_496,
        "unembedding": 617_558_016,
    }
    assert sum(table.values()) == 175_181_291_520
    biases = sum(count(model, name) for name in ("c_attn.bias", "c_proj.bias", "c_fc.bias"))
    norms = sum(p.numel() for name, p in model.named_parameters() if "ln_" in name)
    assert (biases, norms, count(model, "wpe.weight")) == (10_616_832, 4_743_168, 25_165_824)
    assert count(model) == sum(table.values()) + biases + norms + count(model, "wpe.weight")
    assert count(tied) == count(model) - table["unembedding"] == 174_604_259_328
    assert {GPT3["175b"].d_head, GPT3["13b"].d_head} == {128}


def test_the_other_models_sizes() -> None:
    """BERT base with its masked language model's head, T5 small, Llama 7B."""
    with torch.device("meta"):
        made = [Bert(BertConfig()), T5(T5Config()), Llama(LlamaConfig())]
    assert [count(model) for model in made] == [109_514_298, 60_506_624, 6_738_415_616]
