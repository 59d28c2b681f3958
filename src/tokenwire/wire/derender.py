"""`/derender`: token-level replies on their way back into OpenAI's objects, whole or chunk by chunk.

A reply that comes in was made by some token server, ours or vLLM's: fields we do not know are passed over, those a
reply may lack have defaults. The state that a client carries between chunks has vLLM's fields, and beside them ours.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tokenwire.errors import BodyValidationError, InvalidRequestError
from tokenwire.wire import codec
from tokenwire.wire.arrays import RaggedIds
from tokenwire.wire.chat import ChatCompletionRequest
from tokenwire.wire.chat_reply import ChatCompletionChunk
from tokenwire.wire.completion import CompletionRequest
from tokenwire.wire.completion_reply import CompletionChunk
from tokenwire.wire.generate import WeightVersionSpan
from tokenwire.wire.usage import PerRequestMetrics, UsageInfo

TokenId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
TokenIds = list[TokenId]
Index = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Offset = Annotated[int, Meta(ge=0, le=2**53)]

# --- replies of a token server, as read -------------------------------------------------------------------------


class ReceivedCandidate(msgspec.Struct, frozen=True):
    token_id: TokenId
    logprob: float
    rank: int | None = None


class ReceivedEntry(msgspec.Struct, frozen=True):
    token_id: TokenId
    logprob: float
    rank: int | None = None
    top_logprobs: list[ReceivedCandidate] = []


class ReceivedLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """`content`, or with `format: "packed"` arrays (docs/wire.md)."""

    content: list[ReceivedEntry] | None = None
    format: Literal["packed", "content"] | None = None
    k: int | None = None
    token_ids: Any = None
    """Base64 text in JSON, bytes in MessagePack; so are the two below."""
    logprobs: Any = None
    ranks: Any = None


class ReceivedChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: Index
    finish_reason: str | None | UnsetType = UNSET
    """Left out: "stop" in a whole reply, not finished in a chunk."""
    stop_reason: int | str | None = None
    token_ids: TokenIds | None = None
    logprobs: ReceivedLogprobs | None = None
    routed_experts: Any = None
    sampling_mask: list[list[int]] | RaggedIds | None = None
    """Two arrays where the reply came over MessagePack; `masks` reads both."""
    weight_versions: list[WeightVersionSpan] | None = None

    @property
    def masks(self) -> list[list[int]] | None:
        """Raises `InvalidRequestError` for arrays that do not fit together."""
        if not isinstance(self.sampling_mask, RaggedIds):
            return self.sampling_mask
        try:
            return list(self.sampling_mask)
        except ValueError as exc:
            raise InvalidRequestError(f"sampling_mask does not fit together: {exc}", param="sampling_mask") from exc


class ReceivedReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply, or one chunk. Only the level `tokens` can be derendered: the others are text already."""

    choices: list[ReceivedChoice]
    request_id: str | None = None
    model: str | None = None
    created: int | None = None
    usage: UsageInfo | None = None
    prompt_logprobs: Any = None
    prompt_token_ids: TokenIds | None = None
    metrics: PerRequestMetrics | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    output_mode: Literal["tokens"] = "tokens"


# --- the state a client carries ---------------------------------------------------------------------------------


class DerenderStreamState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence between two chunks. A state with upstream's fields alone is replayed once."""

    prev_tokens: Annotated[list[str], Meta(max_length=1024)] = []
    """Upstream's decode window: token strings from `prefix_offset` on."""
    prefix_offset: Offset = 0
    read_offset: Offset = 0
    role_sent: bool = False
    logprob_context_token_ids: Annotated[TokenIds, Meta(max_length=4)] = []
    logprob_text_offset: Offset = 0
    output_token_ids: TokenIds = []
    """Upstream's replay buffer; always empty in a state of ours."""
    output_chunk_lens: list[Annotated[int, Meta(gt=0)]] = []
    tools_streamed: bool = False
    last_tool_call_ids: list[str] = []
    tokenwire: dict[str, Any] | None = None
    """Our own part, `derender/stream_state.py`."""

    def check(self, path: str) -> None:
        """Raises `BodyValidationError` where the replay buffer does not add up."""
        total = sum(self.output_chunk_lens)
        if total != len(self.output_token_ids):
            raise BodyValidationError(
                [
                    (
                        path,
                        f"output_chunk_lens must sum to len(output_token_ids) (got sum={total}, "
                        f"len(output_token_ids)={len(self.output_token_ids)})",
                    )
                ]
            )


