"""Numbers to text and JSON."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tokenwire import __version__
from tokenwire.bench.options import BenchOptions
from tokenwire.bench.summary import LevelSummary, Spread

_COLUMNS = (
    ("at once", 7),
    ("requests", 8),
    ("failed", 6),
    ("out tok/s", 9),
    ("in tok/s", 9),
    ("first token ms", 22),
    ("inter-token ms", 22),
    ("request ms", 25),
)
SHOWN_FAILURES = 3
BUSY_GENERATOR = 0.9
"""Cores of the one thread that sends."""


def heading(options: BenchOptions) -> str:
    """What is measured, and the head of the table."""
    shape = options.shape
    how = "streamed" if shape.stream else "whole replies"
    prefix = f", the first {shape.shared_prefix_len} shared" if shape.shared_prefix_len else ""
    scores = "" if shape.logprobs is None else f", logprobs {shape.logprobs}"
    rate = "" if options.request_rate is None else f", {options.request_rate:g} arrivals/s"
    return (
        f"{options.base_url}: {shape.prompt_len} ids in{prefix}, {shape.output_len} out, {how}{scores}{rate}, "
        f"seed {shape.seed}\nlatencies are p50 / p90 / p99\n\n"
        + "  ".join(f"{name:>{width}}" for name, width in _COLUMNS)
    )


def row(level: LevelSummary) -> str:
    """One line of the table."""
    cells = (
        str(level.concurrency),
        str(level.num_requests),
        str(level.num_failed),
        short(level.output_tok_per_s),
        short(level.input_tok_per_s),
        _three(level.ttft_ms),
        _three(level.itl_ms),
        _three(level.e2e_ms),
    )
    return "  ".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True))


def _three(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return " / ".join(short(value) for value in (spread.p50, spread.p90, spread.p99))


def short(value: float) -> str:
    """Three digits are as many as such a number is worth."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def remarks(level: LevelSummary) -> list[str]:
    """What a reader of the row must know."""
    commonest = sorted(level.failures.items(), key=lambda item: -item[1])
    lines = [f"  {count} x {why}" for why, count in commonest[:SHOWN_FAILURES]]
    if rest := sum(count for _, count in commonest[SHOWN_FAILURES:]):
        lines.append(f"  {rest} x other failures (--json has them all)")
    if level.num_short:
        lines.append(f"  {level.num_short} answers were shorter than asked for (does the server know ignore_eos?)")
    if level.generator_cpu > BUSY_GENERATOR and level.output_tok_per_s:
        lines.append(f"  the load generator used {level.generator_cpu:.0%} of a core: it may be what was measured")
    return lines


def as_dict(options: BenchOptions, levels: Sequence[LevelSummary]) -> dict[str, Any]:
    """The report as plain objects. Headers are left out: they may hold keys."""
    plain: dict[str, Any] = msgspec.to_builtins(options)
    plain.pop("headers")
    return {
        "tokenwire": __version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": platform.platform(),
        "options": plain,
        "levels": msgspec.to_builtins(levels),
    }


def write_json(path: Path, options: BenchOptions, levels: Sequence[LevelSummary]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(as_dict(options, levels)), indent=2) + b"\n")
