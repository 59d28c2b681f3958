"""An engine whose every output is written down by the test: ids, logprobs, reasons, pauses, failures.

    engine = ScriptedEngine(one_sequence([5, 6, 7], finish_reason="stop", stop_reason=7))
    engine = ScriptedEngine(lambda request: interleave(sequence([1, 2], index=0), sequence([3], index=1)))

A script is a list of `Step`s (or a function from the request to one). A step waits `delay_s`, then puts its outputs,
and may fail the stream. What the engine was asked is in `requests`, `aborted`, `stopped` and `controls`. `gate` holds
every request back until `open_gate()`. `last_word` are fields of the output that ends a sequence early.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from tokenwire.engine.base import (
    Capabilities,
    Engine,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    EngineStats,
    EngineStatus,
    Logprobs,
    OutputStream,
    PromptOutput,
)
from tokenwire.engine.control import Control, Pause, Resume
from tokenwire.engine.queue import RequestQueue
from tokenwire.errors import EngineDeadError, TokenwireError

ALL_CAPABILITIES = Capabilities(
    logprob_token_ids=True,
    prompt_logprobs=True,
    prompt_logprob_token_ids=True,
    structured_outputs=frozenset({"json", "regex", "choice", "grammar", "json_object", "structural_tag"}),
    bad_words=True,
    repetition_detection=True,
    trace_decode=True,
    thinking_token_budget=True,
    watermarking=True,
    routed_experts=True,
    sampling_mask=True,
    priority=True,
    cache_salt=True,
    cache_probe=True,
    adapters=True,
    modalities=frozenset({"image", "audio", "video"}),
    content_parts=True,
    kv_transfer=True,
    ec_transfer=True,
    data_parallel_size=4,
    extra_args=True,
    controls=frozenset({"pause", "resume", "reset_prefix_cache"}),
)


@dataclass(slots=True)
class Step:
    """What one engine step does to one request."""

    outputs: list[EngineOutput] = field(default_factory=list)
    delay_s: float = 0.0
    error: TokenwireError | None = None


Script = Sequence[Step] | Callable[[EngineRequest], Iterable[Step]]


def logprobs_of(rows: Sequence[Sequence[tuple[int, float]]], ranks: Sequence[int] | None = None) -> Logprobs:
    """One row a token: `(id, logprob)` of the sampled token, then of the candidates; short rows are padded with -1."""
    width = max((len(row) for row in rows), default=1)
    token_ids = np.full((len(rows), width), -1, np.int32)
    scores = np.full((len(rows), width), -np.inf, np.float32)
    for i, row in enumerate(rows):
        for j, (token_id, score) in enumerate(row):
            token_ids[i, j], scores[i, j] = token_id, score
    return Logprobs(token_ids, scores, np.asarray([1] * len(rows) if ranks is None else ranks, np.int32))


def sequence(
    token_ids: Sequence[int],
    *,
    index: int = 0,
    step_size: int = 1,
    logprobs: Logprobs | None = None,
    finish_reason: str | None = "length",
    **last: Any,
) -> list[EngineOutput]:
    """The outputs of one sequence, `step_size` tokens each; `last` sets fields of the last output."""
    starts = range(0, len(token_ids), step_size) or [0]
    outputs = []
    for start in starts:
        stop = start + step_size
        part = logprobs.slice(start, stop) if logprobs is not None and len(token_ids) > start else None
        outputs.append(EngineOutput(index, list(token_ids[start:stop]), part))
    outputs[-1].finish_reason = finish_reason  # type: ignore[assignment]
    for name, value in last.items():
        setattr(outputs[-1], name, value)
    return outputs


def interleave(*sequences: Sequence[EngineOutput], delay_s: float = 0.0, num_cached_tokens: int = 0) -> list[Step]:
    """Step k holds output k of every sequence that still runs; the prompt's facts ride on the first output."""
    steps = [
        Step([output for output in row if output is not None], delay_s) for row in itertools.zip_longest(*sequences)
    ]
    if steps and steps[0].outputs:
        steps[0].outputs[0].prompt = steps[0].outputs[0].prompt or PromptOutput(num_cached_tokens=num_cached_tokens)
    return steps


def one_sequence(token_ids: Sequence[int], *, delay_s: float = 0.0, **options: Any) -> list[Step]:
    return interleave(sequence(token_ids, **options), delay_s=delay_s)


def counting(request: EngineRequest, *, delay_s: float = 0.0) -> list[Step]:
    """The default script: sequence i gives max_tokens ids from `1000 * (i + 1) + prompt length` on."""
    max_tokens = request.sampling.max_tokens
    assert isinstance(max_tokens, int)
    sequences = []
    for index in range(request.sampling.n):
        first = 1000 * (index + 1) + len(request.prompt_token_ids)
        token_ids = [first + i for i in range(max_tokens)]
        k = request.sampling.logprobs
        rows = [[(token, -0.5), *((token + j, -0.5 - j) for j in range(k or 0))] for token in token_ids]
        sequences.append(sequence(token_ids, index=index, logprobs=None if k is None else logprobs_of(rows)))
    return interleave(*sequences, delay_s=delay_s)


