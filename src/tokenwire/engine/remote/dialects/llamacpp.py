"""llama.cpp's native `/completion`: a token array as `prompt`, tokens and `completion_probabilities` back.

Its streams leave out the ids of tokens that end inside a character (each event tells the last id only), and a whole
answer may go on long after its caller has left. So a request becomes parts of a few tokens each, asked whole and one
after another: every part continues the ids so far, whose cache the server still has, at the cost of a round trip and
no computation. Of tokens that end inside a character it tells no score: theirs is unknown (NaN, rank 0).

The same parameters mean the same as elsewhere: its default samplers are switched off; a stop id, which it has no word
for, ends the parts; EOS that is to be ignored is sampled and continued, where its own flag would forbid it; presence
and frequency count output tokens only, which takes parts of one token, as its window of penalties is one length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from tokenwire.engine.base import Capabilities, EngineOutput, EngineRequest
from tokenwire.engine.remote.dialects.base import JSON, Call, Dialect, Reader, WorkerFacts
from tokenwire.engine.remote.dialects.llamacpp_parts import Part, counts_outputs, part_of
from tokenwire.engine.remote.dialects.llamacpp_replies import LlamaCppReader, decode
from tokenwire.engine.remote.dialects.refusals import refuse_others
from tokenwire.engine.remote.errors import from_body
from tokenwire.engine.remote.http import HttpClient
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


class LlamaCpp(Dialect):
    name: ClassVar[str] = "llamacpp"
    max_n: ClassVar[int | None] = 1

    async def learn(self, client: HttpClient) -> WorkerFacts:
        timeout = self.options.call_timeout_s
        status, body = await client.fetch("GET", "/props", timeout_s=timeout)
        if status != 200:
            raise GenerationError(f"/props answers {status}; is this a llama.cpp server?")
        props = decode(_PROPS, body)
        status, body = await client.fetch("GET", "/v1/models", timeout_s=timeout)
        models = decode(_MODELS, body).data if status == 200 else []
        return WorkerFacts(
            capabilities=CAPABILITIES,
            model=props.model_path,
            max_model_len=props.default_generation_settings.n_ctx,
            vocab_size=next((m.meta.n_vocab for m in models if m.meta is not None), None),
            max_num_seqs=props.total_slots,
            extra={"worker": "llama.cpp"},
        )

    def first_part(self, request: EngineRequest) -> EngineRequest:
        return part_of(request)

    def next_part(self, part: EngineRequest, outputs: Sequence[EngineOutput]) -> EngineRequest | None:
        assert isinstance(part, Part)
        return part.next(outputs)

    def call(self, request: EngineRequest, call_id: str, facts: WorkerFacts) -> Call:
        assert isinstance(request, Part)
        p = request.sampling
        refuse_others(p, _KNOWN, "a llama.cpp worker")
        if counts_outputs(p) and (p.repetition_penalty != 1.0 or p.structured_outputs is not None):
            raise UnsupportedFeatureError(
                "sampling_params.presence_penalty" if p.presence_penalty else "sampling_params.frequency_penalty",
                value=p.presence_penalty or p.frequency_penalty,
                where="a llama.cpp worker, together with repetition_penalty or structured_outputs",
                way_out="Use one of them.",
            )
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
            "repeat_last_n": request.penalty_window,
            "repeat_penalty": p.repetition_penalty,
            "presence_penalty": p.presence_penalty,
            "frequency_penalty": p.frequency_penalty,
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
        assert isinstance(request, Part)
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


_PROPS = msgspec.json.Decoder(_Props)
_MODELS = msgspec.json.Decoder(_Models)
