"""Pictures of benchmarks: ratios with their intervals, shares of the limit, and the history. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..bench.history import Kept
from ..bench.run import Bench, Row
from ..bench.verdict import FASTER, LEVEL, SLOWER

COLOURS = {SLOWER: "tab:red", FASTER: "tab:green"}


def draw(bench: Bench, path: Path, history: Mapping[str, Sequence[Kept]] | None = None) -> None:
    """Write the picture of a run. Raises ImportError where matplotlib is not installed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = list(bench.timed)
    series = {row.case.name: _series(row, history or {}) for row in rows}
    series = {name: levels for name, levels in series.items() if len(levels) > 1}
    panels = [_ratios] * any(row.comparison is not None for row in rows) + [_limits]
    figure = Figure(figsize=(5.5 * (len(panels) + bool(series)), 1.5 + 0.4 * max(len(rows), 5)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels) + bool(series), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=False):
        panel(axis, rows)
    if series:
        _history(axes[-1], series)
    figure.suptitle(
        f"{bench.target}{f' against {bench.against}' if bench.against else ''}\n{bench.machine.cpu}", fontsize=10
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _ratios(axis: Any, rows: list[Row]) -> None:
    for at, row in enumerate(rows):
        if row.comparison is not None:
            c, colour = row.comparison, COLOURS.get(row.verdict, "tab:gray")
            if c.low > 0:
                axis.plot([c.low, c.high], [at, at], color=colour, linewidth=2)
            axis.plot(c.ratio, at, "o", color=colour)
            axis.fill_betweenx([at - 0.4, at + 0.4], 1 / (1 + row.threshold), 1 + row.threshold, color="0.9", zorder=0)
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_xscale("log")
    axis.set_xlabel(f"ratio of times, {LEVEL:.0%} interval (right of 1: slower)")
    _names(axis, rows)


def _limits(axis: Any, rows: list[Row]) -> None:
    shares = [row.roof.share(row.median) if row.roof else 0.0 for row in rows]
    axis.barh(range(len(rows)), shares, color="tab:blue")
    for at, row in enumerate(rows):
        axis.text(shares[at], at, f" {row.roof.limit if row.roof else ''}", va="center", fontsize=8)
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.set_xlabel("share of the machine's limit")
    _names(axis, rows)


def _names(axis: Any, rows: list[Row]) -> None:
    axis.set_yticks(range(len(rows)), [row.case.name for row in rows])
    axis.invert_yaxis()


def _series(row: Row, history: Mapping[str, Sequence[Kept]]) -> list[float]:
    levels = [float(np.exp(np.median(run.ratios))) for run in history.get(row.case.sizes, ())]
    return levels + ([float(np.exp(np.median(row.calibrated)))] if row.calibrated is not None else [])


def _history(axis: Any, series: Mapping[str, list[float]]) -> None:
    for name, levels in series.items():
        axis.plot(range(1, len(levels) + 1), np.array(levels) / levels[0], marker="o", markersize=3, label=name)
    axis.set_xlabel("run")
    axis.set_ylabel("time over the calibration's, the first run = 1")
    axis.legend(fontsize=7)
