"""attnlaws: give it your attention code; it tells you which laws of attention the code breaks, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import card as card
    from .api import check as check
    from .api import diff as diff
    from .api import parametrize as parametrize
    from .api import probe as probe
    from .api import vectors as vectors
    from .run.diff import Difference as Difference
    from .run.ledger import LawsBroken as LawsBroken
    from .run.ledger import Report as Report

__version__ = "0.1.0"
__all__ = ["Difference", "LawsBroken", "Report", "card", "check", "diff", "parametrize", "probe", "vectors"]


def __getattr__(name: str) -> Any:
    """The public names, loaded when first asked for, so that `import attnlaws.reference.oracle` stays light."""
    if name in ("LawsBroken", "Report"):
        from .run import ledger

        return getattr(ledger, name)
    if name == "Difference":
        from .run.diff import Difference

        return Difference
    if name in __all__:
        from . import api

        return getattr(api, name)
    raise AttributeError(f"module 'attnlaws' has no attribute {name!r}")
