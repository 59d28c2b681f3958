"""What travels between front ends and the core process, as MessagePack. Arrays are raw little-endian bytes.

A step is one message per front end: columns over all its rows, and details only for rows that have any, so that the
common row (one more token) costs no object on the wire.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenwire.engine.base import (
    Capabilities,
    EngineInfo,
    EngineStats,
    FinishReason,
    Logprobs,
    PromptOutput,
    WeightSpan,
)
from tokenwire.engine.control import Control, Pause, ResetPrefixCache, Resume, WeightTransfer
from tokenwire.wire.media import MultiModalFeatures
from tokenwire.wire.sampling import SamplingParams

AnyControl = Pause | Resume | ResetPrefixCache | WeightTransfer
CONTROLS: tuple[type[Control], ...] = (Pause, Resume, ResetPrefixCache, WeightTransfer)


# --- front end to core ------------------------------------------------------------------------------------------


State = Literal["ready", "frozen", "closed"]
"""Does a core take requests? frozen: they queue; closed: they are refused."""


def state_after(control: Pause | Resume) -> State:
    """The state of a core that has obeyed."""
    if isinstance(control, Resume):
        return "ready"
    return "frozen" if control.mode == "keep" else "closed"


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """A front end wants to talk; answered by `Ready`."""

    state: State = "ready"
    """That of the core before this one: a pause outlives a restart. Only the first front end is asked."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """From who keeps a core that several front ends share: the state that the server is in."""

    state: State


class Detach(msgspec.Struct, frozen=True, tag="detach"):
    """The front end goes; what it had running is aborted."""


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Another front end has died: what it had running is aborted, and what comes of it still is dropped."""

    client: bytes


class Add(msgspec.Struct, frozen=True, tag="add", kw_only=True, omit_defaults=True):
    """A request. `handle` is the front end's own number for it."""

    handle: int
    prompt: bytes  # int32 [P]
    sampling: SamplingParams
    stream: bool
    priority: int = 0
    cache_salt: str | None = None
    adapter: str | None = None
    features: MultiModalFeatures | None = None
    reasoning_ended: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End these requests. With a `call`: their last outputs are sent, then a `Reply`. Without: nobody listens."""

    handles: list[int]
    call: int | None = None


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """The reader wants no more of one sequence."""

    handle: int
    index: int
    heard: bool = False
    """Its last output is wanted; else nobody listens."""


class Probe(msgspec.Struct, frozen=True, tag="probe", kw_only=True):
    """How much of a prompt does the prefix cache hold?"""

    call: int
    prompt: bytes  # int32 [P]
    cache_salt: str | None = None
    adapter: str | None = None
    features: MultiModalFeatures | None = None


class ControlCall(msgspec.Struct, frozen=True, tag="control"):
    call: int
    control: AnyControl


ToCore = Attach | Begin | Detach | Forget | Add | Abort | Stop | Probe | ControlCall


# --- core to front end ------------------------------------------------------------------------------------------


class Scores(msgspec.Struct, frozen=True, array_like=True):
    """`Logprobs` as bytes; `width` is K. Only grows at the end."""

    width: int
    token_ids: bytes  # int32 [T, K]
    logprobs: bytes  # float32 [T, K]
    ranks: bytes  # int32 [T]
    candidate_ranks: bytes | None = None  # int32 [T, K]


class PromptNews(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """`PromptOutput` as bytes. Only grows at the end."""

    num_cached_tokens: int | None = None
    scores: Scores | None = None
    id_width: int = 0
    id_scores: bytes | None = None  # float32 [rows, id_width]


class Speculation(msgspec.Struct, frozen=True, array_like=True):
    """`SpecDecodeStats` of a sequence. Only grows at the end."""

    num_spec_tokens: int
    drafted: bytes  # uint8 [verifications]
    accepted: bytes  # uint8 [verifications]


class Detail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What row `row` of a step has beyond tokens."""

    row: int
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    retryable: bool = False
    scores: Scores | None = None
    masks: list[bytes] | None = None  # int32, one per token
    versions: list[WeightSpan] | None = None
    prompt: PromptNews | None = None
    speculation: Speculation | None = None
    kv_transfer_params: dict[str, Any] | None = None


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """The core cannot take the request. Only grows at the end."""

    handle: int
    message: str
    param: str | None
    unavailable: bool
    """Try again later; else the request itself is at fault."""


