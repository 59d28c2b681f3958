"""`/tokenize` and `/detokenize`, in vLLM's shape."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tokenwire.server.body import read_as
from tokenwire.server.context import server_of
from tokenwire.server.responses import WireResponse
from tokenwire.server.routes.render import render_of
from tokenwire.server.routing import RouteSpec
from tokenwire.wire.render import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse


async def tokenize(request: Request) -> Response:
    server = server_of(request.scope)
    limit = server.settings.network.max_body_bytes
    body, unknown = await read_as(TokenizeRequest, request.scope, request.receive, limit)
    server.note_unknown(unknown)
    return WireResponse(await render_of(server).tokenize(body))


async def detokenize(request: Request) -> Response:
    server = server_of(request.scope)
    limit = server.settings.network.max_body_bytes
    body, unknown = await read_as(DetokenizeRequest, request.scope, request.receive, limit)
    server.note_unknown(unknown)
    return WireResponse(await render_of(server).detokenize(body))


ROUTES = [
    RouteSpec(
        path="/tokenize",
        endpoint=tokenize,
        summary="Text, or a rendered conversation, to ids.",
        methods=("POST",),
        request=TokenizeRequest,
        response=TokenizeResponse,
        tag="text",
    ),
    RouteSpec(
        path="/detokenize",
        endpoint=detokenize,
        summary="Ids to text.",
        methods=("POST",),
        request=DetokenizeRequest,
        response=DetokenizeResponse,
        tag="text",
    ),
]