@dataclass(slots=True)
class _Live:
    queue: RequestQueue
    open: set[int]
    """Sequences without a finish reason yet."""
    task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()


class ScriptedEngine(Engine):
    """Plays a script for each request; see the module docstring."""

    def __init__(
        self,
        script: Script = counting,
        *,
        vocab_size: int = 50000,
        max_model_len: int = 4096,
        max_num_seqs: int = 8,
        max_logprobs: int = 20,
        capabilities: Capabilities = ALL_CAPABILITIES,
        default_sampling_params: Mapping[str, Any] | None = None,
        eos_token_ids: tuple[int, ...] = (2,),
        gate: bool = False,
        cached_prefix_len: int = 0,
        last_word: Mapping[str, Any] | None = None,
        **info: Any,
    ) -> None:
        self.script = script
        self.requests: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.stopped: list[tuple[str, int]] = []
        self.controls: list[Control] = []
        self.prefix_len = cached_prefix_len
        self.last_word = last_word
        self._gate = asyncio.Event()
        if not gate:
            self._gate.set()
        self._live: dict[str, _Live] = {}
        self._status = EngineStatus.READY
        self._info = EngineInfo(
            name="scripted",
            model="scripted",
            max_model_len=max_model_len,
            vocab_size=vocab_size,
            eos_token_ids=eos_token_ids,
            max_num_seqs=max_num_seqs,
            max_logprobs=max_logprobs,
            default_sampling_params=default_sampling_params or {},
            capabilities=capabilities,
            **info,
        )

    # --- what a test reads and does

    @property
    def num_live(self) -> int:
        return len(self._live)

    def open_gate(self) -> None:
        self._gate.set()

    def with_info(self, **changes: Any) -> ScriptedEngine:
        self._info = replace(self._info, **changes)
        return self

    def die(self, error: TokenwireError | None = None, *, status: EngineStatus = EngineStatus.DEAD) -> None:
        """Every open stream fails; later requests fail at once."""
        self._status = status
        for live in list(self._live.values()):
            live.queue.fail(error or EngineDeadError("The engine process ended."))
            live.stop()

    def revive(self) -> None:
        self._status = EngineStatus.READY

    # --- Engine

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def status(self) -> EngineStatus:
        return self._status

    async def start(self) -> None:
        self._status = EngineStatus.READY

    async def close(self) -> None:
        tasks = [live.task for live in self._live.values() if live.task is not None]
        self.die(status=EngineStatus.DEAD)
        await asyncio.gather(*tasks, return_exceptions=True)

    def generate(self, request: EngineRequest) -> OutputStream:
        self.requests.append(request)
        queue = RequestQueue(
            request.sampling.n,
            lambda: self._leave(request.request_id),
            lambda index: self._stop(request.request_id, index),
            ask_end=None if self.last_word is None else lambda index: self._end(request.request_id, index),
        )
        if self._status is EngineStatus.DEAD:
            queue.fail(EngineDeadError("The engine process ended."))
            return queue
        live = self._live[request.request_id] = _Live(queue, set(range(request.sampling.n)))
        live.task = asyncio.create_task(self._play(request, live))
        live.task.add_done_callback(lambda _: self._live.pop(request.request_id, None))
        return queue

    def _leave(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if request_id in self._live:
            self._live[request_id].stop()

    def _stop(self, request_id: str, index: int) -> None:
        self.stopped.append((request_id, index))
        live = self._live.get(request_id)
        if live is not None:
            live.open.discard(index)
            if not live.open:
                live.stop()

    def _end(self, request_id: str, index: int) -> bool:
        """Say the last word once the reader waits for it."""
        queue = self._live[request_id].queue
        self._stop(request_id, index)
        asyncio.get_running_loop().call_later(0.01, queue.put, self._aborted(index))
        return True

    def _aborted(self, index: int) -> EngineOutput:
        return EngineOutput(index, [], finish_reason="abort", **(self.last_word or {}))

    async def _play(self, request: EngineRequest, live: _Live) -> None:
        await self._gate.wait()
        for step in self.script(request) if callable(self.script) else self.script:
            await asyncio.sleep(step.delay_s)
            for output in step.outputs:
                live.queue.put(msgspec.structs.replace(output, token_ids=list(output.token_ids)))
                if output.finish_reason is not None:
                    live.open.discard(output.index)
            if step.error is not None:
                live.queue.fail(step.error)
                return

    async def abort(self, request_ids: Iterable[str]) -> list[str]:
        found = [request_id for request_id in request_ids if request_id in self._live]
        for request_id in found:
            live = self._live[request_id]
            live.stop()
            for index in sorted(live.open):
                live.queue.put(self._aborted(index))
        self.aborted += found
        return found

    async def stats(self) -> EngineStats:
        return EngineStats(num_running=len(self._live))

    async def cached_prefix_len(self, request: EngineRequest) -> int:
        return self.prefix_len

    async def control(self, message: Control) -> dict[str, Any]:
        self.controls.append(message)
        if isinstance(message, Pause):
            self._status = EngineStatus.PAUSED
            if message.mode == "abort":
                await self.abort(list(self._live))
        elif isinstance(message, Resume):
            self._status = EngineStatus.READY
        return {"success": True}
