"""HTTP/1.1 with as little between the socket and the clock as possible: one protocol object, httptools, no copies.

A general client would spend more on a token than a fast server does. Bodies are handed on as they arrive, with the
time at which the event loop saw them.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from tokenwire.client.errors import ConnectError, ConnectionLostError

BodySink = Callable[[bytes, float], None]
"""Called with body bytes and the `perf_counter` time at which they came."""


@dataclass(slots=True, frozen=True)
class Target:
    """Where requests go, and the bytes that all of them begin with."""

    host: str
    port: int
    tls: bool
    head: bytes

    @classmethod
    def of(cls, base_url: str, path: str, headers: Mapping[str, str]) -> Target:
        """Raises `ValueError` for anything but an http or https URL."""
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"{base_url!r} is not a URL like http://127.0.0.1:8000")
        tls = url.scheme == "https"
        lines = [
            f"POST {url.path.rstrip('/')}{path} HTTP/1.1",
            f"Host: {url.netloc.rpartition('@')[2]}",
            "Content-Type: application/json",
            "Connection: keep-alive",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\nContent-Length: "
        return cls(url.hostname, url.port or (443 if tls else 80), tls, head)


class Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._sink: BodySink | None = None
        self._done: asyncio.Future[int] | None = None
        self._now = 0.0
        self.is_reusable = False

    @classmethod
    async def open(cls, target: Target) -> Connection:
        """Raises `ConnectError`."""
        context = ssl.create_default_context() if target.tls else None
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(cls, target.host, target.port, ssl=context)
        except OSError as exc:
            raise ConnectError(f"cannot connect to {target.host}:{target.port} ({exc})") from exc
        return connection

    async def post(self, target: Target, body: bytes, sink: BodySink) -> int:
        """Send and wait for the whole reply; returns its status. Raises `ConnectionLostError`."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLostError("the server closed the connection")
        self._parser = httptools.HttpResponseParser(self)
        self._sink = sink
        self._done = asyncio.get_running_loop().create_future()
        self.is_reusable = False
        self._transport.write(b"%b%d\r\n\r\n%b" % (target.head, len(body), body))
        return await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- called by asyncio --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its base class

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._fail(ConnectionLostError(f"the reply is not HTTP/1.1: {exc}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_reusable = False
        self._fail(ConnectionLostError(f"the connection broke before the reply was whole ({exc or 'closed'})"))

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    # --- called by httptools ------------------------------------------------------------------------------------

    def on_body(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink(data, self._now)

    def on_message_complete(self) -> None:
        if self._done is None or self._parser is None or self._done.done():
            return
        self.is_reusable = self._parser.should_keep_alive()
        self._done.set_result(self._parser.get_status_code())


class Pool:
    """Idle connections of one run. `take` prefers the one used last, as that is the least likely to be closed."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._idle: list[Connection] = []

    async def take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
        return await Connection.open(self.target)

    def give_back(self, connection: Connection) -> None:
        if connection.is_reusable:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
