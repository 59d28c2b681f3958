"""Plots for the pages: small SVG files that come out the same for the same numbers. matplotlib is loaded only here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b7791f", "#c53030", "#4a5568")
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "tokenwire", "font.size": 9, "path.simplify": True}


@dataclass(slots=True)
class Panel:
    """One set of axes. `lines` by label: points of x and y. `bars` by label: one value a category of `categories`."""

    title: str
    x: str = ""
    y: str = ""
    lines: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    categories: Sequence[str] = ()
    bars: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    log_x: bool = False


def is_available() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def write(path: Path, panels: Sequence[Panel]) -> None:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(4.4 * len(panels), 3.3), layout="constrained")
        FigureCanvasSVG(figure)
        for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _draw(axis, panel)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _draw(axis: Any, panel: Panel) -> None:
    if panel.bars:
        _draw_bars(axis, panel)
    else:
        _draw_lines(axis, panel)
    axis.set_title(panel.title, fontsize=10)
    axis.set_ylabel(panel.y)
    axis.set_ylim(bottom=0)
    axis.set_axisbelow(True)
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    if max(len(panel.lines), len(panel.bars)) > 1:
        axis.legend(frameon=False, fontsize=8)


def _draw_lines(axis: Any, panel: Panel) -> None:
    for (label, points), colour in zip(panel.lines.items(), COLOURS, strict=False):
        axis.plot(*zip(*points, strict=True), "o-", ms=3.5, lw=1.4, color=colour, label=label)
    axis.set_xlabel(panel.x)
    if panel.log_x:
        axis.set_xscale("log", base=2)
        ticks = sorted({x for points in panel.lines.values() for x, _ in points})
        axis.set_xticks(ticks, [f"{x:,.6g}" for x in ticks], rotation=45 if ticks[-1] >= 1000 else 0)
        axis.minorticks_off()


def _draw_bars(axis: Any, panel: Panel) -> None:
    width = 0.84 / len(panel.bars)
    for number, ((label, values), colour) in enumerate(zip(panel.bars.items(), COLOURS, strict=False)):
        places = [at + (number - (len(panel.bars) - 1) / 2) * width for at in range(len(values))]
        shown = [value or 0.0 for value in values]
        bars = axis.bar(places, shown, width, color=colour, label=label)
        axis.bar_label(bars, [f"{v:,.0f}" if v >= 10 else f"{v:.2g}" for v in shown], padding=1, fontsize=6)
    axis.set_xticks(range(len(panel.categories)), panel.categories)
    axis.margins(y=0.12)
