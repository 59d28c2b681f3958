"""Bytes to wire types and back, in JSON or MessagePack.

The common case is one strict pass of msgspec. Only a body that it refuses takes the slow road, which accepts what
pydantic-based servers accept (numbers in strings, whole floats, unknown fields, NaN literals), says which unknown
fields it passed over, and reports every remaining problem with its path.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np

from tokenwire.errors import BodyValidationError
from tokenwire.wire.generate import GenerateRequest, RawGenerateRequest
from tokenwire.wire.lenient import Problem, coerce

Format = Literal["json", "msgpack"]
T = TypeVar("T")

MAX_REPORTED = 10
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
"""A surrogate, alone or one of a pair: these bodies are looked at more closely."""


def decode(
    kind: type[T], body: bytes, fmt: Format = "json", *, narrower: type[T] | None = None
) -> tuple[T, tuple[str, ...]]:
    """Decode `body` as `kind`; also gives the dotted names of unknown fields that were passed over.

    `narrower` is tried first: a kind that checks more on the way. What it refuses is refused, or not, by `kind`.

    Raises `BodyValidationError` with at most ten problems.
    """
    if fmt == "json":
        refuse_half_pairs(body)
    if narrower is not None and fmt == "json":
        with contextlib.suppress(msgspec.MsgspecError, RecursionError, ValueError):
            return _decoder(narrower, fmt).decode(body), ()
    try:
        if fmt == "msgpack" and kind is GenerateRequest:
            return _decoder(RawGenerateRequest, fmt).decode(body).plain(), ()
        return _decoder(kind, fmt).decode(body), ()
    except (msgspec.MsgspecError, RecursionError, ValueError) as exc:
        value = _plain(body, fmt, exc)
    return _decode_leniently(kind, value)


def refuse_half_pairs(body: bytes) -> None:
    """Raise `BodyValidationError` for text with half of a surrogate pair, which JSON can spell and nothing can carry.

    A body that is no JSON is left to its decoder.
    """
    if not _HALF_PAIR.search(body):
        return
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError):
        return
    waiting: list[tuple[str, Any]] = [("body", plain)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{where}.{name}", part) for name, part in value.items()]
            waiting += [(f"{where} (a name in it)", name) for name in value]
        elif isinstance(value, list):
            waiting += [(f"{where}.{index}", part) for index, part in enumerate(value)]
        elif isinstance(value, str) and not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            shown = where.encode("ascii", "backslashreplace").decode()
            problem = f"text must not have lone surrogates, got {value[:40]!a}"
            raise BodyValidationError([(shown, problem)])


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


def _plain(body: bytes, fmt: Format, cause: Exception) -> Any:
    """The body as plain objects, with NaN literals and integers of any size; or the reason why it is none."""
    if not body:
        raise BodyValidationError([("body", "Field required (the body is empty)")]) from cause
    try:
        return json.loads(body) if fmt == "json" else msgspec.msgpack.decode(body)
    except RecursionError as exc:
        reason: Exception | str = "the body is nested too deeply"
        cause = exc
    except (ValueError, msgspec.MsgspecError) as exc:
        reason = cause if isinstance(cause, msgspec.DecodeError) and not _is_shape(cause) else exc
    noun = "JSON" if fmt == "json" else "MessagePack"
    raise BodyValidationError([("body", f"{noun} decode error: {reason}")]) from cause


def _is_shape(cause: Exception) -> bool:
    return isinstance(cause, msgspec.ValidationError)


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
