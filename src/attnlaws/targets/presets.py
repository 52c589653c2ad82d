"""Presets: well-known targets by a short name, with what their libraries document declared.

Each preset is a function of the device that gives the callable; the library is imported then, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Preset = Callable[[str], Callable[..., Any]]


def _sdpa(backend: str | None) -> Preset:
    def make(device: str) -> Callable[..., Any]:
        import torch.nn.functional as F
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if backend is None:
            return F.scaled_dot_product_attention

        def scaled_dot_product_attention(
            query: Any,
            key: Any,
            value: Any,
            attn_mask: Any = None,
            dropout_p: float = 0.0,
            is_causal: bool = False,
            scale: float | None = None,
            enable_gqa: bool = False,
        ) -> Any:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return F.scaled_dot_product_attention(
                    query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
                )

        return scaled_dot_product_attention

    return make


def _flex(device: str) -> Callable[..., Any]:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """flex_attention with the mask and the causal rule as its score_mod, the way its documentation writes them."""
        shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        full = None if attn_mask is None else attn_mask.expand(shape)

        def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            if full is not None:
                cell = full[b, h, i, j]
                score = torch.where(cell, score, -torch.inf) if full.dtype == torch.bool else score + cell
            return torch.where(i >= j, score, -torch.inf) if is_causal else score

        plain = full is None and not is_causal
        with torch.compiler.set_stance("force_eager"):
            return flex_attention(query, key, value, None if plain else score_mod, scale=scale, enable_gqa=enable_gqa)

    return attention


def _mha(device: str) -> Callable[..., Any]:
    import torch

    modules: dict[Any, Any] = {}

    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, need_weights: bool = False) -> Any:
        """The attention inside torch.nn.MultiheadAttention: its projections are identities, heads go in and out merged."""
        batch, heads, queries, size = query.shape
        known = (heads * size, heads, query.dtype)
        if known not in modules:
            modules[known] = _identity_mha(torch, heads * size, heads, query)
        if attn_mask is not None and attn_mask.dim() == 4:
            attn_mask = attn_mask.expand(batch, heads, queries, key.shape[2]).reshape(batch * heads, queries, -1)
        merged = [x.transpose(1, 2).flatten(2) for x in (query, key, value)]
        output, weights = modules[known](
            *merged, attn_mask=attn_mask, need_weights=need_weights, average_attn_weights=False
        )
        return output.unflatten(2, (heads, size)).transpose(1, 2), weights

    return attention


def _identity_mha(torch: Any, width: int, heads: int, like: Any) -> Any:
    module = torch.nn.MultiheadAttention(width, heads, bias=False, batch_first=True).to(like).eval()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(width))
    return module.requires_grad_(False)


def _from(module: str, function: str) -> Preset:
    def make(device: str) -> Callable[..., Any]:
        import importlib

        return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]

    return make


def _mlx(device: str) -> Callable[..., Any]:
    from .mlx_arrays import scaled_dot_product_attention

    return scaled_dot_product_attention()


def _onnx(engine: str, opset: int) -> Preset:
    def make(device: str) -> Callable[..., Any]:
        from .onnx_model import attention_operator

        return attention_operator(engine, opset)

    return make


def _keras(backend: str | None) -> Preset:
    def make(device: str) -> Callable[..., Any]:
        from .keras_backend import choose_backend

        choose_backend(backend)
        from keras import ops

        return ops.dot_product_attention  # type: ignore[no-any-return]

    return make


def _keras_mha(device: str) -> Callable[..., Any]:
    from .keras_backend import choose_backend

    choose_backend()
    from .keras_attention import multi_head_attention

    return multi_head_attention()


def _contributed(name: str) -> Preset:
    def make(device: str) -> Callable[..., Any]:
        from . import onnx_model

        return getattr(onnx_model, name)()  # type: ignore[no-any-return]

    return make


PRESETS: dict[str, Preset] = {
    "torch.sdpa": _sdpa(None),
    "torch.sdpa[math]": _sdpa("MATH"),
    "torch.sdpa[flash]": _sdpa("FLASH_ATTENTION"),
    "torch.flex": _flex,
    "torch.mha": _mha,
    "transformers.sdpa": _from("transformers.integrations.sdpa_attention", "sdpa_attention_forward"),
    "transformers.eager": _from("transformers.models.llama.modeling_llama", "eager_attention_forward"),
    "transformers.gpt2": _from("transformers.models.gpt2.modeling_gpt2", "eager_attention_forward"),
    "jax.dpa": _from("jax.nn", "dot_product_attention"),
    "flax.dpa": _from("flax.linen", "dot_product_attention"),
    "flax.nnx.dpa": _from("flax.nnx", "dot_product_attention"),
    "onnx.attention": _onnx("runtime", 23),
    "onnx.attention[reference]": _onnx("reference", 23),
    "onnx.attention[24]": _onnx("runtime", 24),
    "onnx.attention[reference, 24]": _onnx("reference", 24),
    "onnx.attention[reference, 25]": _onnx("reference", 25),
    "keras.dpa": _keras(None),
    "keras.dpa[jax]": _keras("jax"),
    "keras.dpa[numpy]": _keras("numpy"),
    "keras.mha": _keras_mha,
    "mlx.sdpa": _mlx,
    "onnxruntime.mha": _contributed("multi_head_operator"),
    "onnxruntime.gqa": _contributed("grouped_query_operator"),
}

_SMALL = "vocab_size=11, bos_token_id=None, eos_token_id=None"
_LLAMA = (
    f"{_SMALL}, hidden_size=16, intermediate_size=20, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, "
    "max_position_embeddings=40"
)
#: models by a short name: addresses of small ones with random weights
MODELS: dict[str, str] = {
    "reference.gpt": "attnlaws.targets.shipped_models:gpt",
    "reference.llama": "attnlaws.targets.shipped_models:llama",
    "reference.mistral": "attnlaws.targets.shipped_models:windowed",
    "reference.bert": "attnlaws.targets.shipped_models:bert",
    "reference.t5": "attnlaws.targets.shipped_models:t5",
    "transformers.gpt2-lm": f"transformers:GPT2LMHeadModel({_SMALL}, n_embd=12, n_head=3, n_layer=2, n_positions=40)",
    "transformers.llama": f"transformers:LlamaForCausalLM({_LLAMA})",
    "transformers.mistral": f"transformers:MistralForCausalLM({_LLAMA}, sliding_window=4)",
    "transformers.bert": "transformers:BertForMaskedLM(vocab_size=11, hidden_size=12, intermediate_size=20, "
    "num_attention_heads=3, num_hidden_layers=2, max_position_embeddings=40)",
    "transformers.t5": "transformers:T5ForConditionalGeneration(vocab_size=11, d_model=12, d_kv=4, d_ff=20, num_heads=3, "
    "num_layers=2, decoder_start_token_id=0)",
}
