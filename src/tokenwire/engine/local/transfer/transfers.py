"""Both sides of block transfer as the core sees them: what to keep, what to wait for, what to count."""

from __future__ import annotations

import ipaddress
import logging
import secrets
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenwire.engine.base import KVTransferStats
from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.engine.local.requests import Request, Sequence
from tokenwire.engine.local.scheduler import Scheduler
from tokenwire.engine.local.transfer.client import Identity
from tokenwire.engine.local.transfer.exports import Exports
from tokenwire.engine.local.transfer.params import Source, offer
from tokenwire.engine.local.transfer.pulls import PullCounts, Pulls
from tokenwire.engine.local.transfer.server import ReadBlocks, TransferServer
from tokenwire.errors import EngineUnavailableError

logger = logging.getLogger(__name__)

WriteBlocks = Callable[[Seq[int], NDArray[np.uint8]], None]

PULL_POLL_MS = 5
"""How soon a core without other work sees that blocks have come."""
EXPORT_POLL_MS = 100
"""How soon it sees that kept blocks have been pulled or have expired."""


@dataclass(slots=True)
class Transfers:
    """For one core, on its thread. Made only where a KV port was asked for."""

    scheduler: Scheduler
    server: TransferServer
    exports: Exports
    pulls: Pulls
    engine_id: str
    counts: PullCounts = field(default_factory=PullCounts)
    _epoch: int = 0
    """The scheduler's, when exports were last looked at."""
    _epochs: dict[Request, int] = field(default_factory=dict)
    """The scheduler's, when a request's pull began."""

    # --- keeping --------------------------------------------------------------------------------------------------

    def keep(self, sequence: Sequence, weight_version: str) -> dict[str, Any] | None:
        """Hold the full blocks of a sequence that is about to end, once a request; the reply's parameters.

        None when the cache was cleared under the sequence: its blocks belong to other weights.
        """
        request = sequence.request
        if request.kept is None and sequence.is_cacheable:
            size = self.scheduler.pool.block_size
            shared = sequence.num_computed if len(request.sequences) == 1 else sequence.num_prompt
            count = min(shared, sequence.num_computed) // size
            blocks = sequence.blocks[:count]
            request_id = self.exports.keep(blocks, sequence.hashes_of(count, size), weight_version)
            request.kept = offer(
                host=self.server.host,
                port=self.server.port,
                engine_id=self.engine_id,
                request_id=request_id,
                blocks=blocks,
                num_tokens=count * size,
            )
        return request.kept

    def make_room(self) -> None:
        """Nothing can run for want of blocks: those kept for others go, oldest first."""
        self.exports.drop_oldest()
        self.exports.settle()

    # --- waiting --------------------------------------------------------------------------------------------------

    def hold(self, request: Request, weight_version: str) -> bool:
        """Start pulling what the request was promised; False if it need not wait."""
        ask = request.transfer
        if ask is None or not ask.pulls:
            return False
        if ask.source is None or not self._may_reach(ask.source):
            problem = ask.problem or f"{ask.source and ask.source.host!r} is not this machine, where we listen only"
            self.pulls.fall_back(request, "params", f"its kv_transfer_params cannot be used: {problem}")
            return False
        sequence = request.sequences[0]
        size = self.scheduler.pool.block_size
        wanted = self.scheduler.num_reusable(sequence)
        if ask.source.num_tokens is not None:
            wanted = min(wanted, ask.source.num_tokens // size)
        first = len(self.scheduler.cached_blocks(sequence))
        if first >= wanted:
            self._let_go(ask.source)
            return False
        self._epochs[request] = self.scheduler.epoch
        self.pulls.add(request, ask.source, weight_version, first, sequence.hashes_of(wanted, size)[first:])
        return True

    def take_finished(self) -> list[Request]:
        """Requests that wait no longer; what came for them stands in `received`."""
        ready = []
        for request, pull in self.pulls.take_finished():
            if self._epochs.pop(request) == self.scheduler.epoch:
                request.received = pull.received
            elif pull.received is not None:
                self.pulls.fall_back(request, "weights", "the cache was cleared while its blocks travelled")
            ready.append(request)
        return ready

    def forget(self, request: Request) -> None:
        """The request has ended, perhaps while it waited."""
        if self._epochs.pop(request, None) is not None:
            self.pulls.forget(request)
            if request.transfer is not None and request.transfer.source is not None:
                self._let_go(request.transfer.source)

    def _let_go(self, source: Source) -> None:
        if source.num_tokens != 0:
            self.pulls.let_go(source)

    def _may_reach(self, source: Source) -> bool:
        """Requests name addresses: an engine that listens to its own machine only does not ask others either."""
        return not _is_loopback(self.server.host) or _is_loopback(source.host)

    def fill(self, write: WriteBlocks) -> None:
        """Before a step: what was received into the blocks of sequences that were admitted for it."""
        arrivals, self.scheduler.arrivals = self.scheduler.arrivals, []
        for arrival in arrivals:
            received, start = arrival.received, arrival.num_known
            stop = received.extend(start)
            if stop > start:
                write(arrival.sequence.blocks[start:stop], received.data[start - received.first :][: stop - start])
                self.counts.tokens += (stop - start) * self.scheduler.pool.block_size
            elif start < received.first:
                text = "the blocks before those that it pulled were given away meanwhile"
                self.pulls.fall_back(arrival.sequence.request, "evicted", text)

    # --- between two steps ----------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Let go of what is not needed any longer; whether that freed blocks."""
        if self._epoch != self.scheduler.epoch:
            self._epoch = self.scheduler.epoch
            self.exports.drop_all()
        return len(self.exports) > 0 and self.exports.settle()

    @property
    def patience_ms(self) -> int | None:
        if len(self.pulls):
            return PULL_POLL_MS
        return EXPORT_POLL_MS if len(self.exports) else None

    @property
    def facts(self) -> dict[str, Any]:
        """Shown by /server_info."""
        return {"host": self.server.host, "port": self.server.port, "engine_id": self.engine_id}

    @property
    def stats(self) -> KVTransferStats:
        kept, pulled = self.exports.counts, self.counts
        return KVTransferStats(
            num_waiting=len(self.pulls),
            num_kept=len(self.exports),
            pulls=pulled.pulls,
            pulled_tokens=pulled.tokens,
            bytes_received=pulled.bytes_received,
            fallbacks=dict(pulled.fallbacks),
            kept=kept.kept,
            given=kept.pulled,
            expired=kept.expired,
            dropped=kept.dropped,
            bytes_sent=kept.bytes_sent,
        )


def open_transfers(
    options: LocalEngineOptions, scheduler: Scheduler, read: ReadBlocks, *, fingerprint: str, block_bytes: int
) -> Transfers:
    """Listen at once. Raises `EngineUnavailableError` for an address that cannot be had."""
    host, port = options.kv_transfer_host, options.kv_transfer_port or 0
    engine_id = secrets.token_hex(16)
    exports = Exports(scheduler.pool, options.kv_transfer_ttl_s)
    secret = options.kv_transfer_secret
    if _is_wildcard(host):
        raise EngineUnavailableError(
            f"kv_transfer_host={host!r} is no address that others can be told. Name the one that they reach."
        )
    try:
        server = TransferServer(
            (host, port),
            exports,
            read,
            engine_id=engine_id,
            fingerprint=fingerprint,
            block_bytes=block_bytes,
            secret=secret,
        )
    except OSError as exc:
        raise EngineUnavailableError(f"Cannot listen for KV transfers at {host}:{port}: {exc}") from exc
    logger.info("KV blocks are given to other engines at %s:%d", server.host, server.port)
    if secret is None and not _is_loopback(host):
        logger.warning("Without kv_transfer_secret whoever may send requests here also names where blocks come from.")
    counts = PullCounts()
    identity = Identity(fingerprint, block_bytes, secret, options.kv_transfer_timeout_s)
    return Transfers(scheduler, server, exports, Pulls(identity, counts), engine_id, counts)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host == ""
