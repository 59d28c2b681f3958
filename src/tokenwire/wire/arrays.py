"""Arrays on the MessagePack wire: raw little-endian bytes in place of lists, made and read without a loop in Python.

Needs no numpy: clients read ids without it. Which field is which array is in docs/wire.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from sys import byteorder

import msgspec

INT32_BYTES = 4


def pack_ids(ids: Sequence[int]) -> bytes:
    """int32, one after another. Raises `OverflowError` for an id that does not fit."""
    if len(ids) == 1:
        return ids[0].to_bytes(INT32_BYTES, "little", signed=True)
    return _swapped(array("i", ids)).tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """The inverse of `pack_ids`. Raises `ValueError` unless the bytes are a whole number of int32."""
    if len(data) % INT32_BYTES:
        raise ValueError(f"{len(data)} bytes are not a whole number of int32")
    ids = array("i")
    ids.frombytes(data)
    return _swapped(ids).tolist()


def _swapped(values: array[int]) -> array[int]:
    if byteorder == "big":
        values.byteswap()
    return values


class RaggedIds(msgspec.Struct, frozen=True, kw_only=True):
    """T lists of ids of different lengths, one after another."""

    counts: bytes  # int32 [T]: the length of each list
    token_ids: bytes  # int32 [sum of counts]

    def __iter__(self) -> Iterator[list[int]]:
        """Raises `ValueError` if the sizes disagree."""
        counts, flat = unpack_ids(self.counts), unpack_ids(self.token_ids)
        if sum(counts) != len(flat) or min(counts, default=0) < 0:
            raise ValueError(f"counts add up to {sum(counts)} ids, there are {len(flat)}")
        at = 0
        for count in counts:
            yield flat[at : at + count]
            at += count
