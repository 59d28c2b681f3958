"""Refusals before generation: rules of the generate request, and features the engine did not declare.

Nothing is silently ignored: a field that is used must be one that the engine reads, or the request is a 400 that
names field, value, engine and the way out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tokenwire.engine.base import Capabilities, EngineInfo
from tokenwire.errors import InvalidRequestError, PromptTooLongError, UnsupportedFeatureError
from tokenwire.service.context import RequestContext
from tokenwire.wire.generate import GenerateRequest
from tokenwire.wire.sampling import SamplingParams

MAX_CACHE_SALT = 128
READ_BY_ENDPOINTS = frozenset({"session_id"})
"""`extra_args` that the ordinary endpoints look into themselves (as `vllm_xargs`)."""
FORBIDDEN_IN_SALT = frozenset("@/\\\0")


def check_cache_salt(salt: str | None) -> None:
    """At most 128 characters, none of `@ / \\ NUL`, never empty: it becomes part of cache keys and paths."""
    if salt is None:
        return
    if not salt:
        raise InvalidRequestError("Parameter 'cache_salt' must be a non-empty string if provided.", param="cache_salt")
    if len(salt) > MAX_CACHE_SALT:
        raise InvalidRequestError(
            f"Parameter 'cache_salt' must have at most {MAX_CACHE_SALT} characters, got {len(salt)}.",
            param="cache_salt",
        )
    bad = sorted(FORBIDDEN_IN_SALT.intersection(salt))
    if bad:
        raise InvalidRequestError(
            f"Parameter 'cache_salt' must not contain any of '@', '/', '\\' or NUL, got {bad[0]!r}.", param="cache_salt"
        )


def check_fingerprint(rendered_with: str | None, own: str | None) -> None:
    """Ids of another vocabulary or template are refused, where both sides say which they use."""
    if rendered_with is not None and own is not None and rendered_with != own:
        raise InvalidRequestError(
            f"render_fingerprint={rendered_with!r} is not this server's {own!r}: the prompt was rendered with another "
            "tokenizer or chat template.",
            param="render_fingerprint",
        )


def check_shape(request: GenerateRequest, sampling: SamplingParams, *, max_n: int) -> None:
    """Rules of the body that need no engine: the counterpart of upstream's model validators."""
    if sampling.n > max_n:
        raise InvalidRequestError(f"n must be at most {max_n}, got {sampling.n}.", param="sampling_params.n")
    check_cache_salt(request.cache_salt)
    if request.output_mode != "tokens" and not sampling.detokenize:
        raise InvalidRequestError(
            f"output_mode={request.output_mode!r} requires sampling_params.detokenize=true.", param="output_mode"
        )
    if request.features is not None:
        request.features.check(len(request.token_ids), has_ec_transfer=bool(request.ec_transfer_params))


def check_encodable(request: GenerateRequest, sampling: SamplingParams) -> None:
    """Integers outside 64 bits cannot travel to an engine; they hide in extra_args and transfer params."""
    parts = (sampling, request.kv_transfer_params, request.ec_transfer_params)
    if _unencodable(parts) is None:
        return
    fields = {f"sampling_params.{name}": getattr(sampling, name) for name in sampling.__struct_fields__}
    fields |= {"kv_transfer_params": parts[1], "ec_transfer_params": parts[2]}
    for name, value in fields.items():
        problem = _unencodable(value)
        if problem is not None:
            raise InvalidRequestError(f"{name} must be encodable as MessagePack: {problem}.", param=name)


def _unencodable(value: Any) -> str | None:
    """Why a value has no MessagePack form; None if it has one."""
    try:
        msgspec.msgpack.encode(None if value is msgspec.UNSET else value)
    except OverflowError:
        return "integers must be between -2**63 and 2**64 - 1"
    except UnicodeEncodeError:
        return "text must not have lone surrogates"
    except (TypeError, ValueError, RecursionError) as exc:
        return str(exc)
    return None


def check_prompt(request: GenerateRequest, info: EngineInfo) -> None:
    """Ids within the vocabulary, and room for at least one new token."""
    token_ids = request.token_ids
    has_looked = request.IDS_BELOW is not None and info.vocab_size >= request.IDS_BELOW
    if not has_looked and (highest := max(token_ids)) >= info.vocab_size:
        raise InvalidRequestError(
            f"Token id {highest} is out of vocabulary (position {token_ids.index(highest)}; valid ids are 0 to "
            f"{info.vocab_size - 1})",
            param="token_ids",
        )
    if len(token_ids) >= info.max_model_len:
        raise PromptTooLongError(len(token_ids), info.max_model_len - 1, info.max_model_len)


def unread_extra_args(sampling: SamplingParams, capabilities: Capabilities) -> tuple[str, ...]:
    """Names in `extra_args` that nobody behind this engine reads: as good as unknown fields."""
    if not sampling.extra_args or capabilities.extra_args:
        return ()
    return tuple(f"sampling_params.extra_args.{name}" for name in sampling.extra_args if name not in READ_BY_ENDPOINTS)


@dataclass(slots=True, frozen=True)
class _Feature:
    field: str
    value: Callable[[GenerateRequest, SamplingParams], Any]
    """What the request asks for; None or False: it does not."""
    able: Callable[[Capabilities, Any], bool]
    way_out: str


