"""`/v1/chat/completions` and its `/render`: the request, with every field vLLM takes (names and defaults are its own).

Messages stay plain objects: what a template may look at in them is open-ended, and `render/messages.py` gives them
their normal form. `wire/chat_rules.py` holds the rules that span fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tokenwire.wire.generate import Int64, NamedToolChoice, StreamOptions, ToolChoice
from tokenwire.wire.sampling import RepetitionDetection, StructuredOutputs

ChatMessage = dict[str, Any]
"""`role` and, by role, `content`, `name`, `tool_calls`, `tool_call_id`, `reasoning`, ..."""

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
TruncationSide = Literal["left", "right"]
TruncateLength = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
MmPayload = Literal["tensors", "none"]
MAX_SALT_BOUND = 1024


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema."""
    strict: bool | None = None
    defer_loading: bool | None = None


class ChatTool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    function: FunctionDefinition
    type: Literal["function"] = "function"
    defer_loading: bool | None = None

    def as_template_data(self) -> dict[str, Any]:
        """The object a chat template sees: declared keys only, in declared order; `description` and `parameters`
        are there even when null, the optional flags are not."""
        given = self.function
        function: dict[str, Any] = {
            "name": given.name,
            "description": given.description,
            "parameters": given.parameters,
        }
        defer = given.defer_loading if given.defer_loading is not None else self.defer_loading
        if given.strict is not None:
            function["strict"] = given.strict
        if defer is not None:
            function["defer_loading"] = defer
        tool: dict[str, Any] = {"type": self.type, "function": function}
        if self.defer_loading is not None:
            tool["defer_loading"] = self.defer_loading
        return tool


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the answer must look like. `structural_tag` has either `format`, or `structures` and `triggers`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: Any = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None


class CommonSampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The fields chat and completion requests share. None: the server's default, then OpenAI's."""

    model: str | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = []
    stop_token_ids: list[int] | None = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    watermarking: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None
    routed_experts_prompt_start: Annotated[int, Meta(ge=0)] = 0
    use_beam_search: bool = False
    length_penalty: float = 1.0
    structured_outputs: StructuredOutputs | None = None
    response_format: ResponseFormat | None = None
    truncate_prompt_tokens: TruncateLength | None = None
    """How many prompt tokens to keep; -1: as many as leave room for one new token."""
    truncation_side: TruncationSide | None = None
    """Which end is cut off; None: the end of the prompt."""
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[int, Meta(ge=1)] | None = None
    priority: Int64 = 0
    request_id: str | None = None
    session_id: str | None = None
    user: str | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_SALT_BOUND)] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, Any] | None = None
    """Travels as `sampling_params.extra_args`."""
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_offsets: bool | None = False
    mm_payload: MmPayload | UnsetType = UNSET
    return_mm_kwargs: bool | None = None
    """Older name: false means `mm_payload: "none"`."""


class ChatCompletionRequest(CommonSampling, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One conversation."""

    messages: list[ChatMessage]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    """Wins over `max_tokens`."""
    n: int | None = 1
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: list[ChatTool] | None = None
    tool_choice: ToolChoice | None | UnsetType = UNSET
    """Unset: "auto" with tools, else "none"."""
    parallel_tool_calls: bool | None = True
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool = True
    echo: bool = False
    add_generation_prompt: bool | UnsetType = UNSET
    """Unset: true."""
    continue_final_message: bool = False
    add_special_tokens: bool = False
    """Chat templates write their own special tokens, so the tokenizer adds none."""
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    return_prompt_text: bool | None = None
    # Ours: token-exact conversations.
    prefix_token_ids: list[Annotated[int, Meta(ge=0)]] | None = None
    """Ids of prompt and answers so far; the new prompt begins with exactly these."""
    prefix_message_count: Annotated[int, Meta(ge=1)] | None = None
    """How many of `messages` they cover."""

    @property
    def effective_tool_choice(self) -> ToolChoice:
        if self.tool_choice is UNSET:
            return "auto" if self.tools else "none"
        return self.tool_choice or "none"

    @property
    def named_tool(self) -> str | None:
        """The function that must be called, if `tool_choice` names one."""
        choice = self.tool_choice
        return choice.function.name if isinstance(choice, NamedToolChoice) else None

    @property
    def wants_generation_prompt(self) -> bool:
        return True if self.add_generation_prompt is UNSET else self.add_generation_prompt

    @property
    def requested_max_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
