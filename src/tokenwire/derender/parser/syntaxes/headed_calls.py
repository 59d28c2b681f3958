"""Calls as a header and raw arguments: `<call>name<args>{...}</call>`.

The border it guards: arguments are passed on as they come, without the white space around them, up to the marker
that ends them or, where the format has none, to the end of their JSON value.
"""

from __future__ import annotations

import re

from tokenwire.derender.parser.format import HeadedCalls
from tokenwire.derender.parser.lexicon import Lexicon
from tokenwire.derender.parser.state import Mode
from tokenwire.derender.parser.syntaxes.base import WAIT, Machine, read_name, skip_space
from tokenwire.derender.parser.syntaxes.json_calls import JsonSyntax
from tokenwire.derender.parser.syntaxes.json_value import End, JsonValue

# Phases in SECTION: between calls, and right after arguments that ended of themselves.
BETWEEN, STRAY = 0, 1
# Phases in ARGUMENTS.
BEFORE, RAW, JSON = range(3)


class HeadedSyntax:
    """See `HeadedCalls`."""

    __slots__ = ("_alternate", "_between", "_closers", "_data", "_name", "_name_ends", "_value", "openers")

    def __init__(self, data: HeadedCalls) -> None:
        self._data = data
        self.openers: tuple[str, ...] = data.section or data.open
        self._between = Lexicon((*data.open, *data.section, *data.section_close))
        self._name_ends = Lexicon(data.name_end)
        self._closers = Lexicon((*data.close, *data.section_close))
        self._value = JsonValue(self._closers)
        self._name = re.compile(data.name_pattern) if data.name_pattern else None
        self._alternate = JsonSyntax(data.or_json) if data.or_json is not None else None

    def accepts(self, m: Machine, marker: str) -> bool:
        return True

    def open(self, m: Machine, marker: str, pos: int) -> int:
        m.emit.open(marker, Mode.SECTION if marker in self._data.section else Mode.HEADER)
        return pos

    def step(self, m: Machine, text: str, pos: int) -> int:
        if m.s.alternate and self._alternate is not None:
            return self._alternate.step(m, text, pos)
        match m.s.mode:
            case Mode.SECTION:
                return self._section(m, text, pos)
            case Mode.HEADER:
                return self._header(m, text, pos)
            case _:
                return self._arguments(m, text, pos)

    def _section(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        if s.phase == STRAY:
            if text[pos] in "}]":
                return pos + 1
            m.emit.reset_call()
            s.committed = False
            s.mode = Mode.CONTENT
            return pos
        found = self._between.find(text, pos, final=m.final)
        if found.marker is None:
            m.emit.keep(text[pos : found.start])
            return found.start if found.start > pos else WAIT
        upto = found.start + len(found.marker)
        m.emit.keep(text[pos:upto])
        if found.marker in self._data.open:
            m.emit.reset_call()
            s.mode = Mode.HEADER
        elif found.marker in self._data.section_close:
            if not s.committed:
                m.emit.reject()
            s.committed = False
            s.mode = Mode.CONTENT
        return upto

    def _header(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        if s.leading and self._alternate is not None:
            after = skip_space(text, pos)
            if after == len(text):
                return WAIT
            marker = self._name_ends.at(text, after, final=m.final)
            if marker == "":
                return WAIT
            again = self._between.at(text, after, final=m.final)
            if again == "":
                return WAIT
            if text[after] in "[{" and marker in (None, "{") and again is None:
                s.alternate = True
                s.mode = Mode.SECTION
                return pos
        s.leading = False
        found = self._name_ends.find(text, pos, final=m.final)
        rejected = read_name(m, text, pos, found.start)
        if rejected is not None:
            return rejected
        if found.marker is None:
            return found.start if found.start > pos else WAIT
        self._announce(m)
        s.mode = Mode.ARGUMENTS
        s.phase = BEFORE
        return found.start if found.marker == "{" else found.start + len(found.marker)

    def _announce(self, m: Machine, *, partial: bool = False) -> None:
        header = m.s.name
        if self._data.name_after and self._data.name_after in header:
            header = header.partition(self._data.name_after)[2]
        header = header.strip()
        if self._name is None:
            m.emit.announce(header)
            return
        match = self._name.match(header)
        if match and match.group(1):
            m.emit.announce(match.group(1), match.group() if self._data.id_in_header else None)
        elif partial:
            m.emit.announce(header)
        else:
            m.emit.announce_nothing()

    def _arguments(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        if s.phase == BEFORE:
            after = skip_space(text, pos)
            if after == len(text):
                return after
            s.phase = JSON if self._data.balanced and text[after] in '{["' else RAW
            s.leading = True
            return after
        if s.phase == JSON:
            upto, end = self._value.read(s, text, pos, final=m.final)
            m.emit.arguments(text[pos:upto])
            if end is End.MORE:
                return upto if upto > pos else WAIT
            m.emit.end_call()
            if end is End.DONE:
                s.mode, s.phase = Mode.SECTION, STRAY
            else:
                s.mode, s.committed = Mode.CONTENT, False
            return upto
        found = self._closers.find(text, pos, final=m.final)
        self._raw(m, text[pos : found.start])
        if found.marker is None:
            return found.start if found.start > pos else WAIT
        upto = found.start + len(found.marker)
        m.emit.end_call()
        s.mode = Mode.SECTION
        if found.marker in self._data.section_close or not self._data.section:
            s.mode, s.committed = Mode.CONTENT, False
        return found.start if found.marker in self._data.open else upto

    @staticmethod
    def _raw(m: Machine, piece: str) -> None:
        """Argument text, but for white space that may be its end."""
        s = m.s
        piece = s.hold + piece
        kept = piece.rstrip()
        s.hold = piece[len(kept) :]
        m.emit.arguments(kept)

    def finish(self, m: Machine, rest: str) -> None:
        s = m.s
        if s.alternate and self._alternate is not None:
            self._alternate.finish(m, rest)
        elif s.mode is Mode.ARGUMENTS:
            m.emit.end_call()
        elif s.mode is Mode.HEADER and self._data.partial_name and s.name.strip():
            self._announce(m, partial=True)
            m.emit.end_call()
        elif not s.committed:
            m.emit.keep(rest)
            m.emit.reject(at_end=True)
