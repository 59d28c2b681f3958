"""What the chat and completion endpoints share: server-wide options, context, and requests that run side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tokenwire.service.context import RequestContext
from tokenwire.service.prepare import PreparedGenerate
from tokenwire.wire.chat import CommonSampling
from tokenwire.wire.generate import StreamOptions, TokensChoice

T = TypeVar("T")
ChoiceListener = Callable[[PreparedGenerate, Iterable[TokensChoice]], None]
"""Told the token-level choices of every reply and event, for request logs."""
QUEUED_BATCHES = 8
"""Batches of all streams together that wait for a slow reader; the engine's own queues merge what comes after."""


@dataclass(slots=True, frozen=True, kw_only=True)
class AnswerOptions:
    """Server-wide behaviour of the ordinary endpoints."""

    system_fingerprint: str | None = None
    force_include_usage: bool = False
    per_request_metrics: bool = False

    def stream_options(self, request: CommonSampling) -> StreamOptions | None:
        """The request's, with the usage that the operator wants in any case. None for a whole reply."""
        if not request.stream:
            return None
        options = request.stream_options or StreamOptions()
        if not self.force_include_usage:
            return options
        return StreamOptions(include_usage=True, continuous_usage_stats=options.continuous_usage_stats)


def with_session(request: CommonSampling, context: RequestContext) -> RequestContext:
    """The session that the body names wins over the header's; vLLM also looks into `vllm_xargs`."""
    extra = (request.vllm_xargs or {}).get("session_id")
    session = request.session_id or context.session_id or (extra if isinstance(extra, str) else None)
    return context if session == context.session_id else replace(context, session_id=session or None)


async def all_of(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order. The first failure cancels the others and is raised as it is."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def side_by_side(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """What any of the streams gives, with its number, as it comes. A failure ends all; so does closing."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(QUEUED_BATCHES)

    async def pump(number: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    await queue.put((number, item))
        except Exception as exc:  # the reader raises it
            await queue.put(exc)
        else:
            await queue.put(None)

    tasks = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(streams)]
    try:
        num_open = len(tasks)
        while num_open:
            got = await queue.get()
            if isinstance(got, Exception):
                raise got
            if got is None:
                num_open -= 1
            else:
                yield got
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
