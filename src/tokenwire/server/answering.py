"""How answers of generation leave: a whole reply in one send, a stream in one piece per wake-up.

Written against ASGI itself. Both end their work when the client leaves. Waiting for the client to take a piece slows
this stream only. How events and errors are framed is the endpoint's: see `Framing`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from starlette.types import Receive, Send

from tokenwire.server.context import Server
from tokenwire.server.disconnect import DisconnectWatch
from tokenwire.server.errors import MEDIA_TYPES, encode_error, log_error, status_of
from tokenwire.server.frames import DONE_FRAMES, STREAM_TYPES, frame_events, frame_payloads
from tokenwire.wire.codec import Format, encode

T = TypeVar("T")


class Batches(Protocol[T]):
    """What is streamed: an asynchronous generator, or what looks like one."""

    def __aiter__(self) -> AsyncIterator[list[T]]: ...
    async def aclose(self) -> object: ...


class Framing(Protocol):
    """How one stream is written. An object may count what it has written: make one for each stream."""

    media_type: bytes

    def events(self, events: Iterable[Any]) -> bytes:
        """All events of one wake-up in one piece."""

    def error(self, error: BaseException) -> bytes:
        """The event that tells of an error."""

    def end(self) -> bytes:
        """What comes last, after success and after an error alike."""


class PlainFraming:
    """`data: {...}` events and `[DONE]`, or the same in MessagePack frames."""

    __slots__ = ("_fmt", "media_type")

    def __init__(self, fmt: Format) -> None:
        self._fmt: Format = fmt
        self.media_type = STREAM_TYPES[fmt]

    def events(self, events: Iterable[Any]) -> bytes:
        return frame_events(events, self._fmt)

    def error(self, error: BaseException) -> bytes:
        return frame_payloads([encode_error(error, self._fmt)], self._fmt)

    def end(self) -> bytes:
        return DONE_FRAMES[self._fmt]


class EncodedFraming(PlainFraming):
    """The same for events that are already encoded."""

    __slots__ = ()

    def events(self, events: Iterable[bytes]) -> bytes:
        return frame_payloads(list(events), self._fmt)


async def send_whole(
    work: Awaitable[T], fmt: Format, receive: Receive, send: Send, *, on_reply: Callable[[T], None] | None = None
) -> None:
    """Wait for the work and send what it gives; nothing once the client has left. Raises what the work raises."""
    async with DisconnectWatch(receive) as watch:
        reply = await work
    if watch.gone:
        return
    if on_reply is not None:
        on_reply(reply)
    payload = encode(reply, fmt)
    headers = [(b"content-type", MEDIA_TYPES[fmt]), (b"content-length", str(len(payload)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": payload})


async def send_stream(
    server: Server,
    batches: Batches[T],
    framing: Framing,
    receive: Receive,
    send: Send,
    *,
    name: str,
    on_events: Callable[[list[T]], None] | None = None,
) -> None:
    """Send batches as they come. An error becomes the last event; `name` is the request's in the log."""
    headers = [
        (b"content-type", framing.media_type),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # nginx in front passes events on as they come
    ]
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
    except BaseException:
        await batches.aclose()
        raise
    tail = b""
    async with DisconnectWatch(receive) as watch:
        try:
            async with aclosing(batches):
                async for events in batches:
                    if on_events is not None:
                        on_events(events)
                    await send({"type": "http.response.body", "body": framing.events(events), "more_body": True})
        except Exception as exc:
            log_error(exc, f"stream {name}")
            server.metrics.error(status_of(exc))
            tail = framing.error(exc)
    if not watch.gone:
        await send({"type": "http.response.body", "body": tail + framing.end()})
