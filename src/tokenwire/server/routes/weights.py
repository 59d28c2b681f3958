"""New weights in a running engine, step by step as trainers drive vLLM: init, start, update, finish, label."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tokenwire.engine.control import WeightTransfer
from tokenwire.errors import InvalidRequestError
from tokenwire.server.commanding import command, query_bool, read_command, require_control
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec
from tokenwire.wire.control import (
    CheckWeights,
    FinishWeightUpdate,
    InitWeightTransfer,
    Message,
    NewWeightVersion,
    UpdateWeights,
    WeightCheck,
    WeightInfo,
    WeightVersionSet,
    WorldSize,
)


async def _step(request: Request, kind: type[msgspec.Struct] | None, *, optional: bool = False) -> dict[str, Any]:
    """Carry out the step that the path names, with the body's fields that are not null."""
    require_control(request, WeightTransfer)
    body = None if kind is None else await read_command(kind, request, optional=optional)
    info = {} if body is None else {k: v for k, v in msgspec.structs.asdict(body).items() if v is not None}
    action = request.scope["path"].rpartition("/")[2]
    return await command(request, WeightTransfer(action=action, info=info))


def _saying(
    sentence: str, kind: type[msgspec.Struct] | None = None, *, optional: bool = False
) -> Callable[[Request], Awaitable[Response]]:
    """A step whose answer is one sentence."""

    async def endpoint(request: Request) -> Response:
        await _step(request, kind, optional=optional)
        return WireResponse(Message(message=sentence))

    return endpoint


async def update_weight_version(request: Request) -> Response:
    """Set the label only."""
    return WireResponse(await _step(request, NewWeightVersion))


async def weight_info(request: Request) -> Response:
    return WireResponse(await _step(request, None))


async def weight_checker(request: Request) -> Response:
    require_control(request, WeightTransfer)
    body = await read_command(CheckWeights, request)
    if body.action == "compare" and body.baseline is None:
        raise InvalidRequestError("action='compare' requires a 'baseline' object of checksums.", param="baseline")
    info = {k: v for k, v in msgspec.structs.asdict(body).items() if v is not None}
    return WireResponse(await command(request, WeightTransfer(action="weight_checker", info=info)))


async def get_world_size(request: Request) -> Response:
    """`?include_dp=true`: workers of all data-parallel ranks, else of one."""
    info = {"include_dp": query_bool(request, "include_dp", True)}
    return WireResponse(await command(request, WeightTransfer(action="get_world_size", info=info)))


def _route(
    path: str,
    endpoint: Callable[[Request], Awaitable[Response]],
    summary: str,
    request: Any = None,
    reply: Any = Message,
) -> RouteSpec:
    return RouteSpec(
        path=path,
        endpoint=endpoint,
        summary=summary,
        methods=("POST",),
        request=request,
        response=reply,
        tag="control",
        needs_engine=True,
        control=True,
    )


def _reading(path: str, endpoint: Callable[[Request], Awaitable[Response]], summary: str, reply: Any) -> RouteSpec:
    return RouteSpec(path=path, endpoint=endpoint, summary=summary, response=reply, tag="control", needs_engine=True)


ROUTES = [
    _route(
        "/init_weight_transfer_engine",
        _saying("Weight transfer initialized", InitWeightTransfer),
        "Connect to the trainer.",
        InitWeightTransfer,
    ),
    _route(
        "/shutdown_weight_transfer_engine", _saying("Weight transfer shut down"), "Let the trainer's connection go."
    ),
    _route("/start_weight_update", _saying("Weight update started"), "Begin an update."),
    _route("/start_draft_weight_update", _saying("Draft weight update started"), "Begin one of the draft model."),
    _route(
        "/update_weights", _saying("Weights updated", UpdateWeights), "Take a part of the new weights.", UpdateWeights
    ),
    _route(
        "/finish_weight_update",
        _saying("Weight update finished", FinishWeightUpdate, optional=True),
        "End the update, and label the new weights.",
        FinishWeightUpdate,
    ),
    _route(
        "/update_weight_version",
        update_weight_version,
        "Set the weights' label only.",
        NewWeightVersion,
        WeightVersionSet,
    ),
    _route("/weight_checker", weight_checker, "Checksums of the weights.", CheckWeights, WeightCheck),
    _reading("/weight_info", weight_info, "The weights' label.", WeightInfo),
    _reading("/get_world_size", get_world_size, "How many workers take part in an update.", WorldSize),
]
