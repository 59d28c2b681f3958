"""Memory that the front-end processes of one server share: what each has admitted, and where sessions ran.

The process that starts them makes the board and hands its descriptor on. Every front end writes its own row only and
reads all; a lock on the file, which the kernel lifts when its holder dies, makes "is there room, then enter" one act.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Iterator

from tokenwire.engine.replicas import SESSION_BYTES, Sessions
from tokenwire.service.admission import Admission, Ticket

_FIELDS = 4  # sequences, prompt tokens, sequences about to enter, when that was said
_SEQS, _TOKENS, _CLAIM, _CLAIMED_AT = range(_FIELDS)
_ROW_BYTES = 8 * _FIELDS
CLAIM_S = 0.25
"""How long a request that passed admission may take to enter before its place is given away."""


class Board:
    """`num_rows` front ends; `descriptor` is a file of the right size, made by `create`."""

    def __init__(self, descriptor: int, num_rows: int) -> None:
        self.descriptor = descriptor
        self.num_rows = num_rows
        memory = memoryview(mmap.mmap(descriptor, _size(num_rows)))
        self.sessions = Sessions(memory[:SESSION_BYTES])
        self._rows = memory[SESSION_BYTES:].cast("q")

    @staticmethod
    def create(num_rows: int) -> Board:
        """A board in memory, with rows of zeros."""
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("tokenwire-board")
        else:
            descriptor, path = tempfile.mkstemp(prefix="tokenwire-board-")
            os.unlink(path)
        os.ftruncate(descriptor, _size(num_rows))
        return Board(descriptor, num_rows)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else is inside. Held for microseconds."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def clear(self, row: int) -> None:
        """The front end of this row is gone with all it had admitted."""
        self._rows[row * _FIELDS : (row + 1) * _FIELDS] = memoryview(bytes(_ROW_BYTES)).cast("q")

    def get(self, row: int, field: int) -> int:
        return self._rows[row * _FIELDS + field]

    def set(self, row: int, field: int, value: int) -> None:
        self._rows[row * _FIELDS + field] = value


def _size(num_rows: int) -> int:
    return SESSION_BYTES + num_rows * _ROW_BYTES


class SharedAdmission(Admission):
    """The limits of a whole server, kept by several front ends; this one writes row `row` of the board.

    A request is checked first and enters a moment later. In between the others count it as there, so that together they
    never admit more than the limit; one that takes too long to enter is checked again.
    """

    def __init__(self, max_seqs: int | None, max_tokens: int | None, board: Board, row: int) -> None:
        self._board = board
        self._row = row
        super().__init__(max_seqs, max_tokens)

    @property
    def num_seqs(self) -> int:
        """Of this front end, as `num_prefill_tokens`."""
        return self._board.get(self._row, _SEQS)

    @num_seqs.setter
    def num_seqs(self, value: int) -> None:
        self._board.set(self._row, _SEQS, value)

    @property
    def num_prefill_tokens(self) -> int:
        return self._board.get(self._row, _TOKENS)

    @num_prefill_tokens.setter
    def num_prefill_tokens(self, value: int) -> None:
        self._board.set(self._row, _TOKENS, value)

    @property
    def _is_limited(self) -> bool:
        return self._max_seqs is not None or self._max_tokens is not None

    def check(self, n: int) -> None:
        if not self._is_limited:
            return
        with self._board.locked():
            self._compare(n, *self._everybody())
            self._claim(self._claimed(self._row) + n)

    def enter(self, n: int, prompt_len: int) -> Ticket:
        """Raises `OverloadedError` when the place that `check` found has been given away meanwhile."""
        if not self._is_limited:
            return super().enter(n, prompt_len)
        with self._board.locked():
            claimed = self._claimed(self._row)
            if claimed < n:
                self._compare(n, *self._everybody())
            self._claim(max(0, claimed - n))
            return super().enter(n, prompt_len)

    def _everybody(self) -> tuple[int, int]:
        """Sequences and tokens of all front ends; with what is about to enter elsewhere."""
        rows = range(self._board.num_rows)
        seqs = sum(self._board.get(row, _SEQS) + (0 if row == self._row else self._claimed(row)) for row in rows)
        return seqs, sum(self._board.get(row, _TOKENS) for row in rows)

    def _claimed(self, row: int) -> int:
        """Sequences that have been checked and have not entered yet; 0 once they had their time."""
        age_ns = time.monotonic_ns() - self._board.get(row, _CLAIMED_AT)
        return self._board.get(row, _CLAIM) if age_ns < CLAIM_S * 1e9 else 0

    def _claim(self, n: int) -> None:
        self._board.set(self._row, _CLAIM, n)
        self._board.set(self._row, _CLAIMED_AT, time.monotonic_ns())
