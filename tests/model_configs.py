"""Small models of transformers with drawn configurations and random weights, ours with the same, and how far they may be apart.

Both compute in float64. transformers takes its root mean square norms and rotary angles to float32; there, unless the test
is about them as they are, the norm is torch's own and the angles come from complex numbers, both in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis.strategies as st
import torch
from attnlaws.reference import import_weights
from attnlaws.reference.gpt import GPT
from attnlaws.reference.llama import Llama
from attnlaws.reference.objectives import causal_loss, shift_right, token_loss
from torch import Tensor, nn

LENGTH = 9  # of tokens, at most


@dataclass(frozen=True)
class Pair:
    """A model of transformers, ours with its weights, and tokens (B, L) with a mask (B, L) for both."""

    kind: str
    theirs: Any = field(repr=False)
    ours: nn.Module = field(repr=False)
    tokens: Tensor
    attention_mask: Tensor | None
    segments: Tensor | None
    target: Tensor | None

    @property
    def real(self) -> Tensor:
        """(B, L), True where logits are compared: of tokens, not of padding."""
        shown = self.tokens if self.target is None else self.target
        if self.attention_mask is None or self.target is not None:
            return torch.ones_like(shown, dtype=torch.bool)
        return self.attention_mask.bool()

    @property
    def labels(self) -> Tensor:
        """What is to be predicted, with some places ignored: (B, L), of the target for T5."""
        labels = (self.tokens if self.target is None else self.target).clone()
        labels[~self.real] = -100
        if self.causal:  # the first token has no token before it to be predicted from
            labels[:, 1:][~self.real[:, :-1]] = -100
        labels[0, -1] = -100
        return labels

    def logits(self, ours: nn.Module | None = None) -> Tensor:
        """(B, L, V) of our model, or of another in its place."""
        model = self.ours if ours is None else ours
        if self.target is not None:
            decoder_input = shift_right(self.target, 0)
            got: Tensor = model(self.tokens, decoder_input, attention_mask=self.attention_mask)
        elif self.segments is not None:
            got = model(self.tokens, attention_mask=self.attention_mask, segments=self.segments)
        else:
            got = model(self.tokens, attention_mask=self.attention_mask)
        return got

    def loss(self, logits: Tensor) -> Tensor:
        """Of our logits."""
        return (causal_loss if self.causal else token_loss)(logits, self.labels)

    @property
    def cached(self) -> bool:
        """Whether their cache is right for it. In transformers 5.24 it is not for a window of 1, where it keeps all keys (`[-1 + 1:]`),
        nor for a T5 whose decoder has more layers than the encoder, where `generate` makes it too small.
        """
        c = self.theirs.config
        return getattr(c, "sliding_window", None) != 1 and getattr(c, "num_decoder_layers", 0) <= c.num_hidden_layers

    @property
    def causal(self) -> bool:
        """Whether logits are of the next token."""
        return isinstance(self.ours, GPT | Llama)

    def answer(self) -> tuple[Tensor, Tensor]:
        """Their logits (B, L, V) and their loss, which they take to float32 for a next token."""
        given: dict[str, Any] = {"input_ids": self.tokens, "attention_mask": self.attention_mask, "labels": self.labels}
        if self.target is not None:
            given["decoder_input_ids"] = shift_right(self.target, 0)
        if self.segments is not None:
            given["token_type_ids"] = self.segments
        if self.causal and self.attention_mask is not None:
            given["position_ids"] = (self.attention_mask.cumsum(1) - 1).clamp(min=0)
        found = self.theirs(**given)
        return found.logits, found.loss


def moved(model: nn.Module, relative: float, generator: torch.Generator) -> nn.Module:
    """The model with each parameter, and the base of its rotations, moved at random by so much of itself at most."""
    if isinstance(model, Llama):
        config = replace(model.config, rope_base=model.config.rope_base * (1 + relative))
        other: nn.Module = Llama(config)
    else:
        other = type(model)(model.config)
    other.to(next(model.parameters()).dtype).train(model.training)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in other.parameters():
            share = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) * 2 - 1
            parameter.mul_(1 + relative * share.to(parameter.dtype))
    return other


def allowed(
    model: nn.Module, result: Callable[[nn.Module], list[Tensor]], unit: float, length: int
) -> tuple[list[Tensor], list[float]]:
    """Results of the model, and how far another right computation in arithmetic of this unit roundoff may be from each.

    Sums and products of length n give the exact result for parameters that are moved by a relative 6 sqrt(n) u at most, but
    for chance 1e-7 (Higham and Mary 2019). The parameters are moved by that, three times; four times the largest move of a
    result is for each of the two computations. A result that cancels is rounded where its summands were, which may be as
    large as the other results: so 8 u of the largest of all.
    """
    base = result(model)
    widest = max(max(p.shape) for p in model.parameters())
    relative = 6 * math.sqrt(widest + length + 16) * unit
    generator = torch.Generator().manual_seed(1)
    rounding = 8 * unit * max(float(b.detach().abs().max()) for b in base)
    largest = [0.0] * len(base)
    for _ in range(3):
        for k, other in enumerate(result(moved(model, relative, generator))):
            largest[k] = max(largest[k], float((other - base[k]).detach().abs().max()))
    return base, [rounding + 8 * change for change in largest]


# -- drawn ---------------------------------------------------------------------------------------------------------------


@st.composite
def pairs(draw: st.DrawFn, kind: str, *, exact: bool = True) -> Pair:
    """A configuration whose sizes differ pairwise, weights and tokens from a seed, padding on either side or none."""
    seed = draw(st.integers(0, 2**31 - 1))
    theirs = _theirs(draw, kind)
    generator = torch.Generator().manual_seed(seed)
    redraw(theirs, generator)
    theirs = theirs.double().eval()
    ours = getattr(import_weights, f"{'llama' if kind == 'mistral' else kind}_from_transformers")(theirs)
    if exact:
        _in_float64(theirs, ours)
    B, L = draw(st.sampled_from([(1, 5), (2, 7), (3, 4), (2, LENGTH)]))
    vocabulary = theirs.config.vocab_size
    tokens = torch.randint(vocabulary, (B, L), generator=generator)
    mask = None
    if draw(st.booleans()):
        side = draw(st.sampled_from(["left", "right"]))
        real = torch.randint(min(4, L), L + 1, (B, 1), generator=generator)
        place = torch.arange(L)[None] if side == "right" else torch.arange(L - 1, -1, -1)[None]
        mask = (place < real).long()
    segments = torch.randint(2, (B, L), generator=generator) if kind == "bert" else None
    target = torch.randint(vocabulary, (B, L - 2), generator=generator) if kind == "t5" else None
    return Pair(kind, theirs, ours, tokens, mask, segments, target)


def redraw(model: nn.Module, generator: torch.Generator) -> None:
    """Other parameters, so large that each matters: at their initial values norms are 1 and biases 0."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            vector = p.ndim == 1 and "bias" not in name
            p.copy_(1 + 0.3 * noise if vector else (noise / math.sqrt(max(p.shape)) if p.ndim == 2 else 0.5 * noise))


