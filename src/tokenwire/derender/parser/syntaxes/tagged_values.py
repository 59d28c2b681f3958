"""Values of Gemma's calls that are not quoted text: words, objects and lists in its own spelling.

The border it guards: whatever the model wrote becomes a value; words are typed by the schema as far as it goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenwire.derender.parser.syntaxes.base import SPACE, skip_space
from tokenwire.derender.parser.values import typed


def may_be_json(text: str) -> bool:
    """Whether text that goes on may yet be a JSON value."""
    text = text.lstrip()
    return not text or text[0] in '{["-0123456789' or any(word.startswith(text) for word in ("true", "false", "null"))


def read_value(text: str, quote: str, schema: Any) -> Any:
    """The value that `text` is, complete or cut off."""
    value, _ = _Nested(text, quote).value(0)
    return _shaped(value, schema)


class _Nested:
    """Reads one complete (or cut off) value of a call's text; bare words stay strings until a schema types them."""

    __slots__ = ("_quote", "_text")

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote

    def value(self, pos: int, depth: int = 0) -> tuple[Any, int]:
        text = self._text
        if text.startswith(self._quote, pos):
            return self._quoted(pos)
        if depth < 100 and text.startswith("{", pos):
            return self._object(pos + 1, depth + 1)
        if depth < 100 and text.startswith("[", pos):
            return self._array(pos + 1, depth + 1)
        end = pos
        while end < len(text) and text[end] not in ",}]":
            end += 1
        return text[pos:end].strip(), end

    def _quoted(self, pos: int) -> tuple[str, int]:
        start = pos + len(self._quote)
        end = self._text.find(self._quote, start)
        if end < 0:
            return self._text[start:], len(self._text)
        return self._text[start:end], end + len(self._quote)

    def _object(self, pos: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        text = self._text
        while True:
            while pos < len(text) and text[pos] in SPACE + ",":
                pos += 1
            if pos >= len(text) or text[pos] == "}":
                return found, pos + 1
            if text.startswith(self._quote, pos):
                key, pos = self._quoted(pos)
            else:
                end = pos
                while end < len(text) and text[end] not in ":}":
                    end += 1
                key, pos = text[pos:end].strip(), end
            if not text.startswith(":", pos):
                if pos >= len(text) or text[pos] == "}":
                    continue
                pos += 1
                continue
            found[key], pos = self.value(skip_space(text, pos + 1), depth)

    def _array(self, pos: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        text = self._text
        while True:
            while pos < len(text) and text[pos] in SPACE + ",":
                pos += 1
            if pos >= len(text) or text[pos] == "]":
                return found, pos + 1
            value, end = self.value(pos, depth)
            if end == pos:
                pos += 1
                continue
            found.append(value)
            pos = end


def _shaped(value: Any, schema: Any) -> Any:
    """A value whose words are still strings, typed by the schema as far as it goes."""
    if isinstance(value, str):
        return value if schema is None else typed(value, schema)
    if isinstance(value, dict):
        known = schema.get("properties") if isinstance(schema, Mapping) else None
        known = known if isinstance(known, Mapping) else {}
        return {key: _shaped(item, known.get(key)) for key, item in value.items()}
    items = schema.get("items") if isinstance(schema, Mapping) else None
    return [_shaped(item, items if isinstance(items, dict) else None) for item in value]
