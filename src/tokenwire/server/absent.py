"""Routes of the protocol that this server or its engine cannot serve: each is told apart from a misspelt path, and says
what to do instead.

A front end has no engine to ask, and an engine says in `Capabilities.controls` what it obeys; both end here.
"""

from __future__ import annotations

from tokenwire.errors import NotServedError

_WEIGHTS = (
    "Weights are replaced while the server runs by an engine with weight transfer "
    "(--engine vllm -- --weight-transfer-config JSON); else restart it with the new ones."
)
_LABEL = "The engine has no weight versions to set; restart the server with the new weights."
_SLEEP = (
    "An engine that can sleep is vLLM on a GPU (--engine vllm -- --enable-sleep-mode); "
    "POST /pause stops generation and keeps the memory."
)
_ADAPTERS = "Adapters need an engine that takes them: --engine vllm --enable-lora."
_MEDIA = "There is no cache of media here."
_PROFILE = "Profiling needs --engine vllm --server-dev-mode -- --profiler-config JSON."

ABSENT: dict[str, str] = {
    "/init_weight_transfer_engine": _WEIGHTS,
    "/shutdown_weight_transfer_engine": _WEIGHTS,
    "/start_weight_update": _WEIGHTS,
    "/start_draft_weight_update": _WEIGHTS,
    "/update_weights": _WEIGHTS,
    "/finish_weight_update": _WEIGHTS,
    "/update_weight_version": _LABEL,
    "/weight_info": _LABEL,
    "/weight_checker": "The engine cannot sum up its weights.",
    "/get_world_size": "The engine is one process.",
    "/sleep": _SLEEP,
    "/wake_up": _SLEEP,
    "/is_sleeping": _SLEEP,
    "/release_kv_cache_memory": _SLEEP,
    "/reset_mm_cache": _MEDIA,
    "/reset_encoder_cache": _MEDIA,
    "/collective_rpc": "Calls to workers need --engine vllm --server-dev-mode.",
    "/start_profile": _PROFILE,
    "/stop_profile": _PROFILE,
    "/v1/load_lora_adapter": _ADAPTERS,
    "/v1/unload_lora_adapter": _ADAPTERS,
    "/tokenizer_info": "GET /server_info has the fingerprint of tokenizer and template.",
    "/kv_event_sources": "There are no KV cache events.",
}
"""Path -> the way out."""


def not_served(path: str) -> NotServedError | None:
    """The error for a path of the protocol that is not served here; None for any other path."""
    way_out = ABSENT.get(path)
    return None if way_out is None else NotServedError(f"{path} is not implemented by this server. {way_out}")
