"""What libraries call the arguments of attention: one table, role -> names.

Sources: the signatures of torch, JAX, Keras, MLX, tinygrad, flash-attn, xFormers, FlashInfer, Transformer
Engine, ONNX, transformers and diffusers.
"""

from __future__ import annotations

NAMES: dict[str, tuple[str, ...]] = {
    "query": ("query", "q", "queries", "xq", "query_states", "query_layer", "q_states"),
    "key": ("key", "k", "keys", "xk", "key_states", "key_layer", "k_states"),
    "value": ("value", "v", "values", "xv", "value_states", "value_layer", "v_states"),
    "mask": ("attn_mask", "mask", "attention_mask", "masks", "src_mask", "tgt_mask", "atten_mask"),
    "bias": ("bias", "attn_bias", "attention_bias", "score_bias"),
    "padding": ("key_padding_mask", "src_key_padding_mask", "padding_mask", "key_mask", "kv_mask"),
    "causal": ("is_causal", "causal", "use_causal_mask", "unidirectional", "causal_mask"),
    "scale": ("scale", "sm_scale", "softmax_scale", "scaling", "attn_scale", "scale_factor", "qk_scale"),
    "grouped": ("enable_gqa", "gqa"),
    "dropout": ("dropout_p", "dropout", "dropout_rate", "attn_dropout", "p_dropout"),
    "training": ("training", "train"),
    "weights": (
        "need_weights",
        "return_weights",
        "return_attention",
        "output_attentions",
        "return_attn_probs",
        "return_attention_scores",
        "return_attn_weights",
        "return_attention_weights",
    ),
    "module": ("module",),
    "window": ("window_size", "sliding_window", "local_window_size", "window", "attn_window_size"),
    "window_left": ("window_left", "left_window_size"),
    "window_right": ("window_right", "right_window_size"),
    "softcap": (
        "softcap",
        "soft_cap",
        "logit_cap",
        "logit_softcapping",
        "attn_logits_soft_cap",
        "logits_soft_cap",
        "attn_logit_softcapping",
    ),
    "alibi": ("alibi_slopes",),
    "sinks": ("sinks", "s_aux", "learnable_sink", "attention_sinks", "head_sink"),
    "lse": ("return_lse", "return_softmax_lse", "return_logsumexp", "return_residual"),
    "offsets_q": ("cu_seqlens_q", "cu_seqlens", "cu_seq_q", "cu_seq_lens_q"),
    "offsets_k": ("cu_seqlens_k", "cu_seqlens_kv", "cu_seq_k", "cu_seq_lens_k"),
    "longest_q": ("max_seqlen_q", "max_seqlen", "max_q", "max_length_q"),
    "longest_k": ("max_seqlen_k", "max_seqlen_kv", "max_k", "max_length_k"),
}

ROLE_OF: dict[str, str] = {name: role for role, names in NAMES.items() for name in names}


def role_of(parameter: str) -> str | None:
    """The role of a parameter by its name, whatever its case; None if the name is not in the table."""
    return ROLE_OF.get(parameter) or ROLE_OF.get(parameter.lower())
