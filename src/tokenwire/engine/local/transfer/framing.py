"""The transfer protocol: frames on a TCP connection, and the messages in them.

    server                                   client
    Greeting: who it is, a nonce        ──▶
                                        ◀──  Ask: which request, the block hashes it wants, its own nonce, a proof
    Answer: how many of them it gives   ──▶
    data frames, in the order asked     ──▶
                                        ◀──  Done: the blocks may go
or, in place of Answer and data, a Refusal. The server speaks first and the client sends nothing before it has seen a
Greeting of ours, so that a pull from a wrong address tells that address nothing. A frame is a header (magic, kind,
length, CRC-32 of the payload) and the payload: a MessagePack message, or the hash of the last block in the frame and
the raw blocks. With a shared secret both sides prove that they know it, and it never travels.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
import struct
import time
import zlib
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

MAGIC = b"TWKV"
VERSION = 1
HEADER = struct.Struct("<4sBII")
MESSAGE, DATA = 1, 2
DIGEST_BYTES = 16
MAX_MESSAGE_BYTES = 4096
"""Of a message without hashes: what a peer may make us reserve."""
STALL_S = 5.0
"""A peer that moves no byte for so long is gone."""

M = TypeVar("M")


class TransferError(Exception):
    """A transfer that cannot go on. `reason` is one word, for the counters."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Greeting(msgspec.Struct, frozen=True, tag="greeting"):
    version: int
    engine_id: str
    fingerprint: str
    """Of model, type and block layout; see `fingerprint`."""
    nonce: bytes


class Ask(msgspec.Struct, frozen=True, tag="ask", kw_only=True):
    """No hashes: the blocks are not needed, they may go."""

    request_id: str
    weight_version: str
    first: int
    """Index of the first block wanted."""
    hashes: bytes  # [n, 16]
    nonce: bytes
    proof: bytes = b""


class Answer(msgspec.Struct, frozen=True, tag="answer", kw_only=True):
    num_blocks: int
    """The first so many of the hashes asked for come now."""
    block_bytes: int
    proof: bytes = b""


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    reason: str
    """One of `REFUSALS`."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Everything has come, and was right."""


REFUSALS = {
    "secret": "the shared secrets differ",
    "expired": "these blocks are not kept (any more)",
    "weights": "the blocks were computed by other weights",
    "hash": "the kept blocks hold other tokens",
}
"""Reasons that a server may give, in words of ours: what a peer writes reaches neither logs nor figures."""

read_greeting = msgspec.msgpack.Decoder(Greeting)
read_ask = msgspec.msgpack.Decoder(Ask)
read_answer: msgspec.msgpack.Decoder[Answer | Refusal] = msgspec.msgpack.Decoder(Answer | Refusal)
read_done = msgspec.msgpack.Decoder(Done)


def prove(secret: str | None, side: str, server_nonce: bytes, client_nonce: bytes, request_id: str) -> bytes:
    """What only a holder of the secret can say about this connection; empty without a secret."""
    if secret is None:
        return b""
    said = b"\0".join((side.encode(), server_nonce, client_nonce, request_id.encode()))
    return hmac.digest(secret.encode(), said, hashlib.sha256)


class Connection:
    """A socket with a deadline that sends and receives frames. Every failure is a `TransferError`."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self.deadline = deadline
        """On the monotonic clock."""
        self.num_bytes = 0
        """Payload of data frames, both ways."""

    def close(self) -> None:
        """By the thread that uses it."""
        self._socket.close()

    def interrupt(self) -> None:
        """From another thread: what waits on the connection fails. Its user closes it."""
        with contextlib.suppress(OSError):  # closed meanwhile
            self._socket.shutdown(socket.SHUT_RDWR)

    # --- messages -------------------------------------------------------------------------------------------------

    def send(self, message: msgspec.Struct) -> None:
        payload = msgspec.msgpack.encode(message)
        self._send_all(HEADER.pack(MAGIC, MESSAGE, len(payload), zlib.crc32(payload)) + payload)

    def receive(self, decoder: msgspec.msgpack.Decoder[M], *, num_hashes: int = 0) -> M:
        """The next frame, which must be a message that `decoder` reads, with so many hashes at most."""
        kind, length, checksum = self._header()
        if kind != MESSAGE or length > MAX_MESSAGE_BYTES + num_hashes * DIGEST_BYTES:
            raise TransferError("protocol", f"the peer sent a frame of kind {kind} with {length} bytes")
        payload = bytearray(length)
        self._receive_into(memoryview(payload))
        if zlib.crc32(payload) != checksum:
            raise TransferError("checksum", "a message has a wrong checksum")
        try:
            return decoder.decode(payload)
        except msgspec.MsgspecError as exc:
            raise TransferError("protocol", f"the peer sent another message than the one due: {exc}") from exc

    # --- blocks ---------------------------------------------------------------------------------------------------

    def send_blocks(self, digest: bytes, blocks: NDArray[np.uint8]) -> None:
        """`blocks` [n, block bytes]; `digest` is the hash of the last one."""
        data = blocks.reshape(-1).data
        checksum = zlib.crc32(data, zlib.crc32(digest))
        self._send_all(HEADER.pack(MAGIC, DATA, DIGEST_BYTES + data.nbytes, checksum) + digest)
        self._send_all(data)
        self.num_bytes += data.nbytes

    def receive_blocks(self, into: NDArray[np.uint8], block_bytes: int) -> tuple[int, bytes]:
        """One data frame, to the start of `into` [n, block bytes]: how many blocks, and the hash of the last."""
        kind, length, checksum = self._header()
        size = length - DIGEST_BYTES
        if kind != DATA or size <= 0 or size % block_bytes or size > into.nbytes:
            raise TransferError("protocol", f"the peer sent a frame of kind {kind} with {length} bytes for blocks")
        digest = bytearray(DIGEST_BYTES)
        self._receive_into(memoryview(digest))
        data = into.reshape(-1).data[:size]
        self._receive_into(data)
        if zlib.crc32(data, zlib.crc32(digest)) != checksum:
            raise TransferError("checksum", "blocks have a wrong checksum")
        self.num_bytes += size
        return size // block_bytes, bytes(digest)

    # --- bytes ----------------------------------------------------------------------------------------------------

    def _header(self) -> tuple[int, int, int]:
        data = bytearray(HEADER.size)
        self._receive_into(memoryview(data))
        magic, kind, length, checksum = HEADER.unpack(data)
        if magic != MAGIC:
            raise TransferError("protocol", "the peer speaks another protocol")
        return kind, length, checksum

    def _send_all(self, data: bytes | memoryview) -> None:
        left = memoryview(data)
        while left:
            self._set_timeout()
            try:
                left = left[self._socket.send(left) :]
            except OSError as exc:
                raise self._failure(exc) from exc

    def _receive_into(self, data: memoryview) -> None:
        while data:
            self._set_timeout()
            try:
                count = self._socket.recv_into(data)
            except OSError as exc:
                raise self._failure(exc) from exc
            if count == 0:
                raise TransferError("lost", "the peer closed the connection")
            data = data[count:]

    def _set_timeout(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TransferError("timeout", "it took too long")
        try:
            self._socket.settimeout(min(left, STALL_S))
        except OSError as exc:
            raise self._failure(exc) from exc

    def _failure(self, exc: OSError) -> TransferError:
        if isinstance(exc, TimeoutError):
            return TransferError("timeout", "the peer is too slow")
        return TransferError("lost", f"the connection was lost: {exc}")
