"""Gemma's calls: `call:f{city:<q>Paris<q>,days:3}`, with a quote that is a token of its own.

The border it guards: the arguments become one JSON object. Quoted text that can only be a string is sent while it is
being written; every other value is held until it ends.
"""

from __future__ import annotations

from tokenwire.derender.parser.format import TaggedCalls
from tokenwire.derender.parser.lexicon import Lexicon
from tokenwire.derender.parser.state import Mode
from tokenwire.derender.parser.syntaxes.base import LONGEST_NAME, WAIT, Machine, skip_space
from tokenwire.derender.parser.syntaxes.tagged_values import may_be_json, read_value
from tokenwire.derender.parser.values import dumps, escape, is_text, json_or_text, typed

# Phases in ARGUMENTS: before a key, in a key, before a value, in quoted text, in another value, after the braces.
KEY, VALUE, QUOTED, OTHER, AFTER = range(5)


class TaggedSyntax:
    """See `TaggedCalls`."""

    __slots__ = ("_closers", "_data", "_ends", "_quotes", "openers")

    def __init__(self, data: TaggedCalls) -> None:
        self._data = data
        self.openers: tuple[str, ...] = data.open
        self._closers = Lexicon((*data.close, *data.open))
        self._ends = Lexicon(data.close)
        self._quotes = Lexicon((data.quote,))

    def accepts(self, m: Machine, marker: str) -> bool:
        return True

    def open(self, m: Machine, marker: str, pos: int) -> int:
        m.emit.open(marker, Mode.HEADER)
        return pos

    def step(self, m: Machine, text: str, pos: int) -> int:
        if m.s.mode is Mode.HEADER:
            return self._header(m, text, pos)
        if m.s.mode is Mode.SECTION:
            return self._after(m, text, pos)
        match m.s.phase:
            case _ if m.s.phase == QUOTED:
                return self._quoted(m, text, pos)
            case _ if m.s.phase == OTHER:
                return self._other(m, text, pos)
            case _ if m.s.phase == VALUE:
                return self._begin_value(m, text, pos)
        return self._key(m, text, pos)

    # ---- the header -------------------------------------------------------------------------------------------

    def _header(self, m: Machine, text: str, pos: int) -> int:
        """`call:name` up to the bracket; anything else up to there is no call."""
        s = m.s
        marker = self._closers.at(text, pos, final=m.final)
        if marker == "":
            return WAIT
        if marker:
            return self._no_header(m, pos, marker)
        char = text[pos]
        m.emit.keep(char)
        if char not in "{(":
            s.name += char
            if len(s.name) > LONGEST_NAME:
                m.emit.reject()
            return pos + 1
        name = self._name(s.name)
        if not name:
            m.emit.reject()
            return pos + 1
        m.emit.announce(name)
        s.mode, s.phase = Mode.ARGUMENTS, KEY
        return pos + 1

    def _no_header(self, m: Machine, pos: int, marker: str) -> int:
        name = self._name(m.s.name)
        if marker in self._data.open:  # the marker once more
            m.emit.keep(marker)
            m.s.name = ""
            return pos + len(marker)
        if name and self._data.partial_name:
            m.emit.announce(name)
            m.emit.end_call()
            m.s.mode, m.s.committed = Mode.CONTENT, False
            return pos + len(marker)
        m.emit.keep(marker)
        m.emit.reject()
        return pos + len(marker)

    @staticmethod
    def _name(header: str) -> str:
        before, colon, name = header.partition(":")
        return name.strip() if colon and before.strip() in ("call", "") else ""

    # ---- members ----------------------------------------------------------------------------------------------

    def _key(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        marker = self._ends.at(text, pos, final=m.final)
        if marker == "":
            return WAIT
        if marker:
            return self._end(m, pos)
        char = text[pos]
        if char == ":":
            s.key = s.key.strip().removeprefix(self._data.quote).removesuffix(self._data.quote)
            s.phase = VALUE
        elif char in "})":
            return self._end(m, pos + 1)
        elif s.key or char not in " ,\n\t\r":
            s.key += char
        return pos + 1

    def _end(self, m: Machine, pos: int) -> int:
        m.emit.arguments("}" if m.s.depth else "{}")
        m.emit.end_call()
        m.s.mode = Mode.SECTION
        return pos

    def _after(self, m: Machine, text: str, pos: int) -> int:
        """Nothing but the closing marker is expected; text between is dropped, a new call may begin at once."""
        found = self._closers.find(text, pos, final=m.final)
        if found.marker is None:
            return found.start if found.start > pos else WAIT
        m.s.mode, m.s.committed = Mode.CONTENT, False
        return found.start if found.marker in self._data.open else found.start + len(found.marker)

    @staticmethod
    def _member(m: Machine) -> str:
        """The text before a member's value; `s.depth` counts the members begun."""
        s = m.s
        s.depth += 1
        key, s.key = s.key, ""
        return ("{" if s.depth == 1 else ", ") + dumps(key) + ": "

    def _begin_value(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        after = skip_space(text, pos)
        if after == len(text):
            return after
        marker = self._quotes.at(text, after, final=m.final)
        if marker == "":
            return after if after > pos else WAIT
        s.hold = s.stack = ""
        if not marker:
            s.phase, s.in_string = OTHER, False
            return after
        s.phase = QUOTED
        schema = m.emit.tools.schema(s.name, s.key)
        s.text_value = not self._data.quoted_only and is_text(schema)
        if s.text_value:
            m.emit.arguments(self._member(m) + '"')
        return after + len(marker)

    def _quoted(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        found = self._quotes.find(text, pos, final=m.final)
        piece = text[pos : found.start]
        if s.text_value:
            m.emit.arguments(escape(piece))
        else:
            s.hold += piece
            if self._data.quoted_only and found.marker is None and not may_be_json(s.hold):
                held, s.hold, s.text_value = s.hold, "", True
                m.emit.arguments(self._member(m) + '"' + escape(held))
        if found.marker is None:
            return found.start if found.start > pos else WAIT
        self._end_quoted(m)
        return found.start + len(found.marker)

    def _end_quoted(self, m: Machine) -> None:
        s = m.s
        if s.text_value:
            m.emit.arguments('"')
        elif self._data.quoted_only:
            m.emit.arguments(self._member(m) + dumps(json_or_text(s.hold)))
        else:
            value = typed(s.hold, m.emit.tools.schema(s.name, s.key))
            m.emit.arguments(self._member(m) + dumps(value))
        s.phase, s.hold, s.key = KEY, "", ""

    def _other(self, m: Machine, text: str, pos: int) -> int:
        """A value without the quote: a word, or brackets with anything inside, up to its end."""
        s = m.s
        start = pos
        while pos < len(text):
            quote = self._quotes.at(text, pos, final=m.final)
            if quote == "":
                return pos if pos > start else WAIT
            if quote:
                s.in_string = not s.in_string
                s.hold += quote
                pos += len(quote)
                continue
            char = text[pos]
            if not s.in_string:
                marker = self._ends.at(text, pos, final=m.final)
                if marker == "":
                    return pos if pos > start else WAIT
                if marker or (char in ",})]" and not s.stack):
                    self._end_other(m)
                    return pos
                if char in "{[":
                    s.stack += char
                elif char in "}]":
                    s.stack = s.stack[:-1]
            s.hold += char
            pos += 1
        return pos

    def _end_other(self, m: Machine) -> None:
        s = m.s
        text = s.hold.strip()
        if not self._data.quoted_only and (text or s.stack):
            schema = m.emit.tools.schema(s.name, s.key)
            value = read_value(text, self._data.quote, schema)
            m.emit.arguments(self._member(m) + dumps(value))
        s.phase, s.hold, s.key, s.stack, s.in_string = KEY, "", "", "", False

    def finish(self, m: Machine, rest: str) -> None:
        s = m.s
        if s.mode is Mode.ARGUMENTS:
            self._finish_arguments(m, rest)
            m.emit.end_call()
        elif s.mode is Mode.HEADER and self._data.partial_name and self._name(s.name):
            m.emit.announce(self._name(s.name))
            m.emit.end_call()
        elif s.mode is Mode.HEADER and not s.committed:
            m.emit.keep(rest)
            m.emit.reject(at_end=True)

    def _finish_arguments(self, m: Machine, rest: str) -> None:
        s = m.s
        if s.phase == QUOTED and s.text_value:
            m.emit.arguments(escape(rest) + ('"}' if self._data.repair else ""))
            return
        if self._data.repair and s.phase == QUOTED:
            s.hold += rest
            self._end_quoted(m)
        elif self._data.repair and s.phase == OTHER:
            s.hold += rest
            self._end_other(m)
        m.emit.arguments("}" if s.depth else "{}")
