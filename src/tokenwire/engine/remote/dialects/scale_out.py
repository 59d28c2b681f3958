"""`/inference/v1/generate`, as vLLM and tokenwire speak it (docs/wire.md).

vLLM gets plain JSON with nested logprobs. A worker that says it is tokenwire gets MessagePack and packed arrays.
Stop strings and text are made by whoever reads the ids, so neither is asked for.
"""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import urlencode

import msgspec

from tokenwire.engine.base import EngineRequest
from tokenwire.engine.control import (
    CollectiveRpc,
    Control,
    IsSleeping,
    LoadAdapter,
    Pause,
    Profile,
    ReleaseKvCache,
    ResetEncoderCache,
    ResetMediaCache,
    ResetPrefixCache,
    Resume,
    Sleep,
    UnloadAdapter,
    WakeUp,
    WeightTransfer,
)
from tokenwire.engine.remote.dialects.base import JSON, MSGPACK, Call, Dialect, Reader, WorkerFacts
from tokenwire.engine.remote.dialects.scale_out_facts import learn
from tokenwire.engine.remote.dialects.scale_out_replies import ScaleOutReader
from tokenwire.engine.remote.errors import from_body
from tokenwire.engine.remote.http import HttpClient
from tokenwire.errors import TokenwireError
from tokenwire.wire.codec import encode
from tokenwire.wire.generate import GenerateRequest, ReasoningParserKwargs, StreamOptions

ID_PREFIX = "generate-tokens-"
"""The worker puts it before every request id; aborts name the id with it."""


class ScaleOut(Dialect):
    name: ClassVar[str] = "scale-out"

    async def learn(self, client: HttpClient) -> WorkerFacts:
        return await learn(client, self.options)

    def call(self, request: EngineRequest, call_id: str, facts: WorkerFacts) -> Call:
        binary = facts.is_tokenwire and self.options.prefer_msgpack
        media_type = MSGPACK if binary else JSON
        headers = {"content-type": media_type, "accept": media_type}
        if request.session_id is not None:
            headers["x-session-id"] = _header_value(request.session_id)
        if request.data_parallel_rank is not None:
            headers["x-data-parallel-rank"] = str(request.data_parallel_rank)
        for name, value in (request.trace_headers or {}).items():
            headers[name] = _header_value(value)
        asked = self._body(request, call_id, facts)
        body = encode(asked.with_raw_ids(), "msgpack") if binary else encode(asked)
        return Call(path="/inference/v1/generate", body=body, headers=headers)

    def _body(self, request: EngineRequest, call_id: str, facts: WorkerFacts) -> GenerateRequest:
        kwargs = request.reasoning_parser_kwargs
        return GenerateRequest(
            token_ids=request.prompt_token_ids,
            sampling_params=msgspec.structs.replace(
                request.sampling, stop=None, detokenize=False, include_stop_str_in_output=False, output_kind=0
            ),
            request_id=call_id.removeprefix(ID_PREFIX),
            features=request.features,
            content_parts=None if request.content_parts is None else [dict(part) for part in request.content_parts],
            model=request.adapter or self.options.model,
            reasoning_ended=request.reasoning_ended,
            reasoning_parser_kwargs=None if kwargs is None else msgspec.convert(dict(kwargs), ReasoningParserKwargs),
            stream=request.stream,
            stream_options=StreamOptions(include_usage=True) if request.stream else None,
            cache_salt=request.cache_salt,
            priority=request.priority,
            kv_transfer_params=_plain(request.kv_transfer_params),
            ec_transfer_params=_plain(request.ec_transfer_params),
            logprobs_format="packed" if facts.is_tokenwire else None,
        )

    def reader(self, request: EngineRequest, content_type: str) -> Reader:
        return ScaleOutReader(request, "msgpack" if "msgpack" in content_type else "json")

    def error(self, status: int, body: bytes) -> TokenwireError:
        return from_body(status, body)

    def abort(self, call_id: str) -> Call | None:
        ids = [ID_PREFIX + call_id.removeprefix(ID_PREFIX)]
        return _json_call("/inference/v1/abort_requests", {"request_ids": ids})

    def streams_prompt_scores(self, request: EngineRequest, facts: WorkerFacts) -> bool:
        if request.sampling.prompt_logprob_token_ids is not None:
            return facts.is_tokenwire and self.options.prefer_msgpack
        return facts.is_tokenwire

    def streams_labels(self, facts: WorkerFacts) -> bool:
        labelled = facts.is_tokenwire and not facts.capabilities.weight_versions_at_end
        return labelled and self.options.prefer_msgpack

    def streams_transfer_params(self, facts: WorkerFacts) -> bool:
        return facts.is_tokenwire

    def controls(self, message: Control) -> list[Call]:
        match message:
            case Pause(mode=mode, clear_cache=clear):
                return [Call(path=_query("/pause", mode=mode, clear_cache=clear))]
            case Resume():
                return [Call(path="/resume")]
            case ResetPrefixCache(reset_running_requests=running, reset_external=external):
                return [
                    Call(path=_query("/reset_prefix_cache", reset_running_requests=running, reset_external=external))
                ]
            case Sleep(level=level, mode=mode):
                return [Call(path=_query("/sleep", level=level, mode=mode))]
            case WakeUp(tags=tags):
                return [Call(path="/wake_up" + ("?" + urlencode([("tags", tag) for tag in tags]) if tags else ""))]
            case ReleaseKvCache() | ResetMediaCache() | ResetEncoderCache():
                return [Call(path=f"/{message.__struct_config__.tag}")]
            case IsSleeping():
                return [Call(path="/is_sleeping", method="GET")]
            case LoadAdapter(name=name, path=path, load_inplace=inplace):
                facts = {"lora_name": name, "lora_path": path, "load_inplace": inplace}
                facts |= {"is_3d_lora_weight": True} if message.is_3d_lora_weight else {}
                return [_json_call("/v1/load_lora_adapter", facts)]
            case UnloadAdapter(name=name):
                return [_json_call("/v1/unload_lora_adapter", {"lora_name": name})]
            case WeightTransfer(action="weight_info" | "get_world_size" as action, info=info):
                return [Call(path=_query(f"/{action}", **info), method="GET")]
            case WeightTransfer(action=action, info=info):
                return [_json_call(f"/{action}", info)]
            case CollectiveRpc(method=method, args=args, kwargs=kwargs, timeout_s=timeout):
                body = {"method": method, "args": args, "kwargs": kwargs, "timeout": timeout}
                return [_json_call("/collective_rpc", body)]
            case Profile(action=action, options=options):
                return [_json_call(f"/{action}_profile", options)]
            case _:
                return super().controls(message)


def _plain(params: Any) -> dict[str, Any] | None:
    return None if params is None else dict(params)


def _header_value(text: str) -> str:
    """One line of latin-1: a header cannot hold anything else."""
    return "".join(c for c in text if c.isprintable() and ord(c) < 256)


def _query(path: str, **values: Any) -> str:
    return f"{path}?{urlencode({k: str(v).lower() for k, v in values.items()})}"


def _json_call(path: str, body: Any) -> Call:
    return Call(path=path, body=encode(body), headers={"content-type": JSON})