def _sampling(name: str) -> Callable[[GenerateRequest, SamplingParams], Any]:
    def value(request: GenerateRequest, sampling: SamplingParams) -> Any:
        return getattr(sampling, name)

    return value


def _flag(name: str) -> Callable[[Capabilities, Any], bool]:
    def able(capabilities: Capabilities, value: Any) -> bool:
        return bool(getattr(capabilities, name))

    return able


def _active_repetition(request: GenerateRequest, sampling: SamplingParams) -> Any:
    rule = sampling.repetition_detection
    return rule if rule is not None and rule.max_pattern_size > 0 else None


def _media_kinds(request: GenerateRequest, sampling: SamplingParams) -> Any:
    kinds = [m for m, hashes in request.features.mm_hashes.items() if hashes] if request.features else []
    return kinds or None


def _structured_kind(request: GenerateRequest, sampling: SamplingParams) -> Any:
    structured = sampling.structured_outputs
    return structured.kinds[0] if structured is not None else None


def _known_content(capabilities: Capabilities, value: Any) -> bool:
    return capabilities.content_parts


_FEATURES: tuple[_Feature, ...] = (
    _Feature(
        "sampling_params.logprob_token_ids", _sampling("logprob_token_ids"), _flag("logprob_token_ids"), "Use logprobs."
    ),
    _Feature(
        "sampling_params.prompt_logprobs", _sampling("prompt_logprobs"), _flag("prompt_logprobs"), "Leave it out."
    ),
    _Feature(
        "sampling_params.prompt_logprob_token_ids",
        _sampling("prompt_logprob_token_ids"),
        _flag("prompt_logprob_token_ids"),
        "Use prompt_logprobs.",
    ),
    _Feature(
        "sampling_params.structured_outputs",
        _structured_kind,
        lambda capabilities, kind: kind in capabilities.structured_outputs,
        "Use one of the kinds that /server_info lists.",
    ),
    _Feature(
        "sampling_params.bad_words", lambda r, s: s.bad_words or None, _flag("bad_words"), "Use logit_bias on ids."
    ),
    _Feature(
        "sampling_params.repetition_detection", _active_repetition, _flag("repetition_detection"), "Leave it out."
    ),
    _Feature(
        "sampling_params.trace_decode_token_ids",
        _sampling("trace_decode_token_ids"),
        _flag("trace_decode"),
        "Leave it out.",
    ),
    _Feature(
        "sampling_params.thinking_token_budget",
        _sampling("thinking_token_budget"),
        _flag("thinking_token_budget"),
        "Leave it out, or bound max_tokens.",
    ),
    _Feature("sampling_params.watermarking", _sampling("watermarking"), _flag("watermarking"), "Leave it out."),
    _Feature(
        "sampling_params.routed_experts_prompt_start",
        lambda r, s: s.routed_experts_prompt_start or None,
        _flag("routed_experts"),
        "Serve a mixture-of-experts model with --enable-return-routed-experts.",
    ),
    _Feature(
        "routed_experts_format",
        lambda r, s: r.routed_experts_format if r.routed_experts_format != "npy" else None,
        _flag("routed_experts"),
        "Serve a mixture-of-experts model with --enable-return-routed-experts.",
    ),
    _Feature("features", _media_kinds, lambda c, kinds: set(kinds) <= c.modalities, "Send text ids only."),
    _Feature("content_parts", lambda r, s: r.content_parts or None, _known_content, "Send text ids only."),
    _Feature("cache_salt", lambda r, s: r.cache_salt, _flag("cache_salt"), "Leave it out."),
    _Feature(
        "priority",
        lambda r, s: r.priority or None,
        _flag("priority"),
        "Leave it out, or serve an engine that has priorities with --scheduling-policy priority.",
    ),
    _Feature(
        "kv_transfer_params",
        lambda r, s: r.kv_transfer_params,
        _flag("kv_transfer"),
        "Leave it out, or start the local engine with --kv-transfer-port.",
    ),
    _Feature("ec_transfer_params", lambda r, s: r.ec_transfer_params, _flag("ec_transfer"), "Leave it out."),
)


def check_rank(context: RequestContext, info: EngineInfo) -> None:
    """Raises `InvalidRequestError` for a rank that no replica has."""
    rank, size = context.data_parallel_rank, info.capabilities.data_parallel_size
    if rank is None or size is None or 0 <= rank < size:
        return
    there_are = "has no data-parallel replicas" if size == 1 else f"has {size} data-parallel replicas"
    allowed = "0" if size == 1 else f"from 0 to {size - 1}"
    raise InvalidRequestError(
        f"{context.rank_field} must be {allowed} (this server {there_are}), got {rank}.", param=context.rank_field
    )


def check_features(request: GenerateRequest, sampling: SamplingParams, info: EngineInfo, *, model: str) -> None:
    """Raises `UnsupportedFeatureError` for the first used feature that the engine did not declare."""
    if request.content_parts and not info.capabilities.modalities:
        raise InvalidRequestError(f"{model} is not a multimodal model", param="content_parts")
    for feature in _FEATURES:
        value = feature.value(request, sampling)
        if value is not None and value is not False and not feature.able(info.capabilities, value):
            raise UnsupportedFeatureError(
                feature.field, value=value, where=f"the {info.name} engine", way_out=feature.way_out
            )
