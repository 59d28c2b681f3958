"""Everything that can be refused before the engine is asked, in the order that callers can observe.

Which fault wins when a request has several is part of the contract; docs/wire.md lists the order.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tokenwire.engine.base import Engine, EngineRequest, EngineStatus
from tokenwire.errors import (
    CacheAbsentError,
    EngineDeadError,
    EngineUnavailableError,
    InvalidRequestError,
)
from tokenwire.service.admission import Admission, Ticket
from tokenwire.service.checks import (
    check_encodable,
    check_features,
    check_fingerprint,
    check_prompt,
    check_rank,
    check_shape,
)
from tokenwire.service.context import RequestContext, ServiceOptions
from tokenwire.service.fields import UnknownFields
from tokenwire.service.levels import Level, Shape, TextTools, TokensLevel
from tokenwire.service.models import ModelRegistry
from tokenwire.service.tokenizerless import without_tokenizer
from tokenwire.wire.generate import GenerateRequest
from tokenwire.wire.sampling import SamplingParams
from tokenwire.wire.sampling_rules import SamplingLimits, check_against, normalize

logger = logging.getLogger(__name__)

ID_PREFIX = "generate-tokens-"


@dataclass(slots=True, frozen=True, kw_only=True)
class Endpoint:
    """What an endpoint that is built on generate asks for beside the generate request."""

    request_id: str
    """As its replies show it, complete."""
    wants_logprobs: bool | None = None
    """None: as the sampling parameters say."""
    tokens_as_token_ids: bool | None = None
    timings: bool = False
    """Replies carry timings in `metrics`."""


@dataclass(slots=True, kw_only=True)
class PreparedGenerate:
    """A request that passed every check and waits to run."""

    request: GenerateRequest
    request_id: str
    """As replies show it."""
    model_name: str
    engine_request: EngineRequest
    level: Level
    shape: Shape
    context: RequestContext
    include_usage: bool = False
    continuous_usage: bool = False
    needs_text: bool = False
    timings: bool = False
    ticket: Ticket | None = None
    """Its place, until it runs; see `GenerateService.hold`."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def n(self) -> int:
        return self.engine_request.sampling.n

    @property
    def prompt_len(self) -> int:
        return len(self.engine_request.prompt_token_ids)


