"""What the parser gives: deltas of one assistant message, and the message they add up to.

The border it guards: field rules of a delta. The first delta of a call index carries `id` and `name`, later ones
only argument text, and a whole message is nothing but the sum of its deltas, so a streamed and a whole answer agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class ToolCallDelta:
    """A piece of one tool call. `id` and `name` are set on the first delta of an `index` and null after it."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class MessageDelta:
    """What one `feed` or `finish` added. False when it added nothing."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


@dataclass(slots=True)
class ToolCall:
    """One whole call; `arguments` is JSON text as the model wrote it (or as far as it got before it was cut off)."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class Message:
    """The sum of all deltas; a part that never came is null."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)


class MessageBuilder:
    """Adds deltas up."""

    __slots__ = ("_arguments", "_content", "_heads", "_reasoning")

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._heads: list[tuple[str, str]] = []
        self._arguments: list[list[str]] = []

    def add(self, delta: MessageDelta) -> None:
        if delta.content:
            self._content.append(delta.content)
        if delta.reasoning:
            self._reasoning.append(delta.reasoning)
        for call in delta.tool_calls:
            if call.index == len(self._heads):
                self._heads.append((call.id or "", call.name or ""))
                self._arguments.append([])
            self._arguments[call.index].append(call.arguments)

    def message(self) -> Message:
        return Message(
            content="".join(self._content) or None,
            reasoning="".join(self._reasoning) or None,
            tool_calls=[
                ToolCall(id=id_, name=name, arguments="".join(parts))
                for (id_, name), parts in zip(self._heads, self._arguments, strict=True)
            ],
        )


def assemble(deltas: Iterable[MessageDelta]) -> Message:
    """The whole message of a stream of deltas."""
    builder = MessageBuilder()
    for delta in deltas:
        builder.add(delta)
    return builder.message()
