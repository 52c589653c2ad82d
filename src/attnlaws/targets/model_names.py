"""What libraries call the parameters of language models and of their generate methods, and what their names say of them.

Sources: the signatures of transformers, nanoGPT, minGPT, llama, litgpt, x-transformers, torch's tutorials and textbooks.
"""

from __future__ import annotations

import re

#: role -> names of parameters of a model's forward
NAMES: dict[str, tuple[str, ...]] = {
    "tokens": ("input_ids", "idx", "tokens", "ids", "token_ids", "x", "inputs", "input", "in_idx", "src", "seq", "text",
               "source", "src_ids", "source_ids", "src_tokens", "source_tokens"),
    "decoder": ("decoder_input_ids", "tgt", "trg", "decoder_ids", "target_ids", "tgt_ids", "y", "decoder_tokens", "tgt_tokens"),
    "mask": ("attention_mask", "mask", "padding_mask", "pad_mask", "attn_mask", "key_padding_mask", "src_key_padding_mask",
             "input_mask", "src_mask", "token_mask"),
    "decoder_mask": ("decoder_attention_mask", "tgt_mask", "trg_mask", "tgt_key_padding_mask", "decoder_mask",
                     "decoder_padding_mask", "tgt_padding_mask", "target_mask"),
    "positions": ("position_ids", "positions", "pos_ids", "position_id", "pos"),
    "segments": ("token_type_ids", "segment_ids", "segments", "token_types", "segment_label", "type_ids"),
    "labels": ("labels", "targets", "target", "label", "lm_labels", "masked_lm_labels"),
    "cache": ("past_key_values", "cache", "past", "layer_past", "past_key_value", "past_kvs", "kv_cache", "kv_caches",
              "past_kv", "caches", "kvs", "kv", "mems", "past_states"),
    "use_cache": ("use_cache", "return_cache", "use_kv_cache", "return_kv", "use_past"),
    "start": ("start_pos", "pos_offset", "position_offset", "start_position", "offset", "past_length", "cache_len", "past_len"),
    "cache_places": ("input_pos", "cache_position", "cache_positions"),
}  # fmt: skip

#: role -> names of parameters of a generate method
GENERATE: dict[str, tuple[str, ...]] = {
    "tokens": ("input_ids", "idx", "tokens", "ids", "token_ids", "x", "inputs", "input", "prompt", "prompts", "prompt_ids",
               "prompt_tokens", "context", "start_tokens"),
    "new": ("max_new_tokens", "max_tokens", "n_tokens", "num_tokens", "n_new_tokens", "num_new_tokens", "steps", "max_gen_len",
            "new_tokens", "n", "num_steps"),
    "total": ("max_length", "max_len", "max_seq_len", "total_length", "max_returned_tokens", "length"),
    "sample": ("do_sample", "sample", "sampling"),
    "greedy": ("greedy", "argmax"),
    "temperature": ("temperature", "temp"),
    "top_k": ("top_k", "topk", "k"),
    "top_p": ("top_p", "topp", "nucleus_p"),
    "use_cache": ("use_cache", "use_kv_cache", "kv_cache", "cache"),
    "eos": ("eos_token_id", "eos_id", "eos", "eos_token", "stop_token", "stop_id", "end_token"),
    "pad": ("pad_token_id", "pad_id", "pad", "pad_token"),
    "mask": ("attention_mask", "mask", "padding_mask"),
}  # fmt: skip

LOGITS = ("logits", "prediction_logits", "lm_logits", "prediction_scores", "scores", "output", "last_hidden_state")
CACHES = ("past_key_values", "cache", "past", "presents", "present_key_values", "kv_cache", "kv_caches", "new_cache",
          "caches", "kvs", "mems", "past_kvs")  # fmt: skip
VOCABULARIES = ("vocab_size", "n_vocab", "vocab", "num_tokens", "ntoken", "n_tokens", "vocabulary", "vocabulary_size",
                "num_embeddings", "padded_vocab_size")  # fmt: skip
LENGTHS = ("block_size", "n_positions", "max_position_embeddings", "context_length", "n_ctx", "max_seq_len", "max_length",
           "seq_len", "max_len", "context_size", "max_seq_length")  # fmt: skip
#: attributes that say how many tokens a position sees
WINDOWS = ("window", "window_size", "sliding_window", "sliding_window_size", "local_window_size", "attention_window",
           "attn_window", "attn_window_size", "attn_windows", "local_window", "local_attn_window_size")  # fmt: skip
#: methods of a model that give an empty cache, those that empty the one inside it, and those of a cache object
MAKERS = ("make_cache", "new_cache", "init_cache", "empty_cache", "create_cache", "get_cache", "allocate_cache", "setup_cache",
          "make_kv_cache", "init_kv_cache", "new_kv_cache")  # fmt: skip
RESETS = (
    "reset_cache",
    "clear_cache",
    "reset_kv_cache",
    "clear_kv_cache",
    "reset_caches",
    "clear_caches",
    "empty_kv_cache",
)
CROPS = ("crop", "truncate", "crop_to", "rewind_to", "roll_back")
REORDERS = ("reorder_cache", "reorder", "batch_select_indices", "index_select", "select", "gather")
CACHE_RESETS = ("reset", "clear", "empty")
CACHE_LENGTHS = ("get_seq_length", "length", "seq_len", "seq_length", "size", "num_tokens")

_ROLE: dict[str, str] = {name: role for role, names in reversed(NAMES.items()) for name in names}
_GENERATE_ROLE: dict[str, str] = {name: role for role, names in reversed(GENERATE.items()) for name in names}

#: names of classes that say what a model is, the surest first
_SAYS = (
    ("decoder", re.compile(r"causal|lmhead|decoder(?!.*encoder)|autoregressive", re.IGNORECASE)),
    ("encoder", re.compile(r"bert|masked|mlm|encoder|electra", re.IGNORECASE)),
    ("decoder", re.compile(r"gpt|llama|mistral|gemma|qwen|bloom|falcon|language_?model|charlm|LM$|LM[A-Z_]", re.IGNORECASE)),
)  # fmt: skip


def role_of(parameter: str) -> str | None:
    """The role of a parameter of forward; None if the name is not in the table."""
    return _ROLE.get(parameter.lower())


def generate_role_of(parameter: str) -> str | None:
    """The role of a parameter of generate; None if the name is not in the table."""
    return _GENERATE_ROLE.get(parameter.lower())


def said_kind(name: str) -> str:
    """What the name of a class says: "decoder", "encoder", or "" where it says nothing."""
    return next((kind for kind, words in _SAYS if words.search(name)), "")
