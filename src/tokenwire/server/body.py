"""Request bodies: their size, their media type, their bytes as wire types. Refuses before it allocates."""

from __future__ import annotations

import asyncio
import time
from typing import TypeVar

from starlette.types import Receive, Scope

from tokenwire.errors import BodyTooLargeError, BodyValidationError
from tokenwire.server.headers import header
from tokenwire.wire.codec import Format, decode

T = TypeVar("T")

FORMATS: dict[str, Format] = {
    "application/json": "json",
    "application/msgpack": "msgpack",
    "application/x-msgpack": "msgpack",
}
DECODE_IN_THREAD_BYTES = 512 * 1024
"""From here on decoding takes long enough to be felt by other requests."""
DRAIN_BYTES = 256 * 2**20
DRAIN_S = 10.0
"""How much of a refused body is read and dropped, so that a client which writes before it reads sees the answer."""


class ClientGoneError(Exception):
    """The client left while it was still sending."""


def body_format(scope: Scope) -> Format:
    """The format that Content-Type names, parameters aside. Raises `BodyValidationError` for any other."""
    media_type = header(scope, b"content-type").partition(";")[0].strip().lower()
    if media_type not in FORMATS:
        raise BodyValidationError([("content-type", "Unsupported Media Type: Only 'application/json' is allowed")])
    return FORMATS[media_type]


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """The whole body. Raises `BodyTooLargeError` whatever Content-Length says, `ClientGoneError` if it is cut off."""
    if _declared_length(scope) > limit_bytes:
        if b"100-continue" not in header(scope, b"expect").lower().encode():
            await _drain(receive)
        raise BodyTooLargeError(limit_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            parts.clear()
            if message.get("more_body", False):
                await _drain(receive)
            raise BodyTooLargeError(limit_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def read_as(
    kind: type[T], scope: Scope, receive: Receive, limit_bytes: int, *, narrower: type[T] | None = None
) -> tuple[T, tuple[str, ...]]:
    """The body decoded as `kind`, and the names of unknown fields; see `codec.decode`. Raises its parts' errors."""
    fmt = body_format(scope)
    body = await read_body(scope, receive, limit_bytes)
    if len(body) < DECODE_IN_THREAD_BYTES:
        return decode(kind, body, fmt, narrower=narrower)
    return await asyncio.to_thread(decode, kind, body, fmt, narrower=narrower)


def _declared_length(scope: Scope) -> int:
    text = header(scope, b"content-length")
    return int(text) if text.isdecimal() else 0


async def _drain(receive: Receive) -> None:
    deadline = time.monotonic() + DRAIN_S
    dropped = 0
    while dropped < DRAIN_BYTES:
        try:
            message = await asyncio.wait_for(receive(), deadline - time.monotonic())
        except TimeoutError:
            return
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
        dropped += len(message.get("body", b""))
