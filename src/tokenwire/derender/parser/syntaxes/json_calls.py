"""Calls as JSON objects: `{"name": ..., "arguments": ...}`, between markers, in a list, or bare.

The border it guards: a call is announced when its name is known and its arguments begin, so what turns out to be no
call is still text; from then on the arguments are passed on as the model writes them.
"""

from __future__ import annotations

import json

from tokenwire.derender.parser.format import JsonCalls
from tokenwire.derender.parser.lexicon import Lexicon
from tokenwire.derender.parser.state import Mode
from tokenwire.derender.parser.syntaxes.base import LONGEST_NAME, SPACE, WAIT, Machine, skip_space
from tokenwire.derender.parser.syntaxes.json_value import End, JsonValue

# Phases in SECTION: before or between calls, and after the list has ended.
BETWEEN, AFTER_LIST = 0, 1
# Phases in ARGUMENTS, which is the whole call object.
KEY, IN_KEY, COLON, VALUE, NAME, SHOWN, HELD, OTHER, COMMA, ENDED = range(10)


class JsonSyntax:
    """See `JsonCalls`."""

    __slots__ = ("_closers", "_data", "_openers_at", "_value", "openers")

    def __init__(self, data: JsonCalls) -> None:
        self._data = data
        self._closers = Lexicon(data.close)
        self._openers_at = Lexicon(data.open)
        self._value = JsonValue(self._closers)
        bare = ("[",) if data.listed == "always" else ("{",) if data.listed == "never" else ("[", "{")
        self.openers: tuple[str, ...] = data.open + (bare if data.bare else ())

    def accepts(self, m: Machine, marker: str) -> bool:
        if marker in self._data.open or self._data.bare == "anywhere":
            return True
        return not m.s.started and not m.s.calls

    def open(self, m: Machine, marker: str, pos: int) -> int:
        if marker in self._data.open:
            m.emit.open(marker, Mode.SECTION)
            return pos
        m.emit.open("", Mode.SECTION)
        return pos - len(marker)

    def step(self, m: Machine, text: str, pos: int) -> int:
        if m.s.mode is Mode.SECTION:
            return self._section(m, text, pos)
        return self._object(m, text, pos)

    # ---- around the objects -----------------------------------------------------------------------------------

    def _section(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        space = skip_space(text, pos)
        if space > pos:
            return self._between(m, text, pos, space)
        marker = self._closers.at(text, pos, final=m.final)
        if marker == "":
            return WAIT
        if marker:
            return self._close(m, text, pos, pos + len(marker))
        if m.final and s.committed and not self._data.cut_close_is_text and self._closers.begins(text[pos:]):
            return len(text)
        if self._data.repeats and not s.committed and not s.listed:
            marker = self._openers_at.at(text, pos, final=m.final)
            if marker == "":
                return WAIT
            if marker:
                return pos + len(marker)
        char = text[pos]
        if s.phase == AFTER_LIST:
            return pos + 1 if char in "}]" else self._leave(m, pos)
        if char == "{" and (s.listed or self._data.listed != "always"):
            m.emit.keep(char)
            s.hold = ""
            s.mode = Mode.ARGUMENTS
            return pos + 1
        if char == "[" and not s.listed and self._data.listed != "never" and not s.committed:
            m.emit.keep(char)
            s.listed = True
            return pos + 1
        if char == "]" and s.listed:
            return self._end_list(m, text, pos, pos + 1)
        if (char == "," and s.listed) or (s.committed and char in self._data.separators):
            return self._between(m, text, pos, pos + 1)
        again = self._openers_at.at(text, pos, final=m.final)
        if again == "":
            return WAIT
        if again and s.committed:
            s.mode = Mode.CONTENT
            return pos
        if again:
            m.emit.reject()
            m.emit.content(again)
            return pos + len(again)
        if not s.committed:
            m.emit.reject()
            return pos
        # A bracket too many is no text.
        return pos + 1 if char in "}]" and (self._data.close or not s.hold) else self._leave(m, pos)

    def _between(self, m: Machine, text: str, pos: int, upto: int) -> int:
        m.emit.keep(text[pos:upto])
        if m.s.committed and not m.s.listed:
            m.s.hold += text[pos:upto]
        return upto

    def _end_list(self, m: Machine, text: str, pos: int, upto: int) -> int:
        m.emit.keep(text[pos:upto])
        m.s.listed = False
        m.s.phase = AFTER_LIST
        if self._data.close:
            return upto
        return self._close(m, text, pos, upto)

    def _close(self, m: Machine, text: str, pos: int, upto: int) -> int:
        m.emit.keep(text[pos:upto])
        if not m.s.committed:
            m.emit.reject()
            return upto
        m.emit.reset_call()
        m.s.committed = False
        m.s.mode = Mode.CONTENT
        return upto

    def _leave(self, m: Machine, pos: int) -> int:
        """Text follows the last call; what was held as a separator belongs to it."""
        held = m.s.hold
        m.emit.reset_call()
        m.s.committed = m.s.listed = False
        m.s.mode = Mode.CONTENT
        m.emit.content(held)
        return pos

    # ---- one object -------------------------------------------------------------------------------------------

    def _object(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        if s.phase in (NAME, SHOWN, HELD, OTHER):
            return self._read_value(m, text, pos)
        if s.phase == IN_KEY:
            return self._read_key(m, text, pos)
        char = text[pos]
        if char in SPACE:
            m.emit.keep(char)
            return pos + 1
        marker = self._closers.at(text, pos, final=m.final)
        if marker == "":
            return WAIT
        if s.phase == ENDED:
            if marker:
                return self._end_whole(m, pos)
            m.emit.reject()
            return pos
        if marker:
            return self._broken(m, pos)
        if s.phase in (KEY, COMMA) and char == "}":
            m.emit.keep(char)
            return self._end_object(m, pos + 1)
        if s.phase == KEY and char == '"':
            s.phase, s.key = IN_KEY, ""
        elif s.phase == COLON and char == ":":
            s.phase = VALUE
        elif s.phase == COMMA and char == ",":
            s.phase = KEY
        elif s.phase == VALUE:
            return self._begin_value(m, text, pos)
        elif not s.announced:
            m.emit.reject()
            return pos
        m.emit.keep(char)
        return pos + 1

    def _read_key(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        end = text.find('"', pos)
        upto = len(text) if end < 0 else end + 1
        if not s.announced and len(s.key) + upto - pos > LONGEST_NAME:
            return self._too_long(m, text, pos, LONGEST_NAME - len(s.key))
        s.key += text[pos : upto if end < 0 else end]
        m.emit.keep(text[pos:upto])
        if end >= 0:
            s.phase = COLON
            first = not s.name and not s.hold and not s.text_value
            if first and self._data.bare and not self._data.name_is_key and not self._is_call_key(s.key):
                m.emit.reject()
        return upto

    @staticmethod
    def _too_long(m: Machine, text: str, pos: int, room: int) -> int:
        """No name is that long, so text after a lone marker is not held for ever."""
        m.emit.keep(text[pos : pos + room])
        m.emit.reject()
        return pos + room

    def _is_call_key(self, key: str) -> bool:
        return key in (self._data.name_key, "type", "id", "function") or key in self._data.argument_keys

    def _begin_value(self, m: Machine, text: str, pos: int) -> int:
        s, data = m.s, self._data
        s.leading = True
        if data.name_is_key and not s.announced:
            return self._begin_arguments(m, s.key, text, pos)
        if s.key == data.name_key and not s.announced and not data.name_is_key:
            if text[pos] != '"':
                m.emit.reject()
                return pos
            s.phase, s.name = NAME, ""
            return pos
        if s.key in data.argument_keys and not s.announced and not data.name_is_key and not s.hold:
            if data.objects_only and text[pos] != "{":
                m.emit.reject()
                return pos
            if s.text_value and not self._is_whole(m):
                return self._begin_arguments(m, s.name, text, pos)
            s.phase = HELD
            return pos
        s.phase = OTHER
        return pos

    def _is_whole(self, m: Machine) -> bool:
        return self._data.whole == "always" or (self._data.whole == "listed" and m.s.listed)

    def _begin_arguments(self, m: Machine, name: str, text: str, pos: int) -> int:
        m.emit.announce(name)
        m.s.phase = SHOWN
        return pos

    def _read_value(self, m: Machine, text: str, pos: int) -> int:
        s = m.s
        upto, end = self._value.read(s, text, pos, final=m.final)
        piece = text[pos:upto]
        if s.phase == NAME and len(s.name) + len(piece) > LONGEST_NAME:
            return self._too_long(m, text, pos, LONGEST_NAME - len(s.name))
        m.emit.keep(piece)
        if s.phase == SHOWN:
            m.emit.arguments(piece)
        elif s.phase == HELD:
            s.hold += piece
        elif s.phase == NAME:
            s.name += piece
        if end is End.MORE:
            return upto if upto > pos else WAIT
        if end is End.BROKEN:
            return self._broken(m, upto, text)
        if s.phase == NAME:
            return self._end_name(m, upto)
        s.phase = COMMA
        return upto

    def _end_name(self, m: Machine, pos: int) -> int:
        s = m.s
        s.phase = COMMA
        try:
            s.name = json.loads(s.name, strict=False)
        except ValueError:
            m.emit.reject()
            return pos
        s.text_value = True  # the name is known
        if s.hold and not self._is_whole(m):
            held = s.hold
            m.emit.announce(s.name)
            m.emit.arguments(held)
            s.hold = ""
        return pos

    def _end_object(self, m: Machine, pos: int) -> int:
        s = m.s
        if self._data.whole == "always" and self._data.close:
            s.phase = ENDED
            return pos
        return self._end_whole(m, pos)

    def _end_whole(self, m: Machine, pos: int) -> int:
        """The object is complete, and so is the call."""
        s = m.s
        if self._data.whole == "always" and not _is_json(s.raw):
            m.emit.reject()
            return pos
        if not s.announced and s.text_value and (s.hold or not self._data.needs_arguments):
            held = s.hold
            m.emit.announce(s.name)
            m.emit.arguments(held)
        if not s.announced:
            m.emit.reject()
            return pos
        m.emit.end_call()
        s.mode = Mode.SECTION
        return pos

    def _broken(self, m: Machine, pos: int, text: str = "") -> int:
        """A closing marker comes before the object's end."""
        s = m.s
        if not s.announced:
            m.emit.reject()
            return pos
        upto = pos
        if s.phase == SHOWN and text.startswith('"', pos):
            upto = self._without_closers(m, text, pos)
        m.emit.end_call()
        s.mode = Mode.SECTION
        return upto

    def _without_closers(self, m: Machine, text: str, quote: int) -> int:
        """The quote and the brackets after it end the arguments, but for those of the call itself."""
        found = self._closers.find(text, quote, final=True)
        rest = text[quote : found.start].rstrip()
        if m.s.listed and rest.endswith("]"):
            rest = rest[:-1].rstrip()
        if rest.endswith("}"):
            rest = rest[:-1].rstrip()
        m.emit.arguments(rest)
        return found.start

    def finish(self, m: Machine, rest: str) -> None:
        s = m.s
        if s.mode is Mode.ARGUMENTS and s.phase == ENDED:
            self._end_whole(m, 0)
        if s.mode is Mode.ARGUMENTS and s.announced:
            if s.phase == SHOWN:
                m.emit.arguments(rest.rstrip())
            m.emit.end_call()
        elif not s.committed:
            m.emit.keep(rest)
            m.emit.reject(at_end=True)
        elif s.mode is Mode.SECTION and s.hold and not self._data.close:
            self._leave(m, 0)


def _is_json(raw: str) -> bool:
    """Whether the object that a call's text ends with is JSON throughout."""
    try:
        json.loads(raw[raw.index("{") :], strict=False)
    except (ValueError, RecursionError):
        return False
    return True
