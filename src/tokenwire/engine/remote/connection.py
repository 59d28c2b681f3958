"""One socket to a worker, and the reply that is on its way over it.

A piece of the body goes to its reader within the same turn of the event loop: no task switch per chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

import httptools

Sink = Callable[[bytes], None]

MAX_WHOLE_BYTES = 1 << 30


class TransportError(Exception):
    """The other side cannot be reached, or went away."""


class ConnectError(TransportError):
    """No connection could be made."""


class ConnectionLostError(TransportError):
    """The connection ended before the reply did."""


class Reply:
    """One reply: its head first, then the body by `pump` or `read`; `close` drops a body half-read.

    Its connection may serve the next request as soon as the body has ended, so all that belongs to one reply is here.
    """

    __slots__ = ("_connection", "_error", "_pieces", "_sink", "_waiter", "headers", "is_complete", "status")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.status = 0
        """0 until the head has been read."""
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self._pieces: list[bytes] = []
        self._sink: Sink | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def pump(self, sink: Sink) -> None:
        """Give every piece of the body to `sink` as it arrives; returns at the end of the body.

        An error that `sink` raises ends the reply and is raised here. Raises `ConnectionLostError`.
        """
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            sink(piece)
        self._sink = sink
        while not self.is_complete:
            await self._wait()
        if self._error is not None:
            raise self._error

    async def read(self) -> bytes:
        """The whole body. Raises `ConnectionLostError`."""
        pieces: list[bytes] = []
        size = 0

        def take(piece: bytes) -> None:
            nonlocal size
            size += len(piece)
            if size > MAX_WHOLE_BYTES:
                raise ConnectionLostError(f"the reply is larger than {MAX_WHOLE_BYTES} bytes")
            pieces.append(piece)

        await self.pump(take)
        return b"".join(pieces)

    def pause(self) -> None:
        """Read no more from the socket until `resume`: the other side feels that we are slow."""
        if not self.is_complete:
            self._connection.pause()

    def resume(self) -> None:
        if not self.is_complete:
            self._connection.resume()

    def close(self) -> None:
        """Drop the connection unless the body has ended. Idempotent."""
        if not self.is_complete:
            self._connection.drop()

    # --- what the connection calls

    async def head(self) -> None:
        """Wait until the head is there. Raises `ConnectionLostError`."""
        while self.status == 0:
            if self._error is not None:
                raise self._error
            await self._wait()

    def feed(self, piece: bytes) -> None:
        if self._sink is None:
            self._pieces.append(piece)
        elif self._error is None:
            try:
                self._sink(piece)
            except Exception as exc:  # the reader's error goes to the reader
                self.end(exc)
                self._connection.drop()

    def begin(self, status: int) -> None:
        self.status = status
        self._wake()

    def end(self, error: Exception | None = None) -> None:
        if not self.is_complete:
            self.is_complete = True
            self._error = error
            self._wake()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Connection(asyncio.Protocol):
    """One socket. Requests follow each other on it; `release` is called after each reply, and at its end."""

    def __init__(self, release: Callable[[Connection], None]) -> None:
        self._release = release
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reply = Reply(self)
        self._keep_alive = True
        self.is_open = False
        self.has_data = False
        """Something of the current reply has arrived."""

    @property
    def is_reusable(self) -> bool:
        return self.is_open and self._reply.is_complete and self._keep_alive

    # --- what the client calls

    async def exchange(self, request: bytes) -> Reply:
        """Send a request; returns when the head of its reply is there. Raises `ConnectionLostError`."""
        reply = self._reply = Reply(self)
        self.has_data = False
        self.resume()  # the last reader may have paused while the end was already read
        assert self._transport is not None
        self._transport.write(request)
        try:
            if not self.is_open:
                raise ConnectionLostError("the connection was closed")
            await reply.head()
        except asyncio.CancelledError:
            self.drop()
            raise
        return reply

    def pause(self) -> None:
        if self.is_open and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.is_open and self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def drop(self) -> None:
        if self._transport is not None:
            self.is_open = False
            self._transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != getattr(socket, "AF_UNIX", None):
            _probe_when_idle(sock)

    def data_received(self, data: bytes) -> None:
        self.has_data = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._reply.end(ConnectionLostError(f"the reply is not HTTP: {exc}"))
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        reply = self._reply
        if exc is None and reply.status and self._ends_with_connection:
            reply.end()
        else:
            reply.end(ConnectionLostError(str(exc) if exc else "the other side closed the connection"))
        self._release(self)

    @property
    def _ends_with_connection(self) -> bool:
        headers = self._reply.headers
        return "content-length" not in headers and "chunked" not in headers.get("transfer-encoding", "")

    # --- httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 1xx: the real head follows
            self._reply.headers.clear()
            return
        self._keep_alive = self._parser.should_keep_alive()
        self._reply.begin(status)

    def on_body(self, piece: bytes) -> None:
        self._reply.feed(piece)

    def on_message_complete(self) -> None:
        if self._reply.status:
            self._reply.end()
            self._release(self)


def _probe_when_idle(sock: socket.socket) -> None:
    """Notice a host that vanished without a word within about 25 seconds."""
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
