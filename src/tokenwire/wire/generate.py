"""`/inference/v1/generate`: the request, whole replies and stream chunks at the three output levels.

Field order, defaults and which nulls are sent are vLLM's; docs/wire.md has them in a table. In replies, a field of type
`... | UnsetType` is left out when unset; every other null is sent.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tokenwire.wire.arrays import pack_ids, unpack_ids
from tokenwire.wire.media import MultiModalFeatures, PlaceholderRange
from tokenwire.wire.sampling import SamplingParams
from tokenwire.wire.usage import PerRequestMetrics, UsageInfo

if TYPE_CHECKING:
    Blob = str | bytes
else:
    Blob = str
"""Base64 text in JSON, raw bytes in MessagePack. msgspec's schemas know one of the two; its encoder takes both."""

OutputMode = Literal["tokens", "text", "derender"]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False
    """Only with `include_usage`."""


class ReasoningParserKwargs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    REFUSE_UNKNOWN: ClassVar[bool] = True
    chat_template_kwargs: dict[str, Any] = {}


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class NamedToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """`{"type": "function", "function": {"name": ...}}`"""

    function: NamedFunction
    type: Literal["function"] = "function"


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


class ParseContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What `derender` must know of the chat that made the prompt. Unknown fields are refused in derender mode only."""

    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = "none"
    parallel_tool_calls: bool | None = True
    include_reasoning: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    history_tool_call_cnt: Annotated[int, Meta(ge=0)] = 0


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One prompt, given as ids."""

    IDS_BELOW: ClassVar[int | None] = None
    """All of `token_ids` are known to be below this; None: nobody has looked."""

    token_ids: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]
    sampling_params: SamplingParams
    request_id: str | None = None
    token_offsets: list[tuple[int, int]] | None = None
    features: MultiModalFeatures | None = None
    content_parts: list[dict[str, Any]] | None = None
    model: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: ReasoningParserKwargs | None = None
    return_token_ids: bool | None = None
    output_mode: OutputMode = "tokens"
    parse_context: ParseContext | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: Int64 = 0
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    # Ours; vLLM does not know them.
    logprob_token_field: bool | None = None
    """Each tokens-level logprob entry also has `token: "token_id:N"`."""
    logprobs_format: Literal["content", "packed"] | None = None
    """None: packed in a MessagePack reply of the level `tokens`, else content."""
    routed_experts_format: Literal["npy", "object"] = "npy"
    render_fingerprint: str | None = None

    def with_raw_ids(self) -> GenerateRequest:
        """As it travels in MessagePack: ids as int32 bytes, unless one of them does not fit."""
        try:
            raw: Any = pack_ids(self.token_ids)
        except OverflowError:
            return self
        return msgspec.structs.replace(self, token_ids=raw)


@functools.cache
def request_with_ids_below(vocab_size: int) -> type[GenerateRequest]:
    """The same request, but decoding it refuses ids from `vocab_size` on: a look at every id that costs nothing."""
    ids = Annotated[list[Annotated[int, Meta(ge=0, le=vocab_size - 1)]], Meta(min_length=1)]
    return msgspec.defstruct(  # type: ignore[return-value]
        "GenerateRequest",
        [("token_ids", ids)],
        bases=(GenerateRequest,),
        namespace={"IDS_BELOW": vocab_size},
        frozen=True,
        kw_only=True,
        omit_defaults=True,
        forbid_unknown_fields=True,
    )


class RawGenerateRequest(GenerateRequest, frozen=True, kw_only=True):
    """A request read from MessagePack, where ids may be int32 bytes."""

    token_ids: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)] | bytes  # type: ignore[assignment]

    def plain(self) -> GenerateRequest:
        """Raises `ValueError` for bytes that are no ids."""
        given = self.token_ids
        ids = unpack_ids(given) if isinstance(given, bytes) else given
        # The highest byte of a negative int32 is no ASCII.
        if not ids or (isinstance(given, bytes) and not given[3::4].isascii()):
            raise ValueError("ids must be there, and none negative")
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return GenerateRequest(**{**fields, "token_ids": ids})


# --- logprobs ---------------------------------------------------------------------------------------------------


class TokenIdLogprob(msgspec.Struct, frozen=True, gc=False):
    token_id: int
    logprob: float
    rank: int | None
    token: str | UnsetType = UNSET


class TokenIdLogprobEntry(msgspec.Struct, frozen=True, gc=False):
    token_id: int
    logprob: float
    rank: int | None
    top_logprobs: list[TokenIdLogprob]
    token: str | UnsetType = UNSET


class TokenIdLogprobs(msgspec.Struct, frozen=True, gc=False):
    content: list[TokenIdLogprobEntry]


class TextLogprob(msgspec.Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None


class TextLogprobEntry(msgspec.Struct, frozen=True, gc=False):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TextLogprob]


