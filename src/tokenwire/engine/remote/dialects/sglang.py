"""SGLang's native `/generate`: ids in as `input_ids`, ids and `(logprob, id, text)` triples out.

A stream repeats everything so far in each event, or gives news only, as the server was told; both are read, by
`completion_tokens`, which always counts from the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np

from tokenwire.engine.base import Capabilities, EngineOutput, EngineRequest, Logprobs, PromptOutput
from tokenwire.engine.remote.dialects.base import JSON, Call, Dialect, Reader, WorkerFacts
from tokenwire.engine.remote.dialects.reading import decode_answer
from tokenwire.engine.remote.dialects.refusals import refuse_others
from tokenwire.engine.remote.errors import ErrorInfo, from_body, from_info
from tokenwire.engine.remote.events import SseSplitter
from tokenwire.engine.remote.http import HttpClient
from tokenwire.engine.score_rows import Cell, rows
from tokenwire.errors import GenerationError, TokenwireError
from tokenwire.wire.codec import encode
from tokenwire.wire.sampling import SamplingParams, StructuredOutputs

CAPABILITIES = Capabilities(
    logprob_token_ids=True,
    prompt_logprobs=True,
    structured_outputs=frozenset({"json", "regex", "choice", "grammar", "json_object", "structural_tag"}),
    priority=True,
    cache_salt=True,
    adapters=True,
)
_KNOWN = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("seed", "stop_token_ids", "ignore_eos", "max_tokens", "min_tokens", "logit_bias", "structured_outputs"),
        *("logprobs", "prompt_logprobs", "logprob_token_ids"),
    }
)


class SGLang(Dialect):
    name: ClassVar[str] = "sglang"
    max_n: ClassVar[int | None] = 1

    async def learn(self, client: HttpClient) -> WorkerFacts:
        timeout = self.options.call_timeout_s
        status, body = await client.fetch("GET", "/get_model_info", timeout_s=timeout)
        if status != 200:
            raise GenerationError(f"/get_model_info answers {status}; is this an SGLang server?")
        info = _decode(_INFO, body)
        status, body = await client.fetch("GET", "/v1/models", timeout_s=timeout)
        models = _decode(_MODELS, body).data if status == 200 else []
        return WorkerFacts(
            capabilities=CAPABILITIES,
            model=info.model_path,
            max_model_len=next((m.max_model_len for m in models if m.max_model_len), None),
            extra={"worker": "sglang"},
        )

    def call(self, request: EngineRequest, call_id: str, facts: WorkerFacts) -> Call:
        sampling = request.sampling
        refuse_others(sampling, _KNOWN, "an SGLang worker")
        scored = sampling.logprobs is not None or sampling.prompt_logprobs is not None
        wanted = [k for k in (sampling.logprobs, sampling.prompt_logprobs) if k]
        body: dict[str, Any] = {
            "rid": call_id,
            "input_ids": request.prompt_token_ids,
            "sampling_params": _sampling(sampling),
            "stream": request.stream,
            "return_logprob": scored or sampling.logprob_token_ids is not None,
            "logprob_start_len": 0 if sampling.prompt_logprobs is not None else -1,
            "top_logprobs_num": 0 if sampling.logprob_token_ids is not None else max(wanted, default=0),
            "token_ids_logprob": sampling.logprob_token_ids,
            "lora_path": request.adapter,
            "data_parallel_rank": request.data_parallel_rank,
            "cache_salt": request.cache_salt,
            "priority": request.priority or None,
            "session_id": request.session_id,
        }
        headers = {"content-type": JSON, **(request.trace_headers or {})}
        return Call(path="/generate", body=encode({k: v for k, v in body.items() if v is not None}), headers=headers)

    def reader(self, request: EngineRequest, content_type: str) -> Reader:
        return SGLangReader(request)

    def error(self, status: int, body: bytes) -> TokenwireError:
        return from_body(status, body)

    def abort(self, call_id: str) -> Call | None:
        return Call(path="/abort_request", body=encode({"rid": call_id}), headers={"content-type": JSON})


def _sampling(p: SamplingParams) -> dict[str, Any]:
    """Under SGLang's names."""
    said: dict[str, Any] = {
        "max_new_tokens": p.max_tokens,
        "min_new_tokens": p.min_tokens,
        "temperature": p.temperature,
        "top_p": p.top_p,
        "top_k": p.top_k or -1,
        "min_p": p.min_p,
        "presence_penalty": p.presence_penalty,
        "frequency_penalty": p.frequency_penalty,
        "repetition_penalty": p.repetition_penalty,
        "ignore_eos": p.ignore_eos,
        "stop_token_ids": p.stop_token_ids or None,
        "sampling_seed": p.seed,
        "logit_bias": {str(k): v for k, v in p.logit_bias.items()} if p.logit_bias else None,
        **(_structured(p.structured_outputs) if p.structured_outputs is not None else {}),
    }
    return {name: value for name, value in said.items() if value is not None}


