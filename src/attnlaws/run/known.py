"""Known failures: laws that a target is known to break, each with the problem that shows it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True)
class Known:
    """One entry of attnlaws-known.toml.

    `target` is a name or a shell pattern; `witness` the problem on which the law is tried where it holds on all others;
    an entry that is not `strict` may also hold, since the target's answers vary.
    """

    law: str
    reason: str
    issue: str = ""
    target: str = "*"
    expires: date | None = None
    witness: Any = None
    strict: bool = True

    def is_about(self, target: str) -> bool:
        """Whether this entry is about the target of that name."""
        return self.target == target or fnmatchcase(target, self.target)

    def __str__(self) -> str:
        until = f", until {self.expires}" if self.expires else ""
        return f"{self.reason}{f' ({self.issue})' if self.issue else ''}{until}"
