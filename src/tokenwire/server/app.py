"""The ASGI application: routes, and the layers around them that were asked for."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from tokenwire.server.access import KeyMiddleware
from tokenwire.server.context import Server
from tokenwire.server.middleware import ErrorMiddleware, RequestIdMiddleware, http_exception
from tokenwire.server.routing import direct_endpoints, routes_for, starlette_route
from tokenwire.settings import Settings


def create_app(server: Server) -> Application:
    """An app over a server whose engine, if any, has started. The caller closes the engine."""
    app = Application(
        routes=[starlette_route(spec, server) for spec in routes_for(server)],
        middleware=_middleware(server),
        exception_handlers={HTTPException: http_exception},
    )
    app.state.server = server
    app.take_directly(direct_endpoints(server))
    return app


class Application(Starlette):
    """Takes requests to the busiest routes past the router and its layers; the rest goes the ordinary way."""

    def take_directly(self, endpoints: dict[tuple[str, str], ASGIApp]) -> None:
        """By method and path. The layers that were asked for stand around these endpoints too."""
        self._direct = {key: self._with_layers(endpoint) for key, endpoint in endpoints.items()}

    def _with_layers(self, endpoint: ASGIApp) -> ASGIApp:
        for layer in reversed(self.user_middleware):
            endpoint = layer.cls(endpoint, *layer.args, **layer.kwargs)
        return endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_direct = scope["type"] == "http" and not scope["root_path"]
        endpoint = self._direct.get((scope["method"], scope["path"])) if is_direct else None
        if endpoint is None:
            await super().__call__(scope, receive, send)
        else:
            scope["app"] = self
            await endpoint(scope, receive, send)


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
