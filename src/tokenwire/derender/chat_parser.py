"""From a chat request to the parser of its output: which format, which settings, what the prompt left open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tokenwire.derender.parser import (
    Format,
    MessageDelta,
    MessageParser,
    ParserOptions,
    ReasoningState,
    reasoning_state_of_prompt,
)
from tokenwire.derender.parser.format import CallIds
from tokenwire.derender.vocabulary import TokenSource
from tokenwire.wire.generate import NamedToolChoice, ToolChoice

FIRST_WINDOW = 512
"""Prompt tokens decoded at first when looking for the last reasoning marker; doubled until one is found."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ParserSetup:
    """The server's parser, the same for every request."""

    format: Format
    call_ids: CallIds | None = None
    eos_texts: tuple[str, ...] = ()
    default_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, frozen=True, kw_only=True)
class ChatFacts:
    """What a chat request says about reading its answer."""

    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    history_tool_call_cnt: int = 0

    @property
    def names_a_tool(self) -> bool:
        return isinstance(self.tool_choice, NamedToolChoice)

    @property
    def forces_a_call(self) -> bool:
        return self.names_a_tool or self.tool_choice == "required"


def options_of(setup: ParserSetup, facts: ChatFacts, prompt_reasoning: ReasoningState) -> ParserOptions:
    """The parser's settings for one request."""
    choice = facts.tool_choice
    return ParserOptions(
        tools=facts.tools,
        tool_choice=msgspec.to_builtins(choice) if isinstance(choice, NamedToolChoice) else choice,
        parallel_tool_calls=facts.parallel_tool_calls,
        include_reasoning=facts.include_reasoning,
        chat_template_kwargs=template_kwargs(setup, facts),
        history_tool_call_cnt=facts.history_tool_call_cnt,
        prompt_reasoning=prompt_reasoning,
        call_ids=setup.call_ids,
        eos_texts=setup.eos_texts,
    )


def template_kwargs(setup: ParserSetup, facts: ChatFacts) -> dict[str, Any]:
    """The request's template settings over the server's."""
    return {**setup.default_chat_template_kwargs, **facts.chat_template_kwargs}


def prompt_reasoning(
    source: TokenSource, setup: ParserSetup, facts: ChatFacts, prompt_token_ids: Sequence[int]
) -> ReasoningState:
    """What the prompt's last reasoning marker says; only as much of the prompt is decoded as it takes to find one."""
    kwargs = template_kwargs(setup, facts)
    size = FIRST_WINDOW
    while True:
        state = reasoning_state_of_prompt(setup.format, source.decode(prompt_token_ids[-size:]), kwargs)
        if state != "undecided" or size >= len(prompt_token_ids):
            return state
        size *= 2


def read(parser: MessageParser, text: str, *, ended: bool, finish_reason: str | None = None) -> MessageDelta:
    """What `text` adds to the message, and at the end of the output what was held back."""
    delta = parser.feed(text) if text else MessageDelta()
    if ended:
        _add(delta, parser.finish(finish_reason))
    return delta


def _add(delta: MessageDelta, later: MessageDelta) -> None:
    if later.content:
        delta.content = (delta.content or "") + later.content
    if later.reasoning:
        delta.reasoning = (delta.reasoning or "") + later.reasoning
    for call in later.tool_calls:
        last = delta.tool_calls[-1] if delta.tool_calls else None
        if last is not None and last.index == call.index and call.name is None:
            last.arguments += call.arguments
        else:
            delta.tool_calls.append(call)


def final_reason(finish_reason: str | None, facts: ChatFacts, *, has_calls: bool) -> str | None:
    """ "tool_calls" where the engine said "stop", calls were made, and no single tool was named."""
    if finish_reason == "stop" and has_calls and not facts.names_a_tool:
        return "tool_calls"
    return finish_reason
