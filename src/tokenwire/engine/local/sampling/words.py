"""Bad words as token ids: the spelling at the start of a text and the spelling after a space."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokenwire.errors import InvalidRequestError


def tokenize_bad_words(
    words: Sequence[str], encode: Callable[[str], Sequence[int]], *, vocab_size: int, max_sequences: int = 128
) -> list[list[int]]:
    """The id sequences that `words` forbid; `encode` must add no special tokens.

    Each word is encoded as it stands and with one space before it. The second form counts only if it has as many ids
    as the first and begins with another id; otherwise it says nothing new (vLLM's rule). Raises
    `InvalidRequestError` for a word without ids, for ids outside the vocabulary and for more than `max_sequences`.
    """
    sequences: list[list[int]] = []
    for word in words:
        bare = list(encode(word.lstrip()))
        if not bare:
            raise InvalidRequestError(
                f"bad_words entries must tokenize to at least one token, and {word!r} gives none.", param="bad_words"
            )
        spaced = list(encode(" " + word.lstrip()))
        sequences.append(bare)
        if spaced and spaced[0] != bare[0] and len(spaced) == len(bare):
            sequences.append(spaced)
    if len(sequences) > max_sequences:
        raise InvalidRequestError(
            f"Too many bad words after tokenization: {len(sequences)}. The max number is {max_sequences}.",
            param="bad_words",
        )
    outside = sorted({i for ids in sequences for i in ids if not 0 <= i < vocab_size})
    if outside:
        raise InvalidRequestError(
            f"bad_words become token ids {outside}, which are outside the vocabulary of {vocab_size}.",
            param="bad_words",
        )
    return sequences
