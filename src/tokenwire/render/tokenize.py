"""From a prompt's text to its ids, within the context: truncation, offsets, length checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenwire.errors import InvalidRequestError, PromptTooLongError
from tokenwire.render.tokenizer import Tokenizer


@dataclass(slots=True, frozen=True, kw_only=True)
class TokenizeOptions:
    """Lengths in tokens."""

    max_model_len: int | None = None
    """None: no bound (`/tokenize`)."""
    truncate: int | None = None
    """How many to keep; -1: all that leave room for one new token."""
    truncation_side: Literal["left", "right"] | None = None
    """The end that is cut off. None: the beginning, save the special tokens that the tokenizer puts around a text."""
    add_special_tokens: bool = True
    with_offsets: bool = False

    @property
    def keep(self) -> int | None:
        if self.truncate is None or self.truncate >= 0:
            return self.truncate
        return None if self.max_model_len is None else self.max_model_len - 1


@dataclass(slots=True, frozen=True)
class TokenizedPrompt:
    token_ids: list[int]
    offsets: list[tuple[int, int]] | None = None
    """Half-open character ranges in the text; only if asked for, and only for text."""


def tokenize(tokenizer: Tokenizer, prompt: str | list[int], options: TokenizeOptions) -> TokenizedPrompt:
    """Ids of `prompt`, cut as asked. Blocking: long texts belong in a thread.

    Raises `PromptTooLongError` unless at least one token of the context is left for the answer.
    """
    offsets: list[tuple[int, int]] | None = None
    if isinstance(prompt, list):
        token_ids = prompt
    else:
        _check_text_length(tokenizer, prompt, options)
        if options.with_offsets and tokenizer.raw is not None:
            token_ids, offsets = tokenizer.encode_with_offsets(prompt, add_special_tokens=options.add_special_tokens)
        else:
            token_ids = tokenizer.encode(prompt, add_special_tokens=options.add_special_tokens)
    surround = tokenizer.surround if isinstance(prompt, str) and options.add_special_tokens else (0, 0)
    kept = _kept(len(token_ids), options, surround)
    token_ids = [token_ids[i] for i in kept]
    check_fits(len(token_ids), options.max_model_len)
    return TokenizedPrompt(token_ids, [offsets[i] for i in kept] if offsets is not None else None)


def check_fits(prompt_len: int, max_model_len: int | None) -> None:
    """Raises `PromptTooLongError` for a prompt that fills the context or overflows it."""
    if max_model_len is not None and prompt_len >= max_model_len:
        raise PromptTooLongError(prompt_len, max_model_len - 1, max_model_len)


def _kept(length: int, options: TokenizeOptions, surround: tuple[int, int]) -> Sequence[int]:
    """Indexes of the tokens that truncation leaves."""
    keep = options.keep
    if keep is None or keep >= length:
        return range(length)
    before, after = surround
    if options.truncation_side == "right":
        return range(keep)
    if options.truncation_side == "left" or keep <= before + after:
        return range(length - keep, length)
    return [*range(before), *range(length - (keep - before), length)]


def _check_text_length(tokenizer: Tokenizer, text: str, options: TokenizeOptions) -> None:
    """A text so long that no tokenisation of it could fit is refused before the work is done."""
    if options.max_model_len is None or options.truncate is not None:
        return
    limit = options.max_model_len * tokenizer.max_chars_per_token
    if len(text) > limit:
        raise InvalidRequestError(
            f"This model's maximum context length is {options.max_model_len} tokens. However, your prompt contains "
            f"{len(text)} characters (more than {limit} characters, which is the upper bound for "
            f"{options.max_model_len} input tokens). Please reduce the length of the input prompt.",
            param="input_text",
        )
