"""Small models of the reference, for the laws of models where no target is given, and as presets."""

from __future__ import annotations

from ..reference.bert import Bert, BertConfig
from ..reference.gpt import GPT, GPTConfig
from ..reference.llama import Llama, LlamaConfig
from ..reference.t5 import T5, T5Config


def gpt() -> GPT:
    """GPT-2: pre-LayerNorm, learned positions, tied embeddings, a cache."""
    return GPT(GPTConfig(vocab_size=13, context_length=24, d_model=12, num_layers=2, num_heads=3))


def llama() -> Llama:
    """Llama: rotary positions, grouped heads, RMSNorm, SwiGLU, a cache."""
    return Llama(LlamaConfig(vocab_size=13, d_model=16, num_layers=2, num_heads=4, num_kv_heads=2, d_ff=20))


def windowed() -> Llama:
    """The same with a sliding window, as Mistral has it."""
    return Llama(LlamaConfig(vocab_size=13, d_model=16, num_layers=1, num_heads=4, num_kv_heads=2, d_ff=20, window=3))


def bert() -> Bert:
    """BERT: an encoder, post-LayerNorm, segments."""
    return Bert(BertConfig(vocab_size=13, context_length=24, d_model=12, num_layers=2, num_heads=3, d_ff=20))


def t5() -> T5:
    """T5: an encoder and a decoder, relative positions, no scale."""
    return T5(T5Config(vocab_size=13, d_model=12, num_layers=2, num_heads=3, d_head=4, d_ff=20))
