"""What a request brings besides its body, and what the server was told to do for every request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(slots=True, frozen=True, kw_only=True)
class RequestContext:
    """From headers and the socket. Times in seconds since the epoch."""

    arrival_time: float = 0.0
    request_id_header: str | None = None
    session_id: str | None = None
    data_parallel_rank: int | None = None
    rank_field: str = "X-data-parallel-rank"
    """Where the rank stood, for messages."""
    trace_headers: Mapping[str, str] | None = None
    prefer_cached: bool = False
    """`Prefer: if-available`: answer 412 rather than compute the prompt."""
    binary: bool = False
    """The reply travels as MessagePack: arrays stay arrays."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ServiceOptions:
    """Server-wide behaviour of the token service."""

    enable_prompt_tokens_details: bool = False
    return_tokens_as_token_ids: bool = False
    logprob_token_field: bool = False
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] = "none"
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    strict_fields: bool = False
    max_n: int = 16384
    max_bad_words: int = 128
    default_sampling_params: Mapping[str, Any] = field(default_factory=dict)
    """Generation-config defaults plus overrides, under sampling_params names; `max_tokens` among them."""
    override_max_tokens: int | None = None
    """An operator's cap on a defaulted `max_tokens`."""
    render_fingerprint: str | None = None
    """Of this server's tokenizer and chat format; requests rendered with another are refused."""
