"""The level `derender`: the output as an assistant message with content, reasoning and tool calls.

A stream's deltas add up to the whole message because both come from one parser. Where reasoning was asked to be
hidden, the fields that would give it away (ids, logprobs, sampling mask) are hidden too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenwire.derender.chat_parser import ChatFacts, final_reason, read
from tokenwire.derender.parser.machine import MessageParser
from tokenwire.derender.parser.message import Message as ParsedMessage
from tokenwire.derender.parser.message import MessageDelta, assemble
from tokenwire.engine.base import EngineOutput
from tokenwire.service.levels import Shape, extras, shown_ids
from tokenwire.service.levels_text import ChoiceLogprobs
from tokenwire.service.message_shapes import generate_delta, whole_message
from tokenwire.wire.generate import DerenderChoice, DerenderDeltaChoice, OutputMode


@dataclass(slots=True)
class _Choice:
    """What one choice's stream has seen so far."""

    parser: MessageParser | None
    has_calls: bool = False
    role_sent: bool = False
    finished: bool = field(default=False)


class DerenderLevel:
    """A `Level`; the text comes from the text stage, with special tokens kept where a parser reads it."""

    mode: OutputMode = "derender"

    def __init__(
        self,
        shape: Shape,
        logprobs: ChoiceLogprobs,
        facts: ChatFacts,
        new_parser: Callable[[], MessageParser] | None,
    ) -> None:
        """`new_parser` None: the server has no parser, and the text is the content."""
        self._shape = shape
        self._logprobs = logprobs
        self._facts = facts
        self._new_parser = new_parser
        self._hides = new_parser is not None and not facts.include_reasoning
        self._choices: dict[int, _Choice] = {}

    def full(self, output: EngineOutput) -> DerenderChoice:
        reason = output.finish_reason or "stop"
        text = output.text or ""
        if self._new_parser is None:
            message = ParsedMessage(content=text)
        else:
            message = assemble([read(self._new_parser(), text, ended=True, finish_reason=reason)])
        forced = self._new_parser is not None and self._facts.forces_a_call
        return DerenderChoice(
            finish_reason=final_reason(reason, self._facts, has_calls=bool(message.tool_calls)),
            message=whole_message(message, forced=forced),
            **self._common(output),
        )

    def gaps(self) -> tuple[str, ...]:
        return ()

    def gapped(self, index: int, gap: Any) -> DerenderDeltaChoice:
        raise AssertionError("deltas of this level have no gaps")

    def values(self, output: EngineOutput) -> Sequence[bytes] | None:
        return None

    def delta(self, output: EngineOutput) -> DerenderDeltaChoice | None:
        choice = self._choices.get(output.index)
        if choice is None:
            parser = None if self._new_parser is None else self._new_parser()
            choice = self._choices[output.index] = _Choice(parser)
        if choice.finished:
            return None
        choice.finished = output.finish_reason is not None
        news = self._news(choice, output)
        fields = self._common(output)
        if not (news or choice.finished or fields["token_ids"]):
            return None
        with_role, choice.role_sent = not choice.role_sent, True
        return DerenderDeltaChoice(
            finish_reason=final_reason(output.finish_reason, self._facts, has_calls=choice.has_calls),
            delta=generate_delta(news, with_role=with_role),
            **fields,
        )

    def _news(self, choice: _Choice, output: EngineOutput) -> MessageDelta:
        text = output.text or ""
        if choice.parser is None:
            return MessageDelta(content=text or None)
        news = read(choice.parser, text, ended=choice.finished, finish_reason=output.finish_reason)
        choice.has_calls = choice.parser.saw_tool_calls
        return news

    def _common(self, output: EngineOutput) -> dict[str, Any]:
        fields = {"index": output.index, "token_ids": shown_ids(output, self._shape), **extras(output, self._shape)}
        if self._hides:
            return fields | {"token_ids": None, "logprobs": None, "sampling_mask": None}
        return fields | {"logprobs": self._logprobs.of(output)}
