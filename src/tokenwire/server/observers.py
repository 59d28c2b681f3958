"""What listens to requests: metrics, request logs, trace spans. Each is one observer; several share one seat."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from tokenwire.engine.base import EngineOutput
from tokenwire.server.metrics import Metrics
from tokenwire.service.generate import PreparedGenerate
from tokenwire.service.observer import Observer
from tokenwire.settings import LogSettings
from tokenwire.wire.arrays import unpack_ids
from tokenwire.wire.codec import encode
from tokenwire.wire.generate import TokensChoice

logger = logging.getLogger("tokenwire.requests")


@dataclass(slots=True)
class _Clock:
    arrival: float
    last: float
    num_tokens: int = 0
    first: float | None = None


class MetricsObserver(Observer):
    """Keeps the figures of `Metrics`; a few additions per wake-up of a stream."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._clocks: dict[str, _Clock] = {}

    def started(self, prepared: PreparedGenerate) -> None:
        arrival = prepared.engine_request.arrival_time
        self._metrics.num_requests += 1
        self._clocks[prepared.engine_request.request_id] = _Clock(arrival, arrival)

    def prefilled(self, prepared: PreparedGenerate, cached_tokens: int | None) -> None:
        metrics = self._metrics
        metrics.prompt_tokens += prepared.prompt_len
        metrics.cached_prompt_tokens += cached_tokens or 0
        metrics.prompt_length.observe(prepared.prompt_len)

    def tokens(self, prepared: PreparedGenerate, num_tokens: int) -> None:
        now = time.time()
        metrics = self._metrics
        clock = self._clocks[prepared.engine_request.request_id]
        metrics.generation_tokens += num_tokens
        clock.num_tokens += num_tokens
        if clock.first is None:
            clock.first = now
            metrics.time_to_first_token.observe(now - clock.arrival)
        else:
            metrics.inter_token.observe((now - clock.last) / num_tokens, num_tokens)
        clock.last = now

    def choice_finished(self, prepared: PreparedGenerate, output: EngineOutput) -> None:
        self._metrics.finished[output.finish_reason or "stop"] += 1

    def ended(self, prepared: PreparedGenerate, *, completed: bool) -> None:
        metrics = self._metrics
        clock = self._clocks.pop(prepared.engine_request.request_id)
        if not completed:
            metrics.num_left += 1
            return
        metrics.request_latency.observe(time.time() - clock.arrival)
        metrics.output_length.observe(clock.num_tokens)
        if clock.first is not None and clock.num_tokens > 1:
            metrics.time_per_output_token.observe((clock.last - clock.first) / (clock.num_tokens - 1))

    def unknown_fields(self, names: tuple[str, ...]) -> None:
        self._metrics.note_unknown(names)


class LiveObserver(Observer):
    """Knows when nothing runs any more, for a process that wants to stop."""

    def __init__(self) -> None:
        self._num_live = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def started(self, prepared: PreparedGenerate) -> None:
        self._num_live += 1
        self._idle.clear()

    def ended(self, prepared: PreparedGenerate, *, completed: bool) -> None:
        self._num_live -= 1
        if not self._num_live:
            self._idle.set()

    @property
    def num_live(self) -> int:
        return self._num_live

    async def wait_idle(self, timeout_s: float) -> bool:
        """True once nothing runs; False when the time is over before that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        return self._idle.is_set()


class LogObserver(Observer):
    """Writes what came in and, if asked for, the ids that went out; text is never logged."""

    def __init__(self, settings: LogSettings) -> None:
        self._max_len = settings.max_log_len
        self._outputs = settings.enable_log_outputs
        self._deltas = settings.enable_log_deltas

    def started(self, prepared: PreparedGenerate) -> None:
        request = prepared.engine_request
        logger.info(
            "Received %r: %d prompt tokens, sampling %s, adapter %s, priority %d",
            prepared.request_id,
            prepared.prompt_len,
            encode(request.sampling).decode(),
            request.adapter,
            request.priority,
        )
        logger.debug("Prompt of %r: %s", prepared.request_id, self._cut(request.prompt_token_ids))

    def ended(self, prepared: PreparedGenerate, *, completed: bool) -> None:
        if not completed:
            logger.info("Broken off %r", prepared.request_id)

    def reply(self, prepared: PreparedGenerate, choices: Iterable[TokensChoice]) -> None:
        """The ids of a whole reply, or of one stream event."""
        if not self._outputs or (prepared.request.stream and not self._deltas):
            return
        for choice in choices:
            ids = unpack_ids(choice.token_ids) if isinstance(choice.token_ids, bytes) else choice.token_ids
            logger.info(
                "Output of %r, choice %d (%s): %s",
                prepared.request_id,
                choice.index,
                choice.finish_reason,
                None if ids is None else self._cut(ids),
            )

    def _cut(self, token_ids: list[int]) -> list[int]:
        return token_ids if self._max_len is None else token_ids[: self._max_len]


class Observers(Observer):
    """Tells each of several; of new tokens, the most frequent news, only those that listen to them."""

    def __init__(self, observers: list[Observer]) -> None:
        self._observers = observers
        self._count_tokens = [o.tokens for o in observers if type(o).tokens is not Observer.tokens]

    def started(self, prepared: PreparedGenerate) -> None:
        for observer in self._observers:
            observer.started(prepared)

    def prefilled(self, prepared: PreparedGenerate, cached_tokens: int | None) -> None:
        for observer in self._observers:
            observer.prefilled(prepared, cached_tokens)

    def tokens(self, prepared: PreparedGenerate, num_tokens: int) -> None:
        for tokens in self._count_tokens:
            tokens(prepared, num_tokens)

    def choice_finished(self, prepared: PreparedGenerate, output: EngineOutput) -> None:
        for observer in self._observers:
            observer.choice_finished(prepared, output)

    def ended(self, prepared: PreparedGenerate, *, completed: bool) -> None:
        for observer in self._observers:
            observer.ended(prepared, completed=completed)

    def unknown_fields(self, names: tuple[str, ...]) -> None:
        for observer in self._observers:
            observer.unknown_fields(names)
