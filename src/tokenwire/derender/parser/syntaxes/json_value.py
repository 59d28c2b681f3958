"""Reading one JSON value piece by piece, without keeping it.

The border it guards: a value's end is found by its own brackets and quotes, so markers inside strings are text. Only
where a missing quote has turned the rest of a call into a string does a closing marker count inside one.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from tokenwire.derender.parser.lexicon import Lexicon
from tokenwire.derender.parser.state import ParserState

_IN_STRING = re.compile(r'["\\]')
_STRUCTURE = re.compile(r'"[\s,:{}\[\]0-9.+\-eEtrufalsn]*')
_SCALAR_END = re.compile(r"[\s,}\]]")
_LONGEST_STRUCTURE = 200
NO_CLOSERS = Lexicon(())


class End(Enum):
    MORE = 0
    """The value goes on."""
    DONE = 1
    BROKEN = 2
    """A closing marker stands where the value should go on."""


class Read(NamedTuple):
    upto: int
    end: End


class JsonValue:
    """Reads values whose surrounding call may end in one of `closers`."""

    __slots__ = ("_closers", "_outside")

    def __init__(self, closers: Lexicon) -> None:
        self._closers = closers
        firsts = "".join(sorted({marker[0] for marker in closers.markers}))
        self._outside = re.compile(rf'["{{}}\[\]{re.escape(firsts)}]')

    def read(self, s: ParserState, text: str, pos: int, *, final: bool) -> Read:
        """Reads on in the value at `pos`, which is not white space at its beginning (`s.leading`)."""
        if s.leading:
            s.leading = False
            s.depth = 0
            s.stack = "" if text[pos] in '"{[' else "scalar"
        if s.stack == "scalar":
            match = _SCALAR_END.search(text, pos)
            broken = self._closers.find(text, pos, final=final)
            end = match.start() if match else len(text)
            if broken.start < end:
                return Read(broken.start, End.BROKEN if broken.marker else End.MORE)
            return Read(end, End.DONE if match else End.MORE)
        size = len(text)
        while pos < size:
            if s.in_string:
                pos, closed = self._string(s, text, pos)
                if closed and s.depth == 0:
                    return Read(pos, End.DONE)
                continue
            match = self._outside.search(text, pos)
            if match is None:
                return Read(size, End.MORE)
            pos = match.start()
            char = match.group()
            if char == '"':
                false_end = self._false_string(text, pos, final=final)
                if false_end is None:
                    return Read(pos, End.MORE)
                if false_end:
                    return Read(pos, End.BROKEN)
                s.in_string = True
                pos += 1
            elif char in "{[":
                s.depth += 1
                pos += 1
            elif char in "}]":
                s.depth = max(0, s.depth - 1)
                pos += 1
                if s.depth == 0:
                    return Read(pos, End.DONE)
            else:
                marker = self._closers.at(text, pos, final=final)
                if marker == "":
                    return Read(pos, End.MORE)
                if marker:
                    return Read(pos, End.BROKEN)
                pos += 1
        return Read(size, End.MORE)

    @staticmethod
    def _string(s: ParserState, text: str, pos: int) -> tuple[int, bool]:
        """Reads on inside a string: up to where, and whether it ended there."""
        size = len(text)
        while pos < size:
            if s.escaped:
                s.escaped = False
                pos += 1
                continue
            match = _IN_STRING.search(text, pos)
            if match is None:
                return size, False
            pos = match.end()
            if match.group() == '"':
                s.in_string = False
                return pos, True
            s.escaped = True
        return pos, False

    def _false_string(self, text: str, quote: int, *, final: bool) -> bool | None:
        """Whether the quote opens no string but ends one whose own quote is missing; null if that is not clear yet.

        Then nothing but JSON's own characters stand between the quote and the marker that closes the call.
        """
        if not self._closers.markers:
            return False
        match = _STRUCTURE.match(text, quote)
        if match is None or match.end() - quote > _LONGEST_STRUCTURE:
            return False
        stop = match.end()
        if stop == len(text):
            return False if final else None
        marker = self._closers.at(text, stop, final=final)
        if marker == "":
            return None
        return bool(marker) and "}" in match.group()
