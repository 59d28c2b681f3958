"""Mistral's `tekken.json`, through mistral-common (the optional extra `mistral`).

mistral-common also writes Mistral's chat format; `encoders/mistral.py` takes that half from `TekkenTokenizer.mistral`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenwire.errors import InvalidRequestError
from tokenwire.render.tokenizer import Encoding, SpecialTokens, Tokenizer, TokenizerLoadError


def load_tekken_tokenizer(folder: Path) -> Tokenizer:
    """Load `folder/tekken.json`. Raises `TokenizerLoadError`, also where mistral-common is not installed."""
    path = folder / "tekken.json"
    try:
        from mistral_common.protocol.instruct.validator import ValidationMode
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    except ImportError as exc:
        raise TokenizerLoadError(f"{path} needs mistral-common: pip install 'tokenwire[mistral]'") from exc
    try:
        # "test": what a server checks, as opposed to fine-tuning data; it also shortens no ids.
        mistral = MistralTokenizer.from_file(str(path), mode=ValidationMode.test)
    except Exception as exc:  # mistral-common raises many kinds, asserts among them
        raise TokenizerLoadError(f"{path}: {exc}") from exc
    return TekkenTokenizer(mistral, folder)


class TekkenTokenizer(Tokenizer):
    """A `Tekkenizer`; ids below `num_special_tokens` are special, all others are bytes of text."""

    kind = "tekken.json"

    def __init__(self, mistral: Any, folder: Path) -> None:
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

        self.mistral = mistral
        """mistral-common's whole tokenizer, chat format included."""
        self._tekken = mistral.instruct_tokenizer.tokenizer
        self._keep, self._drop = SpecialTokenPolicy.KEEP, SpecialTokenPolicy.IGNORE
        self._num_special: int = self._tekken.num_special_tokens
        self.folder = folder
        self.chat_templates = {}
        self.vocab_size = self._tekken.n_words
        self.max_token_id = self.vocab_size - 1
        special = frozenset(range(self._num_special))
        pieces = [self._tekken.id_to_piece(i) for i in range(self._num_special)]
        self._special_ids = {piece: i for i, piece in enumerate(pieces)}
        named = {f"{name}_token": pieces[getattr(self._tekken, f"{name}_id")] for name in ("bos", "eos", "unk", "pad")}
        self.special = SpecialTokens(ids=special, named_ids=special, added_ids=special, named=named)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._tekken.encode(text, bos=add_special_tokens, eos=False)
        return ids

    def encode_with_offsets(self, text: str, *, add_special_tokens: bool = True) -> Encoding:
        raise InvalidRequestError(
            "token offsets are not available with a tekken.json tokenizer.", param="return_token_offsets"
        )

    def encode_ordinary(self, text: str) -> list[int]:
        return self.encode(text, add_special_tokens=False)  # text never becomes a special token here

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        known = [i for i in ids if 0 <= i <= self.max_token_id]
        text: str = self._tekken.decode(known, self._drop if skip_special_tokens else self._keep)
        return text

    def id_to_piece(self, token_id: int) -> str | None:
        if not 0 <= token_id <= self.max_token_id:
            return None
        piece: str = self._tekken.id_to_piece(token_id)
        return piece

    def piece_to_id(self, piece: str) -> int | None:
        if piece in self._special_ids:
            return self._special_ids[piece]
        ids = self.encode(piece, add_special_tokens=False)
        return ids[0] if len(ids) == 1 else None

    def token_bytes(self, token_id: int) -> bytes | None:
        if not 0 <= token_id <= self.max_token_id:
            return None
        data: bytes = self._tekken.id_to_byte_piece(token_id, self._keep)
        return data
