"""Sending one level's requests: a fixed number at once, or arriving at random with a mean rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tokenwire.bench import prompts
from tokenwire.bench.connection import Connection, Pool
from tokenwire.bench.meter import Meter, RequestResult
from tokenwire.bench.options import BenchOptions, RequestShape
from tokenwire.errors import TokenwireError

PATH = "/inference/v1/generate"
Progress = Callable[["LevelRun"], None]


@dataclass(slots=True)
class LevelRun:
    """What one level did. `start`..`end` is the one wall clock of the level."""

    concurrency: int
    num_requests: int
    start: float = 0.0
    end: float = 0.0
    cpu_s: float = 0.0
    """Processor time of the load generator itself."""
    results: list[RequestResult] = field(default_factory=list)

    @property
    def wall_s(self) -> float:
        return self.end - self.start


async def run_level(options: BenchOptions, pool: Pool, level: int, concurrency: int, progress: Progress) -> LevelRun:
    """Warm up, then send and measure. Requests that fail are results too; only a lost loop raises."""
    warm = LevelRun(concurrency, options.warmup_at(concurrency))
    # Warm-up prompts are of another level, so that the measured ones are new to the server's prefix cache.
    await _closed_loop(options, pool, prompts.warmup_shape(options.shape), 2 * level + 1, warm, lambda run: None)
    run = LevelRun(concurrency, options.requests_at(concurrency))
    cpu_before = time.thread_time()
    run.start = time.perf_counter()
    if options.request_rate is None:
        await _closed_loop(options, pool, options.shape, 2 * level, run, progress)
    else:
        await _open_loop(options, pool, 2 * level, run, progress)
    run.end = time.perf_counter()
    run.cpu_s = time.thread_time() - cpu_before
    return run


async def _closed_loop(
    options: BenchOptions, pool: Pool, shape: RequestShape, level: int, run: LevelRun, progress: Progress
) -> None:
    """`concurrency` workers; each sends its next request when its last one is answered."""
    indexes = iter(range(run.num_requests))

    async def worker() -> None:
        for index in indexes:
            body = prompts.body(shape, level, index)
            run.results.append(await _one(options, pool, shape, body, time.perf_counter()))
            progress(run)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(run.concurrency, run.num_requests)):
            tasks.create_task(worker())


async def _open_loop(options: BenchOptions, pool: Pool, level: int, run: LevelRun, progress: Progress) -> None:
    """Requests are due at random times, whatever the server does; at most `concurrency` are open.

    Time is counted from when a request was due, so a server that falls behind cannot hide it.
    """
    slots = asyncio.Semaphore(run.concurrency)

    async def send(index: int, due: float) -> None:
        body = prompts.body(options.shape, level, index)
        async with slots:
            run.results.append(await _one(options, pool, options.shape, body, due))
        progress(run)

    async with asyncio.TaskGroup() as tasks:
        for index, offset_s in enumerate(_arrivals(options, run.num_requests)):
            due = run.start + offset_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.create_task(send(index, due))


def _arrivals(options: BenchOptions, count: int) -> Iterator[float]:
    """Offsets in seconds of a Poisson process."""
    rate = options.request_rate
    assert rate is not None
    rng = np.random.default_rng((options.shape.seed, count))
    yield from np.cumsum(rng.exponential(1 / rate, count)).tolist()


async def _one(options: BenchOptions, pool: Pool, shape: RequestShape, body: bytes, start: float) -> RequestResult:
    result = RequestResult(start)
    meter = Meter(result, stream=shape.stream)
    connection: Connection | None = None
    try:
        async with asyncio.timeout(options.timeout_s):
            connection = await pool.take()
            status = await connection.post(pool.target, body, meter.feed)
        meter.finish(status, time.perf_counter())
    except TimeoutError:
        result.failure = f"no answer within {options.timeout_s:g} s"
    except TokenwireError as exc:
        result.failure = exc.message
    finally:
        if connection is not None:
            pool.give_back(connection)
    result.end = result.end or time.perf_counter()
    return result
