"""The vocabulary as the grammar libraries want it, read from a tokenizer's folder.

Two kinds of files are understood: `tokenizer.json` (Hugging Face tokenizers) and `tekken.json` (mistral-common).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import llguidance
import xgrammar

from tokenwire.errors import EngineUnavailableError


@dataclass
class Vocabulary:
    """`folder` may also be the tokenizer file itself; `vocab_size` is the width of the logits."""

    folder: Path
    vocab_size: int
    eos_token_ids: Sequence[int]

    @cached_property
    def file(self) -> Path:
        names = (self.folder, self.folder / "tokenizer.json", self.folder / "tekken.json")
        found = next((path for path in names if path.is_file()), None)
        if found is None:
            raise EngineUnavailableError(
                f"structured outputs need tokenizer.json or tekken.json, and {self.folder} has neither."
            )
        return found

    @cached_property
    def xgrammar_plain(self) -> xgrammar.TokenizerInfo:
        """For constraints on text: special tokens are no text, so no constraint can be met by one."""
        return self._xgrammar(with_special=False)

    @cached_property
    def xgrammar_special(self) -> xgrammar.TokenizerInfo:
        """For constraints that may name special tokens by their text (grammars, structural tags)."""
        return self._xgrammar(with_special=True)

    @cached_property
    def llguidance(self) -> llguidance.LLTokenizer:
        eos = list(self.eos_token_ids) or None
        if self.file.name == "tekken.json":
            tekken = _Tekken.read(self.file)
            return llguidance.LLTokenizer.from_tiktoken(
                encoder={piece: len(tekken.special) + i for i, piece in enumerate(tekken.pieces)},
                special_tokens={text: i for i, text in enumerate(tekken.special)},
                pattern=tekken.pattern,
                eos_token=eos or [2],
                n_vocab=self._width(tekken.size),
            )
        text = _without_length_rules(self.file)
        return llguidance.LLTokenizer(text, n_vocab=self._width(_size(json.loads(text))), eos_token=eos)

    def _width(self, tokenizer_size: int) -> int:
        return max(self.vocab_size, tokenizer_size)

    def _xgrammar(self, *, with_special: bool) -> xgrammar.TokenizerInfo:
        stop = list(self.eos_token_ids) or None
        if self.file.name == "tekken.json":
            tekken = _Tekken.read(self.file)
            tokens: list[bytes] = [*(b"" for _ in tekken.special), *tekken.pieces][: self.vocab_size]
            if with_special:
                tokens[: len(tekken.special)] = [text.encode() for text in tekken.special]
            return xgrammar.TokenizerInfo(
                tokens, xgrammar.VocabType.RAW, vocab_size=self.vocab_size, stop_token_ids=stop
            )
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(self.file))
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=self.vocab_size, stop_token_ids=stop)
        if with_special:
            return info
        special = {
            token_id
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if token.special and token_id < self.vocab_size
        }
        words = list(info.decoded_vocab)
        return xgrammar.TokenizerInfo(
            [b"" if i in special else word for i, word in enumerate(words)],
            xgrammar.VocabType.RAW,
            vocab_size=self.vocab_size,
            stop_token_ids=stop,
            add_prefix_space=info.add_prefix_space,
        )


def _without_length_rules(file: Path) -> str:
    data = json.loads(file.read_text(encoding="utf-8"))
    return json.dumps(data | {"padding": None, "truncation": None})


def _size(data: dict[str, Any]) -> int:
    vocab = data["model"]["vocab"]
    last = max((token["id"] for token in data.get("added_tokens", ())), default=-1)
    return max(len(vocab), last + 1)


@dataclass(slots=True)
class _Tekken:
    pattern: str
    special: list[str]
    pieces: list[bytes]

    @staticmethod
    def read(file: Path) -> _Tekken:
        data = json.loads(file.read_text(encoding="utf-8"))
        config = data["config"]
        count = config["default_num_special_tokens"]
        named = {token["rank"]: token["token_str"] for token in data.get("special_tokens") or ()}
        special = [named.get(rank, f"<SPECIAL_{rank}>") for rank in range(count)]
        inner = config["default_vocab_size"] - count
        pieces = [base64.b64decode(entry["token_bytes"]) for entry in data["vocab"][:inner]]
        return _Tekken(config["pattern"], special, pieces)

    @property
    def size(self) -> int:
        return len(self.special) + len(self.pieces)