def _theirs(draw: st.DrawFn, kind: str) -> Any:
    import transformers

    layers, heads = draw(st.integers(1, 3)), draw(st.sampled_from([2, 3, 5]))
    head, eps = draw(st.sampled_from([4, 6, 8])), draw(st.sampled_from([1e-12, 1e-5, 1e-1]))
    activation = draw(st.sampled_from(["gelu", "gelu_new", "relu", "silu"]))
    tied, inner = draw(st.booleans()), draw(st.sampled_from([11, 29, 37]))
    width = heads * head
    tokens: dict[str, Any] = {"vocab_size": 23, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    common: dict[str, Any] = {**tokens, "attn_implementation": "eager"}
    if kind == "gpt":
        sizes: dict[str, Any] = {
            "n_positions": 17,
            "n_embd": width,
            "n_layer": layers,
            "n_head": heads,
            "n_inner": inner,
        }
        sizes |= {"embd_pdrop": 0.1, "attn_pdrop": 0.3, "resid_pdrop": 0.2}
        config = transformers.GPT2Config(
            **sizes, activation_function=activation, layer_norm_epsilon=eps, tie_word_embeddings=tied, **common
        )
        return transformers.GPT2LMHeadModel(config)
    if kind == "bert":
        sizes = {"max_position_embeddings": 17, "hidden_size": width, "num_hidden_layers": layers}
        sizes |= {"num_attention_heads": heads, "intermediate_size": inner}
        sizes |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.3}
        config = transformers.BertConfig(**sizes, hidden_act=activation, layer_norm_eps=eps, **common)
        return transformers.BertForMaskedLM(config)
    if kind == "t5":
        sizes = {"d_model": 14, "d_kv": head, "num_heads": heads, "d_ff": inner, "num_layers": layers}
        sizes |= {"num_decoder_layers": draw(st.integers(1, 3)), "relative_attention_num_buckets": 8}
        sizes |= {"relative_attention_max_distance": draw(st.sampled_from([7, 9, 20]))}
        config = transformers.T5Config(
            **sizes,
            feed_forward_proj=draw(st.sampled_from(["", "gated-"])) + activation,
            layer_norm_epsilon=eps,
            tie_word_embeddings=tied,
            decoder_start_token_id=0,
            **{**common, "pad_token_id": 0},
        )
        model = transformers.T5ForConditionalGeneration(config)
        if not tied:  # T5 1.1 has a head of its own
            model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        return model
    groups = draw(st.sampled_from([1, 2, 3]))
    sizes = {"hidden_size": width * groups, "num_hidden_layers": layers, "intermediate_size": inner, "head_dim": head}
    sizes |= {"num_attention_heads": heads * groups, "num_key_value_heads": heads}
    rope = {"rope_type": "default", "rope_theta": draw(st.sampled_from([10.0, 10_000.0, 500_000.0]))}
    more = {"hidden_act": activation, "rms_norm_eps": eps, "tie_word_embeddings": tied, "rope_parameters": rope}
    common["attn_implementation"] = "sdpa"  # the eager function takes its softmax to float32
    if kind == "llama":
        bias = draw(st.booleans())
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **more, attention_bias=bias, **common))
    window = draw(st.sampled_from([None, 1, 2, 4, LENGTH]))
    return transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, **more, sliding_window=window, **common))


