"""Control routes of the engine: pause, resume, resets of its caches. Only the operator may call them."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tokenwire.engine.base import EngineStatus
from tokenwire.engine.control import Pause, ResetEncoderCache, ResetMediaCache, ResetPrefixCache, Resume
from tokenwire.server.commanding import command, query_bool, query_choice
from tokenwire.server.context import engine_of, server_of
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec

PAUSE_MODES = ("abort", "wait", "keep")


class StatusReply(msgspec.Struct, frozen=True, kw_only=True):
    status: str


class IsPaused(msgspec.Struct, frozen=True, kw_only=True):
    is_paused: bool


class Success(msgspec.Struct, frozen=True, kw_only=True):
    success: bool


async def pause(request: Request) -> Response:
    """`?mode=abort|wait|keep&clear_cache=true`; answers once the engine stands still."""
    mode = query_choice(request, "mode", PAUSE_MODES, "abort")
    await command(request, Pause(mode=mode, clear_cache=query_bool(request, "clear_cache", True)))
    return WireResponse(StatusReply(status="paused"))


async def resume(request: Request) -> Response:
    await command(request, Resume())
    return WireResponse(StatusReply(status="resumed"))


async def is_paused(request: Request) -> Response:
    status = engine_of(server_of(request.scope)).status
    return WireResponse(IsPaused(is_paused=status in (EngineStatus.PAUSED, EngineStatus.FROZEN)))


async def reset_prefix_cache(request: Request) -> Response:
    """`?reset_running_requests=&reset_external=`; false when running requests kept the cache in use."""
    message = ResetPrefixCache(
        reset_running_requests=query_bool(request, "reset_running_requests", False),
        reset_external=query_bool(request, "reset_external", False),
    )
    facts = await command(request, message)
    return WireResponse(Success(success=bool(facts.get("success", True))))


async def reset_mm_cache(request: Request) -> Response:
    await command(request, ResetMediaCache())
    return Response()


async def reset_encoder_cache(request: Request) -> Response:
    await command(request, ResetEncoderCache())
    return Response()


ROUTES = [
    RouteSpec(
        path="/pause",
        endpoint=pause,
        summary="Stop the engine: end, finish or freeze what runs.",
        methods=("POST",),
        response=StatusReply,
        tag="control",
        needs_engine=True,
        control=True,
    ),
    RouteSpec(
        path="/resume",
        endpoint=resume,
        summary="Go on after a pause.",
        methods=("POST",),
        response=StatusReply,
        tag="control",
        needs_engine=True,
        control=True,
    ),
    RouteSpec(
        path="/is_paused",
        endpoint=is_paused,
        summary="Is the engine paused?",
        response=IsPaused,
        tag="control",
        needs_engine=True,
    ),
    RouteSpec(
        path="/reset_prefix_cache",
        endpoint=reset_prefix_cache,
        summary="Forget cached prompts.",
        methods=("POST",),
        response=Success,
        tag="control",
        needs_engine=True,
        control=True,
    ),
    RouteSpec(
        path="/reset_mm_cache",
        endpoint=reset_mm_cache,
        summary="Forget processed media.",
        methods=("POST",),
        tag="control",
        needs_engine=True,
        control=True,
    ),
    RouteSpec(
        path="/reset_encoder_cache",
        endpoint=reset_encoder_cache,
        summary="Forget encoder outputs.",
        methods=("POST",),
        tag="control",
        needs_engine=True,
        control=True,
    ),
]
