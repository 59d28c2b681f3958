"""`/openapi.json`, and `/docs`: one page that shows it, without loading anything from elsewhere."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tokenwire.server.context import server_of
from tokenwire.server.openapi import openapi
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec, routes_for


async def openapi_json(request: Request) -> Response:
    server = server_of(request.scope)
    return WireResponse(openapi(routes_for(server), root_path=server.settings.network.root_path))


async def docs(request: Request) -> Response:
    return HTMLResponse(files("tokenwire.server").joinpath("docs.html").read_text("utf-8"))


ROUTES = [
    RouteSpec(path="/openapi.json", endpoint=openapi_json, summary="This API, as OpenAPI 3.1."),
    RouteSpec(path="/docs", endpoint=docs, summary="This API, as a page."),
]
