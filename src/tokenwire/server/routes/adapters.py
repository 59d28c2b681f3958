"""Adapters loaded and unloaded while the server runs. Their names may then stand in `model`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tokenwire.engine.control import LoadAdapter, UnloadAdapter
from tokenwire.server.commanding import read_command, require_control
from tokenwire.server.context import adapters_of, server_of
from tokenwire.server.routing import RouteSpec
from tokenwire.wire.control import LoadLoraAdapter, UnloadLoraAdapter


async def load_lora_adapter(request: Request) -> Response:
    require_control(request, LoadAdapter)
    body = await read_command(LoadLoraAdapter, request)
    await adapters_of(server_of(request.scope)).load(
        body.lora_name,
        body.lora_path,
        replace=body.load_inplace,
        is_3d_lora_weight=body.is_3d_lora_weight,
    )
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' is loaded.")


async def unload_lora_adapter(request: Request) -> Response:
    require_control(request, UnloadAdapter)
    body = await read_command(UnloadLoraAdapter, request)
    await adapters_of(server_of(request.scope)).unload(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' is unloaded.")


ROUTES = [
    RouteSpec(
        path="/v1/load_lora_adapter",
        endpoint=load_lora_adapter,
        summary="Load an adapter under a name.",
        methods=("POST",),
        request=LoadLoraAdapter,
        tag="control",
        needs_engine=True,
        control=True,
    ),
    RouteSpec(
        path="/v1/unload_lora_adapter",
        endpoint=unload_lora_adapter,
        summary="Forget an adapter; requests that run keep it.",
        methods=("POST",),
        request=UnloadLoraAdapter,
        tag="control",
        needs_engine=True,
        control=True,
    ),
]
