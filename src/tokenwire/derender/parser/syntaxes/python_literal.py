"""Python literals as models write them: escape sequences one at a time, and whole values.

The border it guards: nothing is evaluated; what is no literal is a `ValueError` (or a `SyntaxError` of the parser).
"""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

_WORDS = {"true": True, "false": False, "null": None}
_SIZES = {"x": 4, "u": 6, "U": 10}
_OCTAL = re.compile(r"[0-7]{1,3}")
_SIMPLE = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "'": "'",
    '"': '"',
    "\\": "\\",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "\n": "",
}


class Escape(NamedTuple):
    """An escape sequence's meaning and its length."""

    text: str
    size: int


def read_escape(text: str, pos: int, *, final: bool) -> Escape | None:
    """The sequence that begins with the backslash at `pos`; null if more text is needed to tell."""
    left = len(text) - pos
    if left < 2:
        return Escape("", left) if final else None
    kind = text[pos + 1]
    octal = kind in "01234567"
    size = 4 if octal else _SIZES.get(kind, 2)
    if left < size and not final:
        return None
    if octal:
        digits = _OCTAL.match(text, pos + 1, pos + 4)
        end = digits.end() if digits else pos + 2
        return Escape(chr(int(text[pos + 1 : end], 8)), end - pos)
    if kind not in _SIZES:
        return Escape(_SIMPLE.get(kind, text[pos : pos + 2]), 2)
    try:
        return Escape(chr(int(text[pos + 2 : pos + size], 16)), size)
    except (ValueError, OverflowError):
        return Escape(text[pos : pos + 2], 2)


def literal(text: str) -> Any:
    """A Python literal, or one with JSON's words for true, false and null."""
    return _plain(ast.parse(text, mode="eval").body)


def _plain(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value) if value is None or isinstance(value, str | int | float | bool):
            return value
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_plain(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _plain(value) for key, value in zip(keys, values, strict=True)}
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as number)):
            return -number if isinstance(sign, ast.USub) else number
    raise ValueError("not a literal")


def _key(node: ast.expr | None) -> Any:
    if node is None:
        raise ValueError("not a literal")
    key = _plain(node)
    if not isinstance(key, str | int | float | bool | None):
        raise ValueError("not a key")
    return key
