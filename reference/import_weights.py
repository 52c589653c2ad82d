"""The reference models with the configuration and weights of a model of transformers, which need not be installed here.

Each takes the model with its language modelling head, and gives ours on its device and in its dtype, in its mode. What a
configuration asks for and ours does not have is a ValueError, never left out, and so is a model of another class. Weights are
copies. To compare the two, call eval() on both: each draws its own dropout. With padding on the left give transformers
position_ids, (attention_mask.cumsum(1) - 1).clamp(min=0): ours counts tokens alone, theirs counts padding too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .bert import Bert, BertConfig
from .gpt import GPT, GPTConfig
from .llama import Llama, LlamaConfig
from .t5 import T5, T5Config

Model = TypeVar("Model", bound=nn.Module)

_SAME = {"gelu_pytorch_tanh": "gelu_new", "swish": "silu"}


def gpt_from_transformers(model: Any) -> GPT:
    """From a GPT2LMHeadModel. Its matrices are (in, out), ours (out, in)."""
    _check_class(model, "GPT2LMHeadModel")
    c = model.config
    _refuse(c, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    config = GPTConfig(
        vocab_size=c.vocab_size,
        context_length=c.n_positions,
        d_model=c.n_embd,
        num_layers=c.n_layer,
        num_heads=c.n_head,
        d_ff=c.n_inner,
        activation=_activation(c.activation_function),
        tied=_tied(model),
        eps=c.layer_norm_epsilon,
        embedding_dropout=c.embd_pdrop,
        attention_dropout=c.attn_pdrop,
        residual_dropout=c.resid_pdrop,
    )

    def source(name: str, weights: dict[str, Tensor]) -> Tensor:
        if name == "lm_head.weight":
            return weights[name]
        found = weights["transformer." + name]
        return found.T if ".c_" in name and name.endswith("weight") else found

    return _load(GPT(config), model, source)


def bert_from_transformers(model: Any) -> Bert:
    """From a BertForMaskedLM."""
    _check_class(model, "BertForMaskedLM")
    c = model.config
    _refuse(c, is_decoder=False, add_cross_attention=False)
    if not _tied(model):
        raise ValueError("the head's matrix is not the embedding, as it is in BERT")
    config = BertConfig(
        vocab_size=c.vocab_size,
        context_length=c.max_position_embeddings,
        num_segments=c.type_vocab_size,
        d_model=c.hidden_size,
        num_layers=c.num_hidden_layers,
        num_heads=c.num_attention_heads,
        d_ff=c.intermediate_size,
        activation=_activation(c.hidden_act),
        eps=c.layer_norm_eps,
        dropout=c.hidden_dropout_prob,
        attention_dropout=c.attention_probs_dropout_prob,
    )
    names = {
        "embedding.": "bert.embeddings.word_embeddings.",
        "position.": "bert.embeddings.position_embeddings.",
        "segment.": "bert.embeddings.token_type_embeddings.",
        "embedding_norm.": "bert.embeddings.LayerNorm.",
        "layers.": "bert.encoder.layer.",
        "attention.query.": "attention.self.query.",
        "attention.key.": "attention.self.key.",
        "attention.value.": "attention.self.value.",
        "attention.output.": "attention.output.dense.",
        "attention_norm.": "attention.output.LayerNorm.",
        "mlp.c_fc.": "intermediate.dense.",
        "mlp.c_proj.": "output.dense.",
        "mlp_norm.": "output.LayerNorm.",
        "transform.": "cls.predictions.transform.dense.",
        "transform_norm.": "cls.predictions.transform.LayerNorm.",
        "lm_head.": "cls.predictions.decoder.",
    }
    return _load(Bert(config), model, _renamed(names))


def t5_from_transformers(model: Any) -> T5:
    """From a T5ForConditionalGeneration. Whether logits are scaled goes with whether they are tied, as in both T5s."""
    _check_class(model, "T5ForConditionalGeneration", "MT5ForConditionalGeneration")
    c = model.config
    if c.scale_decoder_outputs != _tied(model):
        raise ValueError(
            "the logits are scaled where the head is not tied, or not scaled where it is: T5 has no such model"
        )
    config = T5Config(
        vocab_size=c.vocab_size,
        d_model=c.d_model,
        d_head=c.d_kv,
        num_heads=c.num_heads,
        d_ff=c.d_ff,
        num_layers=c.num_layers,
        num_decoder_layers=c.num_decoder_layers,
        num_buckets=c.relative_attention_num_buckets,
        max_distance=c.relative_attention_max_distance,
        activation=_activation(c.dense_act_fn),
        gated=c.is_gated_act,
        tied=_tied(model),
        eps=c.layer_norm_epsilon,
        dropout=c.dropout_rate,
        start_id=c.decoder_start_token_id or 0,
    )

    def source(name: str, weights: dict[str, Tensor]) -> Tensor:
        if name == "embedding.weight":
            return weights["shared.weight"]
        if name.endswith("relative_bias.weight"):
            return weights[f"{name.split('.')[0]}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        last = 2 if name.startswith("decoder.") else 1
        names = {
            ".layers.": ".block.",
            ".attention_norm.": ".layer.0.layer_norm.",
            ".attention.": ".layer.0.SelfAttention.",
            ".cross_norm.": ".layer.1.layer_norm.",
            ".cross.": ".layer.1.EncDecAttention.",
            ".mlp_norm.": f".layer.{last}.layer_norm.",
            ".mlp.gate_proj.": f".layer.{last}.DenseReluDense.wi_0.",
            ".mlp.up_proj.": f".layer.{last}.DenseReluDense.wi_1.",
            ".mlp.down_proj.": f".layer.{last}.DenseReluDense.wo.",
            ".mlp.c_fc.": f".layer.{last}.DenseReluDense.wi.",
            ".mlp.c_proj.": f".layer.{last}.DenseReluDense.wo.",
            "coder.norm.": "coder.final_layer_norm.",
        }
        return _renamed(names)(name, weights)

    return _load(T5(config), model, source)


def llama_from_transformers(model: Any) -> Llama:
    """From a LlamaForCausalLM or a MistralForCausalLM."""
    _check_class(model, "LlamaForCausalLM", "MistralForCausalLM")
    c = model.config
    rope = c.rope_parameters
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"rope_type {rope['rope_type']!r} changes the rotations; only 'default' is known here")
    if getattr(c, "mlp_bias", False) or getattr(c, "attention_dropout", 0.0):
        raise ValueError("mlp_bias and attention_dropout are not part of Llama here")
    config = LlamaConfig(
        vocab_size=c.vocab_size,
        d_model=c.hidden_size,
        num_layers=c.num_hidden_layers,
        num_heads=c.num_attention_heads,
        num_kv_heads=c.num_key_value_heads,
        d_head=c.head_dim,
        d_ff=c.intermediate_size,
        activation=_activation(c.hidden_act),
        rope_base=rope["rope_theta"],
        window=getattr(c, "sliding_window", None),
        tied=_tied(model),
        bias=getattr(c, "attention_bias", False),
        eps=c.rms_norm_eps,
    )
    names = {
        "embedding.": "model.embed_tokens.",
        "layers.": "model.layers.",
        "attention_norm.": "input_layernorm.",
        "attention.": "self_attn.",
        "mlp_norm.": "post_attention_layernorm.",
        "norm.": "model.norm.",
    }
    return _load(Llama(config), model, _renamed(names))


def _check_class(model: object, *names: str) -> None:
    """By name, as transformers need not be there."""
    if not any(kind.__name__ in names for kind in type(model).__mro__):
        raise ValueError(f"model must be a {' or '.join(names)}, with its head, not {type(model).__name__}")


def _renamed(names: dict[str, str]) -> Callable[[str, dict[str, Tensor]], Tensor]:
    """The weight whose name is ours with the parts replaced, in one pass from the left."""
    parts = re.compile("|".join(re.escape(part) for part in names))
    return lambda name, weights: weights[parts.sub(lambda found: names[found[0]], name)]


def _load(ours: Model, theirs: Any, source: Callable[[str, dict[str, Tensor]], Tensor]) -> Model:
    sizes = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"the model has {sizes[1]} parameters and ours {sizes[0]}: it has parts that are not known here"
        )
    weights = dict(theirs.state_dict())
    first = next(iter(weights.values()))
    ours.to(device=first.device, dtype=first.dtype)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(source(name, weights))
    ours.train(theirs.training)
    return ours


def _tied(model: Any) -> bool:
    head: nn.Module = model.get_output_embeddings()
    return head.weight is model.get_input_embeddings().weight


def _activation(name: str) -> str:
    return _SAME.get(name, name)


def _refuse(config: Any, **wanted: object) -> None:
    for name, value in wanted.items():
        if getattr(config, name, value) != value:
            raise ValueError(f"{name} = {getattr(config, name)!r} is not known here, only {value!r}")
