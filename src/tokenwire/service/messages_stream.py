"""Chat chunks as Anthropic's stream events: blocks that open, grow and close one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import UNSET

from tokenwire.wire.chat_reply import ChatStreamChoice, ChatStreamChunk
from tokenwire.wire.generate import DeltaToolCall
from tokenwire.wire.messages_reply import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputJsonDelta,
    MessageDelta,
    MessageEvent,
    MessagesResponse,
    MessageStart,
    MessageStop,
    MessagesUsage,
    SignatureDelta,
    StopDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from tokenwire.wire.usage import UsageInfo

Open = tuple[Literal["text", "thinking", "tool"], int]
"""Kind of the block that is open, and for a tool its number."""


class MessageStream:
    """Shapes one stream. The chat below it must end with its usage."""

    def __init__(self) -> None:
        self._id = ""
        self._open: Open | None = None
        self._num_blocks = 0
        self._finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._has_calls = False

    def events(self, chunk: ChatStreamChunk) -> Iterator[MessageEvent]:
        """What this chunk adds."""
        if not self._id:
            yield self._start(chunk)
        for choice in chunk.choices:
            yield from self._choice(choice)
        if not chunk.choices and chunk.usage is not UNSET:
            yield from self._end(chunk.usage)

    def _start(self, chunk: ChatStreamChunk) -> MessageStart:
        self._id = chunk.id
        prompt_tokens = 0 if chunk.usage is UNSET else chunk.usage.prompt_tokens
        usage = MessagesUsage(input_tokens=prompt_tokens, output_tokens=0)
        return MessageStart(message=MessagesResponse(id=chunk.id, model=chunk.model, content=[], usage=usage))

    def _choice(self, choice: ChatStreamChoice) -> Iterator[MessageEvent]:
        delta = choice.delta
        if delta.reasoning:
            yield from self._opened(("thinking", 0), ThinkingBlock(thinking="", signature=""))
            yield self._grown(ThinkingDelta(thinking=delta.reasoning))
        if delta.content:
            yield from self._opened(("text", 0), TextBlock(text=""))
            yield self._grown(TextDelta(text=delta.content))
        for call in delta.tool_calls or ():
            yield from self._call(call)
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason
            self._stop_reason = None if choice.stop_reason is UNSET else choice.stop_reason

    def _call(self, call: DeltaToolCall) -> Iterator[MessageEvent]:
        self._has_calls = True
        function = call.function
        if function is UNSET:
            return
        if function.name is not UNSET:
            block = ToolUseBlock(id=call.id or f"toolu_{call.index}", name=function.name, input={})
            yield from self._opened(("tool", call.index), block)
        if function.arguments:
            yield self._grown(InputJsonDelta(partial_json=function.arguments))

    def _opened(self, kind: Open, block: Block) -> Iterator[MessageEvent]:
        if self._open == kind:
            return
        yield from self._closed()
        self._open = kind
        yield BlockStart(index=self._num_blocks, content_block=block)

    def _grown(self, delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta) -> BlockDelta:
        return BlockDelta(index=self._num_blocks, delta=delta)

    def _closed(self) -> Iterator[MessageEvent]:
        if self._open is None:
            return
        if self._open[0] == "thinking":
            yield self._grown(SignatureDelta(signature=self._id))
        yield BlockStop(index=self._num_blocks)
        self._num_blocks += 1
        self._open = None

    def _end(self, usage: UsageInfo) -> Iterator[MessageEvent]:
        yield from self._closed()
        if not self._num_blocks:
            yield from self._opened(("text", 0), TextBlock(text=""))
            yield from self._closed()
        reason, sequence = stop_of(self._finish_reason, self._stop_reason, has_calls=self._has_calls)
        yield MessageDelta(delta=StopDelta(stop_reason=reason, stop_sequence=sequence), usage=usage_in(usage))
        yield MessageStop()


def stop_of(
    finish_reason: str | None, stop_reason: int | str | None, *, has_calls: bool
) -> tuple[StopReason | None, str | None]:
    """Anthropic's stop reason and stop sequence. None for an end it has no word for (an abort)."""
    match finish_reason:
        case "length":
            return "max_tokens", None
        case "stop" if isinstance(stop_reason, str):
            return "stop_sequence", stop_reason
        case "tool_calls":
            return "tool_use", None
        case "stop" if has_calls:  # a named tool, which OpenAI does not call "tool_calls"
            return "tool_use", None
        case "stop" | "repetition":
            return "end_turn", None
    return None, None


def usage_in(usage: UsageInfo) -> MessagesUsage:
    """Anthropic's counts."""
    details = usage.prompt_tokens_details
    cached = None if details is None else details.cached_tokens
    return MessagesUsage(
        input_tokens=usage.prompt_tokens - (cached or 0),
        output_tokens=usage.completion_tokens or 0,
        cache_read_input_tokens=cached,
    )
