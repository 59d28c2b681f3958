"""HTTP/1.1 to one server over kept connections, as little as a token stream needs.

Reads a reply by callback: every piece that arrives goes to a sink within the same event-loop turn, without a task
switch per chunk. Knows nothing of tokens; failures are `TransportError`s, which the caller turns into ours.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from tokenwire.engine.remote.connection import (
    ConnectError,
    Connection,
    ConnectionLostError,
    Reply,
    Sink,
    TransportError,
)

__all__ = ["ConnectError", "ConnectionLostError", "HttpClient", "Reply", "Sink", "TransportError"]

KEEP_IDLE_S = 4.0
"""Idle connections are dropped after this long; uvicorn, the usual other side, drops them after 5."""
MAX_IDLE = 512


class HttpClient:
    """Requests to one base URL (`http://`, `https://`, or `unix:/path`), many at once."""

    def __init__(
        self, base_url: str, *, headers: Mapping[str, str] | None = None, connect_timeout_s: float = 5.0
    ) -> None:
        self._target = _Target(base_url)
        self._connect_timeout_s = connect_timeout_s
        fixed = {"host": self._target.host_header, "user-agent": "tokenwire", **(headers or {})}
        self._fixed_head = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._idle: list[tuple[float, Connection]] = []
        self._busy: set[Connection] = set()
        self._closed = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> Reply:
        """Send a request and wait for the reply's head, at most `timeout_s`. Raises `TransportError`.

        A kept connection that turns out to be closed is replaced once: the other side had not read the request.
        """
        head = self._head(method, path, headers or {}, len(body))
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    connection, kept = await self._take()
                    try:
                        return await connection.exchange(head + body)
                    except ConnectionLostError:
                        if not kept or connection.has_data:
                            raise
        except TimeoutError as exc:
            raise TransportError(f"no answer to {method} {path} within {timeout_s:g} s") from exc

    async def fetch(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float | None = None,
    ) -> tuple[int, bytes]:
        """Status and whole body, all within `timeout_s`. Raises `TransportError`."""
        reply = None
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self.request(method, path, headers=headers, body=body)
                return reply.status, await reply.read()
        except TimeoutError as exc:
            raise TransportError(f"no answer to {method} {path} within {timeout_s:g} s") from exc
        finally:
            if reply is not None:
                reply.close()

    def close(self) -> None:
        """Drop every connection; what waits for a reply gets `ConnectionLostError`."""
        self._closed = True
        self.drop_busy()
        for _, connection in self._idle:
            connection.drop()
        self._idle.clear()

    def drop_busy(self) -> None:
        """Drop the connections that are in use; who waits for a reply gets `ConnectionLostError`."""
        for connection in list(self._busy):
            connection.drop()

    def _head(self, method: str, path: str, headers: Mapping[str, str], length: int) -> bytes:
        extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if length or method == "POST":
            extra += f"content-length: {length}\r\n"
        return f"{method} {self._target.prefix}{path} HTTP/1.1\r\n{self._fixed_head}{extra}\r\n".encode("latin-1")

    async def _take(self) -> tuple[Connection, bool]:
        if self._closed:
            raise ConnectError("the client is closed")
        oldest = asyncio.get_running_loop().time() - KEEP_IDLE_S
        while self._idle:
            since, connection = self._idle.pop()
            if since > oldest and connection.is_open:
                self._busy.add(connection)
                return connection, True
            connection.drop()
        connection = await self._connect()
        self._busy.add(connection)
        return connection, False

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self._target.connect(lambda: Connection(self._release))
        except TimeoutError as exc:
            raise ConnectError(f"no connection within {self._connect_timeout_s:g} s") from exc
        except OSError as exc:
            raise ConnectError(str(exc)) from exc

    def _release(self, connection: Connection) -> None:
        """Called by a connection when its reply has ended, or the connection itself."""
        self._busy.discard(connection)
        if connection.is_reusable and not self._closed and len(self._idle) < MAX_IDLE:
            self._idle.append((asyncio.get_running_loop().time(), connection))
        else:
            connection.drop()


class _Target:
    """Where to connect."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url if "://" in base_url or base_url.startswith("unix:") else f"http://{base_url}")
        if parts.scheme not in ("http", "https", "unix"):
            raise ValueError(f"a worker's address begins with http://, https:// or unix:, got {base_url!r}")
        self._unix_path = parts.path if parts.scheme == "unix" else None
        self._host = parts.hostname or "localhost"
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._ssl else 80)
        self.prefix = "" if self._unix_path else parts.path.rstrip("/")
        self.host_header = "localhost" if self._unix_path else parts.netloc.rpartition("@")[2]

    async def connect(self, factory: Callable[[], Connection]) -> Connection:
        loop = asyncio.get_running_loop()
        if self._unix_path:
            _, connection = await loop.create_unix_connection(factory, self._unix_path)
        else:
            _, connection = await loop.create_connection(factory, self._host, self._port, ssl=self._ssl)
        return connection
