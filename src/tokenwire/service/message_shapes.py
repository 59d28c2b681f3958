"""A parsed message as OpenAI's objects: whole, as a generate delta, and as a chat chunk's delta."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from tokenwire.derender.parser.message import Message as ParsedMessage
from tokenwire.derender.parser.message import MessageDelta, ToolCallDelta
from tokenwire.wire.chat_reply import ChatDelta
from tokenwire.wire.generate import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    FunctionCall,
    Message,
    ToolCall,
)

ROLE = "assistant"


def whole_message(parsed: ParsedMessage, *, forced: bool) -> Message:
    """`forced`: a call was required or named, and content that is not there is "" as vLLM has it."""
    calls = [
        ToolCall(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))
        for call in parsed.tool_calls
    ]
    return Message(
        role=ROLE,
        content=(parsed.content or "") if forced else parsed.content,
        reasoning=parsed.reasoning,
        tool_calls=calls or UNSET,
    )


def generate_delta(delta: MessageDelta, *, with_role: bool) -> DeltaMessage:
    """What a generate stream sends: only what there is."""
    return DeltaMessage(
        role=ROLE if with_role else UNSET,
        content=delta.content or UNSET,
        reasoning=delta.reasoning or UNSET,
        tool_calls=_calls(delta),
    )


def chat_delta(delta: MessageDelta, *, with_role: bool) -> ChatDelta:
    """What a chat stream sends: nulls for what there is not."""
    return ChatDelta(
        role=ROLE if with_role else None,
        content=delta.content or None,
        reasoning=delta.reasoning or None,
        tool_calls=_calls(delta),
    )


def _calls(delta: MessageDelta) -> list[DeltaToolCall] | UnsetType:
    return [_call(call) for call in delta.tool_calls] or UNSET


def _call(call: ToolCallDelta) -> DeltaToolCall:
    """`id`, `type` and `name` only on the first delta of a call."""
    if call.name is None:
        return DeltaToolCall(index=call.index, function=DeltaFunctionCall(arguments=call.arguments))
    function = DeltaFunctionCall(name=call.name, arguments=call.arguments)
    return DeltaToolCall(index=call.index, id=call.id or UNSET, type="function", function=function)
