"""What an operator tells the remote engine. Times in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, frozen=True, kw_only=True)
class RemoteOptions:
    """Facts given here win over what workers say of themselves."""

    workers: Sequence[str] = ()
    """Base URLs of servers that run whole requests (or decode, when there are prefill workers)."""
    prefill_workers: Sequence[str] = ()
    """Base URLs of servers that run prompts only and hand their KV cache on."""
    dialect: str = "scale-out"
    """scale-out (vLLM or tokenwire), sglang, or llamacpp."""
    api_key: str | None = None
    """Sent to every worker as a bearer token."""
    model: str | None = None
    """Name that workers know the model by; None: they are not told one, except for adapters."""
    tokenizer: str | None = None
    """A folder with config.json, generation_config.json or tokenizer files: facts that workers cannot tell."""
    max_model_len: int | None = None
    vocab_size: int | None = None
    eos_token_ids: Sequence[int] | None = None
    default_sampling_params: Mapping[str, Any] = field(default_factory=dict)
    prefer_msgpack: bool = True
    """Speak MessagePack with workers that are tokenwire."""

    start_timeout_s: float = 600.0
    """How long `start` waits for the first worker."""
    connect_timeout_s: float = 5.0
    call_timeout_s: float = 30.0
    """For everything but generation."""
    health_interval_s: float = 2.0
    health_timeout_s: float = 5.0
    unhealthy_after: int = 3
    """So many checks in a row that got no answer make a worker unwell; a refused connection does so at once."""
    abandon_after_s: float = 60.0
    """Requests leave a worker that has not answered a health check for so long: it hangs."""
    max_attempts: int = 3
    """Workers that one request may be tried on before its first token."""
    abort_grace_s: float = 2.0
    """How long an aborted request may take to hand over what it had."""
