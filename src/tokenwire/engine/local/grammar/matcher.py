"""One sequence's place in its grammar, and the gate that keeps the grammar shut while the model still reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Automaton(Protocol):
    """A grammar library's matcher, reduced to what is needed. Masks are int32 words, one bit an id, 1 = allowed."""

    def fill(self, words: NDArray[np.int32]) -> bool:
        """Write the mask of the next token; False if everything is allowed."""

    def accept(self, token_id: int) -> bool:
        """Advance; False (and no change) if the grammar forbids the token."""

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""


class GrammarMatcher:
    """Masks and advances along one sequence.

    With `reasoning_end_token_ids` the constraint begins after that sequence of ids has been generated; before it,
    everything is allowed. After a stop id has ended the grammar only stop ids are allowed, so a sequence that ignores
    EOS still carries no text beyond it.
    """

    __slots__ = ("_automaton", "_end", "_ended_at", "_history", "_opened_at", "_stop_ids")

    def __init__(
        self,
        automaton: Automaton,
        *,
        stop_ids: Sequence[int],
        reasoning_end_token_ids: Sequence[int] = (),
    ) -> None:
        self._automaton = automaton
        self._stop_ids = frozenset(stop_ids)
        self._end = tuple(reasoning_end_token_ids)
        self._history: list[int] = []
        self._opened_at = None if self._end else 0
        self._ended_at: int | None = None

    @property
    def is_open(self) -> bool:
        """The constraint is in force."""
        return self._opened_at is not None

    @property
    def is_terminated(self) -> bool:
        """A stop id has ended the grammar."""
        return self._ended_at is not None

    def fill(self, bitmask: NDArray[np.int32]) -> bool:
        """Write the mask of the next token into a row of words; False if everything is allowed."""
        if self._opened_at is None:
            return False
        if self._ended_at is None:
            return self._automaton.fill(bitmask)
        if not self._stop_ids:
            return False
        bitmask[:] = 0
        set_bits(bitmask, self._stop_ids)
        return True

    def accept(self, token_id: int) -> bool:
        """Advance by one token; False if the grammar forbids it, and then nothing has changed."""
        if self._opened_at is None:
            self._history.append(token_id)
            if tuple(self._history[-len(self._end) :]) == self._end:
                self._opened_at = len(self._history)
            return True
        if self._ended_at is not None:
            if token_id not in self._stop_ids:
                return False
        elif not self._automaton.accept(token_id):
            return False
        self._history.append(token_id)
        if self._ended_at is None and token_id in self._stop_ids:
            self._ended_at = len(self._history)
        return True

    def validate(self, token_ids: Sequence[int]) -> int:
        """How many of `token_ids` the grammar would take in a row; the state does not change."""
        taken = 0
        while taken < len(token_ids) and self.accept(token_ids[taken]):
            taken += 1
        self.rollback(taken)
        return taken

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens, over the gate too (speculative decoding)."""
        if count == 0:
            return
        length = len(self._history) - count
        assert length >= 0
        if self._opened_at is not None:
            fed = (self._ended_at or len(self._history)) - self._opened_at
            kept = max(min(length, self._ended_at or length) - self._opened_at, 0)
            self._automaton.rollback(fed - kept)
        del self._history[length:]
        if self._ended_at is not None and length < self._ended_at:
            self._ended_at = None
        if self._end and self._opened_at is not None and length < self._opened_at:
            self._opened_at = None


def clear_bits(words: NDArray[np.int32], ids: Iterable[int]) -> None:
    """Forbid `ids` in a mask."""
    bits = words.view(np.uint32)
    for token_id in ids:
        if 0 <= token_id < len(words) * 32:
            bits[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))


def set_bits(words: NDArray[np.int32], ids: Iterable[int]) -> None:
    """Allow `ids` in a mask; ids past its end are left out."""
    bits = words.view(np.uint32)
    for token_id in ids:
        if 0 <= token_id < len(words) * 32:
            bits[token_id >> 5] |= np.uint32(1 << (token_id & 31))
