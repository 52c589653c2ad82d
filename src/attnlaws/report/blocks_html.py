"""A page as one HTML file that needs nothing else: no network, no script."""

from __future__ import annotations

import re
from html import escape

from .blocks import Block, Cell, Folded, Page, Pairs, Table, Text

STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --paper: #ffffff; --soft: #59636e; --line: #d1d9e0; --head: #f6f8fa;
  --held: #116329; --held-back: #dafbe1; --red: #a40e26; --red-back: #ffe1e0; --other: #7d4e00; --other-back: #fff1c2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --soft: #9198a1; --line: #3d444d;
  --head: #161b22; --held: #7ee787; --held-back: #12261e; --red: #ffa198; --red-back: #3c1618; --other: #f2cc60;
  --other-back: #2e2410; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 90rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin-top: 2rem; }
a { color: inherit; } p, dl { max-width: 60rem; }
.skip { position: absolute; left: -99rem; } .skip:focus { left: 1rem; top: 1rem; background: var(--paper); padding: .5rem; }
:focus-visible { outline: 3px solid #0969da; outline-offset: 2px; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .8125rem; overflow-wrap: normal; }
caption { text-align: left; padding: .5rem; color: var(--soft); }
th, td { padding: .25rem .5rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td { white-space: nowrap; } td.long { white-space: normal; min-width: 12rem; }
thead th { background: var(--head); vertical-align: bottom; } thead th:not(:first-child) { min-width: 4.5rem; }
tbody th { font-weight: 600; position: sticky; left: 0; background: var(--paper); min-width: 9rem; max-width: 16rem;
  overflow-wrap: anywhere; }
.held { color: var(--held); background: var(--held-back); }
.broken, .crashed, .nondeterministic, .died, .killed { color: var(--red); background: var(--red-back); font-weight: 600; }
.ignored, .fault { color: var(--other); background: var(--other-back); font-weight: 600; }
.could-not-tell, .not-adapted { color: var(--other); background: var(--other-back); }
.not-applicable { color: var(--soft); }
details { margin: .75rem 0; } summary { cursor: pointer; font-weight: 600; padding: .25rem 0; }
dl { display: grid; grid-template-columns: minmax(6rem, 10rem) 1fr; gap: .25rem 1rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  tbody th { min-width: 7rem; max-width: 9rem; } }
""".strip()

#: characters beyond which a cell may have more than one line
LONG = 40


def as_html(page: Page) -> str:
    """The whole file."""
    body = "\n".join(_html(block) for block in page.blocks)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(page.title)}</title>
<style>
{STYLE}
</style>
</head>
<body>
<a class="skip" href="#main">To the tables</a>
<main id="main">
<h1>{escape(page.title)}</h1>
{body}
</main>
</body>
</html>
"""


def _html(block: Block) -> str:
    if isinstance(block, Text):
        return f"<p>{escape(block.text)}</p>"
    if isinstance(block, Pairs):
        return "<dl>" + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in block.pairs) + "</dl>"
    if isinstance(block, Table):
        return _table(block)
    inside = "\n".join(_html(item) for item in block.blocks)
    if isinstance(block, Folded):
        return f"<details>\n<summary>{escape(block.title)}</summary>\n{inside}\n</details>"
    level = f"h{block.level}"
    return f'<section id="{escape(block.name)}">\n<{level}>{escape(block.title)}</{level}>\n{inside}\n</section>'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.head)
    rows = "\n".join(
        "<tr>" + _cell(cells[0], "th") + "".join(_cell(cell, "td") for cell in cells[1:]) + "</tr>"
        for cells in table.rows
    )
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    label = escape(table.caption or table.head[0])
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{label}"><table>{caption}\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _cell(cell: Cell, tag: str) -> str:
    names = [cell.status.replace(" ", "-")] * bool(cell.status) + ["long"] * (len(cell.text) > LONG)
    shape = f' class="{" ".join(names)}"' if names else ""
    words = f' title="{escape(cell.words)}"' if cell.words else ""
    text = escape(cell.text)
    text = re.sub(r"(?<=[._\[])(?=\w)", "<wbr>", text) if tag == "th" else text
    inside = f'<a href="#{escape(cell.section)}">{text}</a>' if cell.section else text
    scope = ' scope="row"' if tag == "th" else ""
    return f"<{tag}{scope}{shape}{words}>{inside}</{tag}>"