class TextLogprobs(msgspec.Struct, frozen=True, gc=False):
    content: list[TextLogprobEntry]


class PackedLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """T rows of K candidates, little-endian; base64 in JSON, raw bytes in MessagePack.

    A row is the sampled token first, then the top candidates; an absent cell has id -1.
    """

    k: int
    token_ids: Blob  # int32 [T, K]
    logprobs: Blob  # float32 [T, K]
    ranks: Blob  # int32 [T]
    candidate_ranks: Blob | UnsetType = UNSET
    """int32 [T, K], where candidates were asked for by id (`logprob_token_ids`); else column j has rank j."""
    format: Literal["packed"] = "packed"


class PromptLogprob(msgspec.Struct, frozen=True, gc=False):
    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[int, PromptLogprob] | None]


class RoutedExpertsObject(msgspec.Struct, frozen=True, kw_only=True):
    data: Blob
    shape: list[int]
    start: int
    dtype: str


class WeightVersionSpan(msgspec.Struct, frozen=True):
    version: str
    start: int
    end: int


# --- choices ----------------------------------------------------------------------------------------------------


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """An assistant message; `tool_calls` is left out when there are none."""

    role: str = "assistant"
    content: str | None = None
    refusal: str | None = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning: str | None = None


class DeltaFunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class DeltaToolCall(msgspec.Struct, frozen=True, kw_only=True):
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    index: int
    function: DeltaFunctionCall | UnsetType = UNSET


class DeltaMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | None | UnsetType = UNSET
    reasoning: str | None | UnsetType = UNSET
    tool_calls: list[DeltaToolCall] | UnsetType = UNSET


class TokensChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | bytes | None
    routed_experts: Blob | RoutedExpertsObject | None = None
    sampling_mask: list[list[int]] | None = None
    """In MessagePack `RaggedIds`, which iterates the same."""
    weight_versions: list[WeightVersionSpan] | None = None
    logprobs: TokenIdLogprobs | PackedLogprobs | None = None


class CompactTokensChoice(TokensChoice, frozen=True, kw_only=True, omit_defaults=True):
    """In a MessagePack stream: nulls are left out, which are most of a one-token chunk; readers take them as null."""

    weight_version: str | None = None
    """Of these tokens and those that follow; sent when it changes. A coordinator that ends a sequence at a stop string
    never sees the spans of its last chunk."""


class TextChoice(TokensChoice, frozen=True, kw_only=True):
    text: str
    logprobs: TextLogprobs | PackedLogprobs | None = None  # type: ignore[assignment]
    text_token_count: int | UnsetType = UNSET
    """How many of `token_ids` the text covers, where a stop string cut it."""


class DerenderChoice(TokensChoice, frozen=True, kw_only=True):
    message: Message
    logprobs: TextLogprobs | PackedLogprobs | None = None  # type: ignore[assignment]


class DerenderDeltaChoice(TokensChoice, frozen=True, kw_only=True):
    delta: DeltaMessage
    logprobs: TextLogprobs | PackedLogprobs | None = None  # type: ignore[assignment]


Choice = TokensChoice | TextChoice | DerenderChoice


# --- replies ----------------------------------------------------------------------------------------------------


class GenerateResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply. All choices are of one level, named by `output_mode`."""

    request_id: str
    model: str
    created: int
    usage: UsageInfo | None = None
    prompt_logprobs: PromptLogprobs | PackedLogprobs | None = None
    prompt_token_id_logprobs: Blob | None = None
    """Base64 `.npy`, float32 [prompt_len-1-start, num_ids]."""
    prompt_token_ids: list[int] | bytes | None = None
    mm_placeholders: dict[str, list[PlaceholderRange]] | None = None
    metrics: PerRequestMetrics | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    output_mode: OutputMode = "tokens"
    choices: list[Any]


class GenerateChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One stream event."""

    request_id: str
    usage: UsageInfo | None = None
    prompt_token_ids: list[int] | bytes | UnsetType = UNSET
    mm_placeholders: dict[str, list[PlaceholderRange]] | UnsetType = UNSET
    metrics: PerRequestMetrics | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | PackedLogprobs | UnsetType = UNSET
    prompt_token_id_logprobs: Blob | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET
    ec_transfer_params: dict[str, Any] | UnsetType = UNSET
    output_mode: OutputMode = "tokens"
    choices: list[Any]


class CompactChunk(GenerateChunk, frozen=True, kw_only=True, omit_defaults=True):
    """In a MessagePack stream, as `CompactTokensChoice`."""


class UsageChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last event with `include_usage`: no choices, nulls left out."""

    request_id: str
    usage: dict[str, Any]
    output_mode: OutputMode
    choices: list[Any]
    metrics: PerRequestMetrics | UnsetType = UNSET
