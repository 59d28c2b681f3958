"""One of several engines that serve together, one in each front end of a server: a pause of one is a pause of all."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from tokenwire.engine.base import Engine, EngineInfo, EngineRequest, EngineStats, EngineStatus, OutputStream
from tokenwire.engine.control import Control, Pause, Resume
from tokenwire.engine.replicas import merge_facts

Announce = Callable[[Pause | Resume], Awaitable[Sequence[dict[str, Any]]]]
"""Have the other engines obey; returns the facts they give."""

COMMON = frozenset(
    {
        "pause",
        "resume",
        "reset_prefix_cache",
        "reset_mm_cache",
        "reset_encoder_cache",
        "collective_rpc",
        "profile",
        "describe",
        "kv_event_sources",
    }
)
"""Control messages that leave nothing behind in the engine that passes them on, or are announced."""


class AnnouncedEngine(Engine):
    """`inner`, whose pause and resume are announced to the others.

    What changes the state of one front end only (adapters, weights, sleep) is not among its controls.
    """

    def __init__(self, inner: Engine, announce: Announce) -> None:
        self.inner = inner
        self._announce = announce
        self._info: tuple[EngineInfo, EngineInfo] | None = None

    @property
    def info(self) -> EngineInfo:
        told = self.inner.info
        if self._info is None or self._info[0] is not told:
            capabilities = dataclasses.replace(told.capabilities, controls=told.capabilities.controls & COMMON)
            self._info = told, dataclasses.replace(told, capabilities=capabilities)
        return self._info[1]

    @property
    def status(self) -> EngineStatus:
        return self.inner.status

    @property
    def replicas(self) -> Sequence[Engine]:
        return self.inner.replicas

    @property
    def load(self) -> int:
        return self.inner.load

    async def start(self) -> None:
        await self.inner.start()

    async def close(self) -> None:
        await self.inner.close()

    def generate(self, request: EngineRequest) -> OutputStream:
        return self.inner.generate(request)

    async def abort(self, request_ids: Iterable[str]) -> list[str]:
        return await self.inner.abort(request_ids)

    async def stats(self) -> EngineStats:
        return await self.inner.stats()

    async def cached_prefix_len(self, request: EngineRequest) -> int:
        return await self.inner.cached_prefix_len(request)

    async def control(self, message: Control) -> dict[str, Any]:
        if str(type(message).__struct_config__.tag) not in COMMON:
            return await super().control(message)
        if not isinstance(message, Pause | Resume):
            return await self.inner.control(message)
        own, others = await asyncio.gather(self.inner.control(message), self._announce(message))
        return merge_facts([own, *others])


class RememberedEngine(AnnouncedEngine):
    """`inner`, which front ends share: the others need not obey, but who keeps it remembers what it was told."""

    def __init__(self, inner: Engine, remember: Callable[[Pause | Resume], None]) -> None:
        super().__init__(inner, _nobody)
        self._remember = remember

    @property
    def info(self) -> EngineInfo:
        return self.inner.info

    async def control(self, message: Control) -> dict[str, Any]:
        facts = await self.inner.control(message)
        if isinstance(message, Pause | Resume):
            self._remember(message)
        return facts


async def _nobody(_: Pause | Resume) -> Sequence[dict[str, Any]]:
    return ()
