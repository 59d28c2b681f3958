"""`/v1/completions`: one or several prompts, each a generate request at the level `text`.

Prompts run side by side. Choice `i` of prompt `p` has the index `p * n + i`, whole and streamed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from tokenwire.service.answers import AnswerOptions, ChoiceListener, all_of, side_by_side, with_session
from tokenwire.service.completion_echo import Echo, echo_of, joined, length_of, plain_scores
from tokenwire.service.completion_stream import CompletionStream
from tokenwire.service.context import RequestContext
from tokenwire.service.generate import Endpoint, GenerateService, PreparedGenerate
from tokenwire.service.render import RenderService
from tokenwire.service.reply_fields import agreed
from tokenwire.service.text_logprobs import completion_logprobs
from tokenwire.service.usage import usage_of
from tokenwire.wire.completion import CompletionRequest
from tokenwire.wire.completion_reply import CompletionChoice, CompletionChunk, CompletionLogprobs, CompletionResponse
from tokenwire.wire.generate import (
    GenerateChunk,
    GenerateRequest,
    GenerateResponse,
    TextChoice,
    TextLogprobs,
    UsageChunk,
)
from tokenwire.wire.usage import UsageInfo

__all__ = ["CompletionService", "PreparedCompletion"]

Events = list[GenerateChunk | UsageChunk]


@dataclass(slots=True, kw_only=True)
class PreparedPrompt:
    generate: PreparedGenerate
    echo: Echo | None


@dataclass(slots=True, kw_only=True)
class PreparedCompletion:
    """Prompts that passed every check and wait to run."""

    request_id: str
    prompts: list[PreparedPrompt]
    return_token_ids: bool
    include_usage: bool
    created: int

    @property
    def model_name(self) -> str:
        return self.prompts[0].generate.model_name


class CompletionService:
    """Completions over one server's render and generate services."""

    def __init__(
        self,
        render: RenderService,
        generate: GenerateService,
        options: AnswerOptions | None = None,
        *,
        listener: ChoiceListener | None = None,
    ) -> None:
        self.render = render
        self.generate = generate
        self.options = options or AnswerOptions()
        self._listener = listener

    async def prepare(self, request: CompletionRequest, context: RequestContext) -> PreparedCompletion:
        """Everything that can be refused is refused here, for all prompts before any of them runs."""
        rendered = await self.render.completion(request, context)
        request_id = _shared_id(rendered)
        context = with_session(request, context)
        stream_options = self.options.stream_options(request)
        endpoint = Endpoint(
            request_id=request_id,
            wants_logprobs=request.logprobs is not None,
            tokens_as_token_ids=request.return_tokens_as_token_ids,
            timings=self.options.per_request_metrics,
        )
        self.generate.check_room(sum(one.sampling_params.n for one in rendered))
        prompts = []
        for one in rendered:
            asked = msgspec.structs.replace(one, output_mode="text", stream_options=stream_options)
            prompts.append(await self.generate.prepare(asked, context, endpoint=endpoint, alone=False))
        self.generate.hold(prompts)
        echoes = await asyncio.to_thread(self._echoes, request, rendered) if request.echo else [None] * len(prompts)
        return PreparedCompletion(
            request_id=request_id,
            prompts=[PreparedPrompt(generate=g, echo=e) for g, e in zip(prompts, echoes, strict=True)],
            return_token_ids=bool(request.return_token_ids),
            include_usage=bool(stream_options and stream_options.include_usage),
            created=int(time.time()),
        )

    def _echoes(self, request: CompletionRequest, rendered: list[GenerateRequest]) -> list[Echo | None]:
        asked, default = request.return_tokens_as_token_ids, self.generate.options.return_tokens_as_token_ids
        as_ids = default if asked is None else asked
        return [
            echo_of(request, prompt, one.token_ids, self.render.tokenizer, as_token_ids=as_ids)
            for prompt, one in zip(request.prompts(), rendered, strict=True)
        ]

    async def full(self, prepared: PreparedCompletion) -> CompletionResponse:
        """Run all prompts to the end. Cancelling it aborts them in the engine."""
        replies = await all_of([self._reply(prompt.generate) for prompt in prepared.prompts])
        choices: list[CompletionChoice] = []
        for prompt, reply in zip(prepared.prompts, replies, strict=True):
            choices += _choices(prompt, reply, len(choices), return_token_ids=prepared.return_token_ids)
        return CompletionResponse(
            id=prepared.request_id,
            created=prepared.created,
            model=prepared.model_name,
            choices=choices,
            system_fingerprint=self.options.system_fingerprint,
            usage=_total(prepared, [reply.usage or UsageInfo() for reply in replies]),
            kv_transfer_params=agreed([reply.kv_transfer_params for reply in replies]),
            ec_transfer_params=agreed([reply.ec_transfer_params for reply in replies]),
            metrics=replies[0].metrics if len(replies) == 1 else None,
        )

    async def stream(self, prepared: PreparedCompletion) -> AsyncGenerator[list[CompletionChunk], None]:
        """The stream's events as they come, of all prompts. Closing it early aborts them."""
        shaper = CompletionStream(
            request_id=prepared.request_id,
            created=prepared.created,
            model=prepared.model_name,
            system_fingerprint=self.options.system_fingerprint,
            n=prepared.prompts[0].generate.n,
            echoes=[prompt.echo for prompt in prepared.prompts],
            return_token_ids=prepared.return_token_ids,
        )
        async with aclosing(side_by_side([self._events(prompt.generate) for prompt in prepared.prompts])) as batches:
            async for number, events in batches:
                chunks = [chunk for event in events for chunk in shaper.chunks(number, event)]
                if chunks:
                    yield chunks
        if prepared.include_usage:
            yield [shaper.usage_chunk(_total(prepared, shaper.usages))]

    async def _reply(self, prepared: PreparedGenerate) -> GenerateResponse:
        reply = await self.generate.full(prepared)
        if self._listener is not None:
            self._listener(prepared, reply.choices)
        return reply

    async def _events(self, prepared: PreparedGenerate) -> AsyncGenerator[Events, None]:
        async with aclosing(self.generate.stream(prepared)) as batches:
            async for events in batches:
                if self._listener is not None:
                    self._listener(prepared, [choice for event in events for choice in event.choices])
                yield events