def _structured(s: StructuredOutputs) -> dict[str, str]:
    def text(value: Any) -> str:
        return value if isinstance(value, str) else encode(value).decode()

    match s.kinds[0]:
        case "json":
            return {"json_schema": text(s.json)}
        case "json_object":
            return {"json_schema": '{"type":"object"}'}
        case "regex":
            return {"regex": s.regex or ""}
        case "choice":
            return {"regex": "(" + "|".join(re.escape(choice) for choice in s.choice or ()) + ")"}
        case "grammar":
            return {"ebnf": s.grammar or ""}
        case _:
            return {"structural_tag": text(s.structural_tag)}


_Triple = tuple[float | None, int, str | None]


class _Finish(msgspec.Struct):
    type: str
    matched: int | str | None = None
    message: str | None = None
    status_code: int | None = None


class _Meta(msgspec.Struct):
    completion_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: _Finish | None = None
    weight_version: str | None = None
    input_token_logprobs: list[_Triple] | None = None
    input_top_logprobs: list[list[_Triple] | None] | None = None
    output_token_logprobs: list[_Triple] | None = None
    output_top_logprobs: list[list[_Triple] | None] | None = None
    output_token_ids_logprobs: list[list[_Triple] | None] | None = None


class _Answer(msgspec.Struct):
    output_ids: list[int] = []
    meta_info: _Meta = msgspec.field(default_factory=_Meta)
    error: ErrorInfo | None = None


class _Info(msgspec.Struct):
    model_path: str | None = None


class _Card(msgspec.Struct):
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Card] = []


_ANSWER = msgspec.json.Decoder(_Answer)
_INFO = msgspec.json.Decoder(_Info)
_MODELS = msgspec.json.Decoder(_Models)


_decode = partial(decode_answer, server="SGLang")


class SGLangReader:
    """Implements `Reader` for one sequence."""

    has_enough = False

    def __init__(self, request: EngineRequest) -> None:
        self._sampling = request.sampling
        self._splitter = SseSplitter()
        self._seen = 0
        self._first = True
        self._done = False

    def whole(self, body: bytes) -> list[EngineOutput]:
        return self._outputs(_decode(_ANSWER, body))

    def piece(self, data: bytes) -> Iterator[EngineOutput]:
        for payload in self._splitter.feed(data):
            if payload == b"[DONE]":
                self._done = True
            else:
                yield from self._outputs(_decode(_ANSWER, payload))

    def end(self) -> list[EngineOutput]:
        if not self._done:
            raise GenerationError("the worker's stream ended before its end mark")
        return []

    def _outputs(self, answer: _Answer) -> list[EngineOutput]:
        if answer.error is not None:
            raise from_info(answer.error)
        meta, sampling = answer.meta_info, self._sampling
        finish = meta.finish_reason
        if finish is not None and finish.type == "abort" and finish.status_code:
            raise from_info(ErrorInfo(message=finish.message or "aborted"), finish.status_code)
        # Servers that do not count the ids that ended a sequence still list them.
        total = max(meta.completion_tokens, len(answer.output_ids))
        new = total - self._seen
        token_ids = answer.output_ids[-new:] if new else []
        self._seen = total
        output = EngineOutput(0, token_ids, weight_version=meta.weight_version if token_ids else None)
        if sampling.logprobs is not None or sampling.logprob_token_ids is not None:
            output.logprobs = _scores(meta, len(token_ids), sampling)
        if self._first:
            output.prompt = PromptOutput(num_cached_tokens=meta.cached_tokens, logprobs=_prompt_scores(meta, sampling))
            self._first = False
        if finish is not None:
            output.finish_reason = finish.type if finish.type in ("stop", "length", "abort") else "stop"  # type: ignore[assignment]
            if finish.matched in (sampling.stop_token_ids or ()):
                output.stop_reason = finish.matched
        return [output] if token_ids or finish is not None else []


def _scores(meta: _Meta, count: int, sampling: SamplingParams) -> Logprobs:
    """Scores of the newest `count` tokens; lists may hold all so far, so they are read from their ends."""
    sampled = (meta.output_token_logprobs or [])[-count:] if count else []
    asked = meta.output_token_ids_logprobs if sampling.logprob_token_ids is not None else meta.output_top_logprobs
    top = (asked or [])[-count:] if count else []
    k = None if sampling.logprob_token_ids is not None else sampling.logprobs
    return rows([_cells(s, top[t] if t < len(top) else None, k) for t, s in enumerate(sampled)])


def _prompt_scores(meta: _Meta, sampling: SamplingParams) -> Logprobs | None:
    if sampling.prompt_logprobs is None or meta.input_token_logprobs is None:
        return None
    top = meta.input_top_logprobs or []
    scored = [
        _cells(triple, top[t] if t < len(top) else None, sampling.prompt_logprobs)
        for t, triple in enumerate(meta.input_token_logprobs)
        if triple[0] is not None
    ]
    return rows(scored) if scored else None


def _cells(sampled: _Triple, top: list[_Triple] | None, k: int | None) -> list[Cell]:
    """The sampled token first; SGLang tells no ranks, so they are places in the list of the best."""
    ranked = [(i, _number(score), rank + 1) for rank, (score, i, _) in enumerate((top or [])[:k])]
    rank = next((rank for i, _, rank in ranked if i == sampled[1]), 0)
    return [(sampled[1], _number(sampled[0]), rank), *(cell for cell in ranked if cell[0] != sampled[1])]


def _number(score: float | None) -> float:
    return float(np.nan) if score is None else score
