"""The `tokenwire bench` command: arguments in, table, JSON and picture out."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Coroutine, Sequence

from tokenwire.bench import plot, report
from tokenwire.bench.arguments import add_arguments, options_from
from tokenwire.bench.connection import Pool, Target
from tokenwire.bench.load import PATH, LevelRun, Progress, run_level
from tokenwire.bench.options import BenchOptions
from tokenwire.bench.summary import LevelSummary, summarise

_PROGRESS_EVERY_S = 0.1


def run(argv: Sequence[str]) -> int:
    """Run `tokenwire bench ARGV`; the exit code is 0 if every request was answered, 1 if some failed, 2 for bad use."""
    parser = argparse.ArgumentParser(
        prog="tokenwire bench",
        description=f"Load a server on {PATH} and show how fast it answers. Works with any server of the protocol.",
    )
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        options = options_from(args)
        target = Target.of(options.base_url, PATH, options.headers)
    except ValueError as exc:
        sys.stderr.write(f"tokenwire bench: {exc}\n")
        return 2
    levels: list[LevelSummary] = []
    stopped = False
    try:
        _run_loop(_levels(options, target, levels))
    except KeyboardInterrupt:
        _clear_progress()
        sys.stderr.write("tokenwire bench: stopped; whole levels are kept\n")
        stopped = True
    if args.json is not None:
        report.write_json(args.json, options, levels)
    if args.plot is not None:
        plot.write(args.plot, options, levels)
    if stopped:
        return 130  # as a shell has it for SIGINT
    return 1 if any(level.num_failed for level in levels) else 0


def _run_loop(work: Coroutine[None, None, None]) -> None:
    try:
        import uvloop
    except ImportError:  # no uvloop on this platform
        asyncio.run(work)
        return
    uvloop.run(work)


async def _levels(options: BenchOptions, target: Target, levels: list[LevelSummary]) -> None:
    """Run every level, show its row and add it to `levels`."""
    pool = Pool(target)
    _say(report.heading(options))
    try:
        for number, concurrency in enumerate(options.concurrency):
            level = summarise(await run_level(options, pool, number, concurrency, _progress()), options)
            _clear_progress()
            _say("\n".join([report.row(level), *report.remarks(level)]))
            levels.append(level)
    finally:
        pool.close()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _progress() -> Progress:
    """A line on a terminal's stderr that moves; nothing elsewhere."""
    shown = 0.0
    on_terminal = sys.stderr.isatty()

    def show(run: LevelRun) -> None:
        nonlocal shown
        now = time.perf_counter()
        if not on_terminal or now - shown < _PROGRESS_EVERY_S:
            return
        shown = now
        rate = sum(result.num_tokens for result in run.results) / (now - run.start)
        sys.stderr.write(f"\r{len(run.results)}/{run.num_requests} requests, {rate:.0f} out tok/s \x1b[K")
        sys.stderr.flush()

    return show


def _clear_progress() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
