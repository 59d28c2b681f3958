"""llama.cpp's native `/completion`: a token array as `prompt`, tokens and `completion_probabilities` back.

It knows stop words but no stop ids, so those are watched for here. Penalties look at the whole context, and its
default samplers are switched off, so that the same parameters mean the same as elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import msgspec

from tokenwire.engine.base import Capabilities, EngineOutput, EngineRequest, PromptOutput
from tokenwire.engine.remote.dialects.base import JSON, Call, Dialect, Reader, WorkerFacts
from tokenwire.engine.remote.dialects.reading import decode_answer
from tokenwire.engine.remote.dialects.refusals import refuse_others
from tokenwire.engine.remote.errors import ErrorInfo, from_body, from_info
from tokenwire.engine.remote.events import SseSplitter
from tokenwire.engine.remote.http import HttpClient
from tokenwire.engine.score_rows import Cell, rows
from tokenwire.errors import GenerationError, TokenwireError, UnsupportedFeatureError
from tokenwire.wire.codec import encode
from tokenwire.wire.sampling import SamplingParams, StructuredOutputs

CAPABILITIES = Capabilities(structured_outputs=frozenset({"json", "json_object", "grammar"}))
_KNOWN = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("seed", "stop_token_ids", "ignore_eos", "max_tokens", "logit_bias", "structured_outputs", "logprobs"),
    }
)
_FINISH = {"eos": "stop", "word": "stop", "limit": "length"}


class LlamaCpp(Dialect):
    name: ClassVar[str] = "llamacpp"
    max_n: ClassVar[int | None] = 1

    async def learn(self, client: HttpClient) -> WorkerFacts:
        timeout = self.options.call_timeout_s
        status, body = await client.fetch("GET", "/props", timeout_s=timeout)
        if status != 200:
            raise GenerationError(f"/props answers {status}; is this a llama.cpp server?")
        props = _decode(_PROPS, body)
        status, body = await client.fetch("GET", "/v1/models", timeout_s=timeout)
        models = _decode(_MODELS, body).data if status == 200 else []
        return WorkerFacts(
            capabilities=CAPABILITIES,
            model=props.model_path,
            max_model_len=props.default_generation_settings.n_ctx,
            vocab_size=next((m.meta.n_vocab for m in models if m.meta is not None), None),
            max_num_seqs=props.total_slots,
            extra={"worker": "llama.cpp"},
        )

    def call(self, request: EngineRequest, call_id: str, facts: WorkerFacts) -> Call:
        p = request.sampling
        refuse_others(p, _KNOWN, "a llama.cpp worker")
        if p.logprobs == -1:
            raise UnsupportedFeatureError(
                "sampling_params.logprobs", value=-1, where="a llama.cpp worker", way_out="Ask for a number of them."
            )
        body: dict[str, Any] = {
            "prompt": request.prompt_token_ids,
            "n_predict": p.max_tokens,
            "stream": request.stream,
            "return_tokens": True,
            "cache_prompt": True,
            "temperature": p.temperature,
            "top_k": max(p.top_k, 0),
            "top_p": p.top_p,
            "min_p": p.min_p,
            "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
            "repeat_last_n": -1,
            "repeat_penalty": p.repetition_penalty,
            "presence_penalty": p.presence_penalty,
            "frequency_penalty": p.frequency_penalty,
            "ignore_eos": p.ignore_eos,
            "seed": -1 if p.seed is None else p.seed % 2**32,
        }
        if p.logprobs is not None:
            body["n_probs"] = max(p.logprobs, 1)
        if p.logit_bias:
            body["logit_bias"] = [[token_id, bias] for token_id, bias in p.logit_bias.items()]
        if p.structured_outputs is not None:
            body |= _structured(p.structured_outputs)
        return Call(path="/completion", body=encode(body), headers={"content-type": JSON})

    def must_stream(self, request: EngineRequest) -> bool:
        return bool(request.sampling.stop_token_ids)

    def reader(self, request: EngineRequest, content_type: str) -> Reader:
        return LlamaCppReader(request)

    def error(self, status: int, body: bytes) -> TokenwireError:
        return from_body(status, body)


def _structured(s: StructuredOutputs) -> dict[str, Any]:
    match s.kinds[0]:
        case "json":
            return {"json_schema": msgspec.json.decode(s.json) if isinstance(s.json, str) else s.json}
        case "json_object":
            return {"json_schema": {"type": "object"}}
        case _:
            return {"grammar": s.grammar}


class _Candidate(msgspec.Struct):
    id: int
    logprob: float = -9999.0


class _Scored(_Candidate):
    top_logprobs: list[_Candidate] = []


class _Timings(msgspec.Struct):
    cache_n: int | None = None


class _Answer(msgspec.Struct):
    tokens: list[int] = []
    stop: bool = False
    stop_type: str = "none"
    completion_probabilities: list[_Scored] = []
    timings: _Timings | None = None
    error: ErrorInfo | None = None


class _Settings(msgspec.Struct):
    n_ctx: int | None = None


class _Props(msgspec.Struct):
    default_generation_settings: _Settings = msgspec.field(default_factory=_Settings)
    total_slots: int | None = None
    model_path: str | None = None


class _CardMeta(msgspec.Struct):
    n_vocab: int | None = None


class _Card(msgspec.Struct):
    meta: _CardMeta | None = None


class _Models(msgspec.Struct):
    data: list[_Card] = []


_ANSWER = msgspec.json.Decoder(_Answer)
_PROPS = msgspec.json.Decoder(_Props)
_MODELS = msgspec.json.Decoder(_Models)


_decode = partial(decode_answer, server="llama.cpp")


class LlamaCppReader:
    """Implements `Reader` for one sequence. A stop id ends it, whatever the worker goes on to say."""

    def __init__(self, request: EngineRequest) -> None:
        self._sampling: SamplingParams = request.sampling
        self._stop_ids = frozenset(request.sampling.stop_token_ids or ())
        self._splitter = SseSplitter()
        self._first = True
        self._finished = False
        self.has_enough = False

    def whole(self, body: bytes) -> list[EngineOutput]:
        return self._outputs(_decode(_ANSWER, body))

    def piece(self, data: bytes) -> Iterator[EngineOutput]:
        for payload in self._splitter.feed(data):
            if payload != b"[DONE]":
                yield from self._outputs(_decode(_ANSWER, payload))

    def end(self) -> list[EngineOutput]:
        if not self._finished:
            raise GenerationError("the worker's stream ended before its last event")
        return []

    def _outputs(self, answer: _Answer) -> list[EngineOutput]:
        if answer.error is not None:
            raise from_info(answer.error)
        if self._finished:
            return []
        token_ids, stop_id = self._until_stop(answer.tokens)
        output = EngineOutput(0, token_ids)
        if self._sampling.logprobs is not None:
            k = self._sampling.logprobs
            output.logprobs = rows([_cells(s, k) for s in answer.completion_probabilities[: len(token_ids)]])
        if self._first and token_ids:
            output.prompt = PromptOutput(num_cached_tokens=answer.timings.cache_n if answer.timings else None)
            self._first = False
        if stop_id is not None:
            output.finish_reason, output.stop_reason = "stop", stop_id
            self.has_enough = True
        elif answer.stop:
            output.finish_reason = _FINISH.get(answer.stop_type, "stop")  # type: ignore[assignment]
        self._finished = output.finish_reason is not None
        return [output] if token_ids or self._finished else []

    def _until_stop(self, tokens: list[int]) -> tuple[list[int], int | None]:
        for at, token_id in enumerate(tokens):
            if token_id in self._stop_ids:
                return tokens[: at + 1], token_id
        return tokens, None


def _cells(scored: _Scored, k: int) -> list[Cell]:
    ranked = [(c.id, c.logprob, rank + 1) for rank, c in enumerate(scored.top_logprobs)]
    rank = next((rank for i, _, rank in ranked if i == scored.id), 0)
    return [(scored.id, scored.logprob, rank), *(cell for cell in ranked[:k] if cell[0] != scored.id)]
