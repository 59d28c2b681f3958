"""An engine without a model: it makes known tokens at once, so that what is measured is everything around it.

Token i of a sequence is `1000 + i % 40000` (within the vocabulary) with logprob -0.5; candidate j is j ids further
and j below that. One task steps up to `max_num_seqs` streams a batch and lets the event loop breathe every
`STEPS_PER_YIELD` steps, or sleeps `step_s` between steps when a test wants time to pass.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokenwire.engine.base import (
    Capabilities,
    Engine,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    EngineStats,
    EngineStatus,
    FinishReason,
    Logprobs,
    OutputStream,
    PromptOutput,
)
from tokenwire.engine.control import Control, Pause, ResetPrefixCache, Resume
from tokenwire.engine.queue import RequestQueue
from tokenwire.errors import EngineUnavailableError

FIRST_ID = 1000
PERIOD = 40000
STEPS_PER_YIELD = 32
ROWS_PER_BLOCK = 64

CAPABILITIES = Capabilities(
    logprob_token_ids=False,
    cache_salt=True,
    priority=True,
    kv_transfer=True,
    ec_transfer=True,
    extra_args=True,
    controls=frozenset({"pause", "resume", "reset_prefix_cache"}),
)


@dataclass(slots=True, frozen=True, kw_only=True)
class NullEngineOptions:
    """Limits that the engine declares; `step_s` is the pause after each step, in seconds."""

    vocab_size: int = 65536
    max_model_len: int = 1 << 20
    max_num_seqs: int = 256
    max_logprobs: int = 20
    step_s: float = 0.0
    model: str = "null"


@dataclass(slots=True)
class _Running:
    request: EngineRequest
    queue: RequestQueue
    max_tokens: int
    whole: bool
    """All tokens come in one output: nobody watches them come."""
    num_done: int = 0
    rows: Logprobs | None = None
    rows_start: int = 0
    prompt: PromptOutput | None = field(default_factory=lambda: PromptOutput(num_cached_tokens=0))


def _info_of(options: NullEngineOptions) -> EngineInfo:
    return EngineInfo(
        name="null",
        model=options.model,
        max_model_len=options.max_model_len,
        vocab_size=options.vocab_size,
        eos_token_ids=(0,),
        max_num_seqs=options.max_num_seqs,
        max_logprobs=options.max_logprobs,
        default_sampling_params={},
        capabilities=CAPABILITIES,
    )


class NullEngine(Engine):
    """Implements `Engine` on the caller's event loop."""

    def __init__(self, options: NullEngineOptions | None = None) -> None:
        self.options = options or NullEngineOptions()
        self._info = _info_of(self.options)
        self._live: dict[str, _Running] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._status = EngineStatus.STARTING
        self._num_steps = 0
        self._cycle = [(FIRST_ID + position) % self.options.vocab_size for position in range(PERIOD)]
        self._is_ending = False
        """A pause waits for the end of what runs; nothing new is taken."""

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def status(self) -> EngineStatus:
        return EngineStatus.PAUSED if self._is_ending and self._status is EngineStatus.READY else self._status

    @property
    def load(self) -> int:
        return len(self._live)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="null-engine")
        self._status = EngineStatus.READY

    async def close(self) -> None:
        self._status = EngineStatus.DEAD
        for running in list(self._live.values()):
            running.queue.fail(EngineUnavailableError("The engine is shutting down."))
        self._live.clear()
        self._idle.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def generate(self, request: EngineRequest) -> OutputStream:
        def stop(index: int) -> None:
            if queue.done:
                self._drop(request.request_id)

        queue = RequestQueue(request.sampling.n, lambda: self._drop(request.request_id), stop)
        if self.status in (EngineStatus.DEAD, EngineStatus.PAUSED):
            raise EngineUnavailableError(f"The engine is {self.status.value}.")
        max_tokens = request.sampling.max_tokens
        assert isinstance(max_tokens, int)
        whole = not request.stream and not self.options.step_s
        self._live[request.request_id] = _Running(request, queue, max_tokens, whole)
        self._idle.clear()
        self._wake.set()
        return queue

    def _drop(self, request_id: str) -> None:
        self._live.pop(request_id, None)
        if not self._live:
            self._idle.set()

    async def abort(self, request_ids: Iterable[str]) -> list[str]:
        found = [request_id for request_id in request_ids if request_id in self._live]
        for request_id in found:
            running = self._live[request_id]
            self._drop(request_id)
            for index in range(running.request.sampling.n):
                running.queue.put(EngineOutput(index, [], finish_reason="abort", prompt=running.prompt))
        return found

    async def stats(self) -> EngineStats:
        num_running = min(len(self._live), self.options.max_num_seqs)
        return EngineStats(
            num_running=num_running, num_waiting=len(self._live) - num_running, num_steps=self._num_steps
        )

    async def control(self, message: Control) -> dict[str, Any]:
        match message:
            case Pause(mode=mode):
                await self._pause(mode)
            case Resume():
                self._status, self._is_ending = EngineStatus.READY, False
                self._wake.set()
            case ResetPrefixCache():
                return {"success": True}
            case _:
                return await super().control(message)
        return {}

    async def _pause(self, mode: str) -> None:
        if mode == "abort":
            await self.abort(list(self._live))
        elif mode == "wait":
            self._status, self._is_ending = EngineStatus.READY, True  # what was frozen must go on to end
            self._wake.set()
            await self._idle.wait()
            if self.status is not EngineStatus.PAUSED:
                raise EngineUnavailableError("resumed or closed before everything had finished")
            self._is_ending = False
        self._status = EngineStatus.FROZEN if mode == "keep" else EngineStatus.PAUSED

    # --- the step loop

    async def _run(self) -> None:
        while True:
            if not self._live or self._status in (EngineStatus.PAUSED, EngineStatus.FROZEN):
                self._wake.clear()
                await self._wake.wait()
                continue
            self._step()
            self._num_steps += 1
            if self.options.step_s:
                await asyncio.sleep(self.options.step_s)
            elif self._num_steps % STEPS_PER_YIELD == 0 or not self._live:
                await asyncio.sleep(0)

    def _step(self) -> None:
        """One token for each of the first `max_num_seqs` streams; a whole answer where nobody streams."""
        finished = []
        for running in itertools.islice(self._live.values(), self.options.max_num_seqs):
            self._advance(running, running.max_tokens if running.whole else 1)
            if running.num_done == running.max_tokens:
                finished.append(running.request.request_id)
        for request_id in finished:
            self._drop(request_id)

    def _advance(self, running: _Running, count: int) -> None:
        start = running.num_done
        running.num_done = stop = start + count
        finish: FinishReason | None = "length" if stop == running.max_tokens else None
        scored = running.request.sampling.logprobs is not None
        for index in range(running.request.sampling.n):
            # The list is the reader's to keep: every sequence gets its own.
            token_ids = self._ids(start, stop)
            output = EngineOutput(index, token_ids, self._logprobs(running, start, count) if scored else None)
            output.finish_reason = finish
            if running.prompt is not None:
                output.prompt, running.prompt = running.prompt, None
            running.queue.put(output)

    def _ids(self, start: int, stop: int) -> list[int]:
        first = start % PERIOD
        if first + stop - start <= PERIOD:
            return self._cycle[first : first + stop - start]
        return [self._cycle[position % PERIOD] for position in range(start, stop)]

    def _logprobs(self, running: _Running, start: int, count: int) -> Logprobs | None:
        k = running.request.sampling.logprobs
        if k is None:
            return None
        if count > 1:
            return self._rows(start, count, k)
        if running.rows is None or not 0 <= start - running.rows_start < len(running.rows):
            running.rows, running.rows_start = self._rows(start, ROWS_PER_BLOCK, k), start
        at = start - running.rows_start
        return running.rows.slice(at, at + 1)

    def _rows(self, start: int, count: int, k: int) -> Logprobs:
        """[count, 1 + k]: the sampled token, then k candidates, the first of which is the sampled one again."""
        width = self.options.vocab_size if k == -1 else k
        offsets = np.concatenate([[0], np.arange(width)]).astype(np.int32)
        sampled = (FIRST_ID + (start + np.arange(count)) % PERIOD).astype(np.int32)
        token_ids = (sampled[:, None] + offsets) % self.options.vocab_size
        scores = np.broadcast_to((-0.5 - offsets).astype(np.float32), token_ids.shape)
        return Logprobs(token_ids.astype(np.int32), scores, np.ones(count, np.int32))
