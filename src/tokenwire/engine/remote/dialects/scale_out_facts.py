"""What a vLLM or tokenwire server says of itself: `/v1/models`, `/server_info`, `/tokenizer_info`."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from tokenwire.engine.base import Capabilities
from tokenwire.engine.remote.dialects.base import WorkerFacts
from tokenwire.engine.remote.http import HttpClient
from tokenwire.engine.remote.options import RemoteOptions
from tokenwire.errors import GenerationError

T = TypeVar("T")


VLLM_CAPABILITIES = Capabilities(
    logprob_token_ids=True,
    prompt_logprobs=True,
    prompt_logprob_token_ids=True,
    structured_outputs=frozenset({"json", "regex", "choice", "grammar", "json_object", "structural_tag"}),
    bad_words=True,
    repetition_detection=True,
    trace_decode=True,
    thinking_token_budget=True,
    watermarking=True,
    routed_experts=True,
    sampling_mask=True,
    priority=True,
    cache_salt=True,
    adapters=True,
    modalities=frozenset({"image", "audio", "video"}),
    content_parts=True,
    kv_transfer=True,
    ec_transfer=True,
    extra_args=True,
)
"""What vLLM's generate route can be asked for. Whether its model and flags allow it, it says itself, with a 400."""


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


class _Engine(msgspec.Struct):
    name: str = "?"
    vocab_size: int | None = None
    eos_token_ids: tuple[int, ...] | None = None
    default_sampling_params: dict[str, Any] = {}
    capabilities: dict[str, Any] = {}
    block_size: int | None = None


class _Limits(msgspec.Struct):
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_logprobs: int | None = None


class _ServerInfo(msgspec.Struct):
    """tokenwire's; vLLM's dev mode has a `/server_info` too, without `limits` and `engine`."""

    limits: _Limits
    engine: _Engine
    version: str = "?"


class _TokenizerInfo(msgspec.Struct):
    eos_token: str | None = None
    added_tokens_decoder: dict[int, Any] = {}


async def learn(client: HttpClient, options: RemoteOptions) -> WorkerFacts:
    """Facts of a worker. Raises `TransportError`, or `GenerationError` if it does not serve the models route."""
    models = await _get(client, "/v1/models", _Models, options)
    if models is None or not models.data:
        raise GenerationError("the worker has no /v1/models; does it speak another dialect (--worker-dialect)?")
    base = next((card for card in models.data if card.parent is None), models.data[0])
    info = await _get(client, "/server_info", _ServerInfo, options)
    if info is not None:
        return _tokenwire_facts(base, info)
    return WorkerFacts(
        capabilities=VLLM_CAPABILITIES,
        model=base.root or base.id,
        max_model_len=base.max_model_len,
        eos_token_ids=_eos(await _get(client, "/tokenizer_info", _TokenizerInfo, options)),
        extra={"worker": "vllm"},
    )


def _tokenwire_facts(base: _Card, info: _ServerInfo) -> WorkerFacts:
    engine, limits = info.engine, info.limits
    extra: dict[str, Any] = {"worker": "tokenwire", "worker_engine": engine.name, "worker_version": info.version}
    if engine.block_size is not None:
        extra["block_size"] = engine.block_size
    known = {k: v for k, v in engine.capabilities.items() if k in Capabilities.__dataclass_fields__}
    return WorkerFacts(
        capabilities=msgspec.convert(known, Capabilities),
        model=base.root or base.id,
        max_model_len=limits.max_model_len or base.max_model_len,
        vocab_size=engine.vocab_size,
        eos_token_ids=engine.eos_token_ids,
        max_num_seqs=limits.max_num_seqs,
        max_logprobs=limits.max_logprobs,
        default_sampling_params=engine.default_sampling_params,
        extra=extra,
        is_tokenwire=True,
    )


def _eos(info: _TokenizerInfo | None) -> tuple[int, ...] | None:
    """The id of the tokenizer's EOS token, where the worker shows its added tokens."""
    if info is None or info.eos_token is None:
        return None
    for token_id, token in info.added_tokens_decoder.items():
        if (token.get("content") if isinstance(token, dict) else token) == info.eos_token:
            return (token_id,)
    return None


async def _get(client: HttpClient, path: str, kind: type[T], options: RemoteOptions) -> T | None:
    """None if the worker does not have the route, or answers something else there."""
    status, body = await client.fetch("GET", path, timeout_s=options.call_timeout_s)
    if status != 200:
        return None
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
