"""Chat completions as they are answered: OpenAI's objects with vLLM's extra fields, whole and as stream chunks.

Nulls are sent, as vLLM sends them; a field of type `... | UnsetType` is left out when unset.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tokenwire.wire.generate import DeltaMessage, DeltaToolCall, Message, TextLogprobs, WeightVersionSpan
from tokenwire.wire.usage import PerRequestMetrics, UsageInfo


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: Message
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    routed_experts: Any = None
    weight_versions: list[WeightVersionSpan] | None = None
    sampling_mask: list[list[int]] | UnsetType = UNSET


class ChatCompletionResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: UsageInfo
    prompt_logprobs: Any = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    metrics: PerRequestMetrics | None = None


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to the message; `tool_calls` is left out when there are none."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[DeltaToolCall] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    weight_versions: list[WeightVersionSpan] | None = None
    routed_experts: Any = UNSET
    sampling_mask: list[list[int]] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageInfo | None = None
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    metrics: PerRequestMetrics | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | UnsetType = UNSET
    prompt_logprobs: Any = UNSET


class ChatStreamChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of a streamed chat; `delta` has only what is new, the rest only what there is."""

    index: int
    delta: DeltaMessage
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None | UnsetType = UNSET
    """Beside a finish reason."""
    token_ids: list[int] | UnsetType = UNSET
    weight_versions: list[WeightVersionSpan] | UnsetType = UNSET
    routed_experts: Any = UNSET
    sampling_mask: list[list[int]] | UnsetType = UNSET


class ChatStreamChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat; the last one, with usage, has no choices."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatStreamChoice]
    usage: UsageInfo | UnsetType = UNSET
    system_fingerprint: str | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    prompt_logprobs: Any = UNSET
    metrics: PerRequestMetrics | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET
    ec_transfer_params: dict[str, Any] | UnsetType = UNSET
