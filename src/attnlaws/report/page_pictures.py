"""The pictures of the page as inline SVG: grids of what was expected and what was seen, the error against the bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from .document import Document
from .words import spelled

Number = float | str | None
#: shades of a value, darkest last; the text of a cell stays readable on the darkest
SHADES = 8
LIGHTEST, DARKEST = 0.1, 0.62
#: columns up to which the numbers are written into the cells
WRITTEN = 4


def masks(found: Document) -> str:
    """The effective mask, the expected one, and where they differ."""
    sign = {1.0: "+", -1.0: "−", 0.0: "·"}
    grids = (
        ("expected", found["expected"], lambda value: str(int(value))),
        ("got", found["got"], lambda value: str(int(value))),
        ("difference", found["difference"], lambda value: sign[float(value)]),
    )
    drawn = [
        _captioned(title, _grid(rows, found, 1.0, write, f"effective mask, {title}", plain=title != "difference"))
        for title, rows, write in grids
    ]
    words = f"Which keys (columns) a query (row) sees{_of(found)}: 1 seen, 0 hidden; + sees too much, − too little."
    return _figure("effective mask", drawn, words)


def outputs(found: Document) -> str:
    """The output, the expected one, and where they differ by more than is allowed."""
    scale = _largest(found["expected"]) or _largest(found["got"]) or 1.0
    beyond = [
        [0.0 if _within(value, limit) else value for value, limit in zip(*rows, strict=True)]
        for rows in zip(found["difference"], found["allowed"], strict=True)
    ]
    width = _largest(beyond) or 1.0

    def write(value: Number) -> str:
        return spelled(value, 3)

    drawn = [
        _captioned("expected", _grid(found["expected"], found, scale, write, "output, expected")),
        _captioned("got", _grid(found["got"], found, scale, write, "output, got")),
        _captioned("difference", _grid(beyond, found, width, write, "output, difference beyond the bound")),
    ]
    rows = _stretch("query", "queries", found["first_row"], len(found["got"]))
    columns = _stretch("channel", "channels", found["first_column"], len(found["got"][0]))
    words = (
        f"The output of the failing call and the oracle's{_of(found)}; rows: {rows}, columns: {columns}. Orange is positive, "
        f"blue negative; colours end at ±{scale:.3g}, those of the difference at ±{width:.3g}. What is within the bound has "
        "no colour there."
    )
    return _figure("output", drawn, words)


def _stretch(one: str, many: str, first: int, count: int) -> str:
    return f"{one} {first}" if count == 1 else f"{many} {first} to {first + count - 1}"


def _of(found: Document) -> str:
    return f" of {found['where']}" if found["where"] else ""


def _within(value: Number, limit: Number) -> bool:
    return not isinstance(value, str) and not isinstance(limit, str) and abs(value or 0.0) <= (limit or 0.0)


def _largest(grid: Iterable[Iterable[Number]]) -> float:
    return max((abs(v) for row in grid for v in row if isinstance(v, float | int)), default=0.0)


def _figure(name: str, drawn: Sequence[str], words: str) -> str:
    caption = f"<figcaption>{escape(words)}</figcaption>"
    return f'<figure aria-label="{escape(name)}"><div class="figures">{"".join(drawn)}</div>{caption}</figure>'


def _captioned(title: str, svg: str) -> str:
    return f"<div><p>{escape(title)}</p>{svg}</div>"


def _grid(
    rows: Sequence[Sequence[Number]],
    found: Document,
    scale: float,
    write: Callable[[Number], str],
    label: str,
    *,
    plain: bool = False,
) -> str:
    """One grid with the numbers of its rows and columns. Cells of one shade are one path; `plain`: 1 is one colour."""
    columns = len(rows[0])
    small = all(len(write(value)) == 1 for row in rows for value in row)
    wide, high = (20, 20) if small else (62, 22) if columns <= WRITTEN else (16, 16)
    left, top = 26, 16
    paths: dict[tuple[str, int], list[str]] = {}
    texts = []
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            x, y = left + j * wide, top + i * high
            shade = _shade(value, scale, plain)
            if shade[1]:
                paths.setdefault(shade, []).append(f"M{x} {y}h{wide}v{high}h-{wide}z")
            if small or columns <= WRITTEN:
                texts.append(_text(x + wide / 2, y + high / 2 + 4, escape(write(value)), "middle"))
    every = max(1, math.ceil(columns * 16 / (columns * wide)))
    names = [
        _text(left - 6, top + i * high + high / 2 + 4, str(found["first_row"] + i), "end") for i in range(len(rows))
    ]
    names += [
        _text(left + j * wide + wide / 2, top - 5, str(found["first_column"] + j), "middle")
        for j in range(0, columns, every)
    ]
    size = left + columns * wide + 1, top + len(rows) * high + 1
    drawn = "".join(
        f'<path class="{name}"{_opacity(name, level)} d="{"".join(cells)}"/>' for (name, level), cells in paths.items()
    )
    frame = f'<rect class="frame" x="{left}" y="{top}" width="{columns * wide}" height="{len(rows) * high}"/>'
    return (
        f'<svg viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" height="{size[1]}" role="img" aria-label="{escape(label)}">'
        f'{drawn}{frame}<g font-size="11" class="axis-names">{"".join(names)}</g><g font-size="12">{"".join(texts)}</g></svg>'
    )


def _shade(value: Number, scale: float, plain: bool) -> tuple[str, int]:
    """The class of a cell and its level of colour, 0 for none."""
    if value is None or isinstance(value, str):
        return ("p" if value == "inf" else "m" if value == "-inf" else "nan"), SHADES
    if plain:
        return "on", int(value != 0)
    level = math.ceil(min(1.0, abs(value) / scale) * SHADES)
    return ("p" if value > 0 else "m"), level


def _opacity(name: str, level: int) -> str:
    return "" if name in ("on", "nan") else f' fill-opacity="{LIGHTEST + level / SHADES * (DARKEST - LIGHTEST):.2g}"'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.4g}" y="{y:.4g}" text-anchor="{anchor}">{text}</text>'


# The error against the bound ----------------------------------------------------------------------------------------

WIDTH, HIGH, LEFT, RIGHT, TOP, BOTTOM = 440, 270, 52, 12, 12, 42
MARKS = ("circle", "square", "diamond", "triangle")
#: powers of ten: ratios outside are drawn at the ends
LOWEST, HIGHEST = -4, 4


def margins(found: Sequence[Document]) -> str:
    """The largest error / bound by length, a line a dtype, both axes logarithmic; and the same as a table."""
    points = [m for m in found if isinstance(m["ratio"], float | int) and m["ratio"] > 0 and m["length"] > 0]
    if not points:
        return "<p>Each comparison that has a length and a dtype was exact.</p>"
    dtypes = sorted({m["dtype"] for m in points}, key=["float64", "float32", "bfloat16", "float16"].index)
    powers = [math.log10(m["ratio"]) for m in points]
    top = min(HIGHEST, max(1, math.ceil(max(powers) + 0.3)))
    low = max(LOWEST, min(-1, math.floor(min(powers))))
    last = max(2, max(m["length"] for m in points))

    def x(length: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(length) / math.log2(last)

    def y(ratio: float) -> float:
        return TOP + (HIGH - TOP - BOTTOM) * (top - min(top, max(low, math.log10(ratio)))) / (top - low)

    drawn = [_axes(x, y, last, range(low, top + 1))]
    for dtype in dtypes:
        number = dtypes.index(dtype)
        series = sorted((m["length"], m["ratio"], m["law"]) for m in points if m["dtype"] == dtype)
        line = " ".join(f"{x(length):.1f},{y(ratio):.1f}" for length, ratio, _ in series)
        drawn.append(f'<polyline class="d{number}" points="{line}"/>')
        drawn += [
            _mark(MARKS[number], x(length), y(ratio), f"d{number}", f"{dtype}, length {length}: {ratio:.3g} ({law})")
            for length, ratio, law in series
        ]
    picture = (
        f'<svg viewBox="0 0 {WIDTH} {HIGH}" width="{WIDTH * 1.3:.0f}" role="img" aria-label="error / bound by length and dtype">'
        f'<g font-size="12">{"".join(drawn)}</g></svg>'
    )
    legend = "".join(_legend(number, dtype) for number, dtype in enumerate(dtypes))
    caption = (
        "The largest error / bound of all laws by the number of keys or tokens. The dashed line is the bound; what is "
        "above it is broken. Comparisons that were exact have no point."
    )
    caption += " What is outside of the scale is drawn at its end." if max(powers) > top or min(powers) < low else ""
    return (
        f'<figure>{picture}<div class="figures">{legend}</div><figcaption>{caption}</figcaption></figure>'
        f"{_table(points, dtypes)}"
    )


def _axes(x: Callable[[int], float], y: Callable[[float], float], last: int, powers: Iterable[int]) -> str:
    lines = []
    for power in powers:
        at = y(10.0**power)
        lines.append(f'<path class="tick" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        label = f"{10.0**power:g}" if power > -4 else "1e-4"
        lines.append(_text(LEFT - 6, at + 4, label, "end", "axis"))
    length = 1
    while length <= last:
        lines.append(_text(x(length), HIGH - BOTTOM + 17, str(length), "middle", "axis"))
        length *= 2 if last <= 256 else 4
    lines.append(f'<path class="bound" d="M{LEFT} {y(1.0):.1f}H{WIDTH - RIGHT}"/>')
    lines.append(_text((LEFT + WIDTH) / 2, HIGH - 6, "length", "middle", "axis"))
    return "".join(lines)


def _mark(kind: str, x: float, y: float, name: str, title: str) -> str:
    shapes = {
        "circle": f"M{x - 3:.1f} {y:.1f}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0",
        "square": f"M{x - 3:.1f} {y - 3:.1f}h6v6h-6z",
        "diamond": f"M{x:.1f} {y - 4:.1f}l4 4l-4 4l-4 -4z",
        "triangle": f"M{x:.1f} {y - 4:.1f}l4 7h-8z",
    }
    return f'<path class="{name}" d="{shapes[kind]}"><title>{escape(title)}</title></path>'


def _legend(number: int, dtype: str) -> str:
    mark = _mark(MARKS[number], 8, 8, f"d{number}", dtype)
    svg = f'<svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">{mark}</svg>'
    return f'<div style="display:flex;gap:.3rem;align-items:center">{svg}<span>{escape(dtype)}</span></div>'


def _table(points: Sequence[Document], dtypes: Sequence[str]) -> str:
    """The numbers of the picture: the worst of each dtype."""
    rows = []
    for dtype in dtypes:
        worst = max((m for m in points if m["dtype"] == dtype), key=lambda m: float(m["ratio"]))
        cells = f"<td>{worst['ratio']:.3g}</td><td>{worst['length']}</td><td><code>{escape(worst['law'])}</code></td>"
        rows.append(f'<tr><th scope="row">{escape(dtype)}</th>{cells}</tr>')
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("dtype", "worst", "length", "law"))
    return f'<table class="tight"><caption>The worst of each dtype</caption><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
