"""Anthropic's `/v1/messages` and its `/render`: the request, as vLLM takes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tokenwire.wire.chat import MAX_SALT_BOUND, MmPayload

Effort = Literal["low", "medium", "high", "xhigh", "max"]


class AnthropicTool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ToolChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool that a system message adds or removes, by name or by its definition."""

    type: Literal["tool_reference", "tool_definition"]
    name: str | None = None
    definition: AnthropicTool | None = None


class ContentBlock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which fields count follows from `type`."""

    type: Literal[
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
        "tool_addition",
        "tool_removal",
    ]
    text: str | None = None
    source: dict[str, Any] | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None
    tool_name: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    tool: ToolChange | None = None


Content = str | list[ContentBlock]


class AnthropicMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Literal["user", "assistant", "system"]
    content: Content


class AnthropicToolChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class JsonOutputFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Literal["json_schema"] = "json_schema"
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    effort: Effort | None = None
    format: JsonOutputFormat | None = None


class ThinkingConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1024)] | None = None
    """Needed, and only read, when enabled."""
    display: Literal["summarized", "omitted", "updates"] | None = None


class MessagesRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    model: Annotated[str, Meta(min_length=1)]
    messages: list[AnthropicMessage]
    max_tokens: Annotated[int, Meta(ge=1)]
    system: Content | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    metadata: dict[str, Any] | None = None
    # vLLM's own.
    mm_payload: MmPayload | UnsetType = UNSET
    return_mm_kwargs: bool | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_SALT_BOUND)] | None = None
    watermarking: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`/v1/messages/count_tokens`: a conversation, without anything that concerns its answer."""

    model: Annotated[str, Meta(min_length=1)]
    messages: list[AnthropicMessage]
    system: Content | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def as_messages(self) -> MessagesRequest:
        """The request whose prompt is counted."""
        return MessagesRequest(
            model=self.model,
            messages=self.messages,
            max_tokens=1,
            system=self.system,
            tools=self.tools,
            tool_choice=self.tool_choice,
            output_config=self.output_config,
            thinking=self.thinking if self.thinking is not None and self.thinking.type != "enabled" else None,
            chat_template_kwargs=self.chat_template_kwargs,
        )
