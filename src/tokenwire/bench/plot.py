"""The report as a picture. matplotlib is optional and loaded only here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenwire.bench.options import BenchOptions
from tokenwire.bench.report import short
from tokenwire.bench.summary import LevelSummary, Spread

_COLOURS = {"p50": "#2b6cb0", "p90": "#dd8a2e", "p99": "#c0392b"}
_LATENCIES = (
    ("ttft_ms", "Time to first token"),
    ("itl_ms", "Inter-token latency"),
    ("e2e_ms", "Whole request"),
)


def is_available() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def write(path: Path, options: BenchOptions, levels: Sequence[LevelSummary]) -> None:
    """Throughput and latencies over concurrency: lines, or bars where there is only one level."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2).flat
    _throughput(axes[0], levels)
    for axis, (field, title) in zip(list(axes)[1:], _LATENCIES, strict=True):
        _latency(axis, [getattr(level, field) for level in levels], levels, title)
    shape = options.shape
    figure.suptitle(
        f"{options.base_url}   {shape.prompt_len} ids in, {shape.output_len} out, "
        f"{'streamed' if shape.stream else 'whole replies'}",
        fontsize=11,
    )
    figure.savefig(path, dpi=130)


def _throughput(axis: Any, levels: Sequence[LevelSummary]) -> None:
    # Equal prompt and output lengths give equal rates: the second line is dashed, so that both are seen.
    _draw(axis, levels, [level.output_tok_per_s for level in levels], "output", "#2f855a", 0, 2)
    _draw(axis, levels, [level.input_tok_per_s for level in levels], "input", "#b794f4", 1, 2, dashed=True)
    _finish(axis, levels, "Throughput", "tokens/s")


def _latency(axis: Any, spreads: Sequence[Spread | None], levels: Sequence[LevelSummary], title: str) -> None:
    known = [(spread, level) for spread, level in zip(spreads, levels, strict=True) if spread is not None]
    if not known:
        axis.text(0.5, 0.5, "not measured", ha="center", va="center", color="0.4")
        axis.set_title(title)
        axis.set_axis_off()
        return
    shown = [level for _, level in known]
    for at, (name, colour) in enumerate(_COLOURS.items()):
        _draw(axis, shown, [getattr(spread, name) for spread, _ in known], name, colour, at, len(_COLOURS))
    _finish(axis, shown, title, "ms")


def _draw(
    axis: Any,
    levels: Sequence[LevelSummary],
    values: list[float],
    label: str,
    colour: str,
    at: int,
    of: int,
    *,
    dashed: bool = False,
) -> None:
    if len(levels) == 1:
        bars = axis.bar([at], values, 0.7, color=colour, label=label)
        axis.bar_label(bars, fmt=short, padding=2, fontsize=9)
        axis.set_xticks(range(of))
        return
    axis.plot(
        [level.concurrency for level in levels], values, "o--" if dashed else "o-", color=colour, label=label, ms=4
    )


def _finish(axis: Any, levels: Sequence[LevelSummary], title: str, unit: str) -> None:
    axis.set_title(title)
    axis.set_ylabel(unit)
    axis.set_axisbelow(True)
    axis.grid(axis="y", alpha=0.3)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axis.spines[["top", "right"]].set_visible(False)
    if len(levels) == 1:
        axis.set_xticklabels([text.get_label() for text in axis.containers])
        axis.set_xlabel(f"requests at once: {levels[0].concurrency}")
        axis.margins(y=0.15)
        return
    ticks = sorted({level.concurrency for level in levels})
    if ticks[-1] >= 8 * ticks[0]:
        axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("requests at once")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize=9)
