"""`/tokenize` and `/detokenize`, in vLLM's shape."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tokenwire.server.reading import read_request
from tokenwire.server.responses import WireResponse
from tokenwire.server.routes.render import render_of
from tokenwire.server.routing import RouteSpec
from tokenwire.wire.render import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse


async def tokenize(request: Request) -> Response:
    server, body = await read_request(TokenizeRequest, request.scope, request.receive)
    return WireResponse(await render_of(server).tokenize(body))


async def detokenize(request: Request) -> Response:
    server, body = await read_request(DetokenizeRequest, request.scope, request.receive)
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
