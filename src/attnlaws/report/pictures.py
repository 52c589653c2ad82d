"""Pictures of the laws of chance: scores, saturation, depth. Draws what `run.measure` has measured; needs matplotlib.

Points and filled bars are measured, lines are predicted; intervals and bands are 99.9 %. The same numbers give the same file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special, stats

from ..claims.score_law import product_density
from ..extras import how_to_install
from ..judge.chance import Finding, Floats
from ..judge.softmax_law import row_law
from ..run import measure
from ..run.measure import KEYS, ROWS, SCORE_DIMS, Depth, Point, Saturation, Scores
from ..targets.target import Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which colour-blind readers can tell apart; on white, so that a dark page changes nothing
BLUE, RED, GREEN, GREY, BLACK = "#0072B2", "#D55E00", "#007F5F", "#5F5F5F", "#000000"
DASHED, DOTTED = (0, (4, 2)), (0, (1, 2))
STYLE: Any = {
    "svg.hashsalt": "attnlaws",
    "svg.fonttype": "none",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10.0,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
}
HOW = "Points: measured, with 99.9 % intervals. Lines: predicted."


class NoMatplotlib(Exception):
    """Matplotlib, which draws, is not installed."""

    def __init__(self) -> None:
        super().__init__(f"pictures need matplotlib: {how_to_install('pictures')}")


def draw(target: Target, folder: Path, *, png: bool = False, seed: int = 0) -> Iterator[Path]:
    """Measure, draw and write scores.svg, saturation.svg and depth.svg into `folder`; each path when it is written.

    Raises NoMatplotlib before anything is measured, OSError where nothing can be written, and what `run.measure` raises.
    """
    styled()
    folder.mkdir(parents=True, exist_ok=True)
    how = unscaled_how(target)
    dims = measure.head_sizes(target, SCORE_DIMS)
    both = [[measure.scores(target, d, scaled=scaled, seed=seed) for d in dims] for scaled in (True, False)]
    with styled():
        paths = save(scores_picture(target.name, *both, how=how), folder / "scores", png=png)
    yield from paths
    rows = [measure.saturation(target, scaled=scaled, seed=seed) for scaled in (True, False)]
    with styled():
        paths = save(saturation_picture(target.name, *rows, how=how), folder / "saturation", png=png)
    yield from paths
    three = measure.depth(seed=seed)
    with styled():
        paths = save(depth_picture(*three), folder / "depth", png=png)
    yield from paths


def styled() -> AbstractContextManager[None]:
    """Matplotlib's defaults and our style inside, whatever the user's are. Raises NoMatplotlib."""
    try:
        from matplotlib import style
    except ImportError as error:
        raise NoMatplotlib from error
    return style.context(["default", STYLE])


def unscaled_how(target: Target) -> str:
    """How the scores of a target are had with the scale and without it."""
    if measure.own_scale(target, 4) == 1.0:
        return "The target applies no scale; scaled: the query is divided by √d."
    return "Scaled: as the target does by default; not scaled: the query is multiplied by √d."


def save(figure: Figure, path: Path, *, png: bool = False) -> list[Path]:
    """Write it as SVG, and as PNG if wanted, without a date or the version of matplotlib."""
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None})
    if png:
        figure.savefig(path.with_suffix(".png"), metadata={"Software": None}, dpi=160)
    return [path.with_suffix(suffix) for suffix in ((".svg", ".png") if png else (".svg",))]


# -- scores ----------------------------------------------------------------------------------------------------------------


def scores_picture(name: str, scaled: Sequence[Scores], unscaled: Sequence[Scores], *, how: str) -> Figure:
    """Histograms over quantile plots, a column for each head size."""
    least = min(found.values.size for found in scaled)
    title = f"Scores of N(0, 1) queries and keys, read off the weights of {_short(name)}\n{least:,} independent pairs of keys for each head size d"
    note = f"{how}\nBars and circles: measured. Off by: the largest distance of the distribution functions. Brackets and bands: 99.9 %."
    figure, rows = _figure(2, len(scaled), 3.2 * max(len(scaled), 2), 6.4, title, note)
    for place, (one, other) in enumerate(zip(scaled, unscaled, strict=True)):
        _histogram(rows[0][place], one, other)
        _quantile_plot(rows[1][place], one, other)
    _name_the_lines(rows[0][0], scaled[0].dim)
    rows[0][0].set_ylabel("density")
    rows[1][0].set_ylabel("quantile of the scaled scores")
    return figure


def _histogram(axes: Axes, scaled: Scores, unscaled: Scores) -> None:
    edges, x = np.linspace(-6.0, 6.0, 49), np.linspace(-6.0, 6.0, 160)
    axes.stairs(_density(scaled, edges), edges, fill=True, color=BLUE, alpha=0.3)
    axes.plot(x, _exact_density(x, scaled.dim), color=BLUE)
    axes.plot(x, stats.norm.pdf(x), color=BLACK, linestyle=DASHED, linewidth=1.0)
    axes.set(xlabel="score", xlim=(-6, 6), ylim=(0, 0.62))
    axes.set_title(f"d = {scaled.dim}", loc="left")
    if unscaled.deviation != 1.0:
        bars = _density(unscaled, edges)
        axes.stairs(bars, edges, baseline=None, color=RED, linewidth=1.0)
        axes.text(5.9, 0.02 + float(bars[-16:].max()), "not scaled", color=RED, ha="right")
    axes.text(0.9, 0.5, "scaled", color=BLUE)


def _name_the_lines(axes: Axes, dim: int) -> None:
    """Labels with leaders in the first column; with d = 1 the exact density has no bound at 0."""
    at = min(0.42, float(_exact_density(np.array([-0.3]), dim)[0]))
    axes.annotate("exact law", (-0.35, at), (-5.8, 0.42), color=BLUE, arrowprops=_arrow(BLUE))
    axes.annotate("N(0, 1)", (-1.3, float(stats.norm.pdf(1.3))), (-5.8, 0.26), arrowprops=_arrow(BLACK))


def _density(found: Scores, edges: Floats) -> Floats:
    bars: Floats = np.histogram(found.values, edges)[0] / (found.values.size * (edges[1] - edges[0]))
    return bars


def _exact_density(x: Floats, dim: int) -> Floats:
    """Of q.k / sqrt(d)."""
    return np.asarray(dim**0.5 * product_density(dim**0.5 * x, dim))


def _quantile_plot(axes: Axes, scaled: Scores, unscaled: Scores) -> None:
    q = measure.quantiles(scaled)
    axes.fill_between(q.normal, q.low, q.high, color=BLUE, alpha=0.25, linewidth=0.0)
    axes.plot(q.normal, q.exact, color=BLUE)
    axes.plot(q.normal, q.normal, color=BLACK, linestyle=DASHED, linewidth=1.0)
    axes.plot(q.normal, q.sample, "o", color=BLACK, markerfacecolor="none", markersize=3.5, markeredgewidth=0.7)
    axes.set(xlabel="quantile of N(0, 1)", xlim=(-3.6, 3.6), ylim=(-8, 8))
    for x, y, text, colour in (
        (-3.5, 7.2, f"exact law: {_distance(scaled.distance())}", BLUE),
        (-3.5, 5.9, f"N(0, 1): {_distance(scaled.distance(special.ndtr))}", BLACK),
        (3.6, -5.9, f"variance {_interval(*scaled.variance)}", BLUE),
        (3.6, -7.2, f"not scaled {_interval(*unscaled.variance)}", RED),
    ):
        side = "left" if x < 0 else "right"
        axes.text(
            x, y, text, color=colour, ha=side, va="center", bbox={"fc": "white", "ec": "none", "pad": 0.5, "alpha": 0.7}
        )


def _interval(*numbers: float) -> str:
    """An estimate and the ends of its interval."""
    estimate, low, high = (f"{x:.3g}" if abs(x) < 1000 else f"{x:,.0f}" for x in numbers)
    return f"{estimate} ({low} to {high})"


def _distance(found: Finding) -> str:
    chance = "p < 1e-9" if found.p_value < 1e-9 else f"p = {found.p_value:.1g}"
    return f"off by {found.estimate:.4f}, {chance}"


# -- saturation ------------------------------------------------------------------------------------------------------------


def saturation_picture(name: str, scaled: Saturation, unscaled: Saturation, *, how: str) -> Figure:
    """Entropy and trace of the Jacobian against the head size."""
    title = f"How flat are the weights of {_short(name)}?\nRows over {KEYS} N(0, 1) keys, queries of length √d, {ROWS:,} rows a point"
    figure, ((left, right),) = _figure(1, 2, 9.6, 4.2, title, f"{HOW} {how}")
    grid = np.geomspace(scaled.entropy[0].at, scaled.entropy[-1].at, 41)
    laws, flat = [row_law(KEYS, float(d) ** 0.5) for d in grid], row_law(KEYS, 1.0)
    _against_size(left, scaled.entropy, unscaled.entropy, float(np.log(KEYS)), f"ln {KEYS}")
    left.plot(grid, np.full(grid.size, flat.entropy), color=BLUE)
    left.plot(grid, [law.entropy for law in laws], color=RED)
    left.set(ylabel="entropy (nats)")
    left.set_title("Entropy of a row", loc="left")
    _against_size(right, scaled.trace, unscaled.trace, 1.0 - 1.0 / KEYS, f"1 − 1/{KEYS}")
    right.plot(grid, np.full(grid.size, 1.0 - flat.concentration), color=BLUE)
    right.plot(grid, [1.0 - law.concentration for law in laws], color=RED)
    right.set(ylabel="1 − Σ w²")
    right.set_title("Trace of the softmax Jacobian", loc="left")
    return figure


def _against_size(axes: Axes, scaled: Sequence[Point], unscaled: Sequence[Point], top: float, of: str) -> None:
    """The measured points, their names, and the value `top` of equal weights."""
    _bars(axes, scaled, BLUE, "o")
    _bars(axes, unscaled, RED, "s")
    axes.axhline(top, color=GREY, linestyle=DOTTED, linewidth=1.2)
    axes.set(xscale="log", xlabel="head size d", ylim=(0, 1.15 * top))
    axes.set_xticks([p.at for p in scaled], [f"{p.at:g}" for p in scaled])
    axes.minorticks_off()
    last = scaled[-1]
    axes.text(last.at, 1.02 * top, f"{of} = {top:.2f}, equal weights", color=GREY, ha="right", va="bottom")
    axes.text(last.at, 0.96 * last.predicted, "scaled by 1/√d", color=BLUE, ha="right", va="top")
    axes.text(last.at, unscaled[-1].predicted + 0.13 * top, "not scaled", color=RED, ha="right", va="bottom")


# -- depth -----------------------------------------------------------------------------------------------------------------


def depth_picture(unscaled: Depth, scaled: Depth, post: Depth) -> Figure:
    """The variance by block: all three, and the two lower ones enlarged."""
    blocks = len(post.points) - 1
    title = (
        "Variance of the residual stream by depth: the reference GPT (pre-LayerNorm) and BERT (post-LayerNorm)\n"
        f"Initial weights, first token; means over {scaled.models} GPTs of each kind and {post.models} BERTs, {blocks} blocks"
    )
    note = f"{HOW} Dashed: if each block multiplied the variance as the first does."
    figure, ((left, right),) = _figure(1, 2, 9.6, 4.2, title, note)
    _by_block(left, unscaled, RED, "s")
    for axes in (left, right):
        _by_block(axes, scaled, BLUE, "o")
        _by_block(axes, post, GREEN, "D")
        axes.set(xlabel="blocks passed", ylabel="variance / variance of the embeddings")
    _multiplied(left, unscaled)
    _multiplied(right, scaled)
    left.set_title("All three", loc="left")
    left.set_ylim(0, 1.15 * unscaled.points[-1].predicted)
    left.text(4.4, 6.2, "pre-LayerNorm, residual\nweights not scaled", color=RED, va="top")
    left.text(4.4, 2.9, "scaled, and post-LayerNorm", color=GREY, va="center")
    right.set_title("The lower two, enlarged", loc="left")
    right.set_ylim(0.85, None)
    right.text(4.6, 1.36, f"pre-LayerNorm, residual\nweights scaled by 1/√(2 · {blocks})", color=BLUE, va="top")
    right.text(blocks, 0.96, "post-LayerNorm", color=GREEN, ha="right", va="top")
    return figure


def _by_block(axes: Axes, found: Depth, colour: str, marker: str) -> None:
    axes.plot([p.at for p in found.points], [p.predicted for p in found.points], color=colour)
    _bars(axes, found.points, colour, marker)


def _multiplied(axes: Axes, found: Depth) -> None:
    """What the variance is not: growing by the same factor in each block."""
    at, factor = np.array([p.at for p in found.points]), found.points[1].predicted
    axes.plot(at, factor**at, color=GREY, linestyle=DASHED, linewidth=1.0)


# -- what they share -------------------------------------------------------------------------------------------------------


def _bars(axes: Axes, points: Sequence[Point], colour: str, marker: str) -> None:
    """Measured points with their intervals."""
    at, estimate, half = np.array([(p.at, p.estimate, p.half) for p in points]).T
    axes.errorbar(at, estimate, half, fmt=marker, color=colour, mfc="white", capsize=2.5, elinewidth=1.0, zorder=3)


def _arrow(colour: str) -> dict[str, Any]:
    return {"arrowstyle": "-", "color": colour, "linewidth": 0.7}


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"…{name[-59:]}"


def _figure(
    rows: int, columns: int, width: float, height: float, title: str, note: str
) -> tuple[Figure, list[list[Axes]]]:
    """A figure on white with its title at the upper left and a note at the lower left, and its axes by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    grid = [[figure.add_subplot(rows, columns, r * columns + c + 1) for c in range(columns)] for r in range(rows)]
    figure.suptitle(title, x=0.01, ha="left", fontsize=10.5, parse_math=False)
    figure.supxlabel(note, x=0.01, ha="left", fontsize=8.5, color=GREY)
    return figure, grid
