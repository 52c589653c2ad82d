"""attnlaws-known.toml: laws that are known to be broken, with reasons."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..laws.load import laws_of
from ..problems.problem import CorruptCase, Problem
from ..run.known import Known
from ..targets.address import BadConfiguration
from .case import PROBLEMS

NAME = "attnlaws-known.toml"
KEYS = {"law": str, "reason": str, "issue": str, "target": str, "expires": date, "witness": dict, "strict": bool}
HEAD = "# Laws that are known to be broken; docs/reports.md tells what the keys mean.\n"


class BadKnown(BadConfiguration):
    """The list of known failures is wrong; the message names the entry and what is wrong with it."""


def beside_project(root: Path) -> Path:
    """Where the list is, or would be: beside the nearest pyproject.toml at or above a folder, else in it."""
    folder = next((folder for folder in (root, *root.parents) if (folder / "pyproject.toml").is_file()), root)
    return folder / NAME


def read(path: Path) -> tuple[Known, ...]:
    """The entries of a list. Raises BadKnown."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadKnown(f"{path} can't be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadKnown(f"{path} is no TOML: {error}") from error
    for key in data:
        if key != "known":
            raise BadKnown(f"{path} has {key!r}; it holds entries [[known]]{_near(key, ['known'])}")
    values = data.get("known", [])
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise BadKnown(f"{path}: known must be a list of entries [[known]]")
    entries = tuple(_entry(value, f"{path}, entry {number}") for number, value in enumerate(values, start=1))
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        if (entry.target, entry.law) in seen:
            raise BadKnown(f"{path} lists {entry.law} twice for the target {entry.target!r}")
        seen.add((entry.target, entry.law))
    return entries


def _entry(value: dict[str, Any], where: str) -> Known:
    for key, given in value.items():
        if key not in KEYS:
            raise BadKnown(f"{where} has an unknown key {key!r}; known: {', '.join(KEYS)}{_near(key, KEYS)}")
        if not isinstance(given, KEYS[key]) or isinstance(given, datetime):
            raise BadKnown(f"{where}: {key} = {given!r} must be {_KINDS[KEYS[key]]}")
    for key in ("law", "reason"):
        if not value.get(key, "").strip():
            raise BadKnown(f"{where} lacks {key!r}")
    law, laws = value["law"], laws_of()
    if law not in laws:
        raise BadKnown(f"{where}: unknown law {law!r}{_near(law, laws)}")
    witness = value.get("witness")
    if witness is not None:
        try:
            witness = PROBLEMS.get(law.split(".")[0], Problem).from_json(witness)
        except CorruptCase as error:
            raise BadKnown(f"{where}, witness: {error}") from error
    return Known(**{**value, "witness": witness})


_KINDS = {str: "a text", date: "a date such as 2027-01-31", dict: "a table", bool: "true or false"}


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1, cutoff=0.3)
    return f"; did you mean {near[0]!r}?" if near else ""


def add(path: Path, entries: Sequence[Known]) -> None:
    """Write entries at the end of a list; what stands there stays as it is. Raises OSError."""
    before = path.read_text(encoding="utf-8") if path.exists() else HEAD
    if entries:
        path.write_text(before + "".join(f"\n{_text(entry)}" for entry in entries), encoding="utf-8")


def _text(entry: Known) -> str:
    """An entry as TOML."""
    pairs: dict[str, Any] = {"target": entry.target, "law": entry.law, "reason": entry.reason}
    pairs.update({"issue": entry.issue} if entry.issue else {})
    pairs.update({} if entry.strict else {"strict": False})
    lines = [f"{key} = {_value(value)}" for key, value in pairs.items()]
    lines += [f"expires = {entry.expires}"] if entry.expires else []
    if entry.witness is not None:
        lines.append(f"witness = {{ {_fields(entry.witness.to_json())} }}")
    return "\n".join(["[[known]]", *lines]) + "\n"


def _fields(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {_value(value)}" for name, value in values.items() if value is not None)


def _value(value: str | float | bool) -> str:
    """A value in TOML, whose texts are written as those of JSON, but for one control character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
