"""Server-sent events from bytes, cut anywhere: mid-character, between CR and LF, inside the byte order mark.

Follows the WHATWG grammar. Work is linear in the bytes fed: a partial line is kept in pieces until its end comes.
"""

from __future__ import annotations

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class SSEEvent(NamedTuple):
    """One dispatched event. `data` is the joined data lines, undecoded: JSON readers take bytes."""

    data: bytes
    event: str = "message"
    id: str | None = None


class SSEParser:
    """Feed bytes, get the events completed by them. What follows the last blank line at the end is no event."""

    __slots__ = ("_after_cr", "_data", "_event", "_first_line", "_id", "_partial")

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._after_cr = False  # the last byte was CR; an LF that comes next belongs to it
        self._first_line = True
        self._data: list[bytes] = []
        self._event = ""
        self._id: str | None = None

    def feed(self, data: bytes) -> list[SSEEvent]:
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, rest = data.split(b"\n")
        events: list[SSEEvent] = []
        for line in whole:
            if self._partial:
                self._partial.append(line)
                line = b"".join(self._partial)
                self._partial.clear()
            event = self._line(line)
            if event is not None:
                events.append(event)
        if rest:
            self._partial.append(rest)
        return events

    def _line(self, line: bytes) -> SSEEvent | None:
        if self._first_line:
            line = line.removeprefix(_BOM)
            self._first_line = False
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        return None  # a comment (empty name), `retry`, or a field of a later grammar

    def _dispatch(self) -> SSEEvent | None:
        if not self._data:
            self._event = ""
            return None
        event = SSEEvent(b"\n".join(self._data), self._event or "message", self._id)
        self._data.clear()
        self._event = ""
        return event
