"""Faults of losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .fault import ModelFault
from .small import SmallBERT, SmallGPT, SmallT5


class MeanOverAll(SmallGPT):
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
        return each.mean()


class LabelZeroLost(SmallBERT):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        chosen = labels.flatten() > 0
        return F.cross_entropy(logits.flatten(0, 1)[chosen], labels.flatten()[chosen])


class ShiftedTheWrongWay(SmallGPT):
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, 1:].flatten(0, 1), targets[:, :-1].flatten())


class ShiftedTwice(SmallT5):
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


class SoftmaxTwice(SmallGPT):
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(torch.softmax(logits, -1).flatten(0, 1), targets.flatten(), ignore_index=-1)


class MeanOfMeans(SmallGPT):
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=-100, reduction="none")
        count = (targets != -100).sum(1).clamp(min=1)
        return (each.sum(1) / count).mean()


FAULTS: tuple[ModelFault, ...] = (
    ModelFault("loss averaged over ignored labels", "the mean is over all tokens, the ignored ones too", "divide by the number of labels that count", ("ServiceNow/Fast-LLM#426",), "models.loss", MeanOverAll),
    ModelFault("label 0 never learnt", "only labels above 0 count", "count every label that is not ignored", ("mosaicml/examples#457",), "models.loss", LabelZeroLost),
    ModelFault("labels shifted the wrong way", "the logits at i + 1 are to say label i", "let the logits at i predict token i + 1, once", (), "models.loss", ShiftedTheWrongWay),
    ModelFault("labels shifted twice", "an encoder-decoder's labels are shifted once more in the loss", "let the logits at i predict token i + 1, once", ("huggingface/transformers#46898",), "models.loss", ShiftedTwice),
    ModelFault("softmax twice in the loss", "the loss takes the softmax of a softmax", "give cross entropy the logits", (), "models.loss", SoftmaxTwice),
    ModelFault("mean of the samples' means", "the loss is the mean of the samples' means", "divide by the number of labels that count", ("huggingface/transformers#34191",), "models.loss", MeanOfMeans),
)  # fmt: skip
