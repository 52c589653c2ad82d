"""Keras: which backend it uses, so that its functions get the arrays of that framework."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path

#: backends whose arrays attnlaws knows, in the order of preference where nobody chose
BACKENDS = ("torch", "jax", "numpy")


def choose_backend(wanted: str | None = None) -> None:
    """See that `import keras` works: the backend wanted, else the user's, else one that is installed.

    Without a choice Keras takes TensorFlow. Raises ImportError where it runs on another backend than the wanted one.
    """
    loaded = sys.modules.get("keras")
    if loaded is not None:
        if wanted is not None and loaded.backend.backend() != wanted:
            raise ImportError(f"keras is imported already, with the backend {loaded.backend.backend()}, not {wanted}")
        return
    if wanted is not None:
        os.environ["KERAS_BACKEND"] = wanted
    elif "KERAS_BACKEND" not in os.environ and not _chosen_in_file():
        os.environ["KERAS_BACKEND"] = next(name for name in BACKENDS if importlib.util.find_spec(name))


def _chosen_in_file() -> bool:
    """Whether keras.json names a backend that is installed."""
    home = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
    try:
        name = json.loads((home / "keras.json").read_text(encoding="utf-8")).get("backend", "tensorflow")
    except (OSError, ValueError, AttributeError):
        name = "tensorflow"
    return importlib.util.find_spec(str(name)) is not None


def spoken() -> str:
    """The framework whose arrays Keras takes. Raises ImportError for a backend that attnlaws doesn't know."""
    choose_backend()
    name = str(importlib.import_module("keras").backend.backend())
    if name not in BACKENDS:
        raise ImportError(f"keras runs on {name}; attnlaws knows {', '.join(BACKENDS)}: set KERAS_BACKEND")
    return name
