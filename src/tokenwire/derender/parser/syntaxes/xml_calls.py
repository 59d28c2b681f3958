"""Calls with one element per parameter: `<function=f><parameter=x>1</parameter></function>` and its kin.

The border it guards: the arguments become one JSON object, typed by the tool's schema. A parameter that can only be
a string is sent while it is being written; any other is held until it ends, for only then its type is known.
"""

from __future__ import annotations

import json
import re

from tokenwire.derender.parser.format import XmlCalls
from tokenwire.derender.parser.lexicon import Lexicon
from tokenwire.derender.parser.state import Mode
from tokenwire.derender.parser.syntaxes.base import WAIT, Machine, read_name
from tokenwire.derender.parser.values import dumps, escape, is_text, json_or_text, schema_types, typed

# Phases in ARGUMENTS: between parameters, in a parameter's head, in a value, after a value that may hold all others.
OUT, HEAD, VALUE, WRAPPED = range(4)
_LONGEST_HEAD = 512
_CONTEXT = 64
"""Characters looked at after an end marker inside a value."""


class XmlSyntax:
    """See `XmlCalls`."""

    __slots__ = (
        "_between",
        "_context",
        "_data",
        "_ends",
        "_head",
        "_in_value",
        "_kept",
        "_name",
        "_name_ends",
        "_out",
        "openers",
    )

    def __init__(self, data: XmlCalls) -> None:
        self._data = data
        self.openers: tuple[str, ...] = data.section + (data.open if data.open_alone or not data.section else ())
        self._between = Lexicon((*data.open, *data.section, *data.section_close))
        self._name_ends = Lexicon(data.name_end)
        self._ends = frozenset((*data.call_close, *data.section_close))
        self._kept = frozenset((data.parameter, *data.call_close, *data.section_close))
        self._out = Lexicon((data.parameter, *self._ends))
        self._in_value = Lexicon((data.parameter_close, data.parameter, *data.call_close))
        self._head = re.compile(data.parameter_pattern)
        self._name = re.compile(data.name_pattern) if data.name_pattern else None
        follows = "|".join(map(re.escape, (*data.open, *data.section, *data.section_close)))
        self._context = re.compile(data.close_context or rf"\s*(?:{follows})")

    def accepts(self, m: Machine, marker: str) -> bool:
        return True

    def open(self, m: Machine, marker: str, pos: int) -> int:
        in_section = marker in self._data.section and not self._data.section_is_call
        m.emit.open(marker, Mode.SECTION if in_section else Mode.HEADER)
        return pos

    def step(self, m: Machine, text: str, pos: int) -> int:
        match m.s.mode:
            case Mode.SECTION:
                return self._section(m, text, pos)
            case Mode.HEADER:
                return self._header(m, text, pos)
        match m.s.phase:
            case _ if m.s.phase == VALUE:
                return self._value(m, text, pos)
            case _ if m.s.phase == HEAD:
                return self._parameter_head(m, text, pos)
        return self._between_parameters(m, text, pos)

    # ---- around parameters ------------------------------------------------------------------------------------

    def _section(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        found = self._between.find(text, pos, final=m.final)
        m.emit.keep(text[pos : found.start])
        if found.marker is None:
            return found.start if found.start > pos else WAIT
        upto = found.start + len(found.marker)
        m.emit.keep(found.marker)
        if found.marker in self._data.section_close:
            if not s.committed:
                m.emit.reject()
            s.committed = False
            s.mode = Mode.CONTENT
        elif found.marker in self._data.open:
            m.emit.reset_call()
            s.mode = Mode.HEADER
        return upto

    def _header(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        found = self._name_ends.find(text, pos, final=m.final)
        rejected = read_name(m, text, pos, found.start)
        if rejected is not None:
            return rejected
        if found.marker is None:
            return found.start if found.start > pos else WAIT
        self._announce(m)
        s.mode, s.phase = Mode.ARGUMENTS, OUT
        return found.start if found.marker in self._kept else found.start + len(found.marker)

    def _announce(self, m: Machine) -> None:
        name = m.s.name.strip()
        if self._name is not None:
            match = self._name.search(name)
            name = match.group(1) if match else ""
        if name:
            m.emit.announce(name)
        else:
            m.emit.announce_nothing()

    def _between_parameters(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        found = self._out.find(text, pos, final=m.final)
        if found.marker is None:
            return found.start if found.start > pos else WAIT
        if found.marker == self._data.parameter:
            if s.phase == WRAPPED:
                self._flush_wrapped(m)
            s.phase = HEAD
            return found.start
        return self._end(m, found.marker, found.start + len(found.marker))

    def _end(self, m: Machine, marker: str, pos: int) -> int:
        """The call's end marker, or the section's in its stead, was read."""
        s = m.s
        self._close_object(m)
        m.emit.end_call()
        s.mode = Mode.SECTION
        if marker in self._data.section_close or self._data.section_is_call:
            s.mode, s.committed = Mode.CONTENT, False
        return pos

    def _close_object(self, m: Machine) -> None:
        s = m.s
        if s.phase == WRAPPED:
            inner = self._unwrapped(m)
            if inner is not None:
                m.emit.arguments(inner)
                return
            self._flush_wrapped(m)
        m.emit.arguments("}" if s.depth else "{}")

    # ---- one parameter ----------------------------------------------------------------------------------------

    def _parameter_head(self, m: Machine, text: str, pos: int) -> int:
        s, data = m.s, self._data
        match = self._head.match(text, pos, pos + _LONGEST_HEAD)
        found = self._out.find(text, pos + len(data.parameter), final=m.final)
        if match is not None and found.start < match.end():
            match = None
        if match is None:
            if found.marker is not None or len(text) - pos >= _LONGEST_HEAD or m.final:
                s.phase = OUT
                return found.start if found.marker is not None else min(len(text), pos + len(data.parameter))
            return WAIT
        groups = match.groupdict()
        s.key = next((value for name, value in groups.items() if name.startswith("name") and value), "").strip()
        s.phase, s.leading, s.hold = VALUE, True, ""
        schema = m.emit.tools.schema(s.name, s.key)
        flag = groups.get("text")
        if schema is None and not data.schema_only:
            s.text_value = flag == data.text_word
        else:
            s.text_value = self._is_text(schema)
        if self._may_wrap(m):
            s.text_value = False
        if s.text_value:
            m.emit.arguments(self._member(m) + '"')
        return match.end()

    def _is_text(self, schema: object) -> bool:
        kinds = self._data.typed_kinds
        return is_text(schema) or (bool(kinds) and schema_types(schema).isdisjoint(kinds))

    def _may_wrap(self, m: Machine) -> bool:
        s = m.s
        known = m.emit.tools.parameters(s.name)
        return s.key in self._data.unwrap and not s.depth and bool(known) and s.key not in known

    @staticmethod
    def _member(m: Machine) -> str:
        """The text before a member's value; `s.depth` counts the members begun."""
        s = m.s
        s.depth += 1
        return ("{" if s.depth == 1 else ", ") + dumps(s.key) + ": "

    def _value(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        if s.leading:
            s.leading = False
            if self._data.trim == "newline" and text[pos] == "\n":
                return pos + 1
        found = self._in_value.find(text, pos, final=m.final)
        marker = found.marker
        if marker is not None and marker in self._ends:
            real = self._is_real_end(m, text, found.start + len(marker))
            if real is None:
                self._add(m, text[pos : found.start])
                return found.start if found.start > pos else WAIT
            if not real:
                upto = found.start + len(marker)
                self._add(m, text[pos:upto])
                return upto
        self._add(m, text[pos : found.start])
        if marker is None:
            return found.start if found.start > pos else WAIT
        self._end_value(m)
        return found.start + len(marker) if marker == self._data.parameter_close else found.start

    def _is_real_end(self, m: Machine, text: str, after: int) -> bool | None:
        """Whether an end marker inside a value ends the call; null if that is not clear yet."""
        window = text[after : after + _CONTEXT]
        if self._context.match(window):
            return True
        if len(window) < _CONTEXT and not m.final:
            return None
        return m.final and not window.strip()

    def _add(self, m: Machine, piece: str) -> None:
        """Text of a value; what may be cut off at its end is held in `s.hold`."""
        s = m.s
        if not s.text_value:
            s.hold += piece
            return
        piece = s.hold + piece
        if self._data.trim == "space" and not s.stack:
            piece = piece.lstrip()
            s.stack = "begun" if piece else ""
        kept = piece
        if self._data.trim == "newline":
            kept = piece[:-1] if piece.endswith("\n") else piece
        elif self._data.trim == "space":
            kept = piece.rstrip()
        s.hold = piece[len(kept) :]
        if kept:
            m.emit.arguments(escape(kept))

    def _end_value(self, m: Machine) -> None:
        s = m.s
        s.stack = ""
        if s.text_value:
            m.emit.arguments('"')
            s.phase, s.hold = OUT, ""
        elif self._may_wrap(m):
            s.phase = WRAPPED
        else:
            self._flush(m)
            s.phase = OUT

    def _flush(self, m: Machine) -> None:
        """A held value, now typed."""
        s, data = m.s, self._data
        text, s.hold = s.hold, ""
        if data.trim == "newline":
            text = text.removesuffix("\n")
        elif data.trim == "space":
            text = text.strip()
        schema = m.emit.tools.schema(s.name, s.key)
        value = json_or_text(text) if schema is None and not data.schema_only else typed(text, schema)
        m.emit.arguments(self._member(m) + dumps(value))

    def _flush_wrapped(self, m: Machine) -> None:
        self._flush(m)
        m.s.phase = OUT

    def _unwrapped(self, m: Machine) -> str | None:
        """The object that one wrapping parameter holds, if it has nothing but parameters of the function."""
        s = m.s
        try:
            inner = json.loads(s.hold)
        except (ValueError, RecursionError):
            return None
        if not isinstance(inner, dict) or not inner.keys() <= m.emit.tools.parameters(s.name).keys():
            return None
        return dumps(inner)

    def finish(self, m: Machine, rest: str) -> None:
        s = m.s
        if s.mode is Mode.ARGUMENTS:
            if s.phase == VALUE and s.text_value:
                self._add(m, rest)
            else:
                self._close_object(m)
            m.emit.end_call()
        elif s.mode is Mode.HEADER and self._data.partial_name and s.name.strip():
            self._announce(m)
            m.emit.end_call()
        elif not s.committed:
            m.emit.keep(rest)
            m.emit.reject(at_end=True)
