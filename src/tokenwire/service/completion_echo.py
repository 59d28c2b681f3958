"""A prompt that is repeated before its completion (`echo`): its text, and the logprobs of its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenwire.render.tokenizer import Tokenizer
from tokenwire.service.logprob_shapes import clamp
from tokenwire.wire.completion import CompletionRequest, Prompt
from tokenwire.wire.completion_reply import CompletionLogprobs
from tokenwire.wire.generate import PromptLogprob


@dataclass(slots=True, frozen=True, kw_only=True)
class Echo:
    """What stands before the choices of one prompt."""

    text: str
    token_ids: list[int]
    first_token: str
    """The first token as a string; it has no logprob."""
    alone: bool
    """`max_tokens: 0`: nothing comes after it."""
    as_token_ids: bool

    def logprobs(self, scores: list[dict[int, PromptLogprob] | None]) -> CompletionLogprobs:
        """The prompt's lists: one element a token, the first without scores."""
        tokens = [self._token(self.token_ids[0], self.first_token)]
        values: list[float | None] = [None]
        top: list[dict[str, float] | None] = [None]
        for token_id, row in zip(self.token_ids[1:], scores[1:], strict=True):
            shown = row or {}
            own = shown.get(token_id)
            tokens.append(self._token(token_id, own.decoded_token if own is not None else None))
            values.append(None if own is None else clamp(own.logprob))
            top.append(self._top(shown) or None)
        return CompletionLogprobs(text_offset=_offsets(tokens), token_logprobs=values, tokens=tokens, top_logprobs=top)

    def _token(self, token_id: int, text: str | None) -> str:
        return f"token_id:{token_id}" if self.as_token_ids or text is None else text

    def _top(self, row: Mapping[int, PromptLogprob]) -> dict[str, float]:
        return {self._token(token_id, one.decoded_token): clamp(one.logprob) for token_id, one in row.items()}


def echo_of(
    request: CompletionRequest, prompt: Prompt, token_ids: list[int], tokenizer: Tokenizer, *, as_token_ids: bool
) -> Echo | None:
    """None unless the request asks for it. Blocking for long prompts that were given as ids."""
    if not request.echo:
        return None
    is_text = isinstance(prompt, str) and request.truncate_prompt_tokens is None
    text = prompt if is_text else tokenizer.decode(token_ids, skip_special_tokens=isinstance(prompt, str))
    first = tokenizer.decode(token_ids[:1])
    return Echo(
        text=str(text),
        token_ids=token_ids,
        first_token="" if first.endswith("�") else first,
        alone=request.requested_max_tokens == 0,
        as_token_ids=as_token_ids,
    )


def joined(first: CompletionLogprobs, then: CompletionLogprobs | None) -> CompletionLogprobs:
    """Two runs of tokens as one; the offsets of `then` already go on from `first`."""
    if then is None:
        return first
    return CompletionLogprobs(
        text_offset=first.text_offset + then.text_offset,
        token_logprobs=first.token_logprobs + then.token_logprobs,
        tokens=first.tokens + then.tokens,
        top_logprobs=first.top_logprobs + then.top_logprobs,
    )


def length_of(scores: CompletionLogprobs | None) -> int:
    """Characters of all token strings."""
    return 0 if scores is None else sum(map(len, scores.tokens))


def _offsets(tokens: list[str]) -> list[int]:
    offsets, position = [], 0
    for token in tokens:
        offsets.append(position)
        position += len(token)
    return offsets


def plain_scores(scores: Any) -> list[dict[int, PromptLogprob] | None] | None:
    """Prompt logprobs as lists; None where there are none."""
    return scores if isinstance(scores, list) else None
