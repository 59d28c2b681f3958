"""Pulling blocks: what one thread does for one request, from connecting to the checked bytes in memory of its own."""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokenwire.engine.local.transfer.framing import (
    REFUSALS,
    VERSION,
    Answer,
    Ask,
    Connection,
    Done,
    Refusal,
    TransferError,
    prove,
    read_answer,
    read_greeting,
)
from tokenwire.engine.local.transfer.params import Source

CONNECT_S = 3.0
TRUSTED_UP_TO_HERE = frozenset({"lost", "timeout"})
"""After these the blocks that came before are good: each was checked. After others the peer is not believed."""


@dataclass(slots=True, frozen=True)
class Identity:
    """What both sides must have in common, and the secret that proves it."""

    fingerprint: str
    block_bytes: int
    secret: str | None
    timeout_s: float
    """For a whole pull, the wait for its turn included."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Received:
    """Blocks first, first + 1, ... of a sequence, checked; rows of `data` [n, block bytes]."""

    first: int
    data: NDArray[np.uint8]

    def extend(self, num_known: int) -> int:
        """How many leading blocks there are with these, after `num_known` that the cache holds."""
        stop = self.first + len(self.data)
        return stop if self.first <= num_known < stop else num_known


@dataclass(slots=True)
class Pull:
    """One pull. The thread that runs it fills in what came of it; `done` is set when it has."""

    source: Source
    weight_version: str
    first: int
    hashes: Sequence[bytes]
    """Of the wanted blocks, as the puller computed them; none: tell the other side that it may let go."""
    deadline: float
    """On the monotonic clock."""
    done: threading.Event = field(default_factory=threading.Event)
    received: Received | None = None
    failure: TransferError | None = None
    """Also beside some blocks, when more should have come."""
    num_bytes: int = 0
    cancelled: bool = False
    _connection: Connection | None = None

    def run(self, identity: Identity) -> None:
        """On a thread of its own; never raises."""
        try:
            self._run(identity)
        except TransferError as exc:
            self.failure = exc
        except Exception as exc:
            self.failure = TransferError("error", f"{type(exc).__name__}: {exc}")
        finally:
            self._connection = None
            self.done.set()

    def fail(self, reason: str, message: str) -> None:
        """Instead of `run`."""
        self.failure = TransferError(reason, message)
        self.done.set()

    def cancel(self) -> None:
        """Nobody waits any longer; what comes is thrown away."""
        self.cancelled = True
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def _run(self, identity: Identity) -> None:
        connection = self._connect()
        try:
            self._talk(connection, identity)
        finally:
            self.num_bytes = connection.num_bytes
            connection.close()

    def _connect(self) -> Connection:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TransferError("timeout", "it waited too long for its turn")
        try:
            connected = socket.create_connection((self.source.host, self.source.port), min(CONNECT_S, left))
        except (OSError, OverflowError, ValueError) as exc:  # the latter: no port, no host name
            raise TransferError("unreachable", str(exc)) from exc
        self._connection = connection = Connection(connected, self.deadline)
        if self.cancelled:  # before there was a connection to close
            connection.close()
            raise TransferError("lost", "cancelled")
        return connection

    def _talk(self, connection: Connection, identity: Identity) -> None:
        nonce = self._greet(connection, identity)
        own_nonce = secrets.token_bytes(16)
        request_id = self.source.request_id
        connection.send(
            Ask(
                request_id=request_id,
                weight_version=self.weight_version,
                first=self.first,
                hashes=b"".join(self.hashes),
                nonce=own_nonce,
                proof=prove(identity.secret, "client", nonce, own_nonce, request_id),
            )
        )
        if not self.hashes:
            return
        answer = connection.receive(read_answer)
        if isinstance(answer, Refusal):
            known = answer.reason in REFUSALS
            raise TransferError(*((answer.reason, REFUSALS[answer.reason]) if known else ("protocol", "refused")))
        if not hmac.compare_digest(prove(identity.secret, "server", nonce, own_nonce, request_id), answer.proof):
            raise TransferError("secret", "the peer does not know the shared secret")
        self._receive(connection, answer, identity.block_bytes)
        connection.send(Done())

    def _greet(self, connection: Connection, identity: Identity) -> bytes:
        greeting = connection.receive(read_greeting)
        if greeting.version != VERSION:
            raise TransferError("protocol", f"the peer speaks version {greeting.version}, we speak {VERSION}")
        if greeting.engine_id != self.source.engine_id:
            raise TransferError("expired", "at this address is another engine: it has been restarted")
        if greeting.fingerprint != identity.fingerprint:
            raise TransferError("model", "the peer has another model, type or block size")
        return greeting.nonce

    def _receive(self, connection: Connection, answer: Answer, block_bytes: int) -> None:
        """Blocks into memory of our own, each frame checked before the next one is read."""
        count = answer.num_blocks
        if not 0 < count <= len(self.hashes) or answer.block_bytes != block_bytes:
            raise TransferError("protocol", f"the peer offers {count} blocks of {answer.block_bytes} bytes")
        data = np.empty((count, block_bytes), dtype=np.uint8)
        at = 0
        try:
            while at < count:
                num_new, digest = connection.receive_blocks(data[at:], block_bytes)
                if digest != self.hashes[at + num_new - 1]:
                    raise TransferError("hash", "a block came under another hash than the one asked for")
                at += num_new
        except TransferError as exc:
            if exc.reason in TRUSTED_UP_TO_HERE and at:
                self.received = Received(self.first, data[:at])
            raise
        self.received = Received(self.first, data)
