"""The two ends of the wire between front ends and core: ZeroMQ sockets that carry `messages`.

The core binds a ROUTER socket, every front end connects a DEALER with its own identity; ipc on one machine, tcp
between two. The front end's end lives on an asyncio loop and reads whole bursts per wake-up; the core's end blocks
or polls in the core's own loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import zmq

from tokenwire.engine.local.messages import FromCore, ToCore, encoder, from_core_decoder, to_core_decoder

LINGER_MS = 500


def new_identity() -> bytes:
    """Unlike any other; never begins with a zero, which ZeroMQ keeps for itself."""
    return b"f" + os.urandom(8)


class FrontLink:
    """A front end's connection. `on_message` is called on the loop's thread for everything the core sends.

    The core knows it by `identity`, eight bytes or so; None: random ones.
    """

    def __init__(self, address: str, on_message: Callable[[FromCore], None], identity: bytes | None = None) -> None:
        self._on_message = on_message
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.set(zmq.IDENTITY, identity or new_identity())
        self._socket.set(zmq.LINGER, LINGER_MS)
        self._socket.set(zmq.SNDHWM, 0)  # the service bounds how much waits; a full pipe must not drop an abort
        self._socket.set(zmq.RCVHWM, 0)  # bounded by the requests in flight
        self._socket.connect(address)
        self._loop = asyncio.get_running_loop()
        self._fd = int(self._socket.get(zmq.FD))
        self._loop.add_reader(self._fd, self._drain)
        self._loop.call_soon(self._drain)

    def send(self, message: ToCore) -> None:
        """Queue a message; never blocks."""
        self._socket.send(encoder.encode(message), zmq.NOBLOCK)
        # The socket's descriptor signals edges, and sending may swallow one.
        self._loop.call_soon(self._drain)

    def close(self) -> None:
        """Send what is queued, then let go."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close()

    def _drain(self) -> None:
        while not self._socket.closed:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_message(from_core_decoder.decode(data))


class CoreLink:
    """The core's end: messages of all front ends, each with its sender's identity."""

    def __init__(self, address: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, LINGER_MS)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.RCVHWM, 0)
        self._socket.bind(address)

    def receive(self, timeout_ms: int | None) -> list[tuple[bytes, ToCore]]:
        """All messages that are there, waiting for the first at most `timeout_ms`; None: as long as it takes."""
        messages: list[tuple[bytes, ToCore]] = []
        self._socket.poll(timeout_ms)
        while True:
            try:
                client, data = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            messages.append((client, to_core_decoder.decode(data)))

    def send(self, client: bytes, message: FromCore) -> None:
        """To one front end; one that is gone is no error."""
        self._socket.send_multipart([client, encoder.encode(message)], zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()
