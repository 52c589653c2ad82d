"""One law tried on one problem of one target, of whatever kind."""

from __future__ import annotations

from typing import Any

import numpy as np

from .named import AnyLaw
from .trial import Broken, Crashed, Evidence, Session

Failure = Broken | Crashed


def try_law(law: AnyLaw, target: Any, problem: Any, session: Session, evidence: Evidence) -> Failure | None:
    """One law on one problem; the failure, or None where it held. Unsuitable and Refused pass through."""
    if session.on_problem is not None:
        session.on_problem(problem)
    try:
        with np.errstate(all="ignore"):
            law.attempt(target, problem, session, evidence)
    except (Broken, Crashed) as failure:
        return failure
    return None
