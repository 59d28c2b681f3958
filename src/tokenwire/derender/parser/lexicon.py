"""Finding markers in text that arrives in pieces.

The border it guards: a marker is found whichever way the text is cut. What may still become one is held back, and
nothing else is; of two markers that begin at one place the longer wins, so a short one waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class Found(NamedTuple):
    """A marker at `start`, or none: then `start` is where text begins that may become one."""

    start: int
    marker: str | None


class Lexicon:
    """A fixed set of markers."""

    __slots__ = ("_pattern", "_prefixes", "first", "longest", "markers")

    def __init__(self, markers: Iterable[str]) -> None:
        self.markers = frozenset(marker for marker in markers if marker)
        by_length = sorted(self.markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, by_length)) or "(?!)")
        self._prefixes = frozenset(marker[:n] for marker in by_length for n in range(1, len(marker)))
        self.longest = len(by_length[0]) if by_length else 0
        firsts = "".join(sorted({marker[0] for marker in by_length}))
        self.first = re.compile(f"[{re.escape(firsts)}]" if firsts else "(?!)")

    def find(self, text: str, start: int, *, final: bool) -> Found:
        """The first marker in `text[start:]`. With `final` no more text follows, so nothing is held back."""
        match = self._pattern.search(text, start)
        if match is None:
            return Found(len(text) if final else self._held(text, start), None)
        if not final and text[match.start() :] in self._prefixes:
            return Found(match.start(), None)
        return Found(match.start(), match.group())

    def at(self, text: str, pos: int, *, final: bool) -> str | None:
        """The marker that begins exactly at `pos`; `""` if that cannot be told yet, null if there is none."""
        if not final and text[pos : pos + self.longest] in self._prefixes and len(text) - pos < self.longest:
            return ""
        match = self._pattern.match(text, pos)
        return match.group() if match else None

    def begins(self, text: str) -> bool:
        """Whether `text` is the beginning of a marker and not all of one."""
        return text in self._prefixes

    def _held(self, text: str, start: int) -> int:
        size = len(text)
        for match in self.first.finditer(text, max(start, size - self.longest + 1)):
            if text[match.start() :] in self._prefixes:
                return match.start()
        return size