class Gauges(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of `EngineStats`, and whether the core takes requests. Only grows at the end."""

    stats: EngineStats
    state: State = "ready"


class Step(msgspec.Struct, frozen=True, tag="step", kw_only=True, omit_defaults=True):
    """News of one step, or of an abort. R rows; tokens of all rows one after another."""

    handles: bytes = b""  # int32 [R]
    indexes: bytes = b""  # int32 [R]
    counts: bytes = b""  # int32 [R]
    token_ids: bytes = b""  # int32 [sum of counts]
    details: list[Detail] = []
    refusals: list[Refusal] = []
    gauges: Gauges | None = None
    version: str | None = None
    """Weights of all tokens in rows that do not end; those that end carry their spans."""


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The answer to a call; `error` instead of facts when it failed."""

    call: int
    facts: dict[str, Any] = {}
    error: str | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The core serves."""

    info: EngineInfo


FromCore = Step | Reply | Ready

encoder = msgspec.msgpack.Encoder()
to_core_decoder: msgspec.msgpack.Decoder[ToCore] = msgspec.msgpack.Decoder(ToCore)
from_core_decoder: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)


# --- arrays <-> bytes -------------------------------------------------------------------------------------------


def pack_ids(ids: list[int]) -> bytes:
    """int32 little-endian."""
    return np.array(ids, dtype="<i4").tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """The inverse of `pack_ids`."""
    ids: list[int] = np.frombuffer(data, dtype="<i4").tolist()
    return ids


def pack_scores(scores: Logprobs) -> Scores:
    """A `Logprobs` for the wire."""
    ranks = scores.candidate_ranks
    return Scores(
        scores.token_ids.shape[1],
        _bytes(scores.token_ids, "<i4"),
        _bytes(scores.logprobs, "<f4"),
        _bytes(scores.ranks, "<i4"),
        None if ranks is None else _bytes(ranks, "<i4"),
    )


def unpack_scores(scores: Scores) -> Logprobs:
    """The inverse of `pack_scores`; the arrays are read-only views."""
    width = scores.width
    ranks = scores.candidate_ranks
    return Logprobs(
        np.frombuffer(scores.token_ids, np.int32).reshape(-1, width),
        np.frombuffer(scores.logprobs, np.float32).reshape(-1, width),
        np.frombuffer(scores.ranks, np.int32),
        None if ranks is None else np.frombuffer(ranks, np.int32).reshape(-1, width),
    )


def pack_prompt(prompt: PromptOutput) -> PromptNews:
    """A `PromptOutput` for the wire."""
    ids = prompt.token_id_logprobs
    return PromptNews(
        prompt.num_cached_tokens,
        None if prompt.logprobs is None else pack_scores(prompt.logprobs),
        0 if ids is None else ids.shape[1],
        None if ids is None else _bytes(ids, "<f4"),
    )


def unpack_prompt(news: PromptNews) -> PromptOutput:
    """The inverse of `pack_prompt`."""
    ids = news.id_scores
    table = None
    if ids is not None:
        flat = np.frombuffer(ids, np.float32)
        table = flat.reshape(-1, news.id_width) if news.id_width else flat.reshape(0, 0)
    return PromptOutput(news.num_cached_tokens, None if news.scores is None else unpack_scores(news.scores), table)


def _bytes(array: NDArray[Any], dtype: str) -> bytes:
    return np.ascontiguousarray(array, dtype=dtype).tobytes()


CAPABILITIES = Capabilities(
    logprob_token_ids=True,
    prompt_logprobs=True,
    prompt_logprob_token_ids=True,
    structured_outputs=frozenset({"json", "regex", "choice", "grammar", "json_object", "structural_tag"}),
    bad_words=True,
    repetition_detection=True,
    trace_decode=True,
    sampling_mask=False,
    priority=False,
    cache_salt=True,
    cache_probe=True,
    controls=frozenset(str(c.__struct_config__.tag) for c in CONTROLS),
)
"""What the local engine can do before it knows its options."""
