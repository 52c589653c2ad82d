"""Faults of dropout and of the log-sum-exp returned: small torch functions, since both are more than an output."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .case import Fault

if TYPE_CHECKING:
    from torch import Tensor

KEEP_FIX = "drop weights after the softmax with probability p and divide the kept ones by 1 - p, in training only"
LSE_FIX = "return max_j s_ij + log sum_j exp(s_ij - max), of the scaled and masked scores"


def _scores(query: Tensor, key: Tensor, is_causal: bool) -> Tensor:
    """Scaled scores in float32 (float64 stays), -inf above the diagonal where causal."""
    import torch

    wide = query if query.dtype == torch.float64 else query.float()
    scores: Tensor = wide @ key.to(wide.dtype).mT * query.shape[-1] ** -0.5
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(hidden, -math.inf)
    return scores


def _dropping(drop: Callable[[Tensor, Tensor, float], Tensor]) -> Callable[..., Any]:
    """Attention whose output is drop(scores, value, p) in training."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: bool = False,
        dropout_p: float = 0.0,
        training: bool = False,
    ) -> Tensor:
        scores = _scores(query, key, is_causal)
        p = dropout_p if training else 0.0
        return drop(scores, value.to(scores.dtype), p).to(query.dtype)

    return attention


def _kept(weights: Tensor, p: float) -> Tensor:
    import torch

    kept: Tensor = torch.rand_like(weights) >= p if p else torch.ones_like(weights)
    return kept


def _unscaled(scores: Tensor, value: Tensor, p: float) -> Tensor:
    weights = scores.softmax(-1)
    return (weights * _kept(weights, p)) @ value


def _renormalised(scores: Tensor, value: Tensor, p: float) -> Tensor:
    weights = scores.softmax(-1)
    weights = weights * _kept(weights, p)
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-20) @ value


def _before_softmax(scores: Tensor, value: Tensor, p: float) -> Tensor:
    return (scores.nan_to_num(neginf=-1e30) * _kept(scores, p) / (1 - p)).softmax(-1) @ value


def _of_output(scores: Tensor, value: Tensor, p: float) -> Tensor:
    from torch.nn import functional as F

    return F.dropout(scores.softmax(-1) @ value, p)


def _of_rows(scores: Tensor, value: Tensor, p: float) -> Tensor:
    weights = scores.softmax(-1)
    return weights * (1.0 + 0.0 * p) @ value


def _scaled_twice(scores: Tensor, value: Tensor, p: float) -> Tensor:
    from torch.nn import functional as F

    return F.dropout(scores.softmax(-1), p) / (1 - p) @ value


def _other_mask_in_backward(scores: Tensor, value: Tensor, p: float) -> Tensor:
    """The forward output with one mask, the gradient with another."""
    from torch.nn import functional as F

    weights = scores.softmax(-1)
    first, second = F.dropout(weights, p) @ value, F.dropout(weights, p) @ value
    return second + (first - second).detach()


def _in_evaluation(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, dropout_p: float = 0.0, training: bool = False
) -> Tensor:
    """Dropout acts whatever `training` says."""
    from torch.nn import functional as F

    scores = _scores(query, key, is_causal)
    return (F.dropout(scores.softmax(-1), dropout_p) @ value.to(scores.dtype)).to(query.dtype)


class _Sticky:
    """Dropout that stays on once it was on: a module put to train and never back."""

    def __init__(self) -> None:
        self.p = 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0) -> Tensor:
        from torch.nn import functional as F

        self.p = max(self.p, dropout_p)
        scores = _scores(query, key, False)
        return (F.dropout(scores.softmax(-1), self.p) @ value.to(scores.dtype)).to(query.dtype)


def _returning(lse: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """Attention that returns a wrong log-sum-exp beside the right output, where asked."""

    def attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, return_lse: bool = False) -> Any:
        scores = _scores(query, key, is_causal)
        output = (scores.softmax(-1) @ value.to(scores.dtype)).to(query.dtype)
        return (output, lse(scores, query)) if return_lse else output

    return attention


def _output_off(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, return_lse: bool = False) -> Any:
    """Asking for the log-sum-exp takes a path without the causal mask."""
    scores = _scores(query, key, is_causal and not return_lse)
    output = (scores.softmax(-1) @ value.to(scores.dtype)).to(query.dtype)
    return (output, _scores(query, key, is_causal).logsumexp(-1)) if return_lse else output


FAULTS: tuple[Fault, ...] = (
    Fault("dropout without 1/(1-p)", "kept weights are not divided by 1 - p", KEEP_FIX,
          function=_dropping(_unscaled), law="dropout.weights"),
    Fault("dropout scaled twice", "kept weights are divided by (1 - p)^2", KEEP_FIX,
          function=_dropping(_scaled_twice), law="dropout.weights"),
    Fault("dropout renormalised", "the rows are normalised again after dropout", KEEP_FIX,
          sources=("aws-neuron/nki-samples#80",), function=_dropping(_renormalised), law="dropout.weights"),
    Fault("dropout before the softmax", "scores are dropped to 0 instead of weights", KEEP_FIX,
          function=_dropping(_before_softmax), law="dropout.weights"),
    Fault("dropout of the output", "elements of the output are dropped instead of weights", KEEP_FIX,
          function=_dropping(_of_output), law="dropout.same-in-backward"),
    Fault("dropout ignored", "dropout is accepted, then ignored", KEEP_FIX, (),
          function=_dropping(_of_rows), law="dropout.weights"),
    Fault("dropout in evaluation", "dropout acts in evaluation too", KEEP_FIX, ("karpathy/nanoGPT#240", "facebookresearch/vjepa2#160", "Jittor/jittor#628"),
          function=_in_evaluation, law="dropout.evaluation"),
    Fault("dropout never switched off", "dropout stays on after one call with it", KEEP_FIX, function=_Sticky(), law="dropout.off"),
    Fault("other dropout in backward", "the backward pass drops other weights than the forward pass",
          "keep the mask, or the state of the generator, for the backward pass", sources=("pytorch/pytorch#190758",), function=_dropping(_other_mask_in_backward),
          law="dropout.same-in-backward"),
    Fault("log-sum-exp without its maximum", "the log-sum-exp returned lacks the maximum of the row", LSE_FIX,
          function=_returning(lambda s, q: s.logsumexp(-1) - s.amax(-1)), law="lse.value"),
    Fault("log-sum-exp of unscaled scores", "the log-sum-exp returned is that of the scores before scaling", LSE_FIX,
          function=_returning(lambda s, q: (s * q.shape[-1] ** 0.5).logsumexp(-1)), law="lse.value"),
    Fault("sum in the place of the log-sum-exp", "the sum of the exponentials is returned, not its logarithm", LSE_FIX,
          function=_returning(lambda s, q: s.logsumexp(-1).exp()), law="lse.value"),
    Fault("log-sum-exp negated", "the log-sum-exp is returned with the wrong sign", LSE_FIX,
          function=_returning(lambda s, q: -s.logsumexp(-1)), law="lse.value"),
    Fault("output changed by the log-sum-exp", "asking for the log-sum-exp loses the causal mask", "take the same path for both",
          function=_output_off, law="lse.value"),
)  # fmt: skip