class Preparer:
    """Turns a decoded request into a prepared one, or refuses it."""

    def __init__(
        self,
        engine: Engine,
        models: ModelRegistry,
        options: ServiceOptions,
        text: TextTools | None,
        admission: Admission,
    ) -> None:
        self.engine = engine
        self.models = models
        self.options = options
        self.text = text
        self.admission = admission
        self.draining = False
        self.fields = UnknownFields(strict=options.strict_fields)
        self._serial = itertools.count()

    async def prepare(
        self,
        request: GenerateRequest,
        context: RequestContext,
        unknown: tuple[str, ...] = (),
        endpoint: Endpoint | None = None,
    ) -> PreparedGenerate:
        """Check the request and make it ready to run.

        `unknown` are the field names that decoding passed over; `endpoint` is None on the generate route itself.
        Raises a `CallerError` for the caller's faults, a `ServiceError` when this server cannot take it now.
        """
        sampling = normalize(request.sampling_params)
        check_shape(request, sampling, max_n=self.options.max_n)
        if unknown:
            self.fields.note(unknown, refused_prefix="parse_context." if request.output_mode == "derender" else None)
        self.models.check(request.model)
        check_fingerprint(request.render_fingerprint, self.options.render_fingerprint)
        self.preflight(sampling.n, context.data_parallel_rank)
        adapter = self.models.adapter_for(request.model, _modalities(request))
        info = self.engine.info
        self._check_combinations(request, sampling, context)
        if self.text is not None:
            self.text.check_context(request)
        check_encodable(request, sampling)
        check_against(sampling, self._limits())
        check_prompt(request, info)
        model_name = adapter.name if adapter is not None else self.models.name
        check_features(request, sampling, info, model=self.models.name)
        check_rank(context, info)
        sampling = msgspec.structs.replace(sampling, max_tokens=self.max_tokens(sampling, len(request.token_ids)))
        stop_strings = bool(sampling.stop_strings)
        shape = self._shape(request, sampling, context, endpoint)
        level = self._level(request, sampling, shape)
        request_id = _request_id(request, context) if endpoint is None else endpoint.request_id
        timings = endpoint is not None and endpoint.timings
        engine_request = EngineRequest(
            request_id=f"{request_id}-{next(self._serial):x}",
            prompt_token_ids=request.token_ids,
            sampling=sampling,
            stream=bool(request.stream) or stop_strings or timings,
            priority=request.priority,
            cache_salt=request.cache_salt,
            adapter=adapter.name if adapter is not None else None,
            features=request.features,
            content_parts=request.content_parts,
            reasoning_ended=request.reasoning_ended,
            reasoning_parser_kwargs=_reasoning_kwargs(request),
            kv_transfer_params=request.kv_transfer_params,
            ec_transfer_params=request.ec_transfer_params,
            data_parallel_rank=context.data_parallel_rank,
            session_id=context.session_id,
            trace_headers=context.trace_headers,
            arrival_time=context.arrival_time or time.time(),
        )
        if context.prefer_cached:
            await self._require_cached(engine_request)
        options = request.stream_options
        include_usage = bool(options and options.include_usage)
        return PreparedGenerate(
            request=request,
            request_id=request_id,
            model_name=model_name,
            engine_request=engine_request,
            level=level,
            shape=shape,
            context=context,
            include_usage=include_usage,
            continuous_usage=include_usage and bool(options and options.continuous_usage_stats),
            needs_text=stop_strings or request.output_mode != "tokens",
            timings=timings,
        )

    def preflight(self, n: int, rank: int | None = None) -> None:
        """Raises unless the engine, or the one replica that is asked for, is up and admission has room for `n`."""
        engine = self._replica(rank)
        status = engine.status
        if status is EngineStatus.DEAD:
            raise EngineDeadError("The engine is not running.")
        if self.draining:
            raise EngineUnavailableError("The server is shutting down.", retry_after_s=5)
        if status in (EngineStatus.STARTING, EngineStatus.RESTARTING):
            raise EngineUnavailableError(engine.trouble or f"The engine is {status.value}.", retry_after_s=5)
        if status is EngineStatus.PAUSED:
            raise EngineUnavailableError("Generation is paused; resume it with POST /resume.")
        self.admission.check(n)

    def _replica(self, rank: int | None) -> Engine:
        replicas = self.engine.replicas
        if rank is None or len(replicas) == 1 or not 0 <= rank < len(replicas):
            return self.engine
        return replicas[rank]

    def max_tokens(self, sampling: SamplingParams, prompt_len: int) -> int:
        """What was asked for, else the smallest default, never beyond the context."""
        room = self.engine.info.max_model_len - prompt_len
        asked = sampling.max_tokens
        if asked is None:
            return room
        if isinstance(asked, int):
            return min(asked, room)
        default = self.options.default_sampling_params.get("max_tokens")
        return min(v for v in (room, default, self.options.override_max_tokens) if v is not None)

    def _limits(self) -> SamplingLimits:
        info = self.engine.info
        return SamplingLimits(
            vocab_size=info.vocab_size,
            max_model_len=info.max_model_len,
            max_logprobs=info.max_logprobs,
            max_bad_words=self.options.max_bad_words,
        )

    def _check_combinations(self, request: GenerateRequest, sampling: SamplingParams, context: RequestContext) -> None:
        info = self.engine.info
        if sampling.n > info.max_num_seqs:
            raise InvalidRequestError(
                f"sampling_params.n must be at most the server's max_num_seqs ({info.max_num_seqs}), got {sampling.n}.",
                param="sampling_params.n",
            )
        if request.stream and sampling.prompt_logprob_token_ids is not None and not context.binary:
            raise InvalidRequestError(
                "prompt_logprob_token_ids are not available when stream=true. Leave stream out, or ask for "
                "'Accept: application/msgpack'.",
                param="sampling_params.prompt_logprob_token_ids",
            )
        if self.text is None and sampling.stop_strings:
            raise InvalidRequestError(
                f"stop strings are not supported on {without_tokenizer(self.engine)} "
                "because nothing is detokenized there. Check stop strings on the coordinator, or use stop_token_ids.",
                param="sampling_params.stop",
            )
        if self.text is None and request.output_mode != "tokens":
            raise InvalidRequestError(
                f"output_mode={request.output_mode!r} requires a tokenizer, but this server does not load one: it is "
                f"{without_tokenizer(self.engine)}. Send the request to a server that loads a tokenizer, or use "
                "output_mode='tokens'.",
                param="output_mode",
            )

    def _shape(
        self, request: GenerateRequest, sampling: SamplingParams, context: RequestContext, endpoint: Endpoint | None
    ) -> Shape:
        wanted = None if endpoint is None else endpoint.wants_logprobs
        token_field = request.logprob_token_field
        if token_field is None:
            token_field = self.options.logprob_token_field
        raw = context.binary and request.output_mode == "tokens" and not token_field
        return Shape(
            wants_logprobs=sampling.logprobs is not None if wanted is None else wanted,
            tokens_as_token_ids=None if endpoint is None else endpoint.tokens_as_token_ids,
            packed_logprobs=raw if request.logprobs_format is None else request.logprobs_format == "packed",
            token_field=token_field,
            routed_experts_object=request.routed_experts_format == "object",
            routed_experts_start=sampling.routed_experts_prompt_start,
            binary=context.binary,
        )

    def _level(self, request: GenerateRequest, sampling: SamplingParams, shape: Shape) -> Level:
        if request.output_mode == "tokens" or self.text is None:
            return TokensLevel(shape)
        return self.text.level(request, sampling, shape)

    async def _require_cached(self, engine_request: EngineRequest) -> None:
        needed = len(engine_request.prompt_token_ids) - 1
        cached = await self.engine.cached_prefix_len(engine_request)
        block = int(self.engine.info.extra.get("block_size", 1))
        if cached < needed - needed % block:
            raise CacheAbsentError(cached, needed - needed % block)


def _request_id(request: GenerateRequest, context: RequestContext) -> str:
    return ID_PREFIX + (context.request_id_header or request.request_id or uuid.uuid4().hex)


def _modalities(request: GenerateRequest) -> set[str]:
    """Media kinds of a token request, as default adapters are matched by them."""
    kinds = {kind for kind, hashes in request.features.mm_hashes.items() if hashes} if request.features else set()
    for part in request.content_parts or ():
        kinds.add(str(part.get("type", "")).partition("_")[0])
    return kinds


def _reasoning_kwargs(request: GenerateRequest) -> dict[str, Any] | None:
    kwargs = request.reasoning_parser_kwargs
    return None if kwargs is None else {"chat_template_kwargs": kwargs.chat_template_kwargs}
