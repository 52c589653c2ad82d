"""The claims are no laws: with a target (--attn-target) they have nothing to say, and are not collected."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the claims out where a target is tried."""
    if collection_path.name == "test_claims.py" and config.getoption("attn_target", default=None):
        return True
    return None
