"""Models of transformers with eager attention, small and with random weights."""

from __future__ import annotations

from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM


def gemma2() -> nn.Module:
    """Gemma 2 with a window of 4 in every second layer."""
    config = Gemma2Config(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        max_position_embeddings=40,
        sliding_window=4,
        query_pre_attn_scalar=4,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    config._attn_implementation = "eager"
    return Gemma2ForCausalLM(config)
