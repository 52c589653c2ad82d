"""The closed table of conventions: what an implementation may choose without being wrong.

What is not in this table is not a convention. Each has its choices, and a source for each choice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True)
class Choice:
    """One convention: what is chosen, the closed list of choices, and who documents them."""

    question: str
    choices: tuple[str, ...]
    source: str


#: what the smallest number of float16 does, where it is added to scores in float32 as a fill: -65504 is too near for them to vanish
HALF_FILL = "uniform, unmasked in float16"

TABLE: dict[str, Choice] = {
    "layout": Choice(
        "axes of query, key and value",
        ("BHSD", "BSHD", "SBHD", "SHD", "HSD", "BSD", "SD", "packed"),
        "torch SDPA and ONNX: BHSD; flash-attn, JAX, Keras: BSHD; Transformer Engine, fairseq: SBHD; one unbatched sequence: SHD, HSD, SD; one head: BSD; packed (T, H, D) with offsets: flash-attn's varlen functions",
    ),
    "output_layout": Choice(
        "axes of the output",
        ("as the input", "heads and length exchanged", "heads merged"),
        "transformers' attention functions take BHSD and return BSHD; heads merged: (B, L, H*D), as a layer's last step has it",
    ),
    "causal": Choice(
        "how causality is asked for",
        ("not offered", "flag", "always"),
        "a flag in most libraries; textbook layers are always causal",
    ),
    "alignment": Choice(
        "the causal triangle when the lengths differ",
        ("top-left", "bottom-right", "square only"),
        "top-left: torch SDPA, JAX, Keras; bottom-right: flash-attn >= 2.1, MLX, x-transformers",
    ),
    "single_query": Choice(
        "what one causal query sees",
        ("as aligned", "all keys"),
        "transformers drops the flag for a single query, the decoding step",
    ),
    "mask_means": Choice(
        "True in a boolean mask",
        ("attend", "masked"),
        "attend: torch SDPA, JAX, Keras, ONNX; masked: torch.nn.MultiheadAttention",
    ),
    "finite_mask": Choice(
        "a finite value in an additive mask",
        ("added to the score", "masks unless 0"),
        "added: torch SDPA, ONNX; masks unless 0: Swin Transformer's window masks",
    ),
    "padding_means": Choice(
        "True in a key padding mask",
        ("attend", "masked"),
        "masked: torch.nn.MultiheadAttention; attend: Keras, x-transformers",
    ),
    "mask_and_causal": Choice(
        "a mask together with the causal flag",
        ("intersection", "refused", "the mask alone"),
        "intersection: JAX, Keras, ONNX; refused: torch SDPA by its documentation; the mask alone: transformers, FlashInfer (declared only)",
    ),
    "empty_bool": Choice(
        "a row whose keys are all masked by a boolean mask",
        ("zeros", "nan", "uniform", "unmasked", HALF_FILL),
        "zeros: torch SDPA >= 2.5, flash-attn, ONNX; NaN: softmax of -inf; uniform: JAX, Keras, MLX (a finite fill); the same, and unmasked in float16: Keras on torch (the smallest number of the dtype)",
    ),
    "empty_additive": Choice(
        "a row whose keys all have -inf added", ("zeros", "nan", "uniform", "unmasked"), "as for boolean masks"
    ),
    "empty_keep": Choice(
        "a row whose keys are all 0 in a 1/0 mask",
        ("zeros", "nan", "uniform", "unmasked", HALF_FILL),
        "as for boolean masks",
    ),
    "empty_padding": Choice(
        "a sample whose keys are all padding",
        ("zeros", "nan", "uniform", "unmasked", HALF_FILL),
        "as for boolean masks",
    ),
    "empty_causal": Choice(
        "a row that the causal triangle leaves without a key (bottom-right, more queries than keys)",
        ("zeros", "nan", "uniform", "unmasked"),
        "zeros: flash-attn; uniform: MLX",
    ),
    "window": Choice(
        "what the numbers of a window count",
        (
            "left and right",
            "n - 1 before",
            "n before",
            "n - 1 before, none after",
            "n before, none after",
            "n - 1 each side",
            "n each side",
        ),
        "left and right, ends included: flash-attn, JAX, ONNX; n - 1 before: transformers, Mistral; n each side: JAX; n - 1 each side: Keras",
    ),
    "window_anchor": Choice(
        "the place of the first query in a window when the lengths differ",
        ("top-left", "bottom-right"),
        "top-left: JAX, ONNX without a cache; bottom-right: flash-attn",
    ),
    "alibi": Choice(
        "the distance that ALiBi slopes multiply",
        ("j - i", "-|i - j|"),
        "j - i: Press et al. 2022; -|i - j|, from the bottom-right: flash-attn",
    ),
    "lse_base": Choice("the base of the log-sum-exp", ("e", "2"), "e: flash-attn, JAX, flex_attention; 2: FlashInfer"),
    "empty_lse": Choice(
        "the log-sum-exp of a row without a key",
        ("-inf", "+inf", "nan", "finite"),
        "-inf: flex_attention, FlashAttention 3; +inf: flash-attn 2; finite: a finite fill",
    ),
    "default_scale": Choice(
        "the scale where none is given",
        ("1/sqrt(D)", "1", "required"),
        "1/sqrt(D): Vaswani et al. 2017, most libraries; 1: T5, cuDNN (declared only); required: MLX",
    ),
    "negative_scale": Choice(
        "a negative scale",
        ("computed", "refused", "nan"),
        "computed: torch, JAX, MLX, Keras; refused: onnxruntime; NaN: ONNX applies sqrt(scale) to query and key, torch's CPU flash kernel multiplies -inf by the scale",
    ),
    "zero_scale": Choice(
        "a scale of zero", ("computed", "refused", "nan"), "computed: torch, JAX; refused: onnxruntime"
    ),
    "precision_float64": Choice(
        "how float64 is computed", (), "throughout; or float32 inside: JAX, transformers' eager softmax"
    ),
    "precision_float32": Choice("how float32 is computed", (), "float32; tf32 where a CUDA device offers it"),
    "precision_bfloat16": Choice(
        "how bfloat16 is computed", (), "fused: float32 inside; naive: each intermediate stored"
    ),
    "precision_float16": Choice(
        "how float16 is computed", (), "fused: float32 inside; naive: each intermediate stored"
    ),
}


@dataclass(frozen=True)
class Conventions:
    """The choices of one target. `known` says how each was found: "declared", "probed", "assumed" or "unclear"."""

    layout: str = "BHSD"
    output_layout: str = "as the input"
    causal: str = "not offered"
    alignment: str = "top-left"
    single_query: str = "as aligned"
    mask_means: str = "attend"
    finite_mask: str = "added to the score"
    padding_means: str = "masked"
    mask_and_causal: str = "intersection"
    empty_bool: str = "zeros"
    empty_additive: str = "zeros"
    empty_keep: str = "zeros"
    empty_padding: str = "zeros"
    empty_causal: str = "zeros"
    window: str = "left and right"
    window_anchor: str = "top-left"
    alibi: str = "j - i"
    lse_base: str = "e"
    empty_lse: str = "-inf"
    default_scale: str = "1/sqrt(D)"
    negative_scale: str = "computed"
    zero_scale: str = "computed"
    known: dict[str, str] = field(default_factory=dict)

    def found(self, how: str, **choices: str) -> Conventions:
        """These conventions with some choices set and marked as found that way."""
        return replace(self, **choices, known={**self.known, **dict.fromkeys(choices, how)})

    def empty_row(self, route: str, dtype: str) -> str:
        """What a row without a visible key returns in a dtype when masked through this route (or "causal")."""
        choice = str(getattr(self, f"empty_{route}"))
        if choice == HALF_FILL:
            return "unmasked" if dtype == "float16" else "uniform"
        return choice


class UnknownChoice(ValueError):
    """A declared convention that the table doesn't have."""


