"""What a row more costs a step: measured once, when the engine starts, since kernels and machines differ widely.

Where reading the weights takes the time, eight rows cost what one does; where arithmetic does, each costs its share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tokenwire.engine.local.requests import Request, RequestKey, Sequence
from tokenwire.engine.local.runner import ModelRunner
from tokenwire.engine.local.scheduler import Chunk
from tokenwire.wire.sampling import SamplingParams

ROWS = {"cpu": (1, 4, 8, 16, 32), "cuda": (1, 8, 32, 128, 512)}
_TRIES = 10
_PATIENCE_S = 1.5
"""A large model gets two tries."""
_CONTEXT = 4


@dataclass(slots=True, frozen=True)
class StepCosts:
    """Straight lines between what was measured; past its end the last one goes on. The unit does not matter."""

    rows: tuple[int, ...]
    """At least two, rising."""
    times: tuple[float, ...]

    def of(self, num_rows: int) -> float:
        """A step of that many rows."""
        if num_rows <= self.rows[-1]:
            return float(np.interp(num_rows, self.rows, self.times))
        return self.times[-1] + (num_rows - self.rows[-1]) * self.of_one_more(self.rows[-1])

    def of_one_more(self, num_rows: int) -> float:
        """The row that comes after `num_rows` rows."""
        segment = min(int(np.searchsorted(self.rows, num_rows, side="right")), len(self.rows) - 1)
        low, high = self.rows[segment - 1], self.rows[segment]
        return (self.times[segment] - self.times[segment - 1]) / (high - low)


MEMORY_BOUND = StepCosts((1, 8, 16, 64), (27.0, 27.0, 33.0, 93.0))
"""Milliseconds of a model of 135M parameters in float32 on two cores, where nothing was measured."""


def measure_costs(runner: ModelRunner) -> StepCosts:
    """Seconds by number of rows, the best of a few tries each. Writes into cache blocks that hold nothing yet."""
    rows = tuple(count for count in ROWS.get(runner.device.type, ROWS["cuda"]) if count <= runner.cache.num_blocks)
    if len(rows) < 2:
        return MEMORY_BOUND
    best = dict.fromkeys(rows, float("inf"))
    began = time.monotonic()
    for attempt in range(_TRIES):
        if attempt >= 2 and time.monotonic() - began > _PATIENCE_S:
            break
        for count in rows:
            best[count] = min(best[count], _seconds(lambda count=count: _step(runner, count)))  # type: ignore[misc]
    times = np.maximum.accumulate([best[count] for count in rows])  # a row more is never cheaper
    return StepCosts(rows, tuple(times.tolist()))


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _step(runner: ModelRunner, num_rows: int) -> None:
    """One decode each of so many sequences, with a block each."""
    chunks = []
    for row in range(num_rows):
        request = Request(
            key=RequestKey(b"", row),
            params=SamplingParams(),
            prompt_token_ids=[0],
            max_tokens=1,
            stream=False,
            stream_interval=1,
            priority=0,
            arrival=row,
            root=b"",
        )
        num_computed = min(_CONTEXT, runner.block_size) - 1
        chunks.append(Chunk(Sequence(request, 0, [0] * (num_computed + 1), num_computed=num_computed, row=row), 1))
    logits, _ = runner.forward(chunks, np.arange(num_rows, dtype=np.int32)[:, None])
    logits[-1, -1].item()  # a GPU's work is done when its result is here
