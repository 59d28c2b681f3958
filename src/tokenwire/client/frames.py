"""Length-prefixed frames of a MessagePack stream: uint32 little-endian size, then the object."""

from __future__ import annotations

from tokenwire.client.errors import BadReplyError

_PREFIX_BYTES = 4
MAX_FRAME_BYTES = 1 << 30
"""A larger size is taken for a stream that is not framed at all."""


class FrameReader:
    """Feed bytes cut anywhere, get the payloads completed by them. Work is linear in the bytes fed."""

    __slots__ = ("_have", "_max_frame_bytes", "_pieces", "_size")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._pieces: list[bytes] = []
        self._have = 0  # bytes in _pieces
        self._size: int | None = None  # payload size once its prefix is read

    @property
    def is_between_frames(self) -> bool:
        return self._have == 0 and self._size is None

    def feed(self, data: bytes) -> list[bytes]:
        """Raises `BadReplyError` for a frame over the size limit."""
        self._pieces.append(data)
        self._have += len(data)
        if self._have < self._wanted:
            return []
        buffer = b"".join(self._pieces)
        payloads, start = self._cut(buffer)
        rest = buffer[start:]
        self._pieces = [rest] if rest else []
        self._have = len(rest)
        return payloads

    @property
    def _wanted(self) -> int:
        return _PREFIX_BYTES if self._size is None else self._size

    def _cut(self, buffer: bytes) -> tuple[list[bytes], int]:
        payloads: list[bytes] = []
        start = 0
        while len(buffer) - start >= self._wanted:
            end = start + self._wanted
            if self._size is None:
                self._size = int.from_bytes(buffer[start:end], "little")
                self._check_size(self._size)
            else:
                payloads.append(buffer[start:end])
                self._size = None
            start = end
        return payloads, start

    def _check_size(self, size: int) -> None:
        if size > self._max_frame_bytes:
            raise BadReplyError(
                f"a stream frame says it is {size} bytes long, the limit is {self._max_frame_bytes}; "
                "is this a MessagePack stream?"
            )