# --- requests ---------------------------------------------------------------------------------------------------


class DerenderChatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    generate_response: ReceivedReply
    stream: Literal[False] | None = False
    model: str | None = None
    prompt_tokens: int | None = None
    """For usage; 0 if left out."""
    prompt_token_ids: TokenIds | None = None
    """Seeds decoding; without a parser the end of the prompt is enough."""
    chat_request: ChatCompletionRequest | None = None
    """The request that was rendered; needed where a parser is configured."""


class DerenderChatStreamRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    generate_chunk: ReceivedReply
    stream: Literal[True] = True
    model: str | None = None
    stream_state: DerenderStreamState | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: TokenIds | None = None
    chat_request: ChatCompletionRequest | None = None


class DerenderCompletionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    generate_responses: list[ReceivedReply]
    stream: Literal[False] | None = False
    model: str | None = None
    prompt_tokens: list[int] | None = None
    prompt_token_ids: list[TokenIds | None] | None = None
    completion_request: CompletionRequest | None = None

    def check(self) -> None:
        """Raises `BodyValidationError` where the parallel lists have other lengths."""
        count = len(self.generate_responses)
        for name, given in (("prompt_tokens", self.prompt_tokens), ("prompt_token_ids", self.prompt_token_ids)):
            if given is not None and len(given) != count:
                sentence = f"{name} length ({len(given)}) must equal generate_responses length ({count})"
                raise BodyValidationError([("body", sentence)])


class DerenderCompletionStreamRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    generate_chunk: ReceivedReply
    stream: Literal[True] = True
    model: str | None = None
    stream_state: DerenderStreamState | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: TokenIds | None = None
    completion_request: CompletionRequest | None = None


class DerenderChatStreamResponse(msgspec.Struct, frozen=True, kw_only=True):
    chunk: ChatCompletionChunk
    stream_state: DerenderStreamState


class DerenderCompletionStreamResponse(msgspec.Struct, frozen=True, kw_only=True):
    chunk: CompletionChunk
    stream_state: DerenderStreamState


class _Stream(msgspec.Struct):
    stream: Any = False


def decode_chat(
    body: bytes, fmt: codec.Format = "json"
) -> tuple[DerenderChatRequest | DerenderChatStreamRequest, tuple[str, ...]]:
    """The request, whole or stream by its `stream` field, and the names of unknown fields. `BodyValidationError`."""
    if _is_stream(body, fmt):
        streamed, unknown = codec.decode(DerenderChatStreamRequest, body, fmt)
        _check_state(streamed.stream_state)
        return streamed, unknown
    return codec.decode(DerenderChatRequest, body, fmt)


def decode_completion(
    body: bytes, fmt: codec.Format = "json"
) -> tuple[DerenderCompletionRequest | DerenderCompletionStreamRequest, tuple[str, ...]]:
    """As `decode_chat`, for completions."""
    if _is_stream(body, fmt):
        streamed, unknown = codec.decode(DerenderCompletionStreamRequest, body, fmt)
        _check_state(streamed.stream_state)
        return streamed, unknown
    whole, unknown = codec.decode(DerenderCompletionRequest, body, fmt)
    whole.check()
    return whole, unknown


def _check_state(state: DerenderStreamState | None) -> None:
    if state is not None:
        state.check("body.stream_state")


def _is_stream(body: bytes, fmt: codec.Format) -> bool:
    try:
        peeked, _ = codec.decode(_Stream, body, fmt)
    except BodyValidationError:
        return False
    return peeked.stream is True
