"""The border to httpx: settings, requests from calls, and httpx's own exceptions translated to ours in one place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tokenwire.client.calls import Call
from tokenwire.client.codec import CONTENT_TYPES
from tokenwire.client.errors import (
    BadReplyError,
    ConnectError,
    ConnectionLostError,
    ReplyError,
    ReplyTimeoutError,
    TransportError,
    error_from_reply,
)

DEFAULT_TIMEOUT = httpx.Timeout(600.0, connect=10.0)
"""Seconds. The read timeout is the longest silence allowed, so a long stream may take longer than that in all."""

_NO_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)


@dataclass(slots=True, frozen=True)
class Settings:
    """Where the server is and how to speak to it."""

    base_url: str
    api_key: str | None
    timeout: float | httpx.Timeout | None
    headers: Mapping[str, str]

    def httpx_options(self) -> dict[str, Any]:
        # identity: a compressing proxy would hold tokens of a stream back.
        headers = {"Accept-Encoding": "identity", "User-Agent": "tokenwire-client", **self.headers}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return {"base_url": self.base_url, "timeout": self.timeout, "headers": headers, "limits": _NO_LIMITS}


def build_request(http: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
    return http.build_request(call.method, call.path, content=call.content, headers=dict(call.headers))


@contextmanager
def translated(call: Call[Any], base_url: object) -> Iterator[None]:
    """Raise ours `from` httpx's. What httpx could not even begin is a `ConnectError`."""
    where = f"{call.where} at {base_url}"
    try:
        yield
    except httpx.TimeoutException as exc:
        if isinstance(exc, httpx.ConnectTimeout | httpx.PoolTimeout):
            raise ConnectError(f"{where}: no connection in time ({exc})") from exc
        raise ReplyTimeoutError(f"{where}: no bytes within the timeout ({type(exc).__name__})") from exc
    except (httpx.ConnectError, httpx.ProxyError) as exc:
        raise ConnectError(f"{where}: cannot connect ({exc}). Is the server running there?") from exc
    except (httpx.NetworkError, httpx.ProtocolError) as exc:
        raise ConnectionLostError(f"{where}: the connection broke ({exc or type(exc).__name__})") from exc
    except httpx.DecodingError as exc:
        raise BadReplyError(f"{where}: the reply's content encoding is broken ({exc})") from exc
    except (httpx.RequestError, httpx.InvalidURL, httpx.StreamError) as exc:
        raise TransportError(f"{where}: {exc or type(exc).__name__}") from exc


def reply_error(response: httpx.Response, call: Call[Any]) -> ReplyError:
    """The error of a reply that is not 2xx; its content must have been read."""
    body: bytes | Mapping[str, Any] = response.content
    if CONTENT_TYPES["msgpack"] in content_type(response):
        body = _plain_msgpack(response.content)
    error = error_from_reply(
        response.status_code, body, where=call.where, retry_after=response.headers.get("retry-after", "")
    )
    if call.headers.get("Content-Type") == CONTENT_TYPES["msgpack"] and "Unsupported Media Type" in error.message:
        error.message += ' (this server does not take MessagePack; use a client with wire="json")'
        error.args = (error.message,)
    return error


def _plain_msgpack(content: bytes) -> bytes | Mapping[str, Any]:
    import msgspec

    try:
        return msgspec.msgpack.decode(content, type=dict[str, Any])
    except msgspec.DecodeError:
        return content


def content_type(response: httpx.Response) -> str:
    return str(response.headers.get("content-type", ""))
