"""The two wires of generate as a client sees them: how a request is written, and how replies and streams are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import msgspec

from tokenwire.client.errors import BadReplyError, StreamTruncatedError, error_from_event
from tokenwire.client.frames import FrameReader
from tokenwire.client.replies import (
    DerenderChoice,
    DerenderDeltaChoice,
    GenerateChunk,
    GenerateResponse,
    TextChoice,
)
from tokenwire.client.sse import SSEParser
from tokenwire.errors import InvalidRequestError

WireName = Literal["json", "msgpack"]
CONTENT_TYPES: Mapping[str, str] = {"json": "application/json", "msgpack": "application/msgpack"}


class _TextResponse(GenerateResponse, frozen=True, kw_only=True):
    choices: Sequence[TextChoice]


class _DerenderResponse(GenerateResponse, frozen=True, kw_only=True):
    choices: Sequence[DerenderChoice]


class _TextChunk(GenerateChunk, frozen=True, kw_only=True):
    choices: Sequence[TextChoice] = ()


class _DerenderChunk(GenerateChunk, frozen=True, kw_only=True):
    choices: Sequence[DerenderDeltaChoice] = ()


class _Mode(msgspec.Struct):
    output_mode: str | None = None


_RESPONSES: Mapping[str, Any] = {"text": _TextResponse, "derender": _DerenderResponse}
_CHUNKS: Mapping[str, Any] = {"text": _TextChunk, "derender": _DerenderChunk}

_encode_json = msgspec.json.Encoder().encode
_encode_msgpack = msgspec.msgpack.Encoder().encode


@cache
def _decoder(kind: Any, wire: WireName = "json") -> msgspec.json.Decoder[Any] | msgspec.msgpack.Decoder[Any]:
    return msgspec.json.Decoder(kind) if wire == "json" else msgspec.msgpack.Decoder(kind)


def encode(body: object, wire: WireName = "json") -> bytes:
    """Raises `InvalidRequestError` for a number that MessagePack has no room for."""
    if wire == "json":
        return _encode_json(body)
    try:
        return _encode_msgpack(body)
    except OverflowError as exc:
        raise InvalidRequestError(f"the request does not fit into MessagePack: {exc}") from exc


def wire_of(content_type: str) -> WireName:
    """The wire that a reply names."""
    return "msgpack" if CONTENT_TYPES["msgpack"] in content_type else "json"


def decode_reply(content: bytes, kind: Any, *, where: str, wire: WireName = "json") -> Any:
    """A reply as `kind`. Raises `BadReplyError`."""
    try:
        return _decoder(kind, wire).decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _bad_reply(where, exc) from exc


def decode_response(content: bytes, content_type: str, *, where: str) -> GenerateResponse:
    """A whole generate reply, in the wire that the reply itself names. Raises `BadReplyError`."""
    wire = wire_of(content_type)
    mode = decode_reply(content, _Mode, where=where, wire=wire).output_mode or "tokens"
    response: GenerateResponse = decode_reply(content, _RESPONSES.get(mode, GenerateResponse), where=where, wire=wire)
    return response


def _bad_reply(where: str, exc: Exception) -> BadReplyError:
    return BadReplyError(f"the reply of {where} is not what the protocol says: {exc}")


# --- streams ----------------------------------------------------------------------------------------------------


class StreamReader:
    """Bytes of a stream, cut anywhere, to chunks. `is_done` once the end marker was read; the rest is ignored."""

    def __init__(
        self, split: Callable[[bytes], list[bytes]], read: Callable[[bytes], GenerateChunk | None], *, where: str
    ) -> None:
        self.is_done = False
        self._split = split
        self._read = read
        self._where = where

    def feed(self, data: bytes) -> Iterator[GenerateChunk]:
        """Chunks completed by `data`. An error event raises its error, after the chunks before it."""
        for payload in () if self.is_done else self._split(data):
            chunk = self._read(payload)
            if chunk is None:
                self.is_done = True
                return
            yield chunk

    def end(self) -> None:
        """The body ended. Raises `StreamTruncatedError` if that was too early."""
        if not self.is_done:
            raise StreamTruncatedError(f"the stream of {self._where} ended before its end marker")


def stream_reader(content_type: str, mode: str, *, where: str) -> StreamReader:
    """The reader for a reply's content type. `mode` is the output_mode that was asked for."""
    if "text/event-stream" in content_type:
        parser = SSEParser()
        chunks = _Chunks("json", mode, where=where)
        return StreamReader(lambda data: [event.data for event in parser.feed(data)], chunks.read, where=where)
    if CONTENT_TYPES["msgpack"] in content_type:
        return StreamReader(FrameReader().feed, _Chunks("msgpack", mode, where=where).read, where=where)
    raise BadReplyError(f"{where} answered with {content_type or 'no content type'} where a stream was asked for")


_DONE: Mapping[WireName, bytes] = {"json": b"[DONE]", "msgpack": _encode_msgpack("[DONE]")}
_ERROR_START: Mapping[WireName, bytes] = {"json": b'{"error"', "msgpack": b"\x81\xa5error"}


class _Chunks:
    """Events to chunks. The type of the mode asked for is tried first, so that an event is decoded once."""

    def __init__(self, wire: WireName, mode: str, *, where: str) -> None:
        self._wire: WireName = wire
        self._mode = mode
        self._decode = _decoder(_CHUNKS.get(mode, GenerateChunk), wire).decode
        self._where = where
        self._event = f"{'an event' if wire == 'json' else 'a frame'} of {where}"

    def read(self, data: bytes) -> GenerateChunk | None:
        """None at the end marker."""
        if data.startswith(_DONE[self._wire]):
            return None
        if data.startswith(_ERROR_START[self._wire]):
            raise self._error(data)
        try:
            chunk: GenerateChunk = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise _bad_reply(self._event, exc) from exc
        if not chunk.choices and chunk.usage is None:
            raise self._error(data)
        if chunk.output_mode != self._mode:
            kind = _CHUNKS.get(chunk.output_mode, GenerateChunk)
            chunk = decode_reply(data, kind, where=self._event, wire=self._wire)
        return chunk

    def _error(self, data: bytes) -> Exception:
        try:
            body: dict[str, Any] = _decoder(dict[str, Any], self._wire).decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            return _bad_reply(self._event, exc)
        if "error" in body:
            return error_from_event(body, where=self._where)
        return BadReplyError(f"{self._event} is neither a chunk nor an error: {data[:200]!r}")
