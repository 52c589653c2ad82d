"""One law tried on one problem of one target."""

from __future__ import annotations

import numpy as np

from ..problems.problem import Problem
from ..targets.target import Target
from .law import Law
from .trial import Broken, Crashed, Evidence, Session, Trial

Failure = Broken | Crashed


def try_law(law: Law, target: Target, problem: Problem, session: Session, evidence: Evidence) -> Failure | None:
    """One law on one problem; the failure, or None where it held. Unsuitable and Refused pass through."""
    try:
        with np.errstate(all="ignore"):
            law.body(Trial(target, problem, session, evidence))
    except (Broken, Crashed) as failure:
        return failure
    return None
