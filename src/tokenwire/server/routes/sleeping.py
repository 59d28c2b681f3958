"""The engine's memory given back and taken again, so that a trainer may use the device in between."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tokenwire.engine.control import IsSleeping, ReleaseKvCache, Sleep, WakeUp
from tokenwire.errors import InvalidRequestError
from tokenwire.server.commanding import command, query_choice, require_control
from tokenwire.server.responses import WireResponse
from tokenwire.server.routes.control import PAUSE_MODES, StatusReply
from tokenwire.server.routing import RouteSpec
from tokenwire.wire.control import Awake, IsAsleep, Sleeping

LEVELS = ("0", "1", "2")


async def sleep(request: Request) -> Response:
    """`?level=0|1|2&mode=abort|wait|keep`; answers once the memory is free."""
    require_control(request, Sleep)
    level = int(query_choice(request, "level", LEVELS, "1"))
    await command(request, Sleep(level=level, mode=query_choice(request, "mode", PAUSE_MODES, "abort")))
    return WireResponse(Sleeping(status="sleeping", level=level))


async def wake_up(request: Request) -> Response:
    """`?tags=weights&tags=kv_cache` wakes parts; generation goes on once all are awake."""
    tags = request.query_params.getlist("tags") or None
    if tags is not None and not all(tags):
        raise InvalidRequestError("Query parameter tags must not be empty.", param="tags")
    facts = await command(request, WakeUp(tags=tags))
    return WireResponse(Awake(status="awake" if facts.get("fully_awake", True) else "sleeping", tags=tags))


async def is_sleeping(request: Request) -> Response:
    facts = await command(request, IsSleeping())
    return WireResponse(IsAsleep(is_sleeping=bool(facts["is_sleeping"])))


async def release_kv_cache_memory(request: Request) -> Response:
    """While paused; `/wake_up?tags=kv_cache` takes it again."""
    await command(request, ReleaseKvCache())
    return WireResponse(StatusReply(status="kv_cache_released"))


ROUTES = [
    RouteSpec(
        path="/sleep",
        endpoint=sleep,
        summary="Pause, and give the device's memory back.",
        methods=("POST",),
        response=Sleeping,
        tag="control",
        needs_engine=True,
        control=True,
    ),
    RouteSpec(
        path="/wake_up",
        endpoint=wake_up,
        summary="Take the memory again, all of it or by tags.",
        methods=("POST",),
        response=Awake,
        tag="control",
        needs_engine=True,
        control=True,
    ),
    RouteSpec(
        path="/is_sleeping",
        endpoint=is_sleeping,
        summary="Is the engine asleep?",
        response=IsAsleep,
        tag="control",
        needs_engine=True,
    ),
    RouteSpec(
        path="/release_kv_cache_memory",
        endpoint=release_kv_cache_memory,
        summary="Give only the cache's memory back.",
        methods=("POST",),
        response=StatusReply,
        tag="control",
        needs_engine=True,
        control=True,
    ),
]
