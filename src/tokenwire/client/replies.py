"""What a client reads. These types take any server of the protocol at its word, but not at every word.

Fields that are not known here are passed over, and fields that an older server leaves out have defaults. (The `wire`
types are the other end: they say exactly what this package writes.) Whatever the wire, token ids are lists, and arrays
by the `..._array` names: over MessagePack those are views on the bytes that came. `bytes` fields are base64 in JSON and
raw in MessagePack; msgspec reads both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from tokenwire.client.errors import BadReplyError
from tokenwire.wire.arrays import RaggedIds, unpack_ids
from tokenwire.wire.generate import DeltaMessage, Message, WeightVersionSpan
from tokenwire.wire.usage import PerRequestMetrics, UsageInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokenwire.client.arrays import LogprobArrays

_TOKEN_ID_PREFIX = "token_id:"


class LogprobCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """One scored token: `token_id` and `rank` at the tokens level, `token` and `bytes` at the others."""

    logprob: float
    token_id: int | None = None
    rank: int | None = None
    token: str | None = None
    bytes: list[int] | None = None

    @property
    def known_token_id(self) -> int | None:
        """`token_id`, else the id in a `token_id:N` text; None if the reply gave only the text."""
        if self.token_id is None and self.token is not None and self.token.startswith(_TOKEN_ID_PREFIX):
            digits = self.token.removeprefix(_TOKEN_ID_PREFIX)
            return int(digits) if digits.isdigit() else None
        return self.token_id

    def is_same_token(self, other: LogprobCandidate) -> bool:
        if self.known_token_id is not None:
            return self.known_token_id == other.known_token_id
        return (self.token, self.bytes, self.logprob) == (other.token, other.bytes, other.logprob)


class LogprobEntry(LogprobCandidate, frozen=True, kw_only=True):
    """The sampled token with its candidates, best first."""

    top_logprobs: list[LogprobCandidate] = []


class ReplyLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of the output tokens: `content` objects, or packed arrays when the request said so."""

    content: list[LogprobEntry] | None = None
    format: str = "content"
    k: int = 0
    token_ids: bytes = b""  # int32 [T, k]
    logprobs: bytes = b""  # float32 [T, k]
    ranks: bytes = b""  # int32 [T]
    candidate_ranks: bytes | None = None  # int32 [T, k], where candidates were asked for by id

    @property
    def is_packed(self) -> bool:
        return self.format == "packed"

    def __len__(self) -> int:
        return len(self.ranks) // 4 if self.is_packed else len(self.content or ())

    def arrays(self) -> LogprobArrays:
        """Both formats as arrays; packed ones without a copy."""
        from tokenwire.client import arrays

        return arrays.unpack(self) if self.is_packed else arrays.from_content(self.content or [])

    def sampled(self) -> NDArray[np.float32]:
        """[T]: the score of each sampled token."""
        return self.arrays().sampled


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True):
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobs = list[dict[int, PromptLogprob] | None] | ReplyLogprobs
RawIds = list[int] | bytes | None


def _list_of(raw: RawIds) -> list[int] | None:
    if not isinstance(raw, bytes):
        return raw
    try:
        return unpack_ids(raw)
    except ValueError as exc:
        raise BadReplyError(f"token_ids: {exc}") from exc


def _array_of(raw: RawIds) -> NDArray[np.int32] | None:
    from tokenwire.client import arrays

    return None if raw is None else arrays.ids_array(raw)


def _prompt_arrays(scores: PromptLogprobs | None) -> LogprobArrays | None:
    from tokenwire.client import arrays

    if scores is None:
        return None
    return scores.arrays() if isinstance(scores, ReplyLogprobs) else arrays.from_prompt(scores)


def _npy(raw: bytes | None) -> NDArray[np.generic] | None:
    from tokenwire.client import arrays

    return None if raw is None else arrays.read_npy(raw)


class RoutedExperts(msgspec.Struct, frozen=True, kw_only=True):
    """Raw array with its shape [tokens, layers, experts per token]; row 0 is token `start` of the sequence."""

    data: bytes
    shape: list[int]
    dtype: str
    start: int = 0


class PlaceholderRange(msgspec.Struct, frozen=True, kw_only=True):
    offset: int
    length: int


