"""OpenAI's `/v1/responses` and its `/render`, without stored state: the request, as vLLM takes it.

Input items are of many kinds and stay plain objects; `service/responses_to_chat.py` reads them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tokenwire.wire.chat import MAX_SALT_BOUND, MmPayload, ReasoningEffort
from tokenwire.wire.generate import Int64
from tokenwire.wire.sampling import StructuredOutputs

InputItem = dict[str, Any]
LOGPROBS = "message.output_text.logprobs"


class ReasoningConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    effort: ReasoningEffort | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] = []
    """Function tools are flat here: name and parameters beside `type`."""
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool | None = True
    reasoning: ReasoningConfig | None = None
    include_reasoning: bool = True
    text: TextConfig | None = None
    include: list[str] | None = None
    top_logprobs: int | None = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = []
    stop_token_ids: list[int] | None = []
    ignore_eos: bool = False
    logit_bias: dict[int, float] | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncation: Literal["auto", "disabled"] | None = "disabled"
    stream: bool | None = False
    structured_outputs: StructuredOutputs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    mm_payload: MmPayload | UnsetType = UNSET
    return_mm_kwargs: bool | None = None
    priority: Int64 = 0
    request_id: str | None = None
    session_id: str | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_SALT_BOUND)] | None = None
    watermarking: bool | None = None
    vllm_xargs: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    # Accepted as OpenAI's clients send them; they change no prompt.
    background: bool | None = False
    store: bool | None = True
    previous_response_id: str | None = None
    """Refused: nothing is stored here."""
    previous_input_messages: list[Any] | None = None
    prompt: Any = None
    max_tool_calls: int | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = "auto"
    user: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    enable_response_messages: bool = False

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())
