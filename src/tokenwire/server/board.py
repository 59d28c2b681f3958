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
from collections.abc import Iterator, Sequence

from tokenwire.engine.replicas import SESSION_BYTES, Sessions
from tokenwire.service.admission import Admission, Ticket

_FIELDS = 2
_SEQS, _TOKENS = range(_FIELDS)
_ROW_BYTES = 8 * _FIELDS


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

    Places are taken under the lock, so that together they never admit more than the limit.
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
        """Of this moment only; others may take what is free before `enter_all` does."""
        if self._is_limited:
            self._compare(n, *self._everybody())

    def enter_all(self, sizes: Sequence[tuple[int, int]]) -> list[Ticket]:
        with self._board.locked() if self._is_limited else contextlib.nullcontext():
            return super().enter_all(sizes)

    def _everybody(self) -> tuple[int, int]:
        """Sequences and tokens of all front ends."""
        rows = range(self._board.num_rows)
        return sum(self._board.get(row, _SEQS) for row in rows), sum(self._board.get(row, _TOKENS) for row in rows)
