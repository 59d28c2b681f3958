"""llama.cpp's native `/completion`: a token array as `prompt`, tokens and `completion_probabilities` back.

Its streams leave out the ids of tokens that end inside a character (each event tells the last id only), and a whole
answer goes on when its caller has left. So a request becomes parts of a few tokens each, asked whole and one after
another: every part continues the ids so far, whose cache the server still has, at the cost of a round trip and no
computation. A stop id, which llama.cpp has no word for, ends the parts. Of tokens that end inside a character it
tells no score: theirs is unknown (NaN, rank 0).

Penalties look at the whole context, and its default samplers are switched off, so that the same parameters mean the
same as elsewhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec

from tokenwire.engine.base import Capabilities, EngineOutput, EngineRequest, PromptOutput
from tokenwire.engine.remote.dialects.base import JSON, Call, Dialect, Reader, WorkerFacts
from tokenwire.engine.remote.dialects.refusals import refuse_others
from tokenwire.engine.remote.errors import ErrorInfo, from_body, from_info
from tokenwire.engine.remote.http import HttpClient
from tokenwire.engine.score_rows import Cell, rows
from tokenwire.errors import GenerationError, TokenwireError, UnsupportedFeatureError
from tokenwire.wire.codec import encode
from tokenwire.wire.sampling import StructuredOutputs

CAPABILITIES = Capabilities(structured_outputs=frozenset({"json", "json_object", "grammar"}))
_KNOWN = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("seed", "stop_token_ids", "ignore_eos", "max_tokens", "logit_bias", "structured_outputs", "logprobs"),
    }
)
_FINISH = {"eos": "stop", "word": "stop", "limit": "length"}
PART_SIZES = (1, 2, 4)
"""Tokens of the first parts; the first one comes as soon as it can."""
PART_SIZE = 8
"""Tokens of every later part."""


@dataclass(slots=True, frozen=True)
class _Part(EngineRequest):
    """Some tokens of a request. The prompt has those of the parts before; `max_tokens` is what is left."""

    number: int = 0
    n_predict: int = 0

    @property
    def is_last(self) -> bool:
        return self.n_predict == self.sampling.max_tokens

    @property
    def seed(self) -> int:
        """-1: at random. Parts of a seed must not draw the same numbers, nor those of the next seed's parts."""
        seed = self.sampling.seed
        return -1 if seed is None else (seed + self.number * 0x9E3779B1) % 2**32


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

    def first_part(self, request: EngineRequest) -> EngineRequest:
        return _part(request, 0)

    def next_part(self, part: EngineRequest, outputs: Sequence[EngineOutput]) -> EngineRequest | None:
        assert isinstance(part, _Part)
        if any(output.finish_reason is not None for output in outputs):
            return None
        token_ids = [token_id for output in outputs for token_id in output.token_ids]
        left = _left(part) - len(token_ids)
        if not token_ids or left < 1:
            raise GenerationError("llama.cpp answered without tokens and without an end")
        sampling = msgspec.structs.replace(part.sampling, max_tokens=left)
        prompt = [*part.prompt_token_ids, *token_ids]
        return _part(dataclasses.replace(part, prompt_token_ids=prompt, sampling=sampling), part.number + 1)

    def call(self, request: EngineRequest, call_id: str, facts: WorkerFacts) -> Call:
        assert isinstance(request, _Part)
        p = request.sampling
        refuse_others(p, _KNOWN, "a llama.cpp worker")
        if p.logprobs == -1:
            raise UnsupportedFeatureError(
                "sampling_params.logprobs", value=-1, where="a llama.cpp worker", way_out="Ask for a number of them."
            )
        body: dict[str, Any] = {
            "prompt": request.prompt_token_ids,
            "n_predict": request.n_predict,
            "stream": False,
            "return_tokens": True,
            "cache_prompt": True,
            "temperature": p.temperature,
            "top_k": max(p.top_k, 0),
            "top_p": p.top_p,
            "min_p": p.min_p,
            "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
            # Newer servers know no -1 for "all of the context".
            "repeat_last_n": len(request.prompt_token_ids) + _left(request),
            "repeat_penalty": p.repetition_penalty,
            "presence_penalty": p.presence_penalty,
            "frequency_penalty": p.frequency_penalty,
            "ignore_eos": p.ignore_eos,
            "seed": request.seed,
        }
        if p.logprobs is not None:
            body["n_probs"] = max(p.logprobs, 1)
        if p.logit_bias:
            body["logit_bias"] = [[token_id, bias] for token_id, bias in p.logit_bias.items()]
        if p.structured_outputs is not None:
            body |= _structured(p.structured_outputs)
        return Call(path="/completion", body=encode(body), headers={"content-type": JSON})

    def reader(self, request: EngineRequest, content_type: str) -> Reader:
        assert isinstance(request, _Part)
        return LlamaCppReader(request)

    def error(self, status: int, body: bytes) -> TokenwireError:
        return from_body(status, body)


