"""`LocalEngine`: the engine interface over a core process, from the front end's side.

Starts the core, talks to it over the link, and watches it: when it dies every open stream ends with an error, and as
long as restarts are left a new one is started. Imports neither torch nor transformers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Any

from tokenwire.engine.base import (
    Control,
    Engine,
    EngineInfo,
    EngineRequest,
    EngineStats,
    EngineStatus,
    OutputStream,
)
from tokenwire.engine.local import messages as wire
from tokenwire.engine.local.facts import check_folder
from tokenwire.engine.local.link import FrontLink
from tokenwire.engine.local.models import Progress, no_progress, prepare_model
from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.engine.local.process import CoreProcess, describe_exit
from tokenwire.engine.local.streams import Streams
from tokenwire.errors import EngineDeadError, EngineUnavailableError, ServiceError, TokenwireError

logger = logging.getLogger(__name__)

ATTACH_TIMEOUT_S = 30.0
_STATUS_OF = {"ready": EngineStatus.READY, "frozen": EngineStatus.FROZEN, "closed": EngineStatus.PAUSED}
_CLOSED = "The engine has been closed."


class LocalEngine(Engine):
    """One core process. `progress` hears of loading: what is being done, and the fraction done."""

    def __init__(self, options: LocalEngineOptions | None = None, *, progress: Progress = no_progress) -> None:
        self._options = options if options is not None else LocalEngineOptions()
        self._progress = progress
        self._status = EngineStatus.STARTING
        self._gauges = wire.Gauges(EngineStats())
        self._info: EngineInfo | None = None
        self._process: CoreProcess | None = None
        self._link: FrontLink | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._streams = Streams(self._end_early)
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_call = 0
        self._ready: asyncio.Future[EngineInfo] | None = None
        self._restarts_left = self._options.restarts
        self._closed = False

    # --- Engine ---------------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineUnavailableError("The engine has not started yet.")
        return self._info

    @property
    def status(self) -> EngineStatus:
        if self._status is EngineStatus.READY:
            return _STATUS_OF[self._gauges.state]
        return self._status

    @property
    def pid(self) -> int | None:
        """The core's process id, while it runs."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        if self._watcher is not None:
            return
        await self._bring_up()
        self._watcher = asyncio.create_task(self._watch(), name="local-engine-watch")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._status = EngineStatus.DEAD
        self._fail_open(EngineUnavailableError(_CLOSED))
        if self._link is not None:
            self._link.send(wire.Shutdown())
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        if self._process is not None:
            await self._process.stop()
        self._disconnect()

    def generate(self, request: EngineRequest) -> OutputStream:
        """Raises `EngineUnavailableError` or `EngineDeadError` when no request can be taken now."""
        link = self._serving_link()
        if self._gauges.state == "closed":
            raise EngineUnavailableError("The engine is paused.")
        handle, queue = self._streams.open(request.request_id, request.sampling.n)
        link.send(
            wire.Add(
                handle=handle,
                prompt=wire.pack_ids(request.prompt_token_ids),
                sampling=request.sampling,
                stream=request.stream,
                priority=request.priority,
                cache_salt=request.cache_salt,
                adapter=request.adapter,
                features=request.features,
                reasoning_ended=request.reasoning_ended,
            )
        )
        return queue

    async def abort(self, request_ids: Iterable[str]) -> list[str]:
        found = self._streams.handles_of(set(request_ids))
        if found:
            link = self._serving_link()
            call, answer = self._open_call()
            link.send(wire.Abort(list(found), call))
            await answer
        return list(found.values())

    async def stats(self) -> EngineStats:
        return self._gauges.stats

    async def cached_prefix_len(self, request: EngineRequest) -> int:
        """Whole blocks, and never the last prompt token, which is always computed."""
        link = self._serving_link()
        call, answer = self._open_call()
        link.send(
            wire.Probe(
                call=call,
                prompt=wire.pack_ids(request.prompt_token_ids),
                cache_salt=request.cache_salt,
                adapter=request.adapter,
                features=request.features,
            )
        )
        return int((await answer)["num_cached_tokens"])

    async def control(self, message: Control) -> dict[str, Any]:
        if not isinstance(message, wire.CONTROLS):
            return await super().control(message)
        link = self._serving_link()
        call, answer = self._open_call()
        link.send(wire.ControlCall(call, message))  # type: ignore[arg-type]  # one of CONTROLS
        return await answer

    # --- the core's messages --------------------------------------------------------------------------------------

    def _on_message(self, message: wire.FromCore) -> None:
        match message:
            case wire.Step():
                if message.gauges is not None:
                    self._gauges = message.gauges
                self._streams.take(message)
            case wire.Reply():
                answer = self._calls.pop(message.call, None)
                if answer is not None and not answer.done():
                    if message.error is None:
                        answer.set_result(message.facts)
                    else:
                        answer.set_exception(EngineUnavailableError(message.error))
            case wire.Ready():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(message.info)

    def _open_call(self) -> tuple[int, asyncio.Future[dict[str, Any]]]:
        self._next_call += 1
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[self._next_call] = answer
        return self._next_call, answer

    def _end_early(self, handle: int, index: int | None, *, heard: bool = False) -> None:
        if self._link is not None:
            self._link.send(wire.Abort([handle]) if index is None else wire.Stop(handle, index, heard))

    def _serving_link(self) -> FrontLink:
        if self._link is not None and self._status is EngineStatus.READY:
            return self._link
        if self._status is EngineStatus.DEAD and not self._closed:
            raise EngineDeadError("The engine process is gone.")
        raise EngineUnavailableError(_CLOSED if self._closed else f"The engine is {self._status.value}.")

    # --- life of the core -----------------------------------------------------------------------------------------

    async def _bring_up(self) -> None:
        folder = await asyncio.to_thread(prepare_model, self._options.model, progress=self._progress)
        await asyncio.to_thread(check_folder, folder, self._options)
        self._process = process = await CoreProcess.start(folder, self._options, self._progress)
        try:
            self._info = await self._attach(process.address)
        except BaseException:
            self._disconnect()
            await process.stop(patience_s=0.0)
            raise
        self._status = EngineStatus.READY

    async def _attach(self, address: str) -> EngineInfo:
        """Connect to the core and hear what it is."""
        self._ready = asyncio.get_running_loop().create_future()
        self._link = FrontLink(address, self._on_message)
        self._link.send(wire.Attach())
        try:
            info = await asyncio.wait_for(self._ready, ATTACH_TIMEOUT_S)
        except TimeoutError as exc:
            raise EngineUnavailableError(f"The engine process did not answer within {ATTACH_TIMEOUT_S:g} s.") from exc
        if self._closed:
            raise EngineUnavailableError(_CLOSED)
        return info

    async def _watch(self) -> None:
        """Wait for the core's death, again after every restart, until none is left."""
        while self._process is not None:
            code = await self._process.wait()
            may_restart = self._restarts_left > 0
            self._status = EngineStatus.RESTARTING if may_restart else EngineStatus.DEAD
            logger.error("the engine process died (%s)", describe_exit(code))
            self._disconnect()
            if may_restart:
                self._fail_open(EngineUnavailableError("The engine process died and is being restarted."))
                await self._restart()
            else:
                self._fail_open(EngineDeadError(f"The engine process died ({describe_exit(code)})."))

    async def _restart(self) -> None:
        while self._restarts_left > 0:
            self._restarts_left -= 1
            try:
                await self._bring_up()
            except Exception as exc:  # whatever it is, requests must not wait for a restart that nobody tries
                logger.error("the engine could not be restarted: %s", exc, exc_info=not isinstance(exc, ServiceError))
            else:
                logger.warning("the engine is back, %d restarts left", self._restarts_left)
                return
        self._status = EngineStatus.DEAD

    def _fail_open(self, error: TokenwireError) -> None:
        self._streams.fail_all(error)
        calls, self._calls = self._calls, {}
        for answer in calls.values():
            if not answer.done():
                answer.set_exception(error)

    def _disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._process is not None:
            self._process.forget()
            self._process = None
        self._gauges = wire.Gauges(EngineStats())
