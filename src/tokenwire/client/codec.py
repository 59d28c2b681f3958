"""The two wires of generate as a client sees them: how a request is written, and how replies and streams are read."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from sys import byteorder
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
_decode_mode = msgspec.json.Decoder(_Mode).decode


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def encode(body: object, wire: WireName = "json") -> bytes:
    return _encode_json(body) if wire == "json" else _encode_msgpack(body)


def decode_reply(content: bytes, kind: Any, *, where: str) -> Any:
    """A JSON reply as `kind`. Raises `BadReplyError`."""
    try:
        return _decoder(kind).decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _bad_reply(where, exc) from exc


def decode_response(content: bytes, content_type: str, *, where: str) -> GenerateResponse:
    """A whole generate reply, in the wire that the reply itself names. Raises `BadReplyError`."""
    response: GenerateResponse
    try:
        if CONTENT_TYPES["msgpack"] in content_type:
            response = _from_plain(msgspec.msgpack.decode(content), _RESPONSES, GenerateResponse)
        else:
            mode = _decode_mode(content).output_mode or "tokens"
            response = _decoder(_RESPONSES.get(mode, GenerateResponse)).decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _bad_reply(where, exc) from exc
    return response


def _bad_reply(where: str, exc: Exception) -> BadReplyError:
    return BadReplyError(f"the reply of {where} is not what the protocol says: {exc}")


def _from_plain(value: Any, kinds: Mapping[str, Any], default: Any) -> Any:
    """A decoded MessagePack object as the type of its output mode. Ids that came as raw int32 become lists."""
    if not isinstance(value, dict):
        raise msgspec.ValidationError(f"Expected `object`, got `{type(value).__name__}`")
    _lists_for_raw_ids(value, "prompt_token_ids")
    choices, mode = value.get("choices"), value.get("output_mode")
    for choice in choices if isinstance(choices, list) else ():
        _lists_for_raw_ids(choice, "token_ids")
    kind = kinds.get(mode, default) if isinstance(mode, str) else default
    return msgspec.convert(value, kind, builtin_types=(bytes,), strict=True)


def _lists_for_raw_ids(holder: Any, field: str) -> None:
    raw = holder.get(field) if isinstance(holder, dict) else None
    if isinstance(raw, bytes):
        if len(raw) % 4:
            raise msgspec.ValidationError(f"{field} has {len(raw)} bytes, not a whole number of int32")
        ids = array("i", raw)
        if byteorder == "big":
            ids.byteswap()
        holder[field] = ids.tolist()


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
        return StreamReader(
            lambda data: [event.data for event in parser.feed(data)], _JsonChunks(mode, where=where).read, where=where
        )
    if CONTENT_TYPES["msgpack"] in content_type:
        return StreamReader(FrameReader().feed, partial(_read_frame, where=where), where=where)
    raise BadReplyError(f"{where} answered with {content_type or 'no content type'} where a stream was asked for")


class _JsonChunks:
    """Events to chunks. The type of the mode asked for is tried first, so that an event is decoded once."""

    def __init__(self, mode: str, *, where: str) -> None:
        self._mode = mode
        self._decode = _decoder(_CHUNKS.get(mode, GenerateChunk)).decode
        self._where = where

    def read(self, data: bytes) -> GenerateChunk | None:
        if data.startswith(b"[DONE]"):
            return None
        if data.startswith(b'{"error"'):
            raise self._error(data)
        try:
            chunk: GenerateChunk = self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise _bad_reply(f"an event of {self._where}", exc) from exc
        if not chunk.choices and chunk.usage is None:
            raise self._error(data)
        if chunk.output_mode != self._mode:
            kind = _CHUNKS.get(chunk.output_mode, GenerateChunk)
            chunk = decode_reply(data, kind, where=f"an event of {self._where}")
        return chunk

    def _error(self, data: bytes) -> Exception:
        try:
            body = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError as exc:
            return _bad_reply(f"an event of {self._where}", exc)
        if "error" in body:
            return error_from_event(body, where=self._where)
        return BadReplyError(f"an event of {self._where} is neither a chunk nor an error: {data[:200]!r}")


def _read_frame(payload: bytes, *, where: str) -> GenerateChunk | None:
    """A frame; the string `[DONE]` ends the stream."""
    try:
        value = msgspec.msgpack.decode(payload)
        if value == "[DONE]":
            return None
        if isinstance(value, dict) and "error" in value:
            raise error_from_event(value, where=where)
        chunk: GenerateChunk = _from_plain(value, _CHUNKS, GenerateChunk)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _bad_reply(f"a frame of {where}", exc) from exc
    return chunk
