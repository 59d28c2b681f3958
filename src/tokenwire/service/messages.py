"""`/v1/messages`: a chat in Anthropic's words, answered by the chat service."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET

from tokenwire.service.chat import ChatService, PreparedChat
from tokenwire.service.context import RequestContext
from tokenwire.service.messages_stream import MessageStream, stop_of, usage_in
from tokenwire.service.reply_fields import given
from tokenwire.wire.chat_reply import ChatChoice, ChatCompletionResponse
from tokenwire.wire.generate import ToolCall
from tokenwire.wire.messages import MessagesRequest
from tokenwire.wire.messages_reply import (
    Block,
    MessageEvent,
    MessagesResponse,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)

__all__ = ["MessagesService"]

RAW_ARGUMENTS = "raw_arguments"
"""Where arguments that are no JSON object stand in a call's `input`, as the model wrote them."""


class MessagesService:
    """Anthropic's endpoint over the chat service."""

    def __init__(self, chat: ChatService) -> None:
        self.chat = chat

    async def prepare(self, request: MessagesRequest, context: RequestContext) -> PreparedChat:
        """Everything that can be refused is refused here."""
        chat = await self.chat.render.messages_as_chat(request)
        request_id = f"msg_{context.request_id_header or uuid.uuid4().hex}"
        return await self.chat.prepare(chat, context, request_id=request_id)

    async def full(self, prepared: PreparedChat) -> MessagesResponse:
        """Run to the end. Cancelling it aborts the request in the engine."""
        return _message(await self.chat.full(prepared))

    async def stream(self, prepared: PreparedChat) -> AsyncGenerator[list[MessageEvent], None]:
        """The stream's events, all that are ready at each wake-up. Closing it early aborts the request."""
        shaper = MessageStream()
        async with aclosing(self.chat.stream(prepared)) as batches:
            async for chunks in batches:
                events = [event for chunk in chunks for event in shaper.events(chunk)]
                if events:
                    yield events


def _message(reply: ChatCompletionResponse) -> MessagesResponse:
    choice = reply.choices[0]
    has_calls = bool(_calls(choice))
    reason, sequence = stop_of(choice.finish_reason, choice.stop_reason, has_calls=has_calls)
    return MessagesResponse(
        id=reply.id,
        model=reply.model,
        content=_blocks(choice, signature=reply.id),
        stop_reason=reason,
        stop_sequence=sequence,
        usage=usage_in(reply.usage),
        kv_transfer_params=given(reply.kv_transfer_params),
        ec_transfer_params=given(reply.ec_transfer_params),
    )


def _blocks(choice: ChatChoice, *, signature: str) -> list[Block]:
    """Never empty: clients expect at least one block."""
    message = choice.message
    blocks: list[Block] = []
    if message.reasoning:
        blocks.append(ThinkingBlock(thinking=message.reasoning, signature=signature))
    if message.content:
        blocks.append(TextBlock(text=message.content))
    for call in _calls(choice):
        blocks.append(ToolUseBlock(id=call.id, name=call.function.name, input=as_object(call.function.arguments)))
    return blocks or [TextBlock(text="")]


def _calls(choice: ChatChoice) -> list[ToolCall]:
    return [] if choice.message.tool_calls is UNSET else choice.message.tool_calls


def as_object(arguments: str) -> dict[str, Any]:
    """A call's arguments as the object that Anthropic's clients expect; text that is none is kept, never dropped."""
    if not arguments.strip():
        return {}
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return {RAW_ARGUMENTS: arguments}
