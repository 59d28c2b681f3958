"""Remote token servers behind the engine interface: several workers, health, choice, retries, legs.

The engine runs no model and holds no text: requests go out as ids, answers come back as ids and arrays.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Iterable
from typing import Any

from tokenwire.engine.base import Engine, EngineInfo, EngineRequest, EngineStats, EngineStatus, OutputStream
from tokenwire.engine.control import Control, Pause, Resume, Sleep, WakeUp
from tokenwire.engine.remote.controls import ALL_CONTROLS, send
from tokenwire.engine.remote.dialects import DIALECTS, WorkerFacts
from tokenwire.engine.remote.facts import UNKNOWN_VOCAB, combine
from tokenwire.engine.remote.fleet import Fleet
from tokenwire.engine.remote.options import RemoteOptions
from tokenwire.engine.remote.request import LiveRequest
from tokenwire.errors import EngineUnavailableError

logger = logging.getLogger(__name__)


class RemoteEngine(Engine):
    """Implements `Engine` over HTTP. Requests run until their worker ends them; this side keeps nothing but streams."""

    def __init__(self, options: RemoteOptions) -> None:
        """Raises `ValueError` for options that name no worker or an unknown dialect."""
        if not options.workers:
            raise ValueError("the remote engine needs at least one worker (--worker, or --decode-worker)")
        if options.dialect not in DIALECTS:
            raise ValueError(f"unknown dialect {options.dialect!r}; there are {', '.join(sorted(DIALECTS))}")
        self.options = options
        self._dialect = DIALECTS[options.dialect](options)
        self._fleet = Fleet(options.workers, self._dialect, options)
        self._prefill = Fleet(options.prefill_workers, self._dialect, options)
        self._live: dict[str, LiveRequest] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._info: EngineInfo | None = None
        self._status = EngineStatus.STARTING

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "the engine has not started"
        return self._info

    @property
    def status(self) -> EngineStatus:
        if self._status is EngineStatus.READY and not self._fleet.is_up:
            return EngineStatus.RESTARTING
        return self._status

    @property
    def trouble(self) -> str | None:
        return self._fleet.trouble if self.status is EngineStatus.RESTARTING else None

    async def start(self) -> None:
        """Wait for one worker of each kind. Raises `EngineUnavailableError` when none comes, or they do not fit."""
        await self._fleet.start()
        if self._prefill:
            await self._prefill.start()
        workers = [*self._fleet.workers, *self._prefill.workers]
        facts = [worker.facts for worker in workers if worker.facts is not None]
        info = combine(self.options, facts)
        controls = ALL_CONTROLS if self._dialect.name == "scale-out" else frozenset[str]()
        told = [known.capabilities.controls for known in facts if known.is_tokenwire]
        capabilities = dataclasses.replace(
            info.capabilities,
            controls=frozenset.intersection(controls, *told),
            weight_versions_at_end=not all(self._dialect.streams_labels(known) for known in facts),
        )
        self._info = dataclasses.replace(info, capabilities=capabilities)
        for worker in workers:
            worker.objection = functools.partial(_objection, self._info)
        self._status = EngineStatus.READY

    async def close(self) -> None:
        self._status = EngineStatus.DEAD
        live = list(self._live.values())
        for request in live:
            request.fail(EngineUnavailableError("The server is shutting down."))
        tasks = [request.task for request in live if request.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._background:
            await asyncio.wait(self._background, timeout=self.options.abort_grace_s)
        await self._fleet.close()
        await self._prefill.close()
        await asyncio.gather(*self._background, return_exceptions=True)

    def generate(self, request: EngineRequest) -> OutputStream:
        live = LiveRequest(
            request,
            fleet=self._fleet,
            prefill=self._prefill,
            dialect=self._dialect,
            options=self.options,
            background=self._background,
        )
        self._live[request.request_id] = live
        live.start().add_done_callback(lambda _: self._live.pop(request.request_id, None))
        return live.stream

    async def abort(self, request_ids: Iterable[str]) -> list[str]:
        found = {request_id: self._live[request_id] for request_id in request_ids if request_id in self._live}
        await asyncio.gather(*(live.abort() for live in found.values()))
        return list(found)

    async def stats(self) -> EngineStats:
        """Sequences that are out at workers; what else the workers count is in their own metrics."""
        running = sum(worker.num_running for worker in self._fleet.workers)
        waiting = max(0, sum(live.num_open for live in self._live.values()) - running)
        return EngineStats(num_running=running, num_waiting=waiting)

    async def control(self, message: Control) -> dict[str, Any]:
        workers = [*self._fleet.live(), *self._prefill.live()]
        waits = isinstance(message, Pause | Sleep) and message.mode == "wait"
        facts = await send(message, workers, None if waits else self.options.start_timeout_s)
        match message:
            case Pause(mode="keep"):
                self._status = EngineStatus.FROZEN
            case Pause() | Sleep():
                self._status = EngineStatus.PAUSED
            case Resume():
                self._status = EngineStatus.READY
            case WakeUp():
                facts = {"fully_awake": facts.get("success", True)}
                self._status = EngineStatus.READY if facts["fully_awake"] else self._status
        return facts


def _objection(info: EngineInfo, facts: WorkerFacts) -> str | None:
    """A worker that comes later must serve the same model."""
    told = facts.vocab_size
    if told is not None and info.vocab_size not in (told, UNKNOWN_VOCAB):
        return f"it has a vocabulary of {told} ids, the others have {info.vocab_size}"
    return None
