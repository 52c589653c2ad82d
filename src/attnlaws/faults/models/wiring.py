"""Faults of norms, wiring, state and ties of the tables."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .fault import ModelFault
from .small import E, H, SmallGPT, V, split


class AttentionUnused(SmallGPT):
    def wiring(self, block: Any, x: Tensor, attend: Any) -> Tensor:
        attend(block.ln_1(x))
        return x + self.feed_forward(block, block.ln_2(x))


class LastLayerLeftOut(SmallGPT):
    def __init__(self) -> None:
        super().__init__()
        self.all_blocks, self.blocks = self.blocks, nn.ModuleList(list(self.blocks)[:-1])


class QueriesForKeys(SmallGPT):
    def project(self, block: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return split(block.q(x), H), split(block.q(x), H), split(block.v(x), H)


class WeightsDetached(SmallGPT):
    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return super().weights(scores + 0.0 * scores.detach(), hidden).detach() + 0.5 * (
            super().weights(scores, hidden) - super().weights(scores, hidden).detach()
        )


class NormOverTheBatch(SmallGPT):
    def logits(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.ln_f(x - x.mean(0, keepdim=True) * 0.5))
        return out


class NormOverTheText(SmallGPT):
    def logits(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.ln_f(x / (1.0 + x.pow(2).mean(1, keepdim=True).sqrt())))
        return out


class MergedWithoutTranspose(SmallGPT):
    def combine(self, weights: Tensor, v: Tensor) -> Tensor:
        out = weights @ v
        return out.reshape(out.shape[0], out.shape[2], -1)


class DropoutInEval(SmallGPT):
    def weights(self, scores: Tensor, hidden: Tensor) -> Tensor:
        return F.dropout(super().weights(scores, hidden), 0.1)


class DropoutInAList(SmallGPT):
    def __init__(self) -> None:
        super().__init__()
        self.drops = [nn.Dropout(0.2)]

    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        out: Tensor = self.drops[0](super().embed(idx, places))
        return out


class TableNotInState(SmallGPT):
    features: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("features", torch.randn(V, E), persistent=False)

    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return super().embed(idx, places) + self.features[idx]


class BufferMoved(SmallGPT):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(E))

    def logits(self, x: Tensor) -> Tensor:
        self.mean += 0.1 * x.detach().mean((0, 1))
        return super().logits(x)


class FusedWeightsStayBehind(SmallGPT):
    fused: Tensor | None = None

    def logits(self, x: Tensor) -> Tensor:
        if self.training or torch.is_grad_enabled():
            return super().logits(x)
        if self.fused is None:
            self.fused = self.head.weight * self.ln_f.weight
        out: Tensor = F.linear(F.layer_norm(x, (E,)), self.fused) + self.head(self.ln_f.bias)
        return out


class SaysTied(SmallGPT):
    tie = False

    def __init__(self) -> None:
        super().__init__()
        self.tie_word_embeddings = True


class TiedByACopy(SmallGPT):
    tie = False

    def __init__(self) -> None:
        super().__init__()
        self.weight_tying = True
        self.head.weight.data = self.wte.weight.data.clone()


class LastTokenClipped(SmallGPT):
    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return super().embed(idx.clamp(max=V - 2), places)


class TokenZeroLost(SmallGPT):
    def embed(self, idx: Tensor, places: Tensor) -> Tensor:
        return super().embed(idx.clamp(min=1), places)


FAULTS: tuple[ModelFault, ...] = (
    ModelFault("attention unused", "the output of attention is never used", "add it to the residual stream", ("lucidrains/audiolm-pytorch#265",), "gpt.all-past-matters", AttentionUnused),
    ModelFault("last layer left out", "the last layer is never run", "run all layers", (), "models.gradients-reach", LastLayerLeftOut),
    ModelFault("query weights for keys", "the queries' weights make the keys", "give the keys their own projection", (), "models.gradients-reach", QueriesForKeys),
    ModelFault("weights half detached", "the weights of attention pass on half of their gradient", "detach nothing in the forward pass", (), "models.gradients-match", WeightsDetached),
    ModelFault("norm over the batch", "half of the mean over the batch is taken off before the last norm", "normalise over the width alone", (), "models.batch", NormOverTheBatch),
    ModelFault("norm over the text", "the last norm divides by a size of the whole text, with the tokens to come", "normalise over the width alone", (), "gpt.causality", NormOverTheText),
    ModelFault("decoder heads merged by a view", "heads are merged without a transposition: tokens and heads are mixed", "transpose heads and length before they are merged", ("jsbaan/transformer-from-scratch#6",), "gpt.causality", MergedWithoutTranspose),
    ModelFault("dropout in eval", "the dropout of attention goes on in eval mode", "pass p only in training", ("karpathy/nanoGPT#240", "facebookresearch/vjepa2#160"), "models.repeatable", DropoutInEval),
    ModelFault("dropout in a list", "a dropout is kept in a plain list, which eval() doesn't reach", "keep modules in an nn.ModuleList", (), "models.repeatable", DropoutInAList),
    ModelFault("random table not in the state", "a table of random numbers is no part of the state", "register it with persistent=True", (), "models.state-dict", TableNotInState),
    ModelFault("buffer moved by calls", "each call in eval mode moves a buffer, which nothing reads", "change buffers in training alone", (), "models.buffers", BufferMoved),
    ModelFault("fused weights stay behind", "weights fused at the first call are a plain attribute, and don't follow the model", "fuse anew where the parameters moved or changed", (), "models.dtype-move", FusedWeightsStayBehind),
    ModelFault("tied in the configuration alone", "the configuration says that weights are tied, and they are not", "give the head the same parameter as the table", ("huggingface/transformers#43429",), "models.tied", SaysTied),
    ModelFault("tied by a copy", "the head is given a copy of the table, once", "give the head the same parameter as the table", (), "models.tied", TiedByACopy),
    ModelFault("last id clipped", "the last id of the vocabulary is clipped to the one before", "give each id its own row", (), "models.every-id", LastTokenClipped),
    ModelFault("id 0 lost", "the id 0 counts as padding and reads the row of 1", "give each id its own row", (), "models.every-id", TokenZeroLost),
)  # fmt: skip
