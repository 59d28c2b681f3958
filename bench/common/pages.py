"""Tables as Markdown, results as JSON, and the part of docs/performance.md that one benchmark owns."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "plots"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The first column is text, the others are numbers, set to the right."""
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    lines += [f"| {' | '.join(_shown(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def command(script: str, arguments: Sequence[str]) -> str:
    """How a run is repeated: without what says where results go, and PATH for places of one machine."""
    shown = ["python", f"bench/{script}"]
    is_place = False
    for argument in arguments:
        if argument == "--json":
            is_place = True
        elif is_place:
            is_place = False
        elif argument != "--page":
            shown.append(re.sub(r"(^|=)[~/].*", r"\1PATH", argument))
    return shlex.join(shown)


def write_json(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def write_section(name: str, text: str, page: Path = PAGE) -> None:
    """Replace what stands between the marks of `name` in the page. Raises `ValueError` if it has no such marks."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- end bench:{name} -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page} has no {begin} ... {end}")
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}")
