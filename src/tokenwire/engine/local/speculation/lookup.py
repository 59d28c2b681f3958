"""Where the end of a token sequence has stood before: an index that grows with the sequence.

Every run of `shortest` tokens is entered once, in a hash table of chains from newest to oldest, as compressors of the
LZ77 family do it. So a new token costs the same whatever came before it, and a look-up follows a bounded number of
links. About 20 bytes a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

MAX_LINKS = 16
"""Earlier places that are compared, newest first."""
_SMALLEST = 256

Ints = NDArray[np.int32]
_compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = njit(nogil=True, cache=True)


@_compiled
def _enter(ids: Ints, start: int, stop: int, shortest: int, heads: Ints, links: Ints) -> None:
    """Enter the runs that end at start..stop (half open)."""
    mask = np.uint32(len(heads) - 1)
    for end in range(max(start, shortest - 1), stop):
        code = np.uint32(2166136261)
        for i in range(end + 1 - shortest, end + 1):
            code = np.uint32((code ^ np.uint32(ids[i])) * np.uint32(16777619))
        code ^= code >> np.uint32(15)
        slot = code & mask
        links[end] = heads[slot]
        heads[slot] = end


@_compiled
def _continue(ids: Ints, size: int, shortest: int, longest: int, links: Ints, max_links: int, draft: Ints) -> int:
    """Fill `draft` with what followed the best earlier place; on how many tokens that agrees, 0 if there is none.

    Where the earlier place lies so near that its continuation is the draft itself, that goes on as a period.
    """
    best, best_length = -1, shortest - 1
    place = links[size - 1]
    for _ in range(max_links):
        if place < 0:
            break
        length = 0
        while length < longest and length <= place and ids[place - length] == ids[size - 1 - length]:
            length += 1
        if length > best_length:
            best, best_length = place, length
            if length == longest:
                break
        place = links[place]
    if best < 0:
        return 0
    for i in range(len(draft)):
        source = best + 1 + i
        draft[i] = ids[source] if source < size else draft[source - size]
    return best_length


class NgramIndex:
    """The tokens of one sequence. `extend` it as the sequence grows; tokens are never taken back."""

    __slots__ = ("_heads", "_ids", "_links", "_longest", "_shortest", "_size")

    def __init__(self, shortest: int, longest: int) -> None:
        """A match has at least `shortest` tokens; `longest` decides between matches."""
        self._shortest = shortest
        self._longest = longest
        self._size = 0
        self._ids: Ints = np.empty(0, dtype=np.int32)
        self._links: Ints = np.empty(0, dtype=np.int32)
        self._heads: Ints = np.empty(0, dtype=np.int32)

    def __len__(self) -> int:
        return self._size

    def extend(self, token_ids: Sequence[int]) -> None:
        """The sequence's next tokens."""
        start, stop = self._size, self._size + len(token_ids)
        if stop > len(self._ids):
            self._grow(stop)
            start = 0
        self._ids[self._size : stop] = token_ids
        self._size = stop
        _enter(self._ids, start, stop, self._shortest, self._heads, self._links)

    def guess(self, count: int) -> tuple[list[int], int]:
        """The `count` (at least one) tokens that may come next, and on how many tokens the earlier place agrees.

        Empty and 0 if the end has not stood anywhere before.
        """
        if self._size <= self._shortest:
            return [], 0
        draft = np.empty(count, dtype=np.int32)
        arguments = (self._ids, self._size, self._shortest, self._longest, self._links, MAX_LINKS, draft)
        agreement = int(_continue(*arguments))
        return (draft.tolist() if agreement else []), agreement

    def _grow(self, needed: int) -> None:
        """Twice the room, with an empty table: everything must be entered anew."""
        room = _SMALLEST
        while room < needed:
            room *= 2
        ids = np.empty(room, dtype=np.int32)
        ids[: self._size] = self._ids[: self._size]
        self._ids = ids
        self._links = np.full(room, -1, dtype=np.int32)
        self._heads = np.full(room, -1, dtype=np.int32)
