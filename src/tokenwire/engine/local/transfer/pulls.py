"""Requests that wait for blocks of another engine, and do not hold up the others.

Each pull runs on a thread of its own, a few at a time, into memory of its own; the core's loop asks between two steps
which have ended. What a pull brings is copied into the cache when its sequence is admitted, so that a thread never
writes where a running sequence reads, and an aborted pull leaves nothing behind.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import Counter, deque
from dataclasses import dataclass, field

from tokenwire.engine.local.requests import Request
from tokenwire.engine.local.transfer.client import Identity, Pull, Received
from tokenwire.engine.local.transfer.params import Source

logger = logging.getLogger(__name__)

MAX_AT_ONCE = 4
BUFFER_BYTES = 1 << 30
"""Of blocks that travel or wait for their sequence to be admitted; one pull may always run."""


@dataclass(slots=True)
class PullCounts:
    """Only grow."""

    pulls: int = 0
    """That brought all that was asked for."""
    tokens: int = 0
    """That sequences began from and that were not computed here."""
    bytes_received: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Prompts computed although blocks were promised, by reason."""


class Pulls:
    """Not thread-safe: belongs to the core's loop."""

    def __init__(self, identity: Identity, counts: PullCounts) -> None:
        self._identity = identity
        self._counts = counts
        self._queued: deque[tuple[Request, Pull]] = deque()
        self._running: dict[Request, Pull] = {}
        self._buffered = 0

    def __len__(self) -> int:
        return len(self._queued) + len(self._running)

    def add(self, request: Request, pull: Pull) -> None:
        """The request waits until `take_finished` gives it back."""
        self._queued.append((request, pull))
        self._start_queued()

    def let_go(self, source: Source) -> None:
        """Tell the other side that nobody will pull these blocks; whether it hears is its time limit's business."""
        self._start(Pull(source, "", 0, ()))

    def forget(self, request: Request) -> None:
        """The request has ended: pull no more for it."""
        self._queued = deque(entry for entry in self._queued if entry[0] is not request)
        pull = self._running.pop(request, None)
        if pull is not None:
            pull.cancel()
            self._buffered -= self._size(pull)

    def take_finished(self) -> list[tuple[Request, Pull]]:
        """Requests whose pull has ended."""
        if not self._running and not self._queued:
            return []
        finished = [(request, pull) for request, pull in self._running.items() if pull.done.is_set()]
        for request, pull in finished:
            del self._running[request]
            self._count(request, pull)
            size = self._size(pull)
            if pull.received is None:
                self._buffered -= size
            else:
                weakref.finalize(pull.received, self._give_back, size)
        self._start_queued()
        return finished

    def fall_back(self, request: Request, reason: str, message: str) -> None:
        """Log and count that a prompt is computed here after all."""
        self._counts.fallbacks[reason] += 1
        logger.warning("request %d computes its prompt: %s (%s)", request.key.handle, message, reason)

    def _count(self, request: Request, pull: Pull) -> None:
        self._counts.bytes_received += pull.num_bytes
        if pull.failure is None:
            self._counts.pulls += 1
        else:
            text = f"its KV blocks could not be pulled from {pull.source.name}: {pull.failure}"
            self.fall_back(request, pull.failure.reason, text)

    def _start_queued(self) -> None:
        while self._queued and len(self._running) < MAX_AT_ONCE:
            request, pull = self._queued[0]
            size = self._size(pull)
            if self._buffered and self._buffered + size > BUFFER_BYTES:
                return
            self._queued.popleft()
            self._buffered += size
            self._running[request] = pull
            self._start(pull)

    def _start(self, pull: Pull) -> None:
        threading.Thread(target=pull.run, args=(self._identity,), daemon=True, name="kv-pull").start()

    def _size(self, pull: Pull) -> int:
        return len(pull.hashes) * self._identity.block_bytes

    def _give_back(self, size: int) -> None:
        self._buffered -= size


__all__ = ["PullCounts", "Pulls", "Received"]
