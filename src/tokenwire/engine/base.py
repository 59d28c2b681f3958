"""The engine interface: token ids in, batches of token ids out, and what an engine says it can do.

Everything that serves tokens (the local core, vLLM in-process, a remote server, a null engine) implements
`Engine`. The service checks a request against `EngineInfo.capabilities` before it starts, so an engine may assume
that it is only asked for what it declared. Arrays are numpy, little-endian, on the CPU.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenwire.engine.control import Control
from tokenwire.errors import UnsupportedFeatureError
from tokenwire.wire.media import MultiModalFeatures
from tokenwire.wire.sampling import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]


# --- what goes in -----------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class EngineRequest:
    """One request, complete and already checked. An engine never changes it."""

    request_id: str
    """Unique among live requests of this process; the service makes it so, whatever id the client sent."""
    prompt_token_ids: list[int]
    """The exact ids to condition on; never re-tokenised, never expanded."""
    sampling: SamplingParams
    """Normalised; `max_tokens` is an int that fits the context. `n` sequences share the prompt."""
    stream: bool
    """False: the caller wants one output per sequence, at its end; the engine may hold tokens back until then."""
    priority: int = 0
    """Lower runs earlier, as vLLM has it; only with priority scheduling."""
    cache_salt: str | None = None
    adapter: str | None = None
    features: MultiModalFeatures | None = None
    content_parts: Sequence[Mapping[str, Any]] | None = None
    """Unprocessed media; None unless the engine declares `content_parts`."""
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: Mapping[str, Any] | None = None
    kv_transfer_params: Mapping[str, Any] | None = None
    ec_transfer_params: Mapping[str, Any] | None = None
    data_parallel_rank: int | None = None
    session_id: str | None = None
    trace_headers: Mapping[str, str] | None = None
    arrival_time: float = 0.0
    """time.time() at which the server read the request."""


# --- what comes out ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Logprobs:
    """Scores of T positions with up to K candidates each.

    Column 0 is the sampled token (for prompt scores: the prompt token); columns 1.. are the top candidates, best
    first, or the ids asked for by `logprob_token_ids`. The sampled token may stand in a later column again. A padded
    cell has id -1.
    """

    token_ids: NDArray[np.int32]  # [T, K]
    logprobs: NDArray[np.float32]  # [T, K], natural log; -inf and NaN as the model gave them
    ranks: NDArray[np.int32]  # [T], 1 = best of the whole vocabulary; 0 = unknown (NaN)
    candidate_ranks: NDArray[np.int32] | None = None
    """[T, K] when the rank of column j is not simply j (`logprob_token_ids`)."""

    def __len__(self) -> int:
        return len(self.ranks)

    @staticmethod
    def concat(parts: Sequence[Logprobs]) -> Logprobs:
        """Parts in order, one after another; narrower parts are padded with id -1."""
        if len(parts) == 1:
            return parts[0]
        width = max(part.token_ids.shape[1] for part in parts)
        has_ranks = any(part.candidate_ranks is not None for part in parts)
        return Logprobs(
            np.concatenate([_pad(p.token_ids, width, -1) for p in parts]),
            np.concatenate([_pad(p.logprobs, width, -np.inf) for p in parts]),
            np.concatenate([p.ranks for p in parts]),
            np.concatenate([_pad(_candidate_ranks(p), width, 0) for p in parts]) if has_ranks else None,
        )

    def slice(self, start: int, stop: int) -> Logprobs:
        """Positions start..stop (half open), as views."""
        ranks = self.candidate_ranks
        return Logprobs(
            self.token_ids[start:stop],
            self.logprobs[start:stop],
            self.ranks[start:stop],
            None if ranks is None else ranks[start:stop],
        )


def _candidate_ranks(part: Logprobs) -> NDArray[np.int32]:
    if part.candidate_ranks is not None:
        return part.candidate_ranks
    ranks = np.tile(np.arange(part.token_ids.shape[1], dtype=np.int32), (len(part), 1))
    ranks[:, 0] = part.ranks
    return ranks


def _pad(array: NDArray[Any], width: int, fill: float) -> NDArray[Any]:
    missing = width - array.shape[1]
    return array if missing == 0 else np.pad(array, ((0, 0), (0, missing)), constant_values=fill)


@dataclass(slots=True, frozen=True)
class WeightSpan:
    """Output tokens start..end (half open) were sampled with this weight version."""

    version: str
    start: int
    end: int


@dataclass(slots=True)
class SpecDecodeStats:
    """Speculative decoding of one sequence. Lists are per verification step."""

    num_spec_tokens: int
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


@dataclass(slots=True)
class PromptOutput:
    """What is known once the prompt has run. Sent once per request, with the first output."""

    num_cached_tokens: int | None = None
    logprobs: Logprobs | None = None
    """`prompt_logprobs`: P-1 rows for prompt positions 1..P-1 (position 0 has no score)."""
    token_id_logprobs: NDArray[np.float32] | None = None
    """`prompt_logprob_token_ids`: [P-1-start, num_ids], NaN where the id was padding."""
    num_encoder_tokens: int = 0

    def fill(self, later: PromptOutput) -> None:
        """Take what is not known yet from facts that came later: remote workers count cached tokens at the end."""
        if self.num_cached_tokens is None:
            self.num_cached_tokens = later.num_cached_tokens
        if self.logprobs is None:
            self.logprobs = later.logprobs
        if self.token_id_logprobs is None:
            self.token_id_logprobs = later.token_id_logprobs
        self.num_encoder_tokens = self.num_encoder_tokens or later.num_encoder_tokens


class EngineOutput(msgspec.Struct, gc=False):
    """News of one sequence: the tokens since the last output, never repeated. One is made per sequence and step."""

    index: int
    token_ids: list[int]
    logprobs: Logprobs | None = None
    sampling_mask: list[NDArray[np.int32]] | None = None
    """Per new token the ids that survived top-k, top-p and min-p."""
    routed_experts: NDArray[Any] | None = None
    """[tokens, layers, experts per token]; on the last output, for the whole sequence."""
    weight_version: str | None = None
    """The label of the weights that made these tokens, where one label covers them all."""
    weight_versions: list[WeightSpan] | None = None
    """On the last output: spans over all output tokens; None where the engine has no labels. Wins over the label."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id; None for EOS, length and abort."""
    error: str | None = None
    """With finish_reason "error": what went wrong, for the log; `retryable` says whether trying again may help."""
    retryable: bool = False
    prompt: PromptOutput | None = None
    spec_decode: SpecDecodeStats | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    text: str | None = None
    """Set by the service's text stage; engines leave it None."""
    text_token_count: int | None = None
    """Set by the text stage with a stop string: how many ids of the sequence the text covers."""

    def absorb(self, later: EngineOutput) -> None:
        """Append a later output of the same sequence and weight version."""
        if self.logprobs is not None and later.logprobs is not None:
            self.logprobs = Logprobs.concat([self.logprobs, later.logprobs])
        elif later.logprobs is not None:
            self.logprobs = later.logprobs
        self.token_ids = self.token_ids + later.token_ids
        if later.sampling_mask is not None:
            self.sampling_mask = (self.sampling_mask or []) + later.sampling_mask
        if self.prompt is None:
            self.prompt = later.prompt
        elif later.prompt is not None:
            self.prompt.fill(later.prompt)
        if later.text is not None:
            self.text = (self.text or "") + later.text
        for name in _LAST_WINS:
            value = getattr(later, name)
            if value is not None:
                setattr(self, name, value)
        self.retryable = self.retryable or later.retryable


