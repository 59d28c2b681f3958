"""The table of routes. A file in `routes/` with a list `ROUTES` is all it takes to add some.

A route says what it reads and answers, so that `/openapi.json` follows from the wire types, and whether it needs an
engine, counts as generation, or is a control route that only the operator may call.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tokenwire.server.access import require_operator
from tokenwire.server.context import Server

Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(slots=True, frozen=True, kw_only=True)
class RouteSpec:
    """One path. `endpoint` is a Starlette handler, or a plain ASGI callable where every microsecond counts."""

    path: str
    endpoint: Endpoint | ASGIApp
    summary: str
    methods: tuple[str, ...] = ("GET",)
    request: Any = None
    """Wire type of the body; None: no body is read."""
    response: Any = None
    """Wire type of a JSON answer; None: empty or free text."""
    choices: tuple[Any, ...] = ()
    """What `choices` of the answer may hold, where its type leaves that open."""
    tag: str = "server"
    streams: bool = False
    """May answer with server-sent events."""
    needs_engine: bool = False
    generates: bool = False
    """Counts for /load."""
    dev: bool = False
    """Exists in development mode and on token-only workers, as upstream has it."""
    control: bool = False
    """Changes the server for everybody; see `access.require_operator`."""


def all_routes() -> Iterator[RouteSpec]:
    """Every route that any file in `routes/` declares, hot ones first."""
    package = importlib.import_module("tokenwire.server.routes")
    specs: list[RouteSpec] = []
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__)):
        specs += importlib.import_module(f"{package.__name__}.{module}").ROUTES
    return iter(sorted(specs, key=lambda spec: not spec.generates))


def routes_for(server: Server) -> list[RouteSpec]:
    """The routes that exist on this server."""
    with_dev = server.settings.access.server_dev_mode or server.settings.model.tokens_only
    return [
        spec
        for spec in all_routes()
        if (server.engine is not None or not spec.needs_engine) and (with_dev or not spec.dev)
    ]


def starlette_route(spec: RouteSpec, server: Server) -> Route:
    return Route(spec.path, _endpoint(spec, server), methods=list(spec.methods), include_in_schema=False)


def direct_endpoints(server: Server) -> dict[tuple[str, str], ASGIApp]:
    """By method and path, the endpoints that are written against ASGI itself: these need no router."""
    return {
        (method, spec.path): _endpoint(spec, server)
        for spec in routes_for(server)
        for method in spec.methods
        if not inspect.isfunction(spec.endpoint) and "{" not in spec.path
    }


def _endpoint(spec: RouteSpec, server: Server) -> Any:
    endpoint: Any = spec.endpoint
    if spec.generates and server.settings.logs.enable_server_load_tracking:
        endpoint = _Counted(_as_asgi(endpoint), server)
    if spec.control:
        endpoint = _Controlled(_as_asgi(endpoint), server)
    return endpoint


def _as_asgi(endpoint: Any) -> ASGIApp:
    if not inspect.isfunction(endpoint):
        return endpoint  # type: ignore[no-any-return]
    return functools.partial(_call_handler, endpoint)


async def _call_handler(handler: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
    response = await handler(Request(scope, receive, send))
    await response(scope, receive, send)


class _Counted:
    """Counts the requests that are inside."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._server.num_in_flight += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._server.num_in_flight -= 1


class _Controlled:
    """Lets the operator through."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app = app
        self._access = server.settings.access
        self._origins = server.settings.network.allowed_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        require_operator(scope, self._access, self._origins)
        await self._app(scope, receive, send)