def _part(request: EngineRequest, number: int) -> _Part:
    """Part `number` of what is left of a request. Its size depends on nothing else, so a seed gives the same tokens every
    time. A grammar would begin anew with every part, so that is one part."""
    p = request.sampling
    left = _left(request)
    size = (*PART_SIZES, PART_SIZE)[min(number, len(PART_SIZES))]
    n_predict = min(left, size) if p.structured_outputs is None else left
    fields = {f.name: getattr(request, f.name) for f in dataclasses.fields(EngineRequest)}
    return _Part(**{**fields, "stream": False}, number=number, n_predict=n_predict)


def _left(request: EngineRequest) -> int:
    left = request.sampling.max_tokens
    assert isinstance(left, int)
    return left


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
    tokens_evaluated: int | None = None
    tokens_predicted: int | None = None
    stop_type: str = "none"
    truncated: bool = False
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


def _decode(decoder: Any, body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise GenerationError(f"the worker's answer is not what llama.cpp sends: {exc}") from exc


class LlamaCppReader:
    """Implements `Reader` for one sequence of one part. A stop id ends it, whatever the worker goes on to say."""

    has_enough = False

    def __init__(self, part: _Part) -> None:
        self._part = part
        self._stop_ids = frozenset(part.sampling.stop_token_ids or ())

    def whole(self, body: bytes) -> list[EngineOutput]:
        answer = _decode(_ANSWER, body)
        if answer.error is not None:
            raise from_info(answer.error)
        self._check(answer)
        token_ids, stop_id = self._until_stop(answer.tokens)
        output = EngineOutput(0, token_ids)
        if self._part.sampling.logprobs is not None and token_ids:
            cells = _aligned(answer.tokens, answer.completion_probabilities, self._part.sampling.logprobs)
            output.logprobs = rows(cells[: len(token_ids)])
        if self._part.number == 0:
            output.prompt = PromptOutput(num_cached_tokens=answer.timings.cache_n if answer.timings else None)
        if stop_id is not None:
            output.finish_reason, output.stop_reason = "stop", stop_id
        elif answer.stop_type != "limit" or answer.truncated or self._part.is_last:
            output.finish_reason = _FINISH.get(answer.stop_type, "stop")  # type: ignore[assignment]
        return [output]

    def piece(self, data: bytes) -> Iterator[EngineOutput]:
        raise GenerationError("llama.cpp streams although it was not asked to")

    def end(self) -> list[EngineOutput]:
        return []

    def _check(self, answer: _Answer) -> None:
        """The ids are exactly those that were sent and sampled, or it is an error."""
        sent, sampled = len(self._part.prompt_token_ids), len(answer.tokens)
        if answer.tokens_evaluated not in (None, sent):
            raise GenerationError(f"llama.cpp read {answer.tokens_evaluated} prompt tokens where {sent} were sent")
        if answer.tokens_predicted not in (None, sampled):
            raise GenerationError(f"llama.cpp sampled {answer.tokens_predicted} tokens and tells {sampled}")

    def _until_stop(self, tokens: list[int]) -> tuple[list[int], int | None]:
        for at, token_id in enumerate(tokens):
            if token_id in self._stop_ids:
                return tokens[: at + 1], token_id
        return tokens, None


def _aligned(tokens: list[int], scored: list[_Scored], k: int) -> list[list[Cell]]:
    """One row a token. Scores stand with the last token of each character, so they are dealt out from the end."""
    left = list(scored)
    cells: list[list[Cell]] = []
    for token_id in reversed(tokens):
        known = bool(left) and left[-1].id == token_id
        cells.append(_cells(left.pop(), k) if known else [(token_id, math.nan, 0)])
    cells.reverse()
    return cells


def _cells(scored: _Scored, k: int) -> list[Cell]:
    ranked = [(c.id, c.logprob, rank + 1) for rank, c in enumerate(scored.top_logprobs)]
    rank = next((rank for i, _, rank in ranked if i == scored.id), 0)
    return [(scored.id, scored.logprob, rank), *(cell for cell in ranked[:k] if cell[0] != scored.id)]