def _in_float64(theirs: Any, ours: nn.Module) -> None:
    """Their root mean square norms by torch's module, their rotary tables by complex numbers; weights stay shared."""
    for module in list(theirs.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith(("RMSNorm", "T5LayerNorm")):
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(module, name, norm)
    if isinstance(ours, Llama):
        theirs.model.rotary_emb = Rotations(ours.config.head_size, ours.config.rope_base)


class Rotations(nn.Module):
    """exp(1j p base^(-2i/D)), its real and imaginary parts twice side by side as transformers wants them."""

    def __init__(self, head: int, base: float) -> None:
        super().__init__()
        self.step = torch.tensor([math.pow(base, -2 * i / head) for i in range(head // 2)], dtype=torch.float64)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        turn = torch.polar(torch.ones((), dtype=torch.float64), position_ids[..., None] * self.step)
        return torch.cat([turn.real, turn.real], dim=-1), torch.cat([turn.imag, turn.imag], dim=-1)


def gradients(pair: Pair) -> Callable[[nn.Module], list[Tensor]]:
    """Of a model of ours: the logits of tokens, the loss, and the gradient of the loss by each parameter, by name."""

    def result(model: nn.Module) -> list[Tensor]:
        model.zero_grad()
        logits = pair.logits(model)
        loss = pair.loss(logits)
        loss.backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        return [logits[pair.real].detach(), loss.detach(), *grads]

    return result


def their_gradients(pair: Pair) -> list[Tensor]:
    """The same of theirs, in our order and shapes: the import of weights, applied to the gradients."""
    logits, loss = pair.answer()
    if pair.causal:  # the same loss again, in float64
        chances = torch.log_softmax(logits, dim=-1)
        rows, places = torch.nonzero(pair.labels[:, 1:] != -100, as_tuple=True)
        loss = -chances[rows, places, pair.labels[rows, places + 1]].mean()
    pair.theirs.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in pair.theirs.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    kind = "llama" if pair.kind == "mistral" else pair.kind
    carrier: nn.Module = getattr(import_weights, f"{kind}_from_transformers")(pair.theirs)
    return [logits[pair.real].detach(), loss.detach(), *(p.detach().clone() for p in carrier.parameters())]
