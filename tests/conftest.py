"""Shared by the tests of the instrument."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

from attnlaws.run.trying import PROFILES_OF_EFFORT

#: seconds that a check may take in a test of its verdict: how fast the machine is decides nothing
PATIENCE = 900.0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No check that a test makes in its own process is cut short because the machine is busy; tests of the budget give one."""
    for profile, (effort, _) in PROFILES_OF_EFFORT.items():
        monkeypatch.setitem(PROFILES_OF_EFFORT, profile, (effort, PATIENCE))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """One thread is faster than several on tiny tensors."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@pytest.fixture(autouse=True)
def _not_on_github(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run on GitHub annotate nothing there."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
