"""`/server_info`: version, what the engine can do, limits, and the render fingerprint."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tokenwire import __version__
from tokenwire.engine.base import Engine
from tokenwire.engine.control import Describe
from tokenwire.server.access import require_operator
from tokenwire.server.commanding import command, obeys, query_choice
from tokenwire.server.context import Server, server_of
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`engine` is null on a front end; `limits` in tokens, sequences and bytes."""

    version: str
    model: str
    served_model_names: list[str]
    engine: dict[str, Any] | None
    limits: dict[str, int | None]
    render_fingerprint: str | None
    draining: bool
    vllm_config: str | dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """vLLM's configuration, where `?config_format=text|json` asked for it in development mode."""


def _engine_facts(engine: Engine) -> dict[str, Any]:
    info = engine.info
    capabilities = msgspec.to_builtins(info.capabilities)
    return {
        "name": info.name,
        "status": engine.status.value,
        "replicas": [replica.status.value for replica in engine.replicas],
        "vocab_size": info.vocab_size,
        "eos_token_ids": list(info.eos_token_ids),
        "default_sampling_params": dict(info.default_sampling_params),
        "capabilities": {k: sorted(v) if isinstance(v, list) else v for k, v in capabilities.items()},
        **dict(info.extra),
    }


def _limits(server: Server) -> dict[str, int | None]:
    limits = server.settings.limits
    info = None if server.engine is None else server.engine.info
    return {
        "max_model_len": server.max_model_len,
        "max_num_seqs": limits.max_num_seqs if info is None else info.max_num_seqs,
        "max_logprobs": limits.max_logprobs if info is None else info.max_logprobs,
        "max_n_sequences": limits.max_n_sequences,
        "max_num_queued_reqs": limits.max_num_queued_reqs,
        "max_num_queued_tokens": limits.max_num_queued_tokens,
        "max_body_bytes": server.settings.network.max_body_bytes,
    }


async def _engine_config(request: Request, server: Server) -> Any:
    """UNSET unless it was asked for in development mode. It may hold paths and tokens: for the operator only."""
    settings = server.settings
    asked = "config_format" in request.query_params and settings.access.server_dev_mode
    if not asked or server.engine is None or not obeys(request, Describe):
        return msgspec.UNSET
    config_format = query_choice(request, "config_format", ("text", "json"), "text")
    require_operator(request.scope, settings.access, settings.network.allowed_origins)
    return (await command(request, Describe(format=config_format)))["config"]


async def server_info(request: Request) -> Response:
    server = server_of(request.scope)
    return WireResponse(
        ServerInfo(
            version=__version__,
            model=server.models.root,
            served_model_names=list(server.models.served_names),
            engine=None if server.engine is None else _engine_facts(server.engine),
            limits=_limits(server),
            render_fingerprint=server.render_fingerprint,
            draining=server.draining,
            vllm_config=await _engine_config(request, server),
        )
    )


ROUTES = [
    RouteSpec(
        path="/server_info", endpoint=server_info, summary="Version, capabilities and limits.", response=ServerInfo
    )
]
