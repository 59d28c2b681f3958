"""From an OpenAI request to sampling parameters: the request's value, else the server's default, else OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tokenwire.wire.chat import ChatCompletionRequest, CommonSampling, ResponseFormat
from tokenwire.wire.completion import CompletionRequest
from tokenwire.wire.sampling import SamplingParams, StructuredOutputs
from tokenwire.wire.sampling_rules import normalize

MAX_BIAS = 100.0
"""OpenAI's bound on `logit_bias`; values beyond it are clamped."""

DEFAULTED = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
)
"""Fields that the generation config may set for requests that do not."""

COPIED = (
    "watermarking",
    "seed",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "stream_interval",
    "thinking_token_budget",
    "allowed_token_ids",
    "repetition_detection",
    "routed_experts_prompt_start",
)

MaxTokens = int | None | UnsetType


def max_tokens_for(
    prompt_len: int,
    requested: int | None,
    *,
    max_model_len: int | None,
    defaults: Mapping[str, Any],
    override: int | None,
) -> int | UnsetType:
    """How many tokens to make: the least of what is left, asked for (or defaulted) and capped.

    Unset only where the context's length is not known and nothing else bounds it; generate then fills it in.
    """
    room = None if max_model_len is None else max_model_len - prompt_len
    asked = requested if requested is not None else defaults.get("max_tokens")
    bounds = [bound for bound in (room, asked, override) if bound is not None]
    return min(bounds) if bounds else UNSET


def chat_sampling(
    request: ChatCompletionRequest,
    max_tokens: MaxTokens,
    defaults: Mapping[str, Any],
    *,
    structured: StructuredOutputs | None,
    keep_special_tokens: bool,
) -> SamplingParams:
    """Normalised parameters. `keep_special_tokens`: a parser will read the output. Raises `InvalidRequestError`."""
    wants_top = request.logprobs and not request.logprob_token_ids
    prompt_logprobs = request.prompt_logprobs
    if prompt_logprobs is None and request.echo:
        prompt_logprobs = request.top_logprobs or 0
    fields = _common(request, defaults) | {
        "n": 1 if request.n is None else request.n,
        "max_tokens": max_tokens,
        "logprobs": (request.top_logprobs or 0) if wants_top else None,
        "prompt_logprobs": prompt_logprobs,
        "structured_outputs": structured,
    }
    if keep_special_tokens:
        fields["skip_special_tokens"] = False
    return normalize(SamplingParams(**fields))


def completion_sampling(
    request: CompletionRequest, max_tokens: MaxTokens, defaults: Mapping[str, Any]
) -> SamplingParams:
    """Normalised parameters. Raises `InvalidRequestError`."""
    prompt_logprobs = request.prompt_logprobs
    if prompt_logprobs is None and request.echo:
        prompt_logprobs = request.logprobs
    only_echo = request.echo and request.requested_max_tokens == 0
    fields = _common(request, defaults) | {
        "n": request.n,
        "max_tokens": 1 if only_echo else max_tokens,
        "logprobs": None if request.logprob_token_ids else request.logprobs,
        "prompt_logprobs": prompt_logprobs,
        "structured_outputs": structured_outputs(request),
    }
    return normalize(SamplingParams(**fields))


def structured_outputs(request: CommonSampling) -> StructuredOutputs | None:
    """`structured_outputs`, with what `response_format` asks for laid over it."""
    given = request.response_format
    overlay = {} if given is None else _constraint(given)
    if not overlay:
        return request.structured_outputs
    return msgspec.structs.replace(request.structured_outputs or StructuredOutputs(), **overlay)


def _constraint(given: ResponseFormat) -> dict[str, Any]:
    if given.type == "json_object":
        return {"json_object": True}
    if given.type == "json_schema" and given.json_schema is not None:
        schema = given.json_schema.schema
        return {"json_object": True} if schema is None else {"json": schema}
    if given.type == "structural_tag":
        tag = {"type": "structural_tag"}
        body = {"format": given.format} if given.format is not None else _legacy_tag(given)
        return {"structural_tag": json.dumps(tag | body)}
    return {}


def _legacy_tag(given: ResponseFormat) -> dict[str, Any]:
    return {"structures": given.structures, "triggers": given.triggers}


def _common(request: CommonSampling, defaults: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in DEFAULTED:
        value = getattr(request, name)
        value = defaults.get(name) if value is None else value
        if value is not None:
            fields[name] = value
    fields |= {name: getattr(request, name) for name in COPIED}
    fields["stop"] = request.stop or None
    fields["bad_words"] = request.bad_words or None
    fields["stop_token_ids"] = _stop_ids(request, defaults)
    fields["logprob_token_ids"] = request.logprob_token_ids or None
    fields["extra_args"] = request.vllm_xargs or None
    if request.logit_bias is not None:
        fields["logit_bias"] = {i: min(MAX_BIAS, max(-MAX_BIAS, bias)) for i, bias in request.logit_bias.items()}
    # What upstream's render writes; generate sets both itself.
    fields["output_kind"] = 1 if request.stream else 2
    fields["skip_clone"] = True
    return fields


def _stop_ids(request: CommonSampling, defaults: Mapping[str, Any]) -> list[int] | None:
    """The request's stop ids, then those of the generation config."""
    ids = dict.fromkeys([*(request.stop_token_ids or ()), *(defaults.get("stop_token_ids") or ())])
    return list(ids) or None
