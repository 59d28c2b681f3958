"""Texts that end a turn, held back at the end of the output and dropped if nothing follows.

The border it guards: such a text in the middle of an output stays what it is, text.
"""

from __future__ import annotations

from collections.abc import Iterable


class TurnEnds:
    """A fixed set of turn-end texts."""

    __slots__ = ("_ends", "_first", "_longest", "_prefixes")

    def __init__(self, ends: Iterable[str]) -> None:
        self._ends = tuple(sorted({end for end in ends if end}, key=len, reverse=True))
        self._prefixes = frozenset(end[:n] for end in self._ends for n in range(1, len(end)))
        self._first = frozenset(end[0] for end in self._ends)
        self._longest = len(self._ends[0]) if self._ends else 0

    @property
    def first_characters(self) -> frozenset[str]:
        return self._first

    def held_from(self, text: str) -> int:
        """Where the part of `text` begins that is nothing but turn ends and the beginning of one."""
        cut = len(text)
        for start in range(max(0, cut - self._longest + 1), cut):
            if text[start] in self._first and text[start:] in self._prefixes:
                cut = start
                break
        while end := self._end_before(text, cut):
            cut -= len(end)
        return cut

    def without_end(self, text: str) -> str:
        """`text`, which `held_from` held back, without the turn ends that end it."""
        cut = len(text)
        while end := self._end_before(text, cut):
            cut -= len(end)
        return text[:cut]

    def _end_before(self, text: str, cut: int) -> str:
        return next((end for end in self._ends if text.endswith(end, 0, cut)), "")
