"""Calls as Python calls with keyword arguments: `[f(a='x', b=[1, 2]), g()]`.

The border it guards: nothing is evaluated. String values are turned into JSON strings while they are being written;
other values are held until they end and read as literals.
"""

from __future__ import annotations

import re

from tokenwire.derender.parser.format import PythonCalls
from tokenwire.derender.parser.lexicon import Lexicon
from tokenwire.derender.parser.state import Mode
from tokenwire.derender.parser.syntaxes.base import WAIT, Machine, skip_space
from tokenwire.derender.parser.syntaxes.python_literal import literal, read_escape
from tokenwire.derender.parser.values import dumps, escape

# Phases in SECTION.
BETWEEN, AFTER_LIST, BROKEN = range(3)
# Phases in ARGUMENTS: before a keyword, before a value, in a string, in another value, after a value.
KEYWORD, VALUE, STRING, OTHER, COMMA = range(5)
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_OTHER_END = re.compile(r"""['"()\[\]{},\\]""")


class PythonSyntax:
    """See `PythonCalls`."""

    __slots__ = ("_closers", "_data", "_openers_at", "openers")

    def __init__(self, data: PythonCalls) -> None:
        self._data = data
        self._closers = Lexicon(data.close)
        self._openers_at = Lexicon(data.open)
        self.openers: tuple[str, ...] = data.open + (("[",) if data.bare else ())

    def accepts(self, m: Machine, marker: str) -> bool:
        anywhere = marker in self._data.open and not self._data.first_only
        return anywhere or not (m.s.started or m.s.calls)

    def open(self, m: Machine, marker: str, pos: int) -> int:
        bare = marker not in self._data.open
        m.emit.open("" if bare else marker, Mode.SECTION)
        m.s.alternate = bare
        return pos - len(marker) if bare else pos

    def step(self, m: Machine, text: str, pos: int) -> int:
        match m.s.mode:
            case Mode.SECTION:
                return self._section(m, text, pos)
            case Mode.HEADER:
                return self._header(m, text, pos)
        return self._arguments(m, text, pos)

    # ---- around calls -----------------------------------------------------------------------------------------

    def _section(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        if s.phase == BROKEN:
            return self._to_close(m, text, pos)
        if s.phase == AFTER_LIST and (s.alternate or not self._data.close):
            return self._leave(m, pos)
        space = skip_space(text, pos)
        if space > pos:
            m.emit.keep(text[pos:space])
            return space
        marker = self._closers.at(text, pos, final=m.final)
        if marker == "":
            return WAIT
        if marker:
            m.emit.keep(marker)
            return self._leave(m, pos + len(marker))
        if s.phase == AFTER_LIST:
            return self._to_close(m, text, pos)
        again = self._openers_at.at(text, pos, final=m.final)
        if again == "":
            return WAIT
        if again and not s.committed:
            m.emit.reject()
            m.emit.content(again)
            return pos + len(again)
        char = text[pos]
        if self._data.listed and not s.listed:
            if char != "[":
                return self._no_call(m, pos)
            s.listed = True
        elif char == "]" and s.listed:
            return self._end_list(m, text, pos, pos)
        elif char != ",":
            if not (char.isalpha() or char == "_") or not char.isascii():
                return self._no_call(m, pos)
            m.emit.reset_call()
            s.mode = Mode.HEADER
            return pos
        m.emit.keep(char)
        return pos + 1

    def _end_list(self, m: Machine, text: str, pos: int, at: int) -> int:
        m.emit.keep(text[pos : at + 1])
        if not m.s.committed:
            m.emit.reject()
            return at + 1
        m.s.listed = False
        m.s.phase = AFTER_LIST
        return at + 1

    def _leave(self, m: Machine, pos: int) -> int:
        if not m.s.committed:
            m.emit.reject()
            return pos
        m.emit.reset_call()
        m.s.committed = False
        m.s.mode = Mode.CONTENT
        return pos

    def _no_call(self, m: Machine, pos: int) -> int:
        if not m.s.committed:
            m.emit.reject()
        else:
            m.emit.reset_call()
            m.s.mode, m.s.phase = Mode.SECTION, BROKEN
        return pos

    def _to_close(self, m: Machine, text: str, pos: int) -> int:
        """What follows calls that cannot be read on: nothing up to the closing marker is text."""
        found = self._closers.find(text, pos, final=m.final)
        if found.marker is None:
            return found.start if found.start > pos else WAIT
        return self._leave(m, found.start + len(found.marker))

    def _header(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        match = _NAME.match(s.name + text[pos:])
        upto = pos + (match.end() if match else 0) - len(s.name)
        s.name += text[pos:upto]
        m.emit.keep(text[pos:upto])
        if upto == len(text):
            return upto
        after = skip_space(text, upto)
        if after == len(text):
            return upto if upto > pos else WAIT
        if text[after] != "(":
            return self._no_call(m, upto)
        m.emit.keep(text[upto : after + 1])
        s.mode, s.phase = Mode.ARGUMENTS, KEYWORD
        return after + 1

    # ---- arguments --------------------------------------------------------------------------------------------

    def _arguments(self, m: Machine, text: str, pos: int) -> int:
        match m.s.phase:
            case _ if m.s.phase == STRING:
                return self._string(m, text, pos)
            case _ if m.s.phase == OTHER:
                return self._other(m, text, pos)
        if m.s.phase == KEYWORD and m.s.key:
            return self._keyword(m, text, pos)
        after = skip_space(text, pos)
        m.emit.keep(text[pos:after])
        if after == len(text):
            return after
        if m.s.phase == VALUE:
            return self._begin_value(m, text, after)
        if m.s.phase == COMMA:
            if text[after] == ",":
                m.s.phase = KEYWORD
                return after + 1
            return self._end_call(m, after + 1) if text[after] == ")" else self._no_call(m, after)
        return self._keyword(m, text, after)

    def _keyword(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        if text[pos] == ")" and not s.key:
            m.emit.keep(")")
            if not s.announced:
                m.emit.announce(s.name)
            return self._end_call(m, pos + 1)
        match = _NAME.match(s.key + text[pos:])
        upto = pos + (match.end() if match else 0) - len(s.key)
        s.key += text[pos:upto]
        m.emit.keep(text[pos:upto])
        if upto == len(text):
            return upto
        after = skip_space(text, upto)
        if after == len(text):
            return upto if upto > pos else WAIT
        if not s.key or text[after] != "=":
            return self._no_call(m, upto)
        if not s.announced:
            name = s.name
            m.emit.announce(name)
        s.phase = VALUE
        return after + 1

    def _end_call(self, m: Machine, pos: int) -> int:
        m.emit.arguments(self._closing_quote(m) + ("}" if m.s.depth else "{}"))
        m.emit.end_call()
        m.s.mode = Mode.SECTION
        return pos

    @staticmethod
    def _closing_quote(m: Machine) -> str:
        """A string's end is sent with what follows it, for only then it is sure to be all of the value."""
        quote, m.s.text_value = '"' if m.s.text_value else "", False
        return quote

    def _member(self, m: Machine) -> str:
        """The text before a member's value; `s.depth` counts the members begun."""
        s = m.s
        s.depth += 1
        key, s.key = s.key, ""
        return self._closing_quote(m) + ("{" if s.depth == 1 else ", ") + dumps(key) + ": "

    def _begin_value(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        quote = text[pos]
        if quote not in "'\"":
            s.phase, s.hold, s.stack, s.in_string = OTHER, "", "", False
            return pos
        if len(text) - pos < 3 and not m.final:
            return WAIT
        s.stack = quote * 3 if text.startswith(quote * 3, pos) else quote
        s.phase = STRING
        m.emit.arguments(self._member(m) + '"')
        return pos + len(s.stack)

    def _string(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        quote = s.stack
        for at in range(pos, len(text)):
            char = text[at]
            if char == "\\" or (char == quote[0] and text.startswith(quote, at)):
                if at > pos:
                    m.emit.arguments(escape(text[pos:at]))
                    return at
                return self._escape(m, text, at) if char == "\\" else self._quote(m, text, at)
            if char == quote[0] and len(quote) == 3 and len(text) - at < 3 and not m.final:
                m.emit.arguments(escape(text[pos:at]))
                return at if at > pos else WAIT
        m.emit.arguments(escape(text[pos:]))
        return len(text)

    @staticmethod
    def _escape(m: Machine, text: str, pos: int) -> int:
        """One escape sequence; one that Python does not know is text."""
        found = read_escape(text, pos, final=m.final)
        if found is None:
            return WAIT
        m.emit.arguments(escape(found.text))
        return pos + found.size

    @staticmethod
    def _quote(m: Machine, text: str, pos: int) -> int:
        """A quote ends the string if what follows can follow a value; else it is an unescaped quote of the text."""
        s = m.s
        upto = pos + len(s.stack)
        after = skip_space(text, upto)
        if after == len(text) and not m.final:
            if after - upto > 100:
                after -= 1
            else:
                return WAIT
        if after < len(text) and text[after] not in ",)+" and len(s.stack) == 1 and text[after] not in "]}":
            m.emit.arguments(escape(s.stack))
            return upto
        s.text_value = True
        s.phase, s.stack = COMMA, ""
        return upto

    def _other(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        while pos < len(text):
            match = _OTHER_END.search(text, pos)
            if match is None:
                s.hold += text[pos:]
                return len(text)
            at, char = match.start(), match.group()
            if s.in_string:
                if char == "\\":
                    if at + 1 == len(text) and not m.final:
                        s.hold += text[pos:at]
                        return at if at > pos else WAIT
                    upto = min(len(text), at + 2)
                    s.hold += text[pos:upto]
                    pos = upto
                    continue
                s.in_string = char != s.stack[-1]
                if not s.in_string:
                    s.stack = s.stack[:-1]
            elif char in "'\"":
                s.in_string = True
                s.stack += char
            elif char in "([{":
                s.stack += char
            elif char in ")]}" and s.stack:
                s.stack = s.stack[:-1]
            elif char in ",)" and not s.stack:
                s.hold += text[pos:at]
                return self._end_other(m, at)
            s.hold += text[pos : at + 1]
            pos = at + 1
        return pos

    def _end_other(self, m: Machine, pos: int) -> int:
        s = m.s
        text, s.hold = s.hold.strip(), ""
        try:
            value = literal(text)
            written = dumps(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return self._no_call(m, pos)
        m.emit.arguments(self._member(m) + written)
        s.phase = COMMA
        return pos

    def finish(self, m: Machine, rest: str) -> None:
        s = m.s
        if s.mode is Mode.ARGUMENTS and s.announced:
            m.emit.end_call()
        elif not s.committed:
            m.emit.keep(rest)
            m.emit.reject(at_end=True)
