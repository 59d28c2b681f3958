"""How the local engine's figures grow: with streams, with the prompt, with choices of one prompt.

    python bench/growth.py [--streams 1 2 4 ...] [--prompts 64 128 ...] [--choices 1 2 4 ...] [--repeats 3]
                           [--serve-args "--quantization int8"] [--json FILE] [--page]

One server, one table and one plot for each of the three. Repeats go round over all sizes, so that a busy minute does
not hit one size alone; a table shows the median. What should stay level or fall is a column of its own: time of a step
per stream, time of a prompt token, time of a choice.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from common import load, machine, pages, plots
from common.servers import Server, memory, tokenwire

STREAMS = [1, 2, 4, 8, 16, 32, 64, 128]
PROMPTS = [64, 128, 256, 512, 1000, 2000, 4000, 8000]
CHOICES = [1, 2, 4, 8, 16, 32, 64]
PACKAGES = ("tokenwire", "torch", "transformers", "numba")
SHARED_PROMPT = 512
"""Ids of the prompt that all choices continue."""
DECODED = 33
"""Tokens after a prompt: the first is the prompt's, the others are steps."""

Row = dict[str, float]


@dataclass(slots=True)
class Growth:
    """One table: its sizes, what is measured at one, and how it is shown."""

    name: str
    title: str
    sizes: Sequence[int]
    measure: Callable[[Server, int, str], Row]
    columns: dict[str, str]
    """Key of a row -> head of the column."""
    panels: list[tuple[str, str]]
    """Key -> title of its plot."""
    rows: dict[int, list[Row]] = field(default_factory=dict)

    def run(self, server: Server, repeat: int) -> None:
        for size in self.sizes:
            row = self.measure(server, size, f"{self.name} {size} {repeat}")
            self.rows.setdefault(size, []).append(row)
            print(f"{self.name} {size}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)

    def medians(self) -> dict[int, Row]:
        return {size: {key: median(row[key] for row in rows) for key in rows[0]} for size, rows in self.rows.items()}

    def table(self) -> str:
        rows = [[size, *(row[key] for key in self.columns)] for size, row in self.medians().items()]
        return pages.table([self.name, *self.columns.values()], rows)


def streams(server: Server, count: int, seed: str, output_len: int) -> Row:
    drawn = load.prompts(count, 64, seed)
    wall = load.at_once([lambda ids=ids: load.generate(server.port, ids, output_len) for ids in drawn])
    return {
        "tokens_per_s": count * output_len / wall,
        "per_stream_per_s": output_len / wall,
        "step_ms": wall / output_len * 1e3,
        "step_ms_per_stream": wall / output_len * 1e3 / count,
    }


def prompt(server: Server, length: int, seed: str) -> Row:
    ids = load.prompts(1, length, seed)[0]
    cold = load.stream(server.port, ids, DECODED)
    again = load.stream(server.port, ids, 1)
    return {
        "first_s": cold.first_s,
        "ids_per_s": length / cold.first_s,
        "ms_per_id": cold.first_s / length * 1e3,
        "again_s": again.first_s,
        "decode_per_s": cold.decode_per_s,
        "core_mb": max(memory(pid).rss for pid in server.processes()) / 1e6,
    }


def choices(server: Server, count: int, seed: str, output_len: int) -> Row:
    ids = load.prompts(1, SHARED_PROMPT, seed)[0]
    timing = load.stream(server.port, ids, output_len, n=count)
    assert timing.tokens == count * output_len, f"{timing.tokens} tokens of {count} choices"
    return {
        "first_s": timing.first_s,
        "whole_s": timing.last_s,
        "tokens_per_s": timing.tokens / timing.last_s,
        "ms_per_choice": timing.last_s / count * 1e3,
    }


def growths(args: argparse.Namespace) -> list[Growth]:
    output_len = args.output_len
    return [
        Growth(
            "streams",
            f"Streams: 64 random ids in, {output_len} out, all sent at once",
            args.streams,
            lambda server, size, seed: streams(server, size, seed, output_len),
            {
                "tokens_per_s": "tokens/s",
                "per_stream_per_s": "tokens/s of one",
                "step_ms": "ms a step, prompt included",
                "step_ms_per_stream": "the same, per stream",
            },
            [("tokens_per_s", "tokens/s over all streams"), ("step_ms", "ms a step, prompt included")],
        ),
        Growth(
            "prompt ids",
            f"Prompt length: one stream, {DECODED - 1} steps after it; then the same prompt again",
            args.prompts,
            prompt,
            {
                "first_s": "first token, s",
                "ids_per_s": "ids/s",
                "ms_per_id": "ms an id",
                "again_s": "first token again, s",
                "decode_per_s": "tokens/s after it",
                "core_mb": "engine, MB",
            },
            [("first_s", "s to the first token"), ("decode_per_s", "tokens/s after the prompt")],
        ),
        Growth(
            "choices (n)",
            f"Choices: one prompt of {SHARED_PROMPT} ids, n choices of {output_len} tokens",
            args.choices,
            lambda server, size, seed: choices(server, size, seed, output_len),
            {
                "first_s": "first token, s",
                "whole_s": "all, s",
                "tokens_per_s": "tokens/s",
                "ms_per_choice": "ms a choice",
            },
            [("whole_s", "s until all are there"), ("tokens_per_s", "tokens/s over all choices")],
        ),
    ]


def section(result: dict[str, Any], parts: Sequence[Growth], command: str) -> str:
    text = [f"`{command}`: medians of {result['repeats']}. {machine.sentence(result['machine'])}"]
    for part in parts:
        text += [f"### {part.title}", part.table(), f"![{part.title}](plots/{_plot_name(part)})"]
    return "\n\n".join(text)


def _plot_name(part: Growth) -> str:
    return f"growth-{part.name.partition(' ')[0]}.svg"


def draw(part: Growth, folder: Path) -> None:
    medians = part.medians()
    panels = [
        plots.Panel(title, x=part.name, lines={title: [(size, row[key]) for size, row in medians.items()]}, log_x=True)
        for key, title in part.panels
    ]
    plots.write(folder / _plot_name(part), panels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="*", default=STREAMS, metavar="N")
    parser.add_argument("--prompts", type=int, nargs="*", default=PROMPTS, metavar="N")
    parser.add_argument("--choices", type=int, nargs="*", default=CHOICES, metavar="N")
    parser.add_argument("--output-len", type=int, default=64, metavar="N", help="tokens of a stream (default: 64)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="rounds over all sizes (default: 3)")
    parser.add_argument("--serve-args", default="", metavar="ARGS", help="further arguments of `tokenwire serve`")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers")
    parser.add_argument("--page", action="store_true", help="write tables into docs/performance.md, plots beside it")
    args = parser.parse_args()
    if args.quick:
        args.streams, args.prompts, args.choices, args.repeats, args.output_len = [1, 4], [64, 256], [1, 4], 1, 8
    result: dict[str, Any] = {"machine": machine.describe(*PACKAGES), "repeats": args.repeats}
    parts = [part for part in growths(args) if part.sizes]
    server = tokenwire("serve", *shlex.split(args.serve_args))
    try:
        server.wait_until_ready()
        streams(server, 4, "warm up", 4)
        for repeat in range(args.repeats):
            for part in parts:
                part.run(server, repeat)
    finally:
        server.stop()
    for part in parts:
        result[part.name] = {"medians": part.medians(), "all": part.rows}
    command = pages.command("growth.py", sys.argv[1:])
    text = section(result, parts, command)
    print(text)
    if args.json is not None:
        pages.write_json(args.json, result)
    if args.page:
        for part in parts:
            draw(part, pages.PLOTS)
        pages.write_section("growth", text)


if __name__ == "__main__":
    main()
