"""The queue of sequences that wait to run, in the order of the scheduling policy."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Literal, Protocol

from tokenwire.engine.local.requests import Sequence

MAX_REMOVED = 64
"""Removed entries that a heap may keep, beside as many as there are live ones."""


class WaitingQueue(Protocol):
    """Gives sequences out in the order in which they may run; iterating goes over them in no order."""

    @property
    def num_tokens(self) -> int:
        """Tokens that all of them lack. Kept as they come and go: the gauges of every step ask for it."""

    def push(self, sequence: Sequence) -> None: ...
    def push_back(self, sequence: Sequence) -> None:
        """A preempted sequence: it ran already, so it goes before its equals."""

    def peek(self) -> Sequence | None: ...
    def pop(self) -> Sequence: ...
    def remove(self, sequence: Sequence) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence]: ...


def make_queue(policy: Literal["fcfs", "priority"]) -> WaitingQueue:
    """The queue of a policy."""
    return PriorityQueue() if policy == "priority" else ArrivalQueue()


def urgency(sequence: Sequence) -> tuple[int, int, int]:
    """Sort key of the priority policy: lower runs earlier, then arrival, then the sample's number."""
    return sequence.request.priority, sequence.request.arrival, sequence.index


class ArrivalQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._queue: deque[Sequence] = deque()
        self.num_tokens = 0

    def push(self, sequence: Sequence) -> None:
        self._queue.append(sequence)
        self.num_tokens += sequence.num_to_compute

    def push_back(self, sequence: Sequence) -> None:
        self._queue.appendleft(sequence)
        self.num_tokens += sequence.num_to_compute

    def peek(self) -> Sequence | None:
        return self._queue[0] if self._queue else None

    def pop(self) -> Sequence:
        sequence = self._queue.popleft()
        self.num_tokens -= sequence.num_to_compute
        return sequence

    def remove(self, sequence: Sequence) -> None:
        self._queue.remove(sequence)
        self.num_tokens -= sequence.num_to_compute

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)


class PriorityQueue:
    """Lowest priority value first; arrival breaks ties. What is removed stays in the heap until there is much of it."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, int], int, Sequence]] = []
        self._live: set[int] = set()
        self._serial = 0
        self.num_tokens = 0

    def push(self, sequence: Sequence) -> None:
        self._serial += 1
        self._live.add(id(sequence))
        self.num_tokens += sequence.num_to_compute
        heapq.heappush(self._heap, (urgency(sequence), self._serial, sequence))

    def push_back(self, sequence: Sequence) -> None:
        self.push(sequence)

    def peek(self) -> Sequence | None:
        while self._heap and id(self._heap[0][2]) not in self._live:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Sequence:
        sequence = self.peek()
        assert sequence is not None
        heapq.heappop(self._heap)
        self._live.discard(id(sequence))
        self.num_tokens -= sequence.num_to_compute
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Never pushed again: sequences leave the queue this way when they end."""
        self._live.remove(id(sequence))
        self.num_tokens -= sequence.num_to_compute
        if len(self._heap) > MAX_REMOVED + 2 * len(self._live):
            self._heap = [entry for entry in self._heap if id(entry[2]) in self._live]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[2] for entry in self._heap if id(entry[2]) in self._live)
