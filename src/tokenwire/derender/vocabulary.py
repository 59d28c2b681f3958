"""What each token id adds to a text: the border between a tokenizer and everything here that decodes.

Which decoder a tokenizer has decides the rule: byte-level BPE and tekken tokens are bytes that join; SentencePiece
tokens are text with a space mark, plus single bytes for what the vocabulary lacks; anything else (WordPiece, CTC) has
no text of its own and is decoded by the library over a small window. Tables fill as ids are met, so a start
costs nothing and a token costs one lookup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, Literal, Protocol

Style = Literal["bytes", "sentencepiece", "window"]
Piece = str | bytes
REPLACEMENT = "�"

_BYTE_PIECE = re.compile(r"<0x[0-9A-Fa-f]{2}>\Z")
_TEKKEN_SHOWN = frozenset({"[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"})
"""Mistral's control tokens that a parser must see; mistral-common never puts the others into a text."""


class TokenSource(Protocol):
    """The part of a tokenizer that decoding needs."""

    @property
    def raw(self) -> Any: ...
    @property
    def kind(self) -> str: ...
    @property
    def special_ids(self) -> Collection[int]: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...
    def id_to_piece(self, token_id: int) -> str | None: ...
    def piece_to_id(self, piece: str) -> int | None: ...
    def token_bytes(self, token_id: int) -> bytes | None: ...


class PieceTable(dict[int, Piece]):
    """id -> what it adds. `str`: text that is complete by itself; `bytes`: to be joined with what stands around it.

    Text that ends in U+FFFD counts as incomplete, since a lossy decoder cannot tell it from a cut character. An id
    outside the vocabulary adds nothing, and is not remembered.
    """

    def __init__(self, vocabulary: Vocabulary, hidden: Collection[int]) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._hidden = hidden

    def __missing__(self, token_id: int) -> Piece:
        data = self._vocabulary.token_bytes(token_id)
        if data is None:
            return ""
        piece = "" if token_id in self._hidden else self._vocabulary.piece(token_id, data)
        self[token_id] = piece
        return piece


class Vocabulary:
    """The decoding rules of one tokenizer. One object per loaded tokenizer, shared by all requests."""

    def __init__(self, source: TokenSource) -> None:
        self.source = source
        steps = _decoder_steps(source.raw)
        self.style: Style = _style(steps)
        kinds = {step["type"] for step in steps}
        self._has_byte_pieces = self.style == "sentencepiece" and "ByteFallback" in kinds
        self.strips_first_token = any(s["type"] == "Metaspace" and s.get("prepend_scheme") != "never" for s in steps)
        """The first token of a text loses its leading spaces."""
        self.strips_spaces = sum(int(step["start"]) for step in steps if step["type"] == "Strip")
        """So many leading spaces of a text are dropped."""
        special = frozenset(source.special_ids)
        self.added_ids: Collection[int] = special if source.raw is None else source.raw.get_added_tokens_decoder()
        never_shown = _never_shown(source, special)
        self.shown = PieceTable(self, never_shown)
        """Special tokens kept."""
        self.skipping = PieceTable(self, never_shown | (special - _always_shown(source, special)))
        """Special tokens add nothing."""
        self.verbatim = PieceTable(self, frozenset())
        """Every token, also control tokens that no text shows: for the token strings of logprobs."""

    def table(self, skip_special_tokens: bool) -> PieceTable:
        """The table for a text with or without special tokens."""
        return self.skipping if skip_special_tokens else self.shown

    def token_bytes(self, token_id: int) -> bytes | None:
        """None outside the vocabulary. In the window style the bytes are those of the piece, good for nothing else."""
        if token_id < 0 or token_id > _MAX_ID:
            return None
        if self.style == "bytes":
            return self.source.token_bytes(token_id)
        piece = self.source.id_to_piece(token_id)
        if piece is None:
            return None
        data = self.source.token_bytes(token_id)
        return piece.encode() if data is None else data

    def piece(self, token_id: int, data: bytes) -> Piece:
        """What a visible token adds, given its bytes. A byte piece of SentencePiece is always one byte of `bytes`."""
        if self.style == "sentencepiece":
            spelled = self.source.id_to_piece(token_id) or ""
            if _BYTE_PIECE.match(spelled):
                return data if self._has_byte_pieces else spelled
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return data
        return data if text.endswith(REPLACEMENT) else text


_MAX_ID = 2**31 - 1  # the library's ids are 32 bits; a larger one cannot be in any vocabulary


def _decoder_steps(raw: Any) -> list[dict[str, Any]]:
    if raw is None:
        return [{"type": "ByteLevel"}]
    state: dict[str, Any] = json.loads(raw.decoder.__getstate__()) if raw.decoder is not None else {}
    if not state:
        return []
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    return steps


def _style(steps: list[dict[str, Any]]) -> Style:
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return "bytes"
    if kinds and all(_is_sentencepiece_step(step) for step in steps):
        return "sentencepiece"
    return "window"


def _is_sentencepiece_step(step: dict[str, Any]) -> bool:
    match step["type"]:
        case "Metaspace" | "ByteFallback" | "Fuse":
            return True
        case "Replace":
            return bool(step["content"] == " " and "String" in step["pattern"])
        case "Strip":
            return bool(step["content"] == " " and step["stop"] == 0)
        case _:
            return False


def _always_shown(source: TokenSource, special: frozenset[int]) -> frozenset[int]:
    if source.kind != "tekken.json":
        return frozenset()
    return frozenset(token_id for token_id in special if source.id_to_piece(token_id) in _TEKKEN_SHOWN)


def _never_shown(source: TokenSource, special: frozenset[int]) -> frozenset[int]:
    return special - _always_shown(source, special) if source.kind == "tekken.json" else frozenset()
