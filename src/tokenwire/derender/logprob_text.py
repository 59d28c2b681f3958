"""Token strings beside logprobs: every sampled token and candidate as text, in the context it was sampled in.

The strings of the sampled tokens, joined, are the text with special tokens kept: a token that only begins a character
is "", and the one that completes it is the whole character. A candidate that is whole by itself shows as itself; one
that is not is decoded after the sampled tokens before it. vLLM repairs over four tokens with the same outcome.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenwire.derender.detokenizer import DetokenizerState, IncrementalDetokenizer
from tokenwire.derender.vocabulary import Vocabulary

CONTEXT_TOKENS = 4
"""Tokens that one UTF-8 character can be spread over."""


class LogprobText:
    """Token strings of one sequence, position by position."""

    __slots__ = ("_detokenizer", "_vocab")

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt_token_ids: Sequence[int] = (),
        *,
        context: Sequence[int] = (),
        state: DetokenizerState | None = None,
    ) -> None:
        """`context`: the last sampled tokens, where a client carries them; `state`: where an earlier object stopped."""
        self._vocab = vocabulary
        if state is not None:
            self._detokenizer = IncrementalDetokenizer.from_state(vocabulary, state, verbatim=True)
            return
        self._detokenizer = IncrementalDetokenizer(vocabulary, prompt_token_ids, verbatim=True)
        if context:
            self._detokenizer.feed(context)

    def position(self, sampled: int, candidates: Sequence[int]) -> tuple[str, list[str]]:
        """Strings of the sampled token and of each candidate at the next position."""
        before = [None if candidate == sampled else self.candidate(candidate) for candidate in candidates]
        text = self._detokenizer.feed((sampled,))
        return text, [text if other is None else other for other in before]

    def candidate(self, token_id: int) -> str:
        """The string of a token that might have come next."""
        piece = self._vocab.verbatim[token_id]
        if self._vocab.style == "window":
            return self._vocab.source.decode([token_id]) if piece else ""
        return piece if isinstance(piece, str) else self._detokenizer.peek(token_id)

    @property
    def state(self) -> DetokenizerState | None:
        """None when nothing waits, so that a fresh object would go on the same."""
        return None if self._detokenizer.is_clean else self._detokenizer.state()


def prompt_token_texts(vocabulary: Vocabulary, first: int, rows: Sequence[Sequence[int]]) -> list[list[str]]:
    """Strings for prompt logprobs: `first` is the prompt's first id, each row the next prompt id and its candidates."""
    decoder = LogprobText(vocabulary)
    decoder.position(first, ())
    texts = []
    for row in rows:
        own, others = decoder.position(row[0], row[1:])
        texts.append([own, *others])
    return texts
