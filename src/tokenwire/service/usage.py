"""Token counts and speculative-decoding figures as replies show them."""

from __future__ import annotations

from typing import Any

from tokenwire.engine.base import SpecDecodeStats
from tokenwire.wire.usage import PerRequestMetrics, PromptTokensDetails, SpeculativeDecodingMetrics, UsageInfo


def usage_of(prompt: int, completion: int, cached: int | None) -> UsageInfo:
    """`cached` None: not known, or not to be told."""
    return UsageInfo(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=None if cached is None else PromptTokensDetails(cached_tokens=cached),
    )


def usage_chunk_counts(prompt: int, completion: int, cached: int | None) -> dict[str, Any]:
    """The same without nulls, for the last event of a stream."""
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return counts


def spec_decode_metrics(stats: SpecDecodeStats | None, *, detailed: bool) -> PerRequestMetrics | None:
    """None when the engine does not speculate; zeros for a request for which it guessed nothing."""
    if stats is None:
        return None
    steps, accepted, drafted = len(stats.drafted), sum(stats.accepted), sum(stats.drafted)
    histogram = [0] * (stats.num_spec_tokens + 1)
    for count in stats.accepted:
        histogram[count] += 1
    return PerRequestMetrics(
        speculative_decoding=SpeculativeDecodingMetrics(
            mean_acceptance_length=1 + accepted / steps if steps else 1.0,
            draft_acceptance_rate=accepted / drafted if drafted else 0.0,
            acceptance_histogram=histogram,
            num_spec_steps=steps,
            num_accepted_draft_tokens=accepted,
            num_draft_tokens=drafted,
            num_spec_tokens=stats.num_spec_tokens,
            per_step_accepted=list(stats.accepted) if detailed else None,
            per_step_drafted=list(stats.drafted) if detailed else None,
        )
    )


def timing_metrics(arrival: float, first: float, last: float, num_tokens: int) -> PerRequestMetrics:
    """Timings of one sequence, from the times (in seconds) at which request, first output and last output came."""
    decode_s, whole_s = last - first, last - arrival
    return PerRequestMetrics(
        time_to_first_token_ms=(first - arrival) * 1000,
        generation_time_ms=decode_s * 1000,
        mean_itl_ms=decode_s / (num_tokens - 1) * 1000 if num_tokens > 1 else None,
        tokens_per_second=num_tokens / whole_s if whole_s > 0 else None,
    )
