"""`/v1/responses` without stored state: a chat in the words of OpenAI's newer API, answered by the chat service."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from tokenwire.errors import InvalidRequestError
from tokenwire.service.chat import ChatService, PreparedChat
from tokenwire.service.context import RequestContext
from tokenwire.service.reply_fields import given
from tokenwire.service.responses_items import ItemDrafts
from tokenwire.service.responses_stream import ResponseStream, item_status
from tokenwire.service.responses_to_chat import responses_to_chat
from tokenwire.wire.chat_reply import ChatChoice
from tokenwire.wire.generate import StreamOptions
from tokenwire.wire.responses import ResponsesRequest
from tokenwire.wire.responses_reply import (
    IncompleteDetails,
    InputTokensDetails,
    OutputItem,
    OutputTokensDetails,
    ResponseEvent,
    ResponsesResponse,
    ResponseStatus,
    ResponsesUsage,
)
from tokenwire.wire.usage import UsageInfo

__all__ = ["PreparedResponse", "ResponsesService"]

NOT_STORED = "This server stores no responses: each request is answered by itself, with its whole input."


@dataclass(slots=True, kw_only=True)
class PreparedResponse:
    """A request that passed every check and waits to run."""

    request: ResponsesRequest
    chat: PreparedChat

    @property
    def request_id(self) -> str:
        return self.chat.request_id


class ResponsesService:
    """The responses endpoint over the chat service."""

    def __init__(self, chat: ChatService) -> None:
        self.chat = chat

    async def prepare(self, request: ResponsesRequest, context: RequestContext) -> PreparedResponse:
        """Everything that can be refused is refused here, stored state first."""
        if request.background:
            raise InvalidRequestError(f"background=true is not supported. {NOT_STORED}", param="background")
        chat = responses_to_chat(request)
        if chat.stream:
            usage = StreamOptions(include_usage=True, continuous_usage_stats=False)
            chat = msgspec.structs.replace(chat, stream_options=usage)
        own = request.request_id or f"resp_{context.request_id_header or uuid.uuid4().hex}"
        return PreparedResponse(request=request, chat=await self.chat.prepare(chat, context, request_id=own))

    async def full(self, prepared: PreparedResponse) -> ResponsesResponse:
        """Run to the end. Cancelling it aborts the request in the engine."""
        reply = await self.chat.full(prepared.chat)
        choice = reply.choices[0]
        items = self._drafts(prepared)
        _write(items, choice, wants_logprobs=prepared.request.wants_logprobs)
        whole = _response(
            prepared, items.items(item_status(choice.finish_reason)), choice.finish_reason or "stop", reply.usage
        )
        return msgspec.structs.replace(
            whole,
            kv_transfer_params=given(reply.kv_transfer_params),
            ec_transfer_params=given(reply.ec_transfer_params),
            metrics=given(reply.metrics),
        )

    async def stream(self, prepared: PreparedResponse) -> AsyncGenerator[list[ResponseEvent], None]:
        """The stream's events, all that are ready at each wake-up. Closing it early aborts the request."""
        shaper = ResponseStream(
            self._drafts(prepared), partial(_response, prepared), wants_logprobs=prepared.request.wants_logprobs
        )
        async with aclosing(self.chat.stream(prepared.chat)) as batches:
            async for chunks in batches:
                events = [event for chunk in chunks for event in shaper.events(chunk)]
                if events:
                    yield events

    def _drafts(self, prepared: PreparedResponse) -> ItemDrafts:
        custom = {str(tool.get("name")) for tool in prepared.request.tools if tool.get("type") == "custom"}
        return ItemDrafts(prepared.request_id, custom)


def _write(items: ItemDrafts, choice: ChatChoice, *, wants_logprobs: bool) -> None:
    """A whole message as items: reasoning, then text, then calls."""
    message = choice.message
    if message.reasoning:
        items.begin("reasoning").text.append(message.reasoning)
    if message.content:
        draft = items.begin("message")
        draft.text.append(message.content)
        if wants_logprobs and choice.logprobs is not None:
            draft.logprobs = choice.logprobs.content
    for call in () if message.tool_calls is UNSET else message.tool_calls:
        items.begin("call", name=call.function.name, call_id=call.id).text.append(call.function.arguments)


def _response(
    prepared: PreparedResponse, output: list[OutputItem], finish_reason: str | None, usage: UsageInfo | None
) -> ResponsesResponse:
    request, generate = prepared.request, prepared.chat.generate
    sampling = generate.engine_request.sampling
    max_tokens = sampling.max_tokens
    return ResponsesResponse(
        id=generate.request_id,
        created_at=generate.created,
        status=_status(finish_reason),
        incomplete_details=IncompleteDetails(reason="max_output_tokens") if finish_reason == "length" else None,
        instructions=request.instructions,
        metadata=request.metadata,
        model=generate.model_name,
        output=output,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        temperature=sampling.temperature,
        tool_choice=request.tool_choice,
        tools=request.tools,
        top_p=sampling.top_p,
        max_output_tokens=max_tokens if isinstance(max_tokens, int) else None,
        max_tool_calls=request.max_tool_calls,
        reasoning=_plain(request.reasoning),
        text=_plain(request.text),
        top_logprobs=request.top_logprobs,
        truncation=request.truncation,
        usage=None if usage is None else _usage(usage),
        user=request.user,
    )


def _status(finish_reason: str | None) -> ResponseStatus:
    if finish_reason is None:
        return "in_progress"
    return {"length": "incomplete", "abort": "cancelled"}.get(finish_reason, "completed")  # type: ignore[return-value]


def _usage(usage: UsageInfo) -> ResponsesUsage:
    details = usage.prompt_tokens_details
    return ResponsesUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=(details.cached_tokens if details else None) or 0),
        output_tokens=usage.completion_tokens or 0,
        output_tokens_details=OutputTokensDetails(),
        total_tokens=usage.total_tokens,
    )


def _plain(value: Any) -> Any:
    return None if value is None else msgspec.to_builtins(value)