_LAST_WINS = (
    "text_token_count",
    "weight_version",
    "routed_experts",
    "weight_versions",
    "finish_reason",
    "stop_reason",
    "error",
    "spec_decode",
    "kv_transfer_params",
    "ec_transfer_params",
)


class OutputStream(Protocol):
    """The outputs of one request. Iterating gives, per wake-up, all news since the last one, in order.

    Ends after every sequence has a finish reason. Raises `EngineDeadError` or `EngineUnavailableError` when the engine
    dies under it. `aclose` before the end aborts the request in the engine and returns at once; after the end
    it does nothing.
    """

    def __aiter__(self) -> AsyncIterator[list[EngineOutput]]: ...
    async def __anext__(self) -> list[EngineOutput]: ...
    def stop(self, index: int, end_within_s: float | None = None) -> None:
        """The reader has all the tokens it wants of sequence `index`: end it in the engine.

        Nothing more of it is given out; but with `end_within_s`, one last output still comes, within that time. It has
        no tokens, finish reason "abort", and what only the end of a sequence tells, as far as the engine knows it:
        weight versions, routed experts and transfer params. These may cover tokens that were never read.
        """

    async def aclose(self) -> None: ...


# --- what an engine can do --------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True, kw_only=True)
class Capabilities:
    """What an engine declares. The service refuses anything else before generation, naming field and engine."""

    logprob_token_ids: bool = False
    prompt_logprobs: bool = False
    prompt_logprob_token_ids: bool = False
    structured_outputs: frozenset[str] = frozenset()
    """Kinds among json, regex, choice, grammar, json_object, structural_tag."""
    bad_words: bool = False
    repetition_detection: bool = False
    trace_decode: bool = False
    thinking_token_budget: bool = False
    watermarking: bool = False
    routed_experts: bool = False
    sampling_mask: bool = False
    priority: bool = False
    cache_salt: bool = False
    cache_probe: bool = False
    """`cached_prefix_len` answers (needed for `Prefer: if-available`)."""
    adapters: bool = False
    modalities: frozenset[str] = frozenset()
    """Media kinds accepted through `features`: image, audio, video."""
    content_parts: bool = False
    kv_transfer: bool = False
    ec_transfer: bool = False
    data_parallel_size: int | None = 1
    """Replicas that `data_parallel_rank` may name, from 0; None: not known here, whoever runs the request judges."""
    extra_args: bool = False
    """Passes unknown `sampling_params.extra_args` on to something that reads them."""
    controls: frozenset[str] = frozenset()
    """Tags of the `Control` messages that work."""
    weight_versions_at_end: bool = False
    """Outputs carry no labels: weight versions are told by the last output of a sequence alone."""
    speculation: bool = False
    """It speculates, and the last output of a sequence tells with what success."""


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineInfo:
    """Facts that do not change while the engine runs. Lengths in tokens."""

    name: str
    """local, vllm, remote, null: used in messages and metrics."""
    model: str
    """Path or hub name of the weights."""
    max_model_len: int
    vocab_size: int
    """Ids 0..vocab_size-1 are valid."""
    eos_token_ids: tuple[int, ...]
    """The EOS set; the first is the primary one, which ends a sequence with stop_reason None."""
    max_num_seqs: int
    max_logprobs: int
    default_sampling_params: Mapping[str, Any]
    """The generation config's non-default values, under sampling_params names."""
    capabilities: Capabilities
    is_encoder_decoder: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Shown by /server_info: dtype, device, block size, version and the like."""


class EngineStatus(enum.Enum):
    STARTING = "starting"
    READY = "ready"
    PAUSED = "paused"
    """Takes no new requests until resumed."""
    FROZEN = "frozen"
    """Paused in mode "keep": steps rest, new requests queue."""
    RESTARTING = "restarting"
    DEAD = "dead"


@dataclass(slots=True, frozen=True)
class KVTransferStats:
    """KV blocks between engines. The first two are of now, the others only grow."""

    num_waiting: int = 0
    """Requests whose blocks are being pulled."""
    num_kept: int = 0
    """Prompts whose blocks are kept for others."""
    pulls: int = 0
    """That brought all they were to bring."""
    pulled_tokens: int = 0
    """Prompt tokens that were pulled and not computed."""
    bytes_received: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    """Prompts computed although their blocks were promised, by reason."""
    kept: int = 0
    given: int = 0
    """Of those kept: pulled, or let go by the puller."""
    expired: int = 0
    dropped: int = 0
    """Ended early, for want of room or because the cache was cleared."""
    bytes_sent: int = 0


@dataclass(slots=True, frozen=True)
class EngineStats:
    """A snapshot for metrics. Counters only grow; gauges are of now."""

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    """Fraction of blocks in use, 0..1."""
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    """Prompt tokens looked up."""
    prefix_cache_hits: int = 0
    """Prompt tokens found."""
    num_steps: int = 0
    num_waiting_tokens: int = 0
    num_drafts: int = 0
    """Speculative decoding: guesses that were verified, each of one or more tokens."""
    num_draft_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
    """Accepted guesses by place in the draft, as many as a draft may have; empty without speculation."""
    kv_transfer: KVTransferStats | None = None
    """None: the engine gives and pulls no KV blocks, or does not tell."""

    @property
    def num_accepted_draft_tokens(self) -> int:
        return sum(self.accepted_per_position)


class Engine(ABC):
    """Serves token ids. All methods are called on one event loop and never block it."""

    @property
    @abstractmethod
    def info(self) -> EngineInfo:
        """Facts about the model and its limits; valid once `start` has returned."""

    @property
    @abstractmethod
    def status(self) -> EngineStatus:
        """As of now, without asking anybody."""

    @property
    def trouble(self) -> str | None:
        """While the engine cannot serve: why, as a sentence for callers; None: the status says it all."""
        return None

    @property
    def replicas(self) -> Sequence[Engine]:
        """The engines behind this one, by data-parallel rank; itself where there is but one."""
        return (self,)

    @property
    def load(self) -> int:
        """How much it has to do, without asking anybody: compares engines of one kind, has no unit."""
        return 0

    @abstractmethod
    async def start(self) -> None:
        """Bring the engine up; returns when it can serve. Raises a `ServiceError` when it cannot."""

    @abstractmethod
    async def close(self) -> None:
        """End all work and release everything. Open streams end with `EngineUnavailableError`. Idempotent."""

    @abstractmethod
    def generate(self, request: EngineRequest) -> OutputStream:
        """Start a request. Its outputs have exactly `sampling.n` sequences, each with one finish reason."""

    @abstractmethod
    async def abort(self, request_ids: Iterable[str]) -> list[str]:
        """End these requests; their streams finish with reason "abort" and what they had. Returns those that ran."""

    @abstractmethod
    async def stats(self) -> EngineStats:
        """The newest snapshot; cheap."""

    async def cached_prefix_len(self, request: EngineRequest) -> int:
        """How many prompt tokens the prefix cache holds; only with `capabilities.cache_probe`."""
        raise UnsupportedFeatureError(
            "Prefer",
            value="if-available",
            where=f"the {self.info.name} engine",
            way_out="Leave the header out.",
        )

    async def control(self, message: Control) -> dict[str, Any]:
        """Carry out a control message; returns facts for the reply. Only those in `capabilities.controls`."""
        raise UnsupportedFeatureError(
            "control",
            value=type(message).__name__,
            where=f"the {self.info.name} engine",
            way_out=f"It knows: {', '.join(sorted(self.info.capabilities.controls)) or 'none'}.",
        )
