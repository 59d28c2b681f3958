"""Control routes of the engine: pause, resume, cache reset. Only the operator may call them."""

from __future__ import annotations

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tokenwire.engine.base import EngineStatus, Pause, ResetPrefixCache, Resume
from tokenwire.errors import InvalidRequestError
from tokenwire.server.context import engine_of, server_of
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec

PauseMode = Literal["abort", "wait", "keep"]
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


class StatusReply(msgspec.Struct, frozen=True, kw_only=True):
    status: str


class IsPaused(msgspec.Struct, frozen=True, kw_only=True):
    is_paused: bool


class Success(msgspec.Struct, frozen=True, kw_only=True):
    success: bool


def query_bool(request: Request, name: str, default: bool) -> bool:
    """A query parameter as true/false or 1/0. Raises `InvalidRequestError` for anything else."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if text.lower() not in _BOOLS:
        raise InvalidRequestError(f"Query parameter {name} must be true or false, got {text!r}.", param=name)
    return _BOOLS[text.lower()]


def _mode(request: Request) -> PauseMode:
    text = request.query_params.get("mode", "abort")
    if text not in ("abort", "wait", "keep"):
        raise InvalidRequestError(f"Query parameter mode must be abort, wait or keep, got {text!r}.", param="mode")
    return text  # type: ignore[return-value]


async def pause(request: Request) -> Response:
    """`?mode=abort|wait|keep&clear_cache=true`; answers once the engine stands still."""
    message = Pause(mode=_mode(request), clear_cache=query_bool(request, "clear_cache", True))
    await engine_of(server_of(request.scope)).control(message)
    return WireResponse(StatusReply(status="paused"))


async def resume(request: Request) -> Response:
    await engine_of(server_of(request.scope)).control(Resume())
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
    facts = await engine_of(server_of(request.scope)).control(message)
    return WireResponse(Success(success=bool(facts.get("success", True))))


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
]
