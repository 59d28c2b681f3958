"""Events of a stream as bytes: server-sent events for JSON, length-prefixed frames for MessagePack.

A MessagePack frame is the length as uint32 little-endian, then that many bytes of one object. Both kinds end with
the event `[DONE]`, a string in MessagePack, after success and after an error alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tokenwire.wire.codec import Format, encode

DONE = "[DONE]"


def sse(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"


def length_prefixed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "little") + payload


def frame_events(events: Iterable[Any], fmt: Format) -> bytes:
    """All events of one wake-up in one piece."""
    return frame_payloads([encode(event, fmt) for event in events], fmt)


def frame_payloads(payloads: list[bytes], fmt: Format) -> bytes:
    """The same for events that are already encoded."""
    if not payloads:
        return b""
    if fmt == "json":
        return b"data: " + b"\n\ndata: ".join(payloads) + b"\n\n"
    return b"".join([length_prefixed(payload) for payload in payloads])


DONE_FRAMES: dict[Format, bytes] = {
    "json": sse(DONE.encode()),
    "msgpack": length_prefixed(msgspec.msgpack.encode(DONE)),
}
STREAM_TYPES: dict[Format, bytes] = {"json": b"text/event-stream; charset=utf-8", "msgpack": b"application/msgpack"}
