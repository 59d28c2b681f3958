"""One short name for everything that decides which ids a conversation becomes.

Two servers with the same fingerprint render alike; `render` stamps it into its requests and `generate` refuses
another one, so ids never reach a model with a different vocabulary unnoticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from tokenwire.render.chat import ChatEncoder
from tokenwire.render.tokenizer import Tokenizer

LENGTH = 32
"""Hexadecimal digits kept."""


def render_fingerprint(tokenizer: Tokenizer, encoder: ChatEncoder | None = None) -> str:
    """Hash of the tokenizer's file, its special tokens, and the chat format. Reads the file: some 50 ms."""
    digest = hashlib.sha256()
    _add(digest, [_tokenizer_digest(tokenizer)])
    special = tokenizer.special
    named = [f"{name}={token}" for name, token in sorted(special.named.items())]
    added = [f"{i}={tokenizer.id_to_piece(i)}" for i in sorted(special.added_ids)]
    _add(digest, (text.encode() for text in [tokenizer.kind, *named, *added, repr(sorted(special.ids))]))
    if encoder is not None:
        _add(digest, (part.encode() for part in encoder.fingerprint_parts()))
    return digest.hexdigest()[:LENGTH]


def _tokenizer_digest(tokenizer: Tokenizer) -> bytes:
    path = tokenizer.folder / tokenizer.kind
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    text = tokenizer.raw.to_str() if tokenizer.raw is not None else ""
    return hashlib.sha256(text.encode()).digest()


def _add(digest: hashlib._Hash, parts: Iterable[bytes]) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
