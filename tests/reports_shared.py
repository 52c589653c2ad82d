"""What the tests of the reports share: a target with several breaks, and documents that no target should be able to make."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

import attnlaws
from attnlaws.report.document import document

#: a source of two targets: no scale and a leak of the future; and none that breaks
SOURCE = """
import torch
import torch.nn.functional as F

def right(query, key, value):
    return F.scaled_dot_product_attention(query, key, value)

def leaky(query, key, value, is_causal=False):
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(1), -torch.inf)
    return torch.softmax(scores, -1) @ value
"""
HOSTILE = '<script>alert("&")</script>\x00\x1b[31m ]]> | `a` *b* %0A::error::,:\n::warning::\ud83d\nline'.encode(
    "utf-8", "replace"
).decode()


def leaky(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    """Position i sees i + 1, and the last of more than 8 keys is lost."""
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    if is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(1), -torch.inf)
    if scores.shape[-1] > 8:
        scores[..., -1] = -torch.inf
    return torch.softmax(scores, -1) @ value


@cache
def _red() -> Any:
    return document(attnlaws.check(leaky, laws=["causality", "weights", "scores", "layout"], profile="smoke"))


@cache
def _green() -> Any:
    return document(attnlaws.check(F.scaled_dot_product_attention, laws=["weights", "heads"], profile="smoke"))


def red() -> Any:
    """The document of a run with several breaks."""
    return copy.deepcopy(_red())


def green() -> Any:
    """The document of a green run."""
    return copy.deepcopy(_green())


def hostile() -> Any:
    """A red document in which everything that a target can choose is hostile."""
    made = red()
    made["target"]["name"] = HOSTILE
    made["hints"] = [HOSTILE]
    made["target"]["card"]["refuses"] = {HOSTILE: HOSTILE}
    made["target"]["card"]["untried"] = [HOSTILE]
    for failure in made["failures"]:
        failure["reason"] = failure["raised"] = HOSTILE
        failure["case_file"] = HOSTILE
    for law in made["laws"]:
        law["reason"] = HOSTILE
    return made
