"""What a page consists of, and the page as Markdown. Texts are plain: the writers escape them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One cell of a table: a text, the status that colours it, words that explain it, and the section that tells more."""

    text: str
    status: str = ""
    words: str = ""
    section: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells under a head; the first cell of a row names it."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Pairs:
    """Labels with what belongs to them, one a line."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Folded:
    """Blocks that are shown when they are asked for."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Section:
    """A heading with blocks under it; `level` 2 is the highest."""

    title: str
    name: str
    blocks: tuple[Block, ...] = ()
    level: int = 2


Block = Table | Text | Pairs | Folded | Section


@dataclass(frozen=True)
class Page:
    """A title and blocks."""

    title: str
    blocks: tuple[Block, ...]

    def as_markdown(self) -> str:
        """The page as GitHub's Markdown."""
        return "\n\n".join([f"# {_escaped(self.title)}", *(_markdown(block) for block in self.blocks)]) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Text):
        return _escaped(block.text)
    if isinstance(block, Pairs):
        return "\n".join(f"* {_escaped(label)}: {_escaped(text)}" for label, text in block.pairs)
    if isinstance(block, Table):
        return _markdown_table(block)
    inside = "\n\n".join(_markdown(item) for item in block.blocks)
    if isinstance(block, Folded):
        return f"<details>\n<summary>{_escaped(block.title)}</summary>\n\n{inside}\n\n</details>"
    heading = f'{"#" * block.level} <a name="{block.name}"></a>{_escaped(block.title)}'
    return f"{heading}\n\n{inside}" if inside else heading


def _markdown_table(table: Table) -> str:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    def shown(cell: Cell) -> str:
        return f"[{_escaped(cell.text)}](#{cell.section})" if cell.section else _escaped(cell.text)

    lines = [_escaped(table.caption), "", row([_escaped(head) for head in table.head])]
    lines += [row(["---"] * len(table.head)), *(row([shown(cell) for cell in cells]) for cells in table.rows)]
    return "\n".join(lines if table.caption else lines[2:])


def _escaped(text: str) -> str:
    """Text that means nothing else in Markdown, in a table or outside; on one line."""
    one = " ".join(text.split())
    for sign in "\\`*_[]|#~$":
        one = one.replace(sign, f"\\{sign}")
    return one.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
