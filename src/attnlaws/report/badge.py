"""A badge: a small SVG picture of the verdict, for a README."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from .document import Document
from .words import verdict_of_all

LABEL = "attnlaws"
#: white text has a contrast of at least 4.5 on each (WCAG 2.2, 1.4.3)
GREEN, RED, GREY, LABEL_GREY = "#1a7f37", "#c62828", "#5a6370", "#444c56"
#: widths of letters at 11 px in the usual sans-serif fonts; textLength then fits them exactly
_NARROW, _NARROW_WIDTH, _WIDE, _WIDE_WIDTH, _WIDTH = "ijlt.,:;!'| ()[]", 4.2, "mwMW%", 10.2, 6.9


def badge(runs: Sequence[Document], exit_code: int) -> str:
    """The text of an SVG file, such as "attnlaws: 73 laws held"."""
    words = verdict_of_all(runs, exit_code)
    colour = {0: GREEN, 1: RED}.get(exit_code, GREY)
    left, right = _width(LABEL), _width(words)
    total = left + right
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="20" role="img" aria-label="{LABEL}: {escape(words)}">
<title>{LABEL}: {escape(words)}</title>
<clipPath id="round"><rect width="{total}" height="20" rx="3"/></clipPath>
<g clip-path="url(#round)"><rect width="{left}" height="20" fill="{LABEL_GREY}"/><rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>
<g fill="#fff" font-family="Verdana,DejaVu Sans,Geneva,sans-serif" font-size="11">
<text x="6" y="14" textLength="{left - 12}">{LABEL}</text>
<text x="{left + 6}" y="14" textLength="{right - 12}">{escape(words)}</text>
</g>
</svg>
"""


def _width(text: str) -> int:
    widths = (_NARROW_WIDTH if c in _NARROW else _WIDE_WIDTH if c in _WIDE else _WIDTH for c in text)
    return round(sum(widths)) + 12
