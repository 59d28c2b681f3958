"""The listener: gives kept blocks to whoever asks for them by engine, request and hash. One thread a connection."""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tokenwire.engine.local.transfer.exports import Export, Exports
from tokenwire.engine.local.transfer.framing import (
    VERSION,
    Answer,
    Ask,
    Connection,
    Greeting,
    Refusal,
    TransferError,
    prove,
    read_ask,
    read_done,
)

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 32
FRAME_BYTES = 1 << 20
"""Blocks go together in frames of about this size."""
FRAME_S = 30.0
"""What one frame may take."""

ReadBlocks = Callable[[Sequence[int]], NDArray[np.uint8]]


class TransferServer:
    """Listens from the start. `read` gives the bytes of blocks, [n, block bytes]; it is called on other threads."""

    def __init__(
        self,
        address: tuple[str, int],
        exports: Exports,
        read: ReadBlocks,
        *,
        engine_id: str,
        fingerprint: str,
        block_bytes: int,
        secret: str | None,
    ) -> None:
        self._exports = exports
        self._read = read
        self._engine_id = engine_id
        self._fingerprint = fingerprint
        self._block_bytes = block_bytes
        self._secret = secret
        self._closed = False
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.create_server(address, family=family, backlog=128)
        self.host: str = address[0]
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True, name="kv-listen").start()

    def close(self) -> None:
        """Take no more connections."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            self._places.acquire()
            try:
                peer, _ = self._socket.accept()
            except OSError as exc:
                if self._closed:
                    return
                logger.warning("a KV transfer could not be accepted: %s", exc)
                self._places.release()
                time.sleep(0.1)  # out of descriptors: some must be closed first
                continue
            try:
                threading.Thread(target=self._serve, args=(peer,), daemon=True, name="kv-give").start()
            except RuntimeError as exc:  # no more threads to be had
                logger.warning("a KV transfer could not be served: %s", exc)
                peer.close()
                self._places.release()

    def _serve(self, peer: socket.socket) -> None:
        try:
            connection = Connection(peer, time.monotonic() + FRAME_S)
            try:
                self._talk(connection)
            except TransferError as exc:
                logger.warning("a KV transfer to a decode worker broke off: %s", exc)
            finally:
                connection.close()
        except Exception:
            logger.exception("a KV transfer failed")
        finally:
            self._places.release()

    def _talk(self, connection: Connection) -> None:
        nonce = secrets.token_bytes(16)
        connection.send(Greeting(VERSION, self._engine_id, self._fingerprint, nonce))
        ask = connection.receive(read_ask, num_hashes=self._exports.pool.num_blocks)
        if not hmac.compare_digest(prove(self._secret, "client", nonce, ask.nonce, ask.request_id), ask.proof):
            connection.send(Refusal("secret"))
            return
        export = self._exports.open(ask.request_id)
        if export is None:
            connection.send(Refusal("expired"))
            return
        pulled = False
        try:
            pulled = self._give(connection, export, ask, nonce)
        finally:
            self._exports.close(export, pulled=pulled, num_bytes=connection.num_bytes)

    def _give(self, connection: Connection, export: Export, ask: Ask, nonce: bytes) -> bool:
        """Send what was asked for; whether it has arrived."""
        if not ask.hashes:
            return True
        if ask.weight_version != export.weight_version:
            connection.send(Refusal("weights"))
            return False
        count = export.num_matching(ask.first, ask.hashes)
        if count == 0:
            connection.send(Refusal("hash"))
            return False
        proof = prove(self._secret, "server", nonce, ask.nonce, ask.request_id)
        connection.send(Answer(num_blocks=count, block_bytes=self._block_bytes, proof=proof))
        self._send_blocks(connection, export, ask.first, ask.first + count)
        connection.deadline = time.monotonic() + FRAME_S
        connection.receive(read_done)
        return True

    def _send_blocks(self, connection: Connection, export: Export, start: int, stop: int) -> None:
        per_frame = max(1, FRAME_BYTES // self._block_bytes)
        for at in range(start, stop, per_frame):
            if export.ended:
                raise TransferError("lost", "the blocks are not kept any longer")
            end = min(stop, at + per_frame)
            connection.deadline = time.monotonic() + FRAME_S
            connection.send_blocks(export.hashes[end - 1], self._read(export.blocks[at:end]))
