"""Cases that were found, kept in a database of Hypothesis: a folder, or Redis, shared by all machines that know it.

What is kept is the problem in JSON, as in a case file, not Hypothesis' own record of its choices: so it means the same in every version,
and what the covering design found is there too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    MultiplexedDatabase,
    ReadOnlyDatabase,
)

from ..extras import how_to_install
from ..laws.named import AnyLaw
from ..problems.layer_problem import LayerProblem
from ..problems.model_problem import ModelProblem
from ..problems.part_problem import PartProblem
from ..problems.problem import CASE_FORMAT, CorruptCase, Problem

#: the kind of problem by the kind of law
_PROBLEMS: dict[str, Any] = {"attention": Problem, "layer": LayerProblem, "model": ModelProblem, "part": PartProblem}
#: what nobody asks Redis for in this time is gone
_KEPT = timedelta(days=90)
REDIS = ("redis://", "rediss://", "unix://")


class NoDatabase(ValueError):
    """A database that can't be used; the message says why."""


def database_of(places: Sequence[str], read_only: Sequence[str] = ()) -> ExampleDatabase:
    """The database at these places, folders or redis:// addresses: all are read, and all but the read-only ones written.

    Raises NoDatabase.
    """
    parts = [*(_one(place) for place in places), *(ReadOnlyDatabase(_one(place)) for place in read_only)]
    return parts[0] if len(parts) == 1 else MultiplexedDatabase(*parts)


def _one(place: str) -> ExampleDatabase:
    if not place.startswith(REDIS):
        if Path(place).exists() and not Path(place).is_dir():
            raise NoDatabase(f"{place} is a file; a database is a folder, or an address redis://host:port/0")
        return DirectoryBasedExampleDatabase(place)
    try:
        import redis
        from hypothesis.extra.redis import RedisExampleDatabase
    except ImportError as error:
        raise NoDatabase(f"{place} needs redis: {how_to_install('redis')}") from error
    client = redis.Redis.from_url(place)
    try:
        client.ping()
    except redis.RedisError as error:
        raise NoDatabase(f"{place} doesn't answer: {error}") from error
    return RedisExampleDatabase(client, expire_after=_KEPT)


class Found:
    """The cases of a database."""

    def __init__(self, database: ExampleDatabase) -> None:
        self.database = database

    def problems(self, law: AnyLaw, target: Any) -> list[Any]:
        """The problems on which a law once broke for a target of this name, the smallest first, as far as they fit it now."""
        problems = []
        for value in self.database.fetch(_key(law, target)):
            try:
                data = json.loads(value)
                problem = _PROBLEMS[law.kind].from_json(data["problem"]) if data["attnlaws"] == CASE_FORMAT else None
            except (ValueError, TypeError, KeyError, CorruptCase):  # of another version, or not ours
                continue
            if problem is not None and law.fits(target, problem):
                problems.append(problem)
        return sorted(problems, key=lambda problem: (problem.size, problem.describe()))

    def keep(self, law: AnyLaw, target: Any, problem: Any) -> None:
        """Keep a problem on which a law broke."""
        text = json.dumps({"attnlaws": CASE_FORMAT, "problem": problem.to_json()}, sort_keys=True)
        self.database.save(_key(law, target), text.encode())


def _key(law: AnyLaw, target: Any) -> bytes:
    return f"attnlaws {law.name} on {target.address or target.name}".encode()
