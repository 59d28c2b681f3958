"""`tokenizer.json` through the `tokenizers` library, with the rules transformers adds when it loads the same folder.

Those rules (transformers 5, `TokenizersBackend`): tokens the configuration names and the file lacks are appended;
named and extra special tokens get the special flag; `add_bos_token` / `add_eos_token` written in the configuration
replace the file's post-processor. Truncation and padding saved in the file are switched off: a prompt is never cut
in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, processors

from tokenwire.errors import InvalidRequestError
from tokenwire.render.token_bytes import bytes_of_piece_rule
from tokenwire.render.tokenizer import Encoding, SpecialTokens, Tokenizer, TokenizerLoadError
from tokenwire.render.tokenizer_config import TokenEntry, TokenizerConfig, content_of, read_tokenizer_config


def load_json_tokenizer(folder: Path) -> Tokenizer:
    """Load `folder/tokenizer.json` and the configuration files beside it. Raises `TokenizerLoadError`."""
    config = read_tokenizer_config(folder)
    try:
        raw = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as exc:  # the library raises plain Exception
        raise TokenizerLoadError(f"{folder / 'tokenizer.json'}: {exc}") from exc
    return JsonTokenizer(raw, config, folder)


class JsonTokenizer(Tokenizer):
    """A `tokenizers.Tokenizer` made complete by its configuration."""

    kind = "tokenizer.json"

    def __init__(self, raw: tokenizers.Tokenizer, config: TokenizerConfig, folder: Path = Path()) -> None:
        raw.no_truncation()
        raw.no_padding()
        _add_configured_tokens(raw, config)
        _set_post_processor(raw, config)
        self.raw = raw
        self._raw = raw
        self.folder = folder
        self.chat_templates = config.chat_templates
        self.special = _special_tokens(raw, config)
        self.vocab_size = raw.get_vocab_size(with_added_tokens=True)
        # Added ids need not follow the base vocabulary without a gap.
        self.max_token_id = max(raw.get_vocab_size(with_added_tokens=False) - 1, *self.special.added_ids, 0)
        self._added_piece = _any_of(token.content for token in raw.get_added_tokens_decoder().values())
        self._bytes_of_piece: Callable[[str], bytes | None] = bytes_of_piece_rule(raw)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        # The batch call is the one that releases the interpreter lock; `fast` leaves offsets out.
        with _lone_surrogates_named():
            ids: list[int] = self._raw.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def encode_with_offsets(self, text: str, *, add_special_tokens: bool = True) -> Encoding:
        with _lone_surrogates_named():
            encoding = self._raw.encode_batch([text], add_special_tokens=add_special_tokens)[0]
        return Encoding(encoding.ids, encoding.offsets)

    def encode_ordinary(self, text: str) -> list[int]:
        if self._added_piece.search(text) is None:
            return self.encode(text, add_special_tokens=False)
        # The library cannot be told per call to leave added tokens alone, so its stages are run one by one.
        if self._raw.normalizer is not None:
            text = self._raw.normalizer.normalize_str(text)
        words = (
            [text]
            if self._raw.pre_tokenizer is None
            else [w for w, _ in self._raw.pre_tokenizer.pre_tokenize_str(text)]
        )
        return [token.id for word in words for token in self._raw.model.tokenize(word)]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        try:
            text: str = self._raw.decode(list(ids), skip_special_tokens=skip_special_tokens)
        except OverflowError:  # the library passes over unknown ids, but not over those that are no uint32
            known = [i for i in ids if 0 <= i <= self.max_token_id]
            text = self._raw.decode(known, skip_special_tokens=skip_special_tokens)
        return text

    def id_to_piece(self, token_id: int) -> str | None:
        piece: str | None = self._raw.id_to_token(token_id) if token_id >= 0 else None
        return piece

    def piece_to_id(self, piece: str) -> int | None:
        token_id: int | None = self._raw.token_to_id(piece)
        return token_id

    def token_bytes(self, token_id: int) -> bytes | None:
        piece = self.id_to_piece(token_id)
        return None if piece is None else self._bytes_of_piece(piece)


@contextmanager
def _lone_surrogates_named() -> Iterator[None]:
    """JSON can spell half of a surrogate pair; no text in UTF-8 has one, and the library only says "TypeError"."""
    try:
        yield
    except TypeError as exc:
        raise InvalidRequestError("The text has a lone surrogate, which is no character.") from exc


def _any_of(pieces: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, pieces)) or "(?!)")


def _add_configured_tokens(raw: tokenizers.Tokenizer, config: TokenizerConfig) -> None:
    """Append what the configuration lists and the file lacks, and set special flags, in transformers' order."""
    present = {token.content: token for token in raw.get_added_tokens_decoder().values()}
    listed = [_added_token(entry) for _, entry in sorted(config.added_tokens_decoder.items())]
    raw.add_tokens([token for token in listed if repr(token) != repr(present.get(token.content))])
    present = {token.content: token for token in raw.get_added_tokens_decoder().values()}
    names = set(config.named.values())
    raw.add_special_tokens(
        [
            _flagged(present[content])
            if (content := content_of(entry)) in names & present.keys()
            else _added_token(entry)
            for entry in config.special_entries
        ]
    )


def _flagged(token: AddedToken) -> AddedToken:
    """A named token keeps the matching rules the file gave it, and becomes special."""
    return AddedToken(
        token.content,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        single_word=token.single_word,
        normalized=token.normalized,
        special=True,
    )


def _added_token(entry: TokenEntry) -> AddedToken:
    if isinstance(entry, str):
        return AddedToken(entry, special=True, normalized=False)
    options = {key: entry[key] for key in ("lstrip", "rstrip", "single_word", "normalized", "special") if key in entry}
    return AddedToken(entry["content"], **options)


def _set_post_processor(raw: tokenizers.Tokenizer, config: TokenizerConfig) -> None:
    """`add_bos_token` / `add_eos_token`, when written down, decide alone what surrounds a text."""
    if config.add_bos_token is None and config.add_eos_token is None:
        return
    bos = config.named.get("bos_token") if config.add_bos_token else None
    eos = config.named.get("eos_token") if config.add_eos_token else None
    single = " ".join(part for part in (bos and f"{_quoted(bos)}:0", "$A:0", eos and f"{_quoted(eos)}:0") if part)
    special = [(token, raw.token_to_id(token)) for token in (bos, eos) if token]
    raw.post_processor = processors.TemplateProcessing(single=single, pair=f"{single} $B:1", special_tokens=special)


def _quoted(token: str) -> str:
    if re.search(r"\s", token):
        raise TokenizerLoadError(
            f"tokenizer_config.json: the token {token!r} with a space cannot be put around a text."
        )
    return token


def _special_tokens(raw: tokenizers.Tokenizer, config: TokenizerConfig) -> SpecialTokens:
    added = raw.get_added_tokens_decoder()
    contents = map(content_of, config.special_entries)
    return SpecialTokens(
        ids=frozenset(i for i, token in added.items() if token.special),
        named_ids=frozenset(i for i in map(raw.token_to_id, contents) if i is not None),
        added_ids=frozenset(added),
        named=dict(config.named),
    )
