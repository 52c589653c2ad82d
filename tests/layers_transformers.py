"""Attention modules of transformers, built from a config with random weights: factories for the command line.

attnlaws check tests/layers_transformers.py:gpt2
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def _config(kind: str, implementation: str = "sdpa", **options: Any) -> Any:
    import transformers

    made = getattr(transformers, kind)(**options)
    made._attn_implementation = implementation
    return made


def gpt2(implementation: str = "sdpa") -> nn.Module:
    """GPT2Attention: Conv1D, fused q | k | v; causal by the flag that sdpa gets where no mask is given."""
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    return GPT2Attention(_config("GPT2Config", implementation, n_embd=16, n_head=4, n_layer=1), layer_idx=0)


def gpt2_eager() -> nn.Module:
    """The same with the eager function, which sees all tokens unless a mask says otherwise."""
    return gpt2("eager")


def bert_self(implementation: str = "sdpa") -> nn.Module:
    """BertSelfAttention: query, key, value, and no output projection."""
    from transformers.models.bert.modeling_bert import BertSelfAttention

    return BertSelfAttention(_config("BertConfig", implementation, hidden_size=16, num_attention_heads=4))


def bert() -> nn.Module:
    """BertAttention: the same with its output, the residual and the norm."""
    from transformers.models.bert.modeling_bert import BertAttention

    return BertAttention(_config("BertConfig", hidden_size=16, num_attention_heads=4))


def t5(relative: bool = False) -> nn.Module:
    """T5Attention of an encoder: no scale, and no bias of relative positions."""
    from transformers.models.t5.modeling_t5 import T5Attention

    return T5Attention(
        _config("T5Config", d_model=16, d_kv=4, num_heads=4), has_relative_attention_bias=relative, layer_idx=0
    )


def t5_relative() -> nn.Module:
    """The same with its bias of relative positions."""
    return t5(relative=True)


class Rotated(nn.Module):
    """LlamaAttention with the rotary tables that its model gives it."""

    def __init__(self, implementation: str) -> None:
        super().__init__()
        from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

        config = _config(
            "LlamaConfig", implementation, hidden_size=16, num_attention_heads=4, num_key_value_heads=2, head_dim=4
        )
        self.rotary, self.attention = LlamaRotaryEmbedding(config), LlamaAttention(config, layer_idx=0)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        import torch

        places = torch.arange(hidden_states.shape[1], device=hidden_states.device)[None]
        tables = self.rotary(hidden_states, places)
        out: Tensor = self.attention(hidden_states, tables, attention_mask)[0]
        return out


def llama() -> nn.Module:
    """LlamaAttention, 4 heads on 2, rotary positions, sdpa."""
    return Rotated("sdpa")


def llama_eager() -> nn.Module:
    """The same with the eager function."""
    return Rotated("eager")


ALL = (gpt2, gpt2_eager, bert_self, bert, t5, t5_relative, llama, llama_eager)
