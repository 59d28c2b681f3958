"""Who starts a core process and what becomes of it: up, dead, up again as often as restarts are left.

A `LocalEngine` hears of its core through a `CoreSource`. `CoreKeeper` is the one that keeps a core process of its
own; front-end processes that share a core are told by the process that keeps it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

import msgspec

from tokenwire.engine.local.facts import check_folder
from tokenwire.engine.local.models import Progress, no_progress, prepare_model
from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.engine.local.process import CoreProcess, describe_exit
from tokenwire.errors import EngineUnavailableError, ServiceError

logger = logging.getLogger(__name__)


class CoreNews(msgspec.Struct, frozen=True, tag="core_news"):
    """A change in the life of a core."""

    address: str | None = None
    """Where it serves; None: it does not."""
    reason: str = ""
    """Why it does not, in words."""
    will_return: bool = False
    """A restart is under way; else there is none left."""


class CoreSource(Protocol):
    """Where an engine has its core from."""

    async def first(self) -> str:
        """The address of a core that serves. Raises a `ServiceError` when there will be none."""

    async def next(self) -> CoreNews:
        """The next change after `first`; waits for it."""

    async def close(self) -> None:
        """The engine needs no core any more. Idempotent."""


class CoreKeeper:
    """A `CoreSource` over a core process that it starts, watches, starts again and ends."""

    def __init__(self, options: LocalEngineOptions, progress: Progress = no_progress) -> None:
        self._options = options
        self._progress = progress
        self._process: CoreProcess | None = None
        self._news: asyncio.Queue[CoreNews] = asyncio.Queue()  # bounded by the restarts
        self._watcher: asyncio.Task[None] | None = None
        self._restarts_left = options.restarts

    @property
    def pid(self) -> int | None:
        """The core's process id, while it runs."""
        return self._process.pid if self._process is not None else None

    async def first(self) -> str:
        self._process = await self._bring_up()
        self._watcher = asyncio.create_task(self._watch(), name="core-watch")
        return self._process.address

    async def next(self) -> CoreNews:
        return await self._news.get()

    async def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        if self._process is not None:
            await self._process.stop()
            self._process = None

    async def _bring_up(self) -> CoreProcess:
        folder = await asyncio.to_thread(prepare_model, self._options.model, progress=self._progress)
        await asyncio.to_thread(check_folder, folder, self._options)
        return await CoreProcess.start(folder, self._options, self._progress)

    async def _watch(self) -> None:
        """Wait for the core's death, again after every restart, until none is left."""
        while self._process is not None:
            reason = describe_exit(await self._process.wait())
            self._process.forget()
            self._process = None
            logger.error("the engine process died (%s)", reason)
            self._news.put_nowait(CoreNews(reason=reason, will_return=self._restarts_left > 0))
            if self._restarts_left > 0:
                await self._restart(reason)

    async def _restart(self, reason: str) -> None:
        while self._restarts_left > 0:
            self._restarts_left -= 1
            try:
                self._process = await self._bring_up()
            except Exception as exc:  # whatever it is, requests must not wait for a restart that nobody tries
                logger.error("the engine could not be restarted: %s", exc, exc_info=not isinstance(exc, ServiceError))
            else:
                logger.warning("the engine is back, %d restarts left", self._restarts_left)
                self._news.put_nowait(CoreNews(address=self._process.address))
                return
        self._news.put_nowait(CoreNews(reason=reason))


class ToldCore:
    """A `CoreSource` for front ends that share a core: whoever keeps it passes its news on with `tell`."""

    def __init__(self) -> None:
        self._news: asyncio.Queue[CoreNews] = asyncio.Queue()  # bounded by the restarts

    def tell(self, news: CoreNews) -> None:
        self._news.put_nowait(news)

    async def first(self) -> str:
        while True:
            news = await self._news.get()
            if news.address is not None:
                return news.address
            if not news.will_return:
                raise EngineUnavailableError(f"The engine process died ({news.reason}).")

    async def next(self) -> CoreNews:
        return await self._news.get()

    async def close(self) -> None:
        """The core is not ours to end."""
