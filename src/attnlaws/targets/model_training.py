"""A few steps of training, on texts as NumPy arrays. Knows no law."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .call import TargetRaised
from .model_inputs import Inputs, IntArray

if TYPE_CHECKING:
    from .model_instance import ModelInstance

#: Adam's rate, and the largest norm of a gradient
RATE, NORM = 5e-3, 1.0


def train(instance: ModelInstance, texts: Iterable[IntArray]) -> None:
    """Adam on the mean of -log q(next token | those before), one step for each text (B, L); the mode stays as it is.

    Raises TargetRaised, WrongResult.
    """
    torch = instance.torch
    wanted = [p for p in instance.module.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(wanted, lr=RATE, betas=(0.9, 0.98))
    for ids in texts:
        with torch.enable_grad():
            logits = instance.logits(Inputs(ids))
            labels = torch.from_numpy(ids).to(logits.device)
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            optimiser.zero_grad()
            try:
                loss.backward()
            except RuntimeError as error:
                raise TargetRaised(error) from error
        torch.nn.utils.clip_grad_norm_(wanted, NORM)
        optimiser.step()
