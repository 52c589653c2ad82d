"""Finding the laws: beside the package where it is installed, in the repository's root where it is editable."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from .law import LAWS, Law
from .layer_law import LAYER_LAWS
from .model_law import MODEL_LAWS
from .named import AnyLaw
from .part_law import PART_LAWS

FOLDERS = ("properties", "statistics")


def law_folders() -> list[Path]:
    """The folders that hold test_*.py files with laws. Raises FileNotFoundError where an installation lacks them."""
    package = Path(__file__).resolve().parents[1]
    found = []
    for name in FOLDERS:
        places = (package / name, package.parents[1] / name)
        folder = next((place for place in places if any(place.glob("test_*.py"))), None)
        if folder is None:
            raise FileNotFoundError(f"the laws in {name}/ are neither in {places[0]} nor in {places[1]}")
        found.append(folder)
    return found


def load_laws() -> dict[str, Law]:
    """The laws of attention functions, in the order of the files and of the laws in them."""
    _import()
    return dict(sorted(LAWS.items(), key=lambda item: _order(item[0])))


def laws_of(kind: str | None = None) -> dict[str, AnyLaw]:
    """The laws of one kind of target, "attention", "layer", "model" or "part", or all."""
    found: dict[str, AnyLaw] = dict(load_laws()) if kind in ("attention", None) else {}
    _import()
    found.update(LAYER_LAWS if kind in ("layer", None) else {})
    if kind in ("model", None):
        found.update({name: MODEL_LAWS[name] for name in sorted(MODEL_LAWS, key=_model_order)})
    found.update(PART_LAWS if kind in ("part", None) else {})
    return found


def _import() -> None:
    """Import each file of laws once."""
    for folder in law_folders():
        for path in sorted(folder.glob("test_*.py")):
            name = f"attnlaws.{folder.name}.{path.stem}"
            if name in sys.modules:
                continue
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)


_FAMILIES = (
    "conventions",
    "layout",
    "weights",
    "scores",
    "causality",
    "masks",
    "heads",
    "batch",
    "conduct",
    "lse",
    "dropout",
)


def _order(name: str) -> tuple[int, str]:
    """Basic families first, so that the report reads from causes to consequences."""
    family = name.split(".")[0]
    return (_FAMILIES.index(family) if family in _FAMILIES else len(_FAMILIES), "")


_OF_MODELS = ("models", "gpt", "bert", "t5", "cache", "generation")


def _model_order(name: str) -> int:
    """What holds of all models first, then what is about kinds of them, then decoding."""
    return _OF_MODELS.index(name.split(".")[0])