def declared(choices: dict[str, Any]) -> dict[str, str]:
    """Check declared conventions against the table; return them as strings.

    Raises UnknownChoice naming the convention, the value and what is possible.
    """
    names = {f.name for f in fields(Conventions)} - {"known"}
    checked = {}
    for name, value in choices.items():
        if name not in names:
            raise UnknownChoice(f"unknown convention {name!r}; known: {', '.join(sorted(names))}")
        if str(value) not in TABLE[name].choices:
            raise UnknownChoice(f"{name} = {value!r} is not one of: {', '.join(TABLE[name].choices)}")
        checked[name] = str(value)
    return checked


@dataclass(frozen=True)
class Abilities:
    """What a target takes. What it doesn't take is not applicable, never wrong; `refusals` keeps its own words."""

    dtypes: tuple[str, ...] = ("float32",)
    routes: tuple[str, ...] = ()
    mask_shapes: tuple[str, ...] = ()
    bias: bool = False
    causal: bool = False
    rectangular: bool = True
    rectangular_causal: bool = True
    single_query: bool = True
    mask_with_causal: bool = True
    grouped: bool = False
    value_width: bool = True
    heads: bool = True
    batch: bool = True
    #: more samples run no more Python: a loop over samples would make them dear
    samples_are_free: bool = False
    scale: bool = False
    gradients: bool = False
    mask_gradient: bool = False
    #: a mask that is shared by the heads is given as (B, L, S)
    mask_without_heads: bool = False
    weights: bool = False
    #: options: a window, a soft cap, ALiBi slopes, sinks, a padding mask beside another, dropout, the log-sum-exp returned
    window: bool = False
    softcap: bool = False
    alibi: bool = False
    sinks: bool = False
    padding: bool = False
    dropout: bool = False
    lse: bool = False
    #: a window is taken in causal calls only
    window_causal: bool = False
    #: a window has a right end of its own
    window_right: bool = True
    #: what stands for a window without end: "-1", "None", or nothing does
    window_open: str = ""
    #: pairs of options that are refused together
    refused_pairs: frozenset[frozenset[str]] = frozenset()
    #: axes of the log-sum-exp
    lse_axes: str = "BHL"
    #: a key padding mask is given as numbers 1 and 0, not as booleans
    padding_numbers: bool = False
    #: the head sizes that are taken; empty where any is
    head_dims: tuple[int, ...] = ()
    views: tuple[str, ...] = ()
    #: new sizes cost time, since a program is compiled for each
    costly_sizes: bool = False
    refusals: dict[str, str] = field(default_factory=dict)
