"""OpenAI's responses as they are answered: output items, the whole response, stream events.

A field of type `... | UnsetType` is left out when unset; every other null is sent.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tokenwire.wire.usage import PerRequestMetrics

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "cancelled"]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] | None = None


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    summary: list[Any] = []
    content: list[ReasoningText]
    encrypted_content: str | None = None
    status: ItemStatus | None = None


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class CustomCallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool: its input is free text."""

    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus


OutputItem = ReasoningItem | MessageItem | FunctionCallItem | CustomCallItem


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0


class ResponsesUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens", "content_filter"]


class ResponsesResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, with the settings it was made with."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    error: Any = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    metadata: dict[str, Any] | None = None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    temperature: float | None
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float | None
    background: bool = False
    store: bool = False
    """Nothing is kept, whatever was asked for."""
    max_output_tokens: int | None
    max_tool_calls: int | None = None
    previous_response_id: str | None = None
    prompt: Any = None
    reasoning: Any = None
    service_tier: str | None = "default"
    text: Any = None
    top_logprobs: int | None = None
    truncation: str | None
    usage: ResponsesUsage | None = None
    user: str | None = None
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET
    ec_transfer_params: dict[str, Any] | UnsetType = UNSET
    metrics: PerRequestMetrics | UnsetType = UNSET


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One stream event; which fields it has follows from `type`."""

    type: str
    sequence_number: int
    response: ResponsesResponse | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
