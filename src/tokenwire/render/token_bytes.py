"""From a vocabulary piece to the bytes it stands for: the rule is read off the tokenizer's decoder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import tokenizers

PieceRule = Callable[[str], bytes | None]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def bytes_of_piece_rule(raw: tokenizers.Tokenizer) -> PieceRule:
    """The function that gives a piece's bytes under `raw`'s decoder. Added tokens pass through the decoder too."""
    steps = _steps(_decoder_of(raw))
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level
    if kinds & {"ByteFallback", "Metaspace"} or any(step["type"] == "Replace" for step in steps):
        return _sentencepiece_rule(_space_mark(steps))
    return lambda piece: None


def _decoder_of(raw: tokenizers.Tokenizer) -> dict[str, Any]:
    state: bytes = raw.decoder.__getstate__() if raw.decoder is not None else b"{}"
    value: dict[str, Any] = json.loads(state)
    return value


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if not decoder:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _space_mark(steps: list[dict[str, Any]]) -> str:
    for step in steps:
        if step["type"] == "Metaspace":
            return str(step["replacement"])
        if step["type"] == "Replace" and step["content"] == " " and "String" in step["pattern"]:
            return str(step["pattern"]["String"])
    return "▁"


def _sentencepiece_rule(space_mark: str) -> PieceRule:
    def rule(piece: str) -> bytes | None:
        if match := _BYTE_PIECE.match(piece):
            return bytes([int(match[1], 16)])
        return piece.replace(space_mark, " ").encode()

    return rule


def _byte_level(piece: str) -> bytes | None:
    table = byte_of_char()
    try:
        return bytes(table[char] for char in piece)
    except KeyError:
        return piece.encode()  # a piece that was put in as plain text


@lru_cache(maxsize=1)
def byte_of_char() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}
