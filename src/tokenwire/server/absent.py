"""Routes that vLLM has and this server has not: each is told apart from a misspelt path, and says what to do instead.

A real route of the same path wins; its row goes then.
"""

from __future__ import annotations

from tokenwire.errors import NotServedError

_WEIGHTS = "Weights cannot be replaced while the server runs; restart it with the new ones."
_SLEEP = "The engine cannot sleep; POST /pause stops generation and keeps the memory."
_ADAPTERS = "Adapters cannot be loaded while the server runs."
_MEDIA = "There is no cache of media here."

ABSENT: dict[str, str] = {
    "/init_weight_transfer_engine": _WEIGHTS,
    "/shutdown_weight_transfer_engine": _WEIGHTS,
    "/start_weight_update": _WEIGHTS,
    "/start_draft_weight_update": _WEIGHTS,
    "/update_weights": _WEIGHTS,
    "/finish_weight_update": _WEIGHTS,
    "/update_weight_version": _WEIGHTS,
    "/weight_info": _WEIGHTS,
    "/weight_checker": _WEIGHTS,
    "/get_world_size": _WEIGHTS,
    "/sleep": _SLEEP,
    "/wake_up": _SLEEP,
    "/is_sleeping": _SLEEP,
    "/release_kv_cache_memory": _SLEEP,
    "/reset_mm_cache": _MEDIA,
    "/reset_encoder_cache": _MEDIA,
    "/collective_rpc": "There are no workers that take calls.",
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
