"""Requests that wait for blocks of another engine, and do not hold up the others.

Each pull runs on a thread of its own, a few at a time, into memory of its own; the core's loop asks between two steps
which have ended. What a pull brings is copied into the cache when its sequence is admitted, so that a thread never
writes where a running sequence reads, and an aborted pull leaves nothing behind.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tokenwire.engine.local.requests import Request
from tokenwire.engine.local.transfer.client import Identity, Pull
from tokenwire.engine.local.transfer.params import Source

logger = logging.getLogger(__name__)

MAX_AT_ONCE = 16
"""Threads that pull. Those of cancelled pulls count until they have ended."""
MAX_LETTING_GO = 16
"""Threads that tell others that blocks are not needed. Who is not told finds out by its time to live."""
LET_GO_S = 5.0
BUFFER_BYTES = 1 << 30
"""Of blocks that travel or wait for their sequence to be admitted; one pull may always run."""
OVERDUE_S = 1.0
"""What a pull's thread may be late; it ends by itself at the deadline where it can."""
AVOID_S = 5.0
"""An address that could not be reached is not tried again for so long: one that is silent costs each pull seconds."""


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
        self._cancelled: list[Pull] = []
        self._letting_go: list[Pull] = []
        self._avoided: dict[str, float] = {}
        """Addresses, and until when."""
        self._buffered = 0

    def __len__(self) -> int:
        return len(self._queued) + len(self._running)

    def add(self, request: Request, source: Source, weight_version: str, first: int, hashes: Sequence[bytes]) -> None:
        """The request waits until `take_finished` gives it back."""
        deadline = time.monotonic() + self._identity.timeout_s
        self._queued.append((request, Pull(source, weight_version, first, hashes, deadline)))
        self._start_queued()

    def let_go(self, source: Source) -> None:
        """Tell the other side that nobody will pull these blocks, if it can be told."""
        self._letting_go = _still_running(self._letting_go)
        if len(self._letting_go) < MAX_LETTING_GO and not self._is_avoided(source):
            pull = Pull(source, "", 0, (), time.monotonic() + LET_GO_S)
            self._letting_go.append(pull)
            self._start(pull)

    def forget(self, request: Request) -> None:
        """The request has ended: pull no more for it."""
        self._queued = deque(entry for entry in self._queued if entry[0] is not request)
        pull = self._running.pop(request, None)
        if pull is not None:
            pull.cancel()
            self._cancelled.append(pull)
            self._buffered -= self._size(pull)

    def take_finished(self) -> list[tuple[Request, Pull]]:
        """Requests whose pull has ended."""
        if not self._running and not self._queued:
            return []
        finished = [(request, pull) for request, pull in self._running.items() if pull.done.is_set()]
        finished += [(request, self._give_up(pull)) for request, pull in self._running.items() if _is_overdue(pull)]
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
            return
        if pull.failure.reason == "unreachable":
            self._avoided[pull.source.name] = time.monotonic() + AVOID_S
        text = f"its KV blocks could not be pulled from {pull.source.name!r}: {pull.failure}"
        self.fall_back(request, pull.failure.reason, text)

    def _give_up(self, pull: Pull) -> Pull:
        """Its thread sits in something without a time limit, as the look-up of a name; what it would have said."""
        pull.cancel()
        self._cancelled.append(pull)
        late = replace(pull, done=threading.Event(), received=None)
        late.fail("timeout", "it took too long")
        return late

    def _is_avoided(self, source: Source) -> bool:
        now = time.monotonic()
        self._avoided = {name: until for name, until in self._avoided.items() if now < until}
        return source.name in self._avoided

    def _start_queued(self) -> None:
        self._cancelled = _still_running(self._cancelled)
        while self._queued and len(self._running) + len(self._cancelled) < MAX_AT_ONCE:
            request, pull = self._queued[0]
            size = self._size(pull)
            if self._buffered and self._buffered + size > BUFFER_BYTES and time.monotonic() < pull.deadline:
                return
            self._queued.popleft()
            self._buffered += size
            self._running[request] = pull
            if self._is_avoided(pull.source):
                pull.fail("unreachable", "it could not be reached a moment ago")
            else:
                self._start(pull)

    def _start(self, pull: Pull) -> None:
        try:
            threading.Thread(target=pull.run, args=(self._identity,), daemon=True, name="kv-pull").start()
        except RuntimeError as exc:  # no more threads to be had
            pull.fail("error", str(exc))

    def _size(self, pull: Pull) -> int:
        return len(pull.hashes) * self._identity.block_bytes

    def _give_back(self, size: int) -> None:
        self._buffered -= size


def _is_overdue(pull: Pull) -> bool:
    return time.monotonic() > pull.deadline + OVERDUE_S and not pull.done.is_set()


def _still_running(pulls: Iterable[Pull]) -> list[Pull]:
    return [pull for pull in pulls if not pull.done.is_set()]
