"""Generate streams of one or several prompts as completion chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from tokenwire.service.chat_stream import whole_usage
from tokenwire.service.completion_echo import Echo, joined, length_of, plain_scores
from tokenwire.service.reply_fields import given
from tokenwire.service.text_logprobs import completion_logprobs
from tokenwire.wire.completion_reply import CompletionChunk, CompletionChunkChoice, CompletionLogprobs
from tokenwire.wire.generate import GenerateChunk, TextChoice, TextLogprobs, UsageChunk
from tokenwire.wire.usage import PerRequestMetrics, UsageInfo


class CompletionStream:
    """Shapes the stream of one completion request; state is per choice."""

    def __init__(
        self,
        *,
        request_id: str,
        created: int,
        model: str,
        system_fingerprint: str | None,
        n: int,
        echoes: Sequence[Echo | None],
        return_token_ids: bool,
    ) -> None:
        self._head: dict[str, Any] = {
            "id": request_id,
            "created": created,
            "model": model,
            "system_fingerprint": system_fingerprint,
        }
        self._n = n
        self._echoes = echoes
        self._return_token_ids = return_token_ids
        self._offsets = [0] * (n * len(echoes))
        self._begun: set[int] = set()
        self._prompt_ids: dict[int, list[int]] = {}
        self._prompt_scores: dict[int, Any] = {}
        self.usages: list[UsageInfo] = []
        self._metrics: PerRequestMetrics | None = None

    def chunks(self, number: int, event: GenerateChunk | UsageChunk) -> list[CompletionChunk]:
        """What an event of prompt `number` adds; empty where it shows nothing."""
        if isinstance(event, UsageChunk):
            self.usages.append(whole_usage(event))
            self._metrics = None if event.metrics is UNSET else event.metrics
            return []
        if isinstance(event.prompt_token_ids, list):
            self._prompt_ids[number] = event.prompt_token_ids
        if event.prompt_logprobs is not UNSET:
            self._prompt_scores[number] = event.prompt_logprobs
        choices = [shown for choice in event.choices if (shown := self._shown(number, choice)) is not None]
        extras: dict[str, Any] = {
            "kv_transfer_params": event.kv_transfer_params,
            "ec_transfer_params": event.ec_transfer_params,
        }
        if not choices and all(value is UNSET for value in extras.values()):
            return []
        return [CompletionChunk(choices=choices, usage=event.usage, **self._head, **extras)]

    def usage_chunk(self, usage: UsageInfo) -> CompletionChunk:
        """The last event; figures of one request only."""
        metrics = self._metrics if len(self._echoes) == 1 else None
        return CompletionChunk(choices=[], usage=usage, metrics=metrics, **self._head)

    def _shown(self, number: int, choice: TextChoice) -> CompletionChunkChoice | None:
        index = number * self._n + choice.index
        first = index not in self._begun
        echo = self._echoes[number]
        if echo is not None and echo.alone and not first:
            return None
        ids = choice.token_ids if isinstance(choice.token_ids, list) else []
        scores = self._logprobs(index, choice)
        text, finish_reason, stop_reason = choice.text, choice.finish_reason, choice.stop_reason
        if echo is not None and first:
            before = self._echo_logprobs(number, echo)
            text = echo.text if echo.alone else echo.text + text
            if echo.alone:
                scores, ids, finish_reason, stop_reason = None, [], "length", None
            if before is not None:
                scores = self._moved(index, before, scores)
        if not text and finish_reason is None and scores is None and not (self._return_token_ids and ids):
            return None
        self._begun.add(index)
        return CompletionChunkChoice(
            index=index,
            text=text,
            logprobs=scores,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            prompt_token_ids=self._prompt_ids.get(number) if first else None,
            token_ids=ids if self._return_token_ids else None,
            weight_versions=choice.weight_versions,
            routed_experts=given(choice.routed_experts),
            sampling_mask=given(choice.sampling_mask),
        )

    def _logprobs(self, index: int, choice: TextChoice) -> CompletionLogprobs | None:
        """Offsets count token strings over the whole stream, as in a whole reply."""
        if not isinstance(choice.logprobs, TextLogprobs) or not choice.logprobs.content:
            return None
        scores = completion_logprobs(choice.logprobs, text_offset=self._offsets[index])
        self._offsets[index] += length_of(scores)
        return scores

    def _echo_logprobs(self, number: int, echo: Echo) -> CompletionLogprobs | None:
        scores = plain_scores(self._prompt_scores.get(number))
        return None if scores is None else echo.logprobs(scores)

    def _moved(self, index: int, before: CompletionLogprobs, scores: CompletionLogprobs | None) -> CompletionLogprobs:
        """The prompt's lists, and what came with them moved behind."""
        shift = length_of(before)
        self._offsets[index] += shift
        if scores is None:
            return before
        offsets = [offset + shift for offset in scores.text_offset]
        return joined(
            before,
            CompletionLogprobs(
                text_offset=offsets,
                token_logprobs=scores.token_logprobs,
                tokens=scores.tokens,
                top_logprobs=scores.top_logprobs,
            ),
        )
