"""Token sources for tests: ids that stand for bytes, and small real tokenizers of every decoder kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import decoders, models

from tokenwire.derender.vocabulary import Vocabulary


class ByteTokens:
    """Ids 0.. stand for the given bytes, in order. Decoding joins them, as byte-level BPE does."""

    raw = None
    kind = "bytes"

    def __init__(self, tokens: Sequence[bytes | str], special: Sequence[int] = ()) -> None:
        self.tokens = [token.encode() if isinstance(token, str) else token for token in tokens]
        self.special_ids = frozenset(special)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        kept = [i for i in ids if not (skip_special_tokens and i in self.special_ids)]
        return b"".join(self.tokens[i] for i in kept if i < len(self.tokens)).decode("utf-8", "replace")

    def id_to_piece(self, token_id: int) -> str | None:
        return self.tokens[token_id].decode("latin-1") if token_id < len(self.tokens) else None

    def piece_to_id(self, piece: str) -> int | None:
        data = piece.encode("latin-1")
        return self.tokens.index(data) if data in self.tokens else None

    def token_bytes(self, token_id: int) -> bytes | None:
        return self.tokens[token_id] if token_id < len(self.tokens) else None


class LibraryTokens:
    """A real `tokenizers.Tokenizer` over a list of pieces, with the decoder under test."""

    kind = "tokenizer.json"

    def __init__(
        self,
        pieces: Sequence[str],
        decoder: decoders.Decoder | None,
        *,
        special: Sequence[str] = (),
        as_bytes: Mapping[str, bytes] | None = None,
    ) -> None:
        vocab = {piece: i for i, piece in enumerate(pieces)}
        self.raw = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=pieces[0]))
        if decoder is not None:
            self.raw.decoder = decoder
        self.raw.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in special])
        self.special_ids = frozenset(self.raw.token_to_id(token) for token in special)
        self._as_bytes = as_bytes or {}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text: str = self.raw.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def id_to_piece(self, token_id: int) -> str | None:
        piece: str | None = self.raw.id_to_token(token_id)
        return piece

    def piece_to_id(self, piece: str) -> int | None:
        token_id: int | None = self.raw.token_to_id(piece)
        return token_id

    def token_bytes(self, token_id: int) -> bytes | None:
        piece = self.id_to_piece(token_id)
        if piece is None:
            return None
        if piece.startswith("<0x"):
            return bytes([int(piece[3:5], 16)])
        return self._as_bytes.get(piece, piece.replace("▁", " ").encode())

    def ids(self, *pieces: str) -> list[int]:
        """Ids of pieces, by their spelling."""
        return [self.raw.token_to_id(piece) for piece in pieces]


BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]
GEMMA_PIECES = ["<unk>", *BYTE_PIECES, "▁", "▁Hello", "▁world", "Hello", "x", "�", "▁�", "abc", "龘"]


def gemma_like(*, strip: int = 0) -> LibraryTokens:
    """SentencePiece with byte fallback as Gemma (strip 0) and Llama 2 (strip 1) decode it."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if strip:
        steps.append(decoders.Strip(" ", strip, 0))
    return LibraryTokens(GEMMA_PIECES, decoders.Sequence(steps), special=["<s>", "</s>"])


def metaspace() -> LibraryTokens:
    """SentencePiece as T5 decodes it: the first token of a text loses its space."""
    pieces = ["<unk>", "▁Hello", "▁world", "▁", "s", "!"]
    return LibraryTokens(pieces, decoders.Metaspace(replacement="▁", prepend_scheme="always"), special=["<s>"])


def wordpiece() -> LibraryTokens:
    """BERT's: tokens have no text of their own, spaces depend on what follows."""
    pieces = ["[UNK]", "hello", "world", "##ly", "##s", ",", "!", "don", "'", "t"]
    return LibraryTokens(pieces, decoders.WordPiece(), special=["[CLS]", "[SEP]"])


def byte_vocabulary(tokens: Sequence[bytes | str], special: Sequence[int] = ()) -> Vocabulary:
    return Vocabulary(ByteTokens(tokens, special))
