"""Streams whose events have names: Anthropic's messages and OpenAI's responses. Server-sent events of JSON only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tokenwire.server.errors import error_body
from tokenwire.server.frames import STREAM_TYPES
from tokenwire.server.messages_errors import messages_error
from tokenwire.wire.codec import encode
from tokenwire.wire.responses_reply import ResponseEvent


def named(name: str, event: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode(event) + b"\n\n"


class MessagesFraming:
    """Ends with `message_stop` or the event `error`; there is no `[DONE]`."""

    media_type = STREAM_TYPES["json"]

    def events(self, events: Iterable[msgspec.Struct]) -> bytes:
        return b"".join([named(str(event.__struct_config__.tag), event) for event in events])

    def error(self, error: BaseException) -> bytes:
        return named("error", messages_error(error))

    def end(self) -> bytes:
        return b""


class ResponseErrorEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """`error` repeats the facts in the place where OpenAI's clients look for them."""

    sequence_number: int
    code: str
    message: str
    param: str | None
    error: dict[str, Any]


class ResponsesFraming:
    """Ends with `response.completed`, `response.incomplete` or the event `error`."""

    media_type = STREAM_TYPES["json"]

    def __init__(self) -> None:
        self._next = 0

    def events(self, events: Iterable[ResponseEvent]) -> bytes:
        parts = []
        for event in events:
            self._next = event.sequence_number + 1
            parts.append(named(event.type, event))
        return b"".join(parts)

    def error(self, error: BaseException) -> bytes:
        told = error_body(error).error
        event = ResponseErrorEvent(
            sequence_number=self._next,
            code=told.type,
            message=told.message,
            param=told.param,
            error=msgspec.to_builtins(told),
        )
        return named("error", event)

    def end(self) -> bytes:
        return b""
