"""The ASGI application: routes, and the layers around them that were asked for."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from tokenwire.server.access import KeyMiddleware
from tokenwire.server.context import Server
from tokenwire.server.middleware import ErrorMiddleware, RequestIdMiddleware, http_exception
from tokenwire.server.routing import routes_for, starlette_route
from tokenwire.settings import Settings


def create_app(server: Server) -> Starlette:
    """An app over a server whose engine, if any, has started. The caller closes the engine."""
    app = Starlette(
        routes=[starlette_route(spec, server) for spec in routes_for(server)],
        middleware=_middleware(server),
        exception_handlers={HTTPException: http_exception},
    )
    app.state.server = server
    return app


def _middleware(server: Server) -> list[Middleware]:
    """Outermost first: CORS answers preflights itself and marks errors too."""
    settings: Settings = server.settings
    network = settings.network
    layers = []
    if network.allowed_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=network.allowed_origins,
                allow_methods=network.allowed_methods,
                allow_headers=network.allowed_headers,
                allow_credentials=network.allow_credentials,
            )
        )
    if settings.access.enable_request_id_headers:
        layers.append(Middleware(RequestIdMiddleware))
    layers.append(Middleware(ErrorMiddleware, server=server))
    if settings.access.api_key:
        layers.append(Middleware(KeyMiddleware, keys=settings.access.api_key))
    return layers
