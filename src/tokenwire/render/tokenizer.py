"""The tokenizer as every stage sees it: text to ids and back, pieces, special ids, chat templates.

One interface, one implementation per file format: `tokenizer.json` (`json_tokenizer.py`, the `tokenizers` library)
and Mistral's `tekken.json` (`tekken.py`, mistral-common). No transformers, no torch. All methods are safe to call
from several threads at once, and long inputs release the interpreter lock where the library does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tokenwire.errors import TokenwireError

if TYPE_CHECKING:
    import tokenizers


class TokenizerLoadError(TokenwireError):
    """The files do not make a tokenizer we can run; stops the start of a server."""


class Encoding(NamedTuple):
    """Ids with the half-open character range in the text that each came from; a token the tokenizer itself added
    (bos, eos) has the range (0, 0)."""

    ids: list[int]
    offsets: list[tuple[int, int]]


@dataclass(slots=True, kw_only=True)
class SpecialTokens:
    """Which tokens are special, and what they are called."""

    ids: frozenset[int]
    """Every id with a special flag, set by tokenizer file or configuration: what `skip_special_tokens` drops."""
    named_ids: frozenset[int]
    """The smaller set transformers calls `all_special_ids`: named tokens (bos, eos, ...) and the configured extras."""
    added_ids: frozenset[int]
    """Ids of all added tokens, special or not: matched in the text before the model of the tokenizer sees it."""
    named: Mapping[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token`, ... -> token; a chat template sees these as variables."""


class Tokenizer(ABC):
    """One loaded tokenizer."""

    special: SpecialTokens
    chat_templates: Mapping[str, str]
    """By name; the usual one is `default`. Empty if the folder has none."""
    vocab_size: int
    """Number of ids, added tokens counted."""
    max_token_id: int
    raw: tokenizers.Tokenizer | None = None
    """The library's object, if this is a `tokenizer.json`; for an incremental `DecodeStream`."""
    kind: str
    """The file it was read from, a key of `LOADERS`."""
    folder: Path

    @staticmethod
    def load(path: str | Path, *, kind: str = "auto") -> Tokenizer:
        """A tokenizer from a folder or one of its files. `kind`: `auto`, or a key of `LOADERS`.

        Only local files are read. Raises `TokenizerLoadError`.
        """
        path = Path(path)
        folder = path if path.is_dir() else path.parent
        names = [kind] if kind != "auto" else ([path.name] if path.is_file() else list(LOADERS))
        for name in names:
            if name not in LOADERS:
                raise TokenizerLoadError(f"{path}: not a tokenizer file; known are {', '.join(LOADERS)}.")
            if (folder / name).is_file():
                return _loader(name)(folder)
        raise TokenizerLoadError(
            f"{folder}: no {' or '.join(names)} here. A tokenizer without one can be converted with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; with `add_special_tokens`, what the tokenizer puts around every text (bos, eos)."""

    @abstractmethod
    def encode_with_offsets(self, text: str, *, add_special_tokens: bool = True) -> Encoding:
        """As `encode`, with character ranges. Raises `InvalidRequestError` where the format has none."""

    @abstractmethod
    def encode_ordinary(self, text: str) -> list[int]:
        """Ids of `text` in which nothing is a special or added token, whatever it spells; nothing is put around it."""

    @abstractmethod
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of `ids`, all at once; bytes that are no UTF-8 become U+FFFD. Ids outside the vocabulary are dropped."""

    @abstractmethod
    def id_to_piece(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it (`Ġthe`, `▁the`, `<0x0A>`, `<|im_end|>`); None for an unknown id."""

    @abstractmethod
    def piece_to_id(self, piece: str) -> int | None:
        """The inverse of `id_to_piece`."""

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes | None:
        """The bytes this token adds to a text, wherever it stands; None where that is unknown (WordPiece).

        A SentencePiece token keeps its leading space, also where decoding would strip it at the start of a text.
        """

    @cached_property
    def max_chars_per_token(self) -> int:
        """No token stands for more characters of a text than this."""
        pieces = (self.id_to_piece(i) for i in range(self.max_token_id + 1))
        return max((len(piece) for piece in pieces if piece is not None), default=1)

    @cached_property
    def surround(self) -> tuple[int, int]:
        """How many tokens `add_special_tokens` puts before and after a text."""
        inner = self.encode("a", add_special_tokens=False)
        full = self.encode("a")
        before = next((i for i in range(len(full)) if full[i : i + len(inner)] == inner), 0)
        return before, len(full) - len(inner) - before

    def named_token_id(self, name: str) -> int | None:
        """Id of `bos_token`, `eos_token`, ..."""
        token = self.special.named.get(name)
        return None if token is None else self.piece_to_id(token)

    @property
    def special_ids(self) -> frozenset[int]:
        return self.special.ids

    @property
    def bos_token(self) -> str | None:
        return self.special.named.get("bos_token")

    @property
    def bos_token_id(self) -> int | None:
        return self.named_token_id("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special.named.get("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self.named_token_id("eos_token")

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")


LOADERS = {
    "tokenizer.json": ("tokenwire.render.json_tokenizer", "load_json_tokenizer"),
    "tekken.json": ("tokenwire.render.tekken", "load_tekken_tokenizer"),
}
"""File name -> module and function that loads a folder with it, in order of preference; imported when first needed."""


def _loader(name: str) -> Callable[[Path], Tokenizer]:
    module, function = LOADERS[name]
    loader: Callable[[Path], Tokenizer] = getattr(import_module(module), function)
    return loader
