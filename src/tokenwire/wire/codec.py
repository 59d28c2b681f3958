"""Bytes to wire types and back, in JSON or MessagePack.

The common case is one strict pass of msgspec. Only a body that it refuses takes the slow road, which accepts what
pydantic-based servers accept (numbers in strings, whole floats, unknown fields, NaN literals), says which unknown
fields it passed over, and reports every remaining problem with its path.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from tokenwire.errors import BodyValidationError
from tokenwire.wire.lenient import Problem, coerce

Format = Literal["json", "msgpack"]
T = TypeVar("T")

MAX_REPORTED = 10


def decode(kind: type[T], body: bytes, fmt: Format = "json") -> tuple[T, tuple[str, ...]]:
    """Decode `body` as `kind`; also gives the dotted names of unknown fields that were passed over.

    Raises `BodyValidationError` with at most ten problems.
    """
    try:
        return _decoder(kind, fmt).decode(body), ()
    except msgspec.ValidationError:
        value = _plain(body, fmt)
    except (msgspec.DecodeError, RecursionError, ValueError) as exc:
        value = _plain_or_fail(body, fmt, exc)
    return _decode_leniently(kind, value)


def convert(kind: type[T], value: Any) -> tuple[T, tuple[str, ...]]:
    """Like `decode`, from plain objects."""
    try:
        return msgspec.convert(value, kind), ()
    except msgspec.ValidationError:
        return _decode_leniently(kind, value)


def encode(value: Any, fmt: Format = "json") -> bytes:
    """Encode a wire object. numpy arrays become lists in JSON and raw little-endian bytes in MessagePack."""
    return _JSON.encode(value) if fmt == "json" else _MSGPACK.encode(value)


def _decode_leniently(kind: type[T], value: Any) -> tuple[T, tuple[str, ...]]:
    problems: list[Problem] = []
    unknown: list[str] = []
    plain = coerce(kind, value, problems, unknown)
    if problems:
        raise BodyValidationError(problems[:MAX_REPORTED], total=len(problems))
    try:
        return msgspec.convert(plain, kind), tuple(unknown)
    except msgspec.ValidationError as exc:
        sentence, _, path = str(exc).partition(" - at `$")
        where = "body" + path.rstrip("`").replace("[", ".").replace("]", "")
        raise BodyValidationError([(where, sentence)]) from exc


def _plain(body: bytes, fmt: Format) -> Any:
    if fmt == "msgpack":
        return msgspec.msgpack.decode(body)
    try:
        return msgspec.json.decode(body)
    except msgspec.ValidationError:
        return json.loads(body)  # integers beyond 64 bits


def _plain_or_fail(body: bytes, fmt: Format, exc: Exception) -> Any:
    if isinstance(exc, RecursionError):
        raise BodyValidationError([("body", "JSON decode error: the body is nested too deeply")]) from exc
    if not body:
        raise BodyValidationError([("body", "Field required (the body is empty)")]) from exc
    if fmt == "json":
        try:
            return json.loads(body)  # NaN and Infinity literals
        except (ValueError, RecursionError):
            pass
    noun = "JSON" if fmt == "json" else "MessagePack"
    raise BodyValidationError([("body", f"{noun} decode error: {exc}")]) from exc


def _array_to_list(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"cannot encode {type(value).__name__}")


def _array_to_bytes(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value).tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot encode {type(value).__name__}")


_DECODERS: dict[tuple[Any, Format], msgspec.json.Decoder[Any] | msgspec.msgpack.Decoder[Any]] = {}


def _decoder(kind: Any, fmt: Format) -> msgspec.json.Decoder[Any] | msgspec.msgpack.Decoder[Any]:
    decoder = _DECODERS.get((kind, fmt))
    if decoder is None:
        decoder = msgspec.json.Decoder(kind) if fmt == "json" else msgspec.msgpack.Decoder(kind)
        _DECODERS[kind, fmt] = decoder
    return decoder


_JSON = msgspec.json.Encoder(enc_hook=_array_to_list)
_MSGPACK = msgspec.msgpack.Encoder(enc_hook=_array_to_bytes)
