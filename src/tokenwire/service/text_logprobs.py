"""Token-level logprobs as text shows them: OpenAI's chat entries, and the parallel lists of text completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tokenwire.derender.logprob_text import LogprobText
from tokenwire.service.logprob_shapes import clamp
from tokenwire.wire.completion_reply import CompletionLogprobs
from tokenwire.wire.generate import TextLogprob, TextLogprobEntry, TextLogprobs


class Candidate(Protocol):
    """One id with its score, of our own reply or of a received one."""

    @property
    def token_id(self) -> int: ...
    @property
    def logprob(self) -> float: ...


class Entry(Candidate, Protocol):
    """A sampled token with its candidates, itself among them."""

    @property
    def top_logprobs(self) -> Sequence[Candidate]: ...


def text_entries(
    entries: Iterable[Entry], texts: LogprobText, *, top: int | None = None, as_token_ids: bool = False
) -> TextLogprobs:
    """Entries with token strings. `top`: how many candidates to keep; None and -1: all that were given.

    `as_token_ids`: strings are `token_id:N` and bytes null (`--return-tokens-as-token-ids`).
    """
    content = []
    for entry in entries:
        shown = entry.top_logprobs if top is None or top < 0 else entry.top_logprobs[:top]
        if as_token_ids:
            own, others = f"token_id:{entry.token_id}", [f"token_id:{c.token_id}" for c in shown]
        else:
            own, others = texts.position(entry.token_id, [c.token_id for c in shown])
        candidates = [
            TextLogprob(text, clamp(c.logprob), None if as_token_ids else list(text.encode()))
            for text, c in zip(others, shown, strict=True)
        ]
        data = None if as_token_ids else list(own.encode())
        content.append(TextLogprobEntry(own, clamp(entry.logprob), data, candidates))
    return TextLogprobs(content)


def completion_logprobs(entries: TextLogprobs, *, text_offset: int = 0) -> CompletionLogprobs:
    """The lists of a text completion; `text_offset` is where the first token's string begins in the whole text."""
    offsets = []
    for entry in entries.content:
        offsets.append(text_offset)
        text_offset += len(entry.token)
    return CompletionLogprobs(
        text_offset=offsets,
        token_logprobs=[entry.logprob for entry in entries.content],
        tokens=[entry.token for entry in entries.content],
        top_logprobs=[_by_text(entry.top_logprobs) for entry in entries.content],
    )


def _by_text(candidates: list[TextLogprob]) -> dict[str, float] | None:
    return {candidate.token: candidate.logprob for candidate in candidates} or None
