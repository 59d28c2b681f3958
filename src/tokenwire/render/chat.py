"""From a conversation to a prompt: the interface every model's chat format implements.

Most models bring a Jinja template and use `encoders/jinja.py`. A few have a format that no template file describes;
each is one small encoder, chosen by name from `encoders.ENCODERS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tokenwire.render.messages import MediaItem, Message

Prompt = str | list[int]
"""A text still to be tokenised, special tokens spelled out; or ids, from encoders that place each one themselves."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ChatInput:
    """One conversation and how to write it down."""

    messages: Sequence[Message]
    """As the client sent them."""
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Template variables: server defaults, `chat_template_kwargs`, `reasoning_effort`, ..."""
    request_variables: Mapping[str, Any] | None = None
    """The part of `variables` that came with the request's `chat_template_kwargs`; None: it had none."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    ends_closed: bool = False
    """Never open an answer, not even in a format that otherwise always does; for looking at what a message ends in."""
    template: str | None = None
    """A template text or a template's name, in place of the model's own."""


@dataclass(slots=True, frozen=True)
class EncodedChat:
    prompt: Prompt
    media: list[MediaItem] = field(default_factory=list)


class ChatEncoder(Protocol):
    """One chat format. `encode` leaves its input untouched and may run in any thread."""

    name: str
    can_truncate: bool
    """Whether a prompt may be cut to a number of tokens; a format whose first message is vital says no."""
    has_own_calls: bool
    """Whether the format itself fixes how calls are written, so that tools need no parser's name."""

    def encode(self, chat: ChatInput) -> EncodedChat:
        """Raises `InvalidRequestError` for what the format cannot express."""
        ...

    def fingerprint_parts(self) -> list[str]:
        """Everything besides the tokenizer that decides what it writes."""
        ...
