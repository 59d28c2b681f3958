"""Calls as one JSON list that is read once it is whole: `marker[{...}, {...}]`.

The border it guards: where the list ends is the format's rule and not JSON's, so its text is only collected here; what
it says is read by the syntax of calls in JSON.
"""

from __future__ import annotations

import json
from typing import Any

from tokenwire.derender.parser.format import JsonCalls, ListedCalls
from tokenwire.derender.parser.state import Mode
from tokenwire.derender.parser.syntaxes.base import WAIT, Machine
from tokenwire.derender.parser.syntaxes.json_calls import JsonSyntax

_LIST = JsonCalls(listed="always")
_CLOSE = "]"


class ListedSyntax:
    """See `ListedCalls`."""

    __slots__ = ("_calls", "openers")

    def __init__(self, data: ListedCalls) -> None:
        self.openers = data.open
        self._calls = JsonSyntax(_LIST)

    def accepts(self, m: Machine, marker: str) -> bool:
        return True

    def open(self, m: Machine, marker: str, pos: int) -> int:
        m.emit.open(marker, Mode.SECTION)
        return pos

    def step(self, m: Machine, text: str, pos: int) -> int:
        end = text.find(_CLOSE, pos)
        upto = len(text) if end < 0 else end + 1
        m.emit.keep(text[pos:upto])
        if end >= 0:
            self._end(m)
        return upto

    def _end(self, m: Machine) -> None:
        _, written = self._split(m)
        try:
            calls = json.loads(written)
        except (ValueError, RecursionError):
            calls = []
        if not calls:
            m.s.raw = ""
            m.s.mode = Mode.SKIP
        elif all(map(_is_call, calls)):
            self._read(m)
        else:
            m.emit.reject()

    def finish(self, m: Machine, rest: str) -> None:
        left = self._read(m)
        if m.s.mode in (Mode.SECTION, Mode.ARGUMENTS):
            self._calls.finish(m, left)

    def _split(self, m: Machine) -> tuple[str, str]:
        """The marker without its bracket, and the list."""
        raw = m.s.raw
        marker = next((opener for opener in self.openers if raw.startswith(opener)), raw[:1])
        return raw[: len(marker) - 1], raw[len(marker) - 1 :]

    def _read(self, m: Machine) -> str:
        """Reads the calls of the list and what follows them; gives what could not be read, for an unfinished list."""
        s = m.s
        s.raw, written = self._split(m)
        pos = 0
        while pos < len(written) and s.mode in (Mode.SECTION, Mode.ARGUMENTS):
            reached = self._calls.step(m, written, pos)
            if reached == WAIT:
                break
            pos = reached
        if s.mode is not Mode.CONTENT:
            return written[pos:]
        m.emit.content(written[pos:])
        return ""


def _is_call(item: Any) -> bool:
    return (
        isinstance(item, dict) and isinstance(item.get("name"), str) and any(key in item for key in _LIST.argument_keys)
    )
