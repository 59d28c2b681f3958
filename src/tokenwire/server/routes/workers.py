"""What reaches into the engine's workers: only in development mode. And where KV events are."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tokenwire.engine.control import CollectiveRpc, KvEventSources, Profile
from tokenwire.server.commanding import command, obeys, read_command, require_control
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec
from tokenwire.wire.control import CallWorkers, StartProfile, WorkerResults


async def collective_rpc(request: Request) -> Response:
    """Call a method of every worker."""
    require_control(request, CollectiveRpc)
    body = await read_command(CallWorkers, request)
    message = CollectiveRpc(method=body.method, args=body.args, kwargs=body.kwargs, timeout_s=body.timeout)
    facts = await command(request, message)
    results = facts.get("results")
    if results is None:
        return Response()
    return WireResponse(WorkerResults(results=[_shown(result) for result in results]))


def _shown(result: object) -> object:
    """None, lists and objects as they are, all else as text, as vLLM has it."""
    if result is None:
        return None
    return msgspec.to_builtins(result, enc_hook=str) if isinstance(result, dict | list) else str(result)


async def start_profile(request: Request) -> Response:
    require_control(request, Profile)
    body = await read_command(StartProfile, request, optional=True)
    options = {k: v for k, v in msgspec.structs.asdict(body).items() if v is not None}
    await command(request, Profile(action="start", options=options))
    return Response()


async def stop_profile(request: Request) -> Response:
    await command(request, Profile(action="stop"))
    return Response()


async def kv_event_sources(request: Request) -> Response:
    """Data-parallel rank -> where its events can be had; empty where there are none."""
    facts = await command(request, KvEventSources()) if obeys(request, KvEventSources) else {}
    return WireResponse(facts.get("sources", {}))


ROUTES = [
    RouteSpec(
        path="/collective_rpc",
        endpoint=collective_rpc,
        summary="Call a method of every worker.",
        methods=("POST",),
        request=CallWorkers,
        response=WorkerResults,
        tag="control",
        needs_engine=True,
        control=True,
        dev=True,
    ),
    RouteSpec(
        path="/start_profile",
        endpoint=start_profile,
        summary="Start the engine's profiler.",
        methods=("POST",),
        request=StartProfile,
        tag="control",
        needs_engine=True,
        control=True,
        dev=True,
    ),
    RouteSpec(
        path="/stop_profile",
        endpoint=stop_profile,
        summary="Stop it, and write the traces.",
        methods=("POST",),
        tag="control",
        needs_engine=True,
        control=True,
        dev=True,
    ),
    RouteSpec(
        path="/kv_event_sources",
        endpoint=kv_event_sources,
        summary="Where KV cache events can be had, per data-parallel rank.",
        tag="control",
        needs_engine=True,
    ),
]
