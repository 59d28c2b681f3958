"""Token counts and timings of one request, as OpenAI and vLLM name them."""

from __future__ import annotations

import msgspec


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int | None = None
    created_cache_tokens: int | None = None
    multimodal_tokens: int | None = None


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0


class UsageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`completion_tokens` counts all choices; the prompt is counted once, whatever `n`."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class SpeculativeDecodingMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """`mean_acceptance_length` counts the bonus token. `per_step_*` only at the detailed level."""

    mean_acceptance_length: float
    draft_acceptance_rate: float | None
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    per_step_accepted: list[int] | None = None
    per_step_drafted: list[int] | None = None


class PerRequestMetrics(msgspec.Struct, frozen=True, kw_only=True):
    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None
    speculative_decoding: SpeculativeDecodingMetrics | None = None
