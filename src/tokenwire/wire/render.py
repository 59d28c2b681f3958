"""`/tokenize` and `/detokenize`, in vLLM's shape. (What `/render` answers is a `GenerateRequest`.)"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tokenwire.wire.chat import ChatMessage, ChatTool


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A text, or a conversation that is rendered first; exactly one of `prompt` and `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | UnsetType = UNSET
    """Unset: true for a text, false for a conversation, whose template writes its own."""
    return_token_strs: bool | None = False
    tools: list[ChatTool] | None = None
    add_generation_prompt: bool | UnsetType = UNSET
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """`token_strs` are the vocabulary's own spellings, when asked for."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ids to text, special tokens included. Ids beyond the vocabulary are passed over."""

    tokens: list[Annotated[int, Meta(ge=0, le=2**63 - 1)]]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
