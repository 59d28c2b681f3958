"""A worker's refusal as one of our errors, in the worker's words."""

from __future__ import annotations

from typing import Any

import msgspec

from tokenwire.errors import (
    EngineUnavailableError,
    GenerationError,
    InvalidRequestError,
    MediaError,
    OverloadedError,
    TokenwireError,
)

MAX_SHOWN = 2000


class ErrorInfo(msgspec.Struct, kw_only=True):
    """`{"message", "type", "param", "code"}`, as vLLM, OpenAI and we write it; SGLang and llama.cpp leave some out."""

    message: str = ""
    type: str = ""
    param: str | None = None
    code: Any = None


class _Body(msgspec.Struct):
    error: ErrorInfo | str | None = None
    message: str = ""
    type: str = ""
    detail: Any = None


_decode_json = msgspec.json.Decoder(_Body).decode
_decode_msgpack = msgspec.msgpack.Decoder(_Body).decode


def from_body(status: int, body: bytes) -> TokenwireError:
    """The error of a reply with an error status, whatever shape its body has."""
    info = None
    for decode in (_decode_json, _decode_msgpack):
        try:
            info = _info(decode(body))
            break
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    if info is None or not info.message:
        info = ErrorInfo(message=body.decode("utf-8", "replace").strip()[:MAX_SHOWN] or f"status {status}")
    return from_info(info, status)


def _info(body: _Body) -> ErrorInfo:
    if isinstance(body.error, ErrorInfo):
        return body.error
    if isinstance(body.error, str):
        return ErrorInfo(message=body.error)
    return ErrorInfo(message=body.message or (str(body.detail) if body.detail is not None else ""), type=body.type)


def from_info(info: ErrorInfo, status: int | None = None) -> TokenwireError:
    """By status; an error event in a stream carries it as `code`."""
    code = status if status is not None else info.code if isinstance(info.code, int) else 500
    message = info.message[:MAX_SHOWN]
    if code in (400, 413):
        return InvalidRequestError(message, param=info.param)
    if code == 422:
        return MediaError(message, param=info.param)
    if code == 429 or (code == 503 and info.type == "Service Unavailable"):
        return OverloadedError(message)
    if code in (502, 503, 504):
        return EngineUnavailableError(message)
    if code in (401, 403, 404, 405):
        return GenerationError(f"The worker refused the coordinator (status {code}): {message}")
    return GenerationError(message)
