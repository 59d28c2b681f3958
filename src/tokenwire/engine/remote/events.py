"""A stream's bytes to event payloads: server-sent events, or length-prefixed frames. Cut anywhere, linear work."""

from __future__ import annotations

from typing import Protocol


class Splitter(Protocol):
    """Feed bytes, get the payloads that they complete."""

    def feed(self, data: bytes) -> list[bytes]: ...


class SseSplitter:
    """The data of each server-sent event, as the WHATWG grammar has it; event names and ids are passed over."""

    __slots__ = ("_after_cr", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # an event that has no end yet
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        if self._after_cr or b"\r" in data:
            data = self._line_feeds(data)
        if not data:
            return []
        pieces = self._pieces
        if b"\n\n" not in data and not (pieces and data.startswith(b"\n") and pieces[-1].endswith(b"\n")):
            pieces.append(data)
            return []
        if pieces:
            pieces.append(data)
            data = b"".join(pieces)
        whole, _, rest = data.rpartition(b"\n\n")
        self._pieces = [rest] if rest else []
        return [payload for event in whole.split(b"\n\n") if (payload := _data_of(event)) is not None]

    def _line_feeds(self, data: bytes) -> bytes:
        """CR LF and CR become LF; an LF that follows a CR of the last piece is dropped."""
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data_of(event: bytes) -> bytes | None:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    values = []
    for line in event.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            values.append(value.removeprefix(b" "))
    return b"\n".join(values) if values else None


class FrameSplitter:
    """Payloads of frames: uint32 little-endian length, then that many bytes."""

    __slots__ = ("_pieces", "_size", "_wanted")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        self._wanted = 4
        """Bytes from which on the next frame is complete, as far as is known."""

    def feed(self, data: bytes) -> list[bytes]:
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return []
        buffer = data if len(self._pieces) == 1 else b"".join(self._pieces)
        payloads = []
        start, end = 0, len(buffer)
        self._wanted = 4
        while end - start >= 4:
            length = int.from_bytes(buffer[start : start + 4], "little")
            if start + 4 + length > end:
                self._wanted = 4 + length
                break
            payloads.append(buffer[start + 4 : start + 4 + length])
            start += 4 + length
        rest = buffer[start:]
        self._pieces = [rest] if rest else []
        self._size = len(rest)
        return payloads
