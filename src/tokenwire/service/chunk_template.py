"""The bytes of ordinary stream events, filled into a form that the wire types made.

Between its first event and its last one, a choice's events differ in a few values only. The template is such an
event, encoded once by the codec with gaps in those places, so field order, names and nulls are the wire types' own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tokenwire.engine.base import EngineOutput
from tokenwire.wire.codec import Format, encode

_MARKS: dict[Format, bytes] = {"json": b"\x00", "msgpack": b"\xc1"}
"""Bytes that neither encoding ever produces by itself outside raw data, of which a template has none."""

Values = Callable[[EngineOutput], Sequence[bytes] | None]
"""The encoded values of an output's gaps; None: this output is not an ordinary one."""


def gap(name: str, fmt: Format) -> Any:
    """What stands in a wire object where the field `name` will be."""
    mark = _MARKS[fmt]
    return msgspec.Raw(mark + name.encode() + mark)


class ChunkTemplate:
    """Made from an event with gaps; `names` are those of the gaps, in the order of the values."""

    __slots__ = ("_one_id", "_order", "_parts", "_values")

    def __init__(self, event: Any, fmt: Format, names: Sequence[str], values: Values) -> None:
        mark = _MARKS[fmt]
        pieces = re.split(mark + b"([a-z_]+)" + mark, encode(event, fmt))
        order = [pieces[i].decode() for i in range(1, len(pieces), 2)]
        assert sorted(order) == sorted(names), "a gap is missing from the encoded event"
        self._order = [names.index(name) for name in order]
        self._parts = pieces[0::2]
        self._values = values
        only_ids = fmt == "json" and order == ["token_ids"]
        self._one_id = b"[%d]".join(part.replace(b"%", b"%%") for part in self._parts) if only_ids else None

    def fill(self, output: EngineOutput) -> bytes | None:
        """The event of this output; None where it is not an ordinary one."""
        if self._one_id is not None and len(output.token_ids) == 1:
            return self._one_id % output.token_ids[0]
        values = self._values(output)
        if values is None:
            return None
        parts = self._parts
        filled = [parts[0]]
        for position, which in enumerate(self._order, 1):
            filled.append(values[which])
            filled.append(parts[position])
        return b"".join(filled)
