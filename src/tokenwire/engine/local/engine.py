"""`LocalEngine`: the engine interface over a core process, from the front end's side.

Talks to the core over the link and hears from its `CoreSource` what becomes of it: when it dies every open stream ends
with an error, and when it is back requests are taken again. Imports neither torch nor transformers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from tokenwire.engine.base import Engine, EngineInfo, EngineRequest, EngineStats, EngineStatus, OutputStream
from tokenwire.engine.control import Control, Pause, Resume, WeightTransfer
from tokenwire.engine.local import messages as wire
from tokenwire.engine.local.keeper import CoreKeeper, CoreNews, CoreSource
from tokenwire.engine.local.label import WeightLabel
from tokenwire.engine.local.link import FrontLink
from tokenwire.engine.local.models import Progress, no_progress
from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.engine.local.streams import Streams
from tokenwire.errors import EngineDeadError, EngineUnavailableError, TokenwireError

ATTACH_TIMEOUT_S = 30.0
_STATUS_OF = {"ready": EngineStatus.READY, "frozen": EngineStatus.FROZEN, "closed": EngineStatus.PAUSED}
NOBODY = 0
"""The call of a message whose answer nobody waits for."""
_CLOSED = "The engine has been closed."


class LocalEngine(Engine):
    """One core process: its own, or that of `source`, which knows this front end by `identity`.

    `state` is what a core that nobody has attached to begins in. `progress` hears of loading: what is done, and its
    fraction.
    """

    def __init__(
        self,
        options: LocalEngineOptions | None = None,
        *,
        progress: Progress = no_progress,
        source: CoreSource | None = None,
        identity: bytes | None = None,
        state: wire.State = "ready",
    ) -> None:
        self._source = source or CoreKeeper(options or LocalEngineOptions(), progress)
        self._identity = identity
        self._status = EngineStatus.STARTING
        self._gauges = wire.Gauges(EngineStats(), state)
        self._num_others = 0
        """Sequences of other front ends, and those by which a request of ours is more than one."""
        self._label = WeightLabel()
        self._owed: Pause | Resume | None = None
        """Asked for while the core was away; it hears of it when it is back."""
        self._info: EngineInfo | None = None
        self._link: FrontLink | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._streams = Streams(self._end_early)
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_call = 0
        self._ready: asyncio.Future[None] | None = None
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
        """The core's process id, while it runs and is our own."""
        return self._source.pid if isinstance(self._source, CoreKeeper) else None

    @property
    def load(self) -> int:
        """Our open streams, which count at once, and what the core had beside them when it last told."""
        return len(self._streams) + self._num_others

    async def start(self) -> None:
        if self._watcher is not None:
            return
        self._ready = asyncio.get_running_loop().create_future()
        try:
            self._connect(await self._source.first())
            self._watcher = asyncio.create_task(self._watch(), name="local-engine-watch")
            await self._attached(self._ready)
        except BaseException as exc:
            self._ready.cancel()  # nobody waits for it any more
            await self._end()
            if isinstance(exc, TimeoutError):
                message = f"The engine process did not answer within {ATTACH_TIMEOUT_S:g} s."
                raise EngineUnavailableError(message) from exc
            raise

    async def _attached(self, ready: asyncio.Future[None]) -> None:
        """Wait for the core's word; if it dies under it, for that of the next one."""
        while True:
            try:
                return await asyncio.wait_for(asyncio.shield(ready), ATTACH_TIMEOUT_S)
            except TimeoutError:
                if self._status is not EngineStatus.RESTARTING:
                    raise

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._status = EngineStatus.DEAD
        self._fail_open(EngineUnavailableError(_CLOSED))
        if self._link is not None:
            self._link.send(wire.Detach())
        await self._end()

    def generate(self, request: EngineRequest) -> OutputStream:
        """Raises `EngineUnavailableError` or `EngineDeadError` when no request can be taken now."""
        link = self._serving_link()
        if self._gauges.state == "closed":
            raise EngineUnavailableError("The engine is paused.")
        handle, queue = self._streams.open(request.request_id, request.sampling.n)
        try:
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
                    kv_transfer_params=None if request.kv_transfer_params is None else dict(request.kv_transfer_params),
                )
            )
        except BaseException:  # what cannot be sent is not open
            self._streams.forget(handle)
            raise
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
        if isinstance(message, WeightTransfer):
            self._label.note(message)
        if self._status is EngineStatus.RESTARTING:
            return self._note(message)
        link = self._serving_link()
        call, answer = self._open_call()
        link.send(wire.ControlCall(call, message))  # type: ignore[arg-type]  # one of CONTROLS
        return await answer

    def _note(self, message: Control) -> dict[str, Any]:
        """A control message while the core is away: nothing runs and nothing is cached, so it is as good as done."""
        if isinstance(message, WeightTransfer):
            return self._label.facts(message)
        if not isinstance(message, Pause | Resume):
            return {"success": True}
        self._owed = message
        state = wire.state_after(message)
        self._gauges = wire.Gauges(EngineStats(), state)
        return {"status": "resumed" if state == "ready" else "paused"}

    # --- the core's messages --------------------------------------------------------------------------------------

    def _on_message(self, message: wire.FromCore) -> None:
        match message:
            case wire.Step():
                self._streams.take(message)
                if message.gauges is not None:
                    self._gauges, stats = message.gauges, message.gauges.stats
                    self._num_others = max(0, stats.num_running + stats.num_waiting - len(self._streams))
            case wire.Reply():
                answer = self._calls.pop(message.call, None)
                if answer is not None and not answer.done():
                    if message.error is None:
                        answer.set_result(message.facts)
                    else:
                        answer.set_exception(EngineUnavailableError(message.error))
            case wire.Ready():
                self._info = message.info
                self._status = EngineStatus.READY
                if self._label.last_set is not None and self._link is not None:
                    self._link.send(wire.ControlCall(NOBODY, self._label.last_set))
                if self._owed is not None and self._link is not None:
                    self._link.send(wire.ControlCall(NOBODY, self._owed))
                    self._owed = None
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(None)

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

    def _connect(self, address: str) -> None:
        """Attach to a core; it serves once its `Ready` is there."""
        self._link = FrontLink(address, self._on_message, self._identity)
        self._link.send(wire.Attach(self._gauges.state))

    async def _watch(self) -> None:
        while True:
            news = await self._source.next()
            if news.address is None:
                self._lost(news)
            else:
                self._connect(news.address)

    def _lost(self, news: CoreNews) -> None:
        self._status = EngineStatus.RESTARTING if news.will_return else EngineStatus.DEAD
        self._disconnect()
        if news.will_return:
            self._fail_open(EngineUnavailableError("The engine process died and is being restarted."))
        else:
            self._fail_open(EngineDeadError(f"The engine process died ({news.reason})."))

    def _fail_open(self, error: TokenwireError) -> None:
        self._streams.fail_all(error)
        calls, self._calls = self._calls, {}
        for answer in calls.values():
            if not answer.done():
                answer.set_exception(error)
        is_for_good = not isinstance(error, EngineUnavailableError) or self._closed
        if self._ready is not None and not self._ready.done() and is_for_good:
            self._ready.set_exception(error)

    async def _end(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None
        self._disconnect()
        await self._source.close()

    def _disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._num_others = 0
        self._gauges = wire.Gauges(EngineStats(), self._gauges.state)  # a pause outlives the core
