"""How what is optional is installed."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The command that installs an extra such as "pictures": from an index, and in a checkout."""
    return f'pip install "attnlaws[{extra}]" (in a checkout: pip install -c constraints.txt ".[{extra}]")'
