"""vLLM's AsyncLLM behind the engine interface. Its engine cores are processes of their own; this side converts.

Text, stop strings and detokenisation are left to the service: vLLM is asked for ids and flat scores.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from tokenwire.engine.base import Engine, EngineInfo, EngineRequest, EngineStats, EngineStatus, OutputStream
from tokenwire.engine.control import Control
from tokenwire.engine.queue import RequestQueue
from tokenwire.engine.vllm.adapters import Adapters
from tokenwire.engine.vllm.controls import Controls
from tokenwire.engine.vllm.params import ParamsMaker
from tokenwire.engine.vllm.request import LiveRequest
from tokenwire.engine.vllm.start import StatsKeeper, VllmOptions, build, describe, parse_args
from tokenwire.engine.vllm.support import Support
from tokenwire.errors import EngineUnavailableError, TokenwireError

__all__ = ["VllmEngine", "VllmOptions"]

logger = logging.getLogger(__name__)

ABORT_GRACE_S = 2.0


class VllmEngine(Engine):
    """Implements `Engine` over vLLM in this process."""

    def __init__(self, options: VllmOptions) -> None:
        self.options = options
        self._engine: Any = None
        self._live: dict[str, LiveRequest] = {}
        self._stats = StatsKeeper()
        self._info: EngineInfo | None = None
        self._status = EngineStatus.STARTING
        self._tracing = False

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "the engine has not started"
        return self._info

    @property
    def status(self) -> EngineStatus:
        if self._engine is not None and self._engine.errored:
            return EngineStatus.DEAD
        return self._controls.status if self._status is EngineStatus.READY else self._status

    async def start(self) -> None:
        """Load the model; minutes. Raises `EngineUnavailableError` with vLLM's own words."""
        try:
            args = await asyncio.to_thread(parse_args, self.options)
            engine = await asyncio.to_thread(build, args, [self._stats.factory()])
        except TokenwireError:
            raise
        except Exception as exc:
            raise EngineUnavailableError(f"vLLM did not start: {exc}") from exc
        await self.adopt(engine)

    async def adopt(self, engine: Any) -> None:
        """Serve with an AsyncLLM that is already there."""
        self._params = ParamsMaker()
        self._support = Support.of(engine, self._params.cls)
        self._info = describe(engine, self._support)
        self._adapters = Adapters(engine, self._is_used)
        self._controls = Controls(engine, self._adapters, self._info.capabilities.controls)
        self._engine = engine
        await self._controls.weights.learn_version()
        self._tracing = await engine.is_tracing_enabled()
        self._status = EngineStatus.READY

    async def close(self) -> None:
        self._status = EngineStatus.DEAD
        live = list(self._live.values())
        for request in live:
            request.fail(EngineUnavailableError("The server is shutting down."))
        await asyncio.gather(*(r.task for r in live if r.task is not None), return_exceptions=True)
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.shutdown)

    def generate(self, request: EngineRequest) -> OutputStream:
        try:
            arguments = self._arguments(request)
        except TokenwireError as exc:
            refused = RequestQueue(request.sampling.n, lambda: None, lambda index: None)
            refused.fail(exc)
            return refused
        live = LiveRequest(self._engine, request, self._params, self._controls.weights, arguments)
        self._live[request.request_id] = live
        live.start().add_done_callback(lambda _: self._live.pop(request.request_id, None))
        return live.stream

    def _arguments(self, request: EngineRequest) -> dict[str, Any]:
        kwargs = request.reasoning_parser_kwargs
        wanted = {
            "lora_request": self._adapters.find(request.adapter) if request.adapter is not None else None,
            "trace_headers": request.trace_headers if self._tracing else None,
            "priority": request.priority or None,
            "data_parallel_rank": request.data_parallel_rank,
            "reasoning_ended": request.reasoning_ended,
            "reasoning_parser_kwargs": None if kwargs is None else dict(kwargs),
        }
        if "session_id" in self._support.generate:  # a hint for choosing ranks: without it nothing is wrong
            wanted["session_id"] = request.session_id
        return self._support.keep(wanted, "this vLLM")

    async def abort(self, request_ids: Iterable[str]) -> list[str]:
        found = {request_id: self._live[request_id] for request_id in request_ids if request_id in self._live}
        ids = [vllm_id for live in found.values() for vllm_id in live.vllm_ids()]
        if ids:
            await self._engine.abort(ids)
            tasks = [live.task for live in found.values() if live.task is not None]
            await asyncio.wait(tasks, timeout=ABORT_GRACE_S)
        for live in found.values():
            live.finish_aborted()
        return list(found)

    async def stats(self) -> EngineStats:
        return self._stats.stats()

    async def control(self, message: Control) -> dict[str, Any]:
        return await self._controls.carry_out(message)

    def _is_used(self, adapter: Any) -> bool:
        return any(live.uses(adapter) for live in self._live.values())