class TokensChoice(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One sequence, or in a chunk the next part of one."""

    index: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    raw_token_ids: RawIds = msgspec.field(default=None, name="token_ids")
    logprobs: ReplyLogprobs | None = None
    weight_versions: list[WeightVersionSpan] | None = None
    raw_sampling_mask: list[list[int]] | RaggedIds | None = msgspec.field(default=None, name="sampling_mask")
    routed_experts: bytes | RoutedExperts | None = None

    @cached_property
    def token_ids(self) -> list[int] | None:
        """None where reasoning is hidden."""
        return _list_of(self.raw_token_ids)

    @property
    def token_id_array(self) -> NDArray[np.int32] | None:
        """[T]; None where reasoning is hidden."""
        return _array_of(self.raw_token_ids)

    @cached_property
    def sampling_mask(self) -> list[list[int]] | None:
        """Per token the ids that survived top-k, top-p and min-p."""
        raw = self.raw_sampling_mask
        try:
            return list(raw) if isinstance(raw, RaggedIds) else raw
        except ValueError as exc:
            raise BadReplyError(f"sampling_mask: {exc}") from exc

    def sampling_mask_arrays(self) -> list[NDArray[np.int32]] | None:
        """`sampling_mask` as one array per token."""
        from tokenwire.client import arrays

        return None if self.raw_sampling_mask is None else arrays.mask_arrays(self.raw_sampling_mask)

    def routed_experts_array(self) -> NDArray[np.generic] | None:
        """[tokens, layers, experts per token] from either format; None if the reply has none."""
        from tokenwire.client import arrays

        if self.routed_experts is None:
            return None
        if isinstance(self.routed_experts, bytes):
            return arrays.read_npy(self.routed_experts)
        return arrays.read_raw(self.routed_experts.data, self.routed_experts.shape, self.routed_experts.dtype)


class TextChoice(TokensChoice, frozen=True, kw_only=True):
    """In a chunk, `text` is the new part."""

    text: str = ""
    text_token_count: int | None = None


class DerenderChoice(TokensChoice, frozen=True, kw_only=True):
    message: Message


class DerenderDeltaChoice(TokensChoice, frozen=True, kw_only=True):
    delta: DeltaMessage = DeltaMessage()


class _Prompt(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What replies and first chunks say of the prompt."""

    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_id_logprobs: bytes | None = None
    """`.npy` bytes, float32 [prompt_len - 1 - start, num_ids]."""
    raw_prompt_token_ids: RawIds = msgspec.field(default=None, name="prompt_token_ids")

    @cached_property
    def prompt_token_ids(self) -> list[int] | None:
        return _list_of(self.raw_prompt_token_ids)

    @property
    def prompt_token_id_array(self) -> NDArray[np.int32] | None:
        """[P]"""
        return _array_of(self.raw_prompt_token_ids)

    def prompt_logprob_arrays(self) -> LogprobArrays | None:
        """Scores of prompt positions 1.. from either format; column 0 is the prompt's own token."""
        return _prompt_arrays(self.prompt_logprobs)

    def prompt_token_id_logprobs_array(self) -> NDArray[np.generic] | None:
        """[prompt_len - 1 - start, num_ids]"""
        return _npy(self.prompt_token_id_logprobs)


class GenerateResponse(_Prompt, frozen=True, kw_only=True):
    """A whole reply; `choices` are of the type that `output_mode` names (a reply without it is `tokens`)."""

    request_id: str
    choices: Sequence[TokensChoice]
    model: str | None = None
    created: int | None = None
    usage: UsageInfo | None = None
    mm_placeholders: dict[str, list[PlaceholderRange]] | None = None
    metrics: PerRequestMetrics | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    output_mode: str = "tokens"

    @property
    def _first(self) -> TokensChoice:
        if not self.choices:
            raise BadReplyError("the reply has no choices")
        return self.choices[0]

    @property
    def token_ids(self) -> list[int]:
        """Ids of the first choice. Raises `BadReplyError` if the reply hides them."""
        ids = self._first.token_ids
        if ids is None:
            raise BadReplyError("the reply has no token_ids (include_reasoning=false hides them)")
        return ids

    @property
    def text(self) -> str:
        """Text of the first choice, at output_mode "text"."""
        choice = self._first
        if not isinstance(choice, TextChoice):
            raise BadReplyError(f'a reply of output_mode "{self.output_mode}" has no text')
        return choice.text

    @property
    def message(self) -> Message:
        """Message of the first choice, at output_mode "derender"."""
        choice = self._first
        if not isinstance(choice, DerenderChoice):
            raise BadReplyError(f'a reply of output_mode "{self.output_mode}" has no message')
        return choice.message


class GenerateChunk(_Prompt, frozen=True, kw_only=True):
    """One stream event: one choice's next part, or (without choices) the last event with the total usage."""

    request_id: str = ""
    choices: Sequence[TokensChoice] = ()
    usage: UsageInfo | None = None
    mm_placeholders: dict[str, list[PlaceholderRange]] | None = None
    metrics: PerRequestMetrics | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    output_mode: str = "tokens"


_Ids = Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]


class Rendered:
    """A prompt made by render: the whole generate request, also those of its fields that are not known here."""

    __slots__ = ("body",)

    def __init__(self, body: Mapping[str, Any]) -> None:
        ids = body.get("token_ids")
        try:
            ids = msgspec.convert(unpack_ids(ids) if isinstance(ids, bytes) else ids, _Ids)
        except ValueError as exc:
            raise BadReplyError(
                f"a rendered prompt must have token_ids, a list of ids that is not empty: {exc}"
            ) from exc
        self.body = {**body, "token_ids": ids}

    @property
    def token_ids(self) -> list[int]:
        ids: list[int] = self.body["token_ids"]
        return ids

    @property
    def sampling_params(self) -> dict[str, Any]:
        return dict(self.body.get("sampling_params") or {})

    def __repr__(self) -> str:
        return f"Rendered(request_id={self.body.get('request_id')!r}, {len(self.token_ids)} token_ids)"


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `/v1/models`; an adapter names its `parent`."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    owned_by: str = ""
    created: int = 0


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ModelCard]

    def __iter__(self) -> Iterator[ModelCard]:
        return iter(self.data)


class TokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    tokens: list[int]
    count: int = 0
    max_model_len: int | None = None
    token_strs: list[str] | None = None


class DetokenizeResponse(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str


class AbortResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Ids that were running, and ids that were not; both None from a server that answers without saying."""

    aborted: list[str] | None = None
    unknown: list[str] | None = None


class DerenderedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of `/v1/chat/completions/derender` (`message`) or `/v1/completions/derender` (`text`)."""

    index: int = 0
    message: Message | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Any = None


class DerenderResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str = ""
    model: str = ""
    created: int = 0
    choices: list[DerenderedChoice]
    usage: UsageInfo | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None


class DerenderChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The derendered form of one chunk, and the state to send with the next one, to be passed on unread."""

    chunk: dict[str, Any] | None
    stream_state: dict[str, Any] | UnsetType = UNSET