def _shared_id(rendered: list[GenerateRequest]) -> str:
    """The id that the reply shows and that aborts all its prompts; render numbers it where there are several."""
    first = rendered[0].request_id or ""
    return first if len(rendered) == 1 else first.removesuffix("-0")


def _choices(
    prompt: PreparedPrompt, reply: GenerateResponse, start: int, *, return_token_ids: bool
) -> list[CompletionChoice]:
    echo, scores = prompt.echo, plain_scores(reply.prompt_logprobs)
    own = None if echo is None or scores is None or not prompt.generate.shape.wants_logprobs else echo.logprobs(scores)
    choices = []
    for index, choice in enumerate(reply.choices, start):
        ids = choice.token_ids if isinstance(choice.token_ids, list) else []
        mask = choice.sampling_mask
        alone = echo is not None and echo.alone
        choices.append(
            CompletionChoice(
                index=index,
                text=(echo.text if echo is not None else "") + ("" if alone else choice.text),
                logprobs=own if alone else _logprobs(choice, own),
                finish_reason="length" if alone else choice.finish_reason,
                stop_reason=None if alone else choice.stop_reason,
                token_ids=([] if alone else ids) if return_token_ids else None,
                prompt_logprobs=reply.prompt_logprobs,
                prompt_token_ids=prompt.generate.engine_request.prompt_token_ids if return_token_ids else None,
                routed_experts=choice.routed_experts,
                weight_versions=choice.weight_versions,
                sampling_mask=UNSET if mask is None else mask,
            )
        )
    return choices


def _logprobs(choice: TextChoice, before: CompletionLogprobs | None) -> CompletionLogprobs | None:
    if not isinstance(choice.logprobs, TextLogprobs):
        return before
    own = completion_logprobs(choice.logprobs, text_offset=length_of(before))
    return own if before is None else joined(before, own)


def _total(prepared: PreparedCompletion, usages: list[UsageInfo]) -> UsageInfo:
    """Counts of all prompts. A prompt that was only echoed has made nothing, whatever the engine had to make."""
    prompts = sum(usage.prompt_tokens for usage in usages)
    alone = any(prompt.echo is not None and prompt.echo.alone for prompt in prepared.prompts)
    made = 0 if alone else sum(usage.completion_tokens or 0 for usage in usages)
    cached = [usage.prompt_tokens_details.cached_tokens for usage in usages if usage.prompt_tokens_details is not None]
    known = [count for count in cached if count is not None]
    return usage_of(prompts, made, sum(known) if known else None)
