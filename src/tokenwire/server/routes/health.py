"""Is the process alive, is the engine well, would a request be served, how much is going on."""

from __future__ import annotations

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tokenwire import __version__
from tokenwire.server import peers
from tokenwire.server.context import Server, server_of
from tokenwire.server.responses import WireResponse
from tokenwire.server.routing import RouteSpec


async def livez(request: Request) -> Response:
    """The process answers; nothing else is asked."""
    return PlainTextResponse("ok")


async def health(request: Request) -> Response:
    """Empty 200, or 503 with the reason while the engine is down."""
    server = server_of(request.scope)
    return Response() if server.is_healthy else PlainTextResponse(_state(server), 503)


async def readyz(request: Request) -> Response:
    """200 while a request that came now would be served."""
    server = server_of(request.scope)
    return PlainTextResponse(_state(server), 200 if server.is_ready else 503)


def _state(server: Server) -> str:
    if server.draining:
        return "draining"
    engine = server.engine
    return "ready" if engine is None else engine.trouble or engine.status.value


async def load(request: Request) -> Response:
    return WireResponse({"server_load": await peers.num_in_flight(server_of(request.scope))})


async def version(request: Request) -> Response:
    return WireResponse({"version": __version__})


async def metrics(request: Request) -> Response:
    """Prometheus text, or OpenMetrics for a scraper that asks for it."""
    server = server_of(request.scope)
    registry = await peers.metrics_registry(server)
    encoder, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encoder(registry), headers={"content-type": content_type})


ROUTES = [
    RouteSpec(path="/health", endpoint=health, summary="200 while the engine is well, else 503."),
    RouteSpec(path="/livez", endpoint=livez, summary="200 while the process lives."),
    RouteSpec(path="/readyz", endpoint=readyz, summary="200 while requests are served; 503 when paused or draining."),
    RouteSpec(path="/ping", endpoint=health, summary="The same as /health.", methods=("GET", "POST")),
    RouteSpec(path="/load", endpoint=load, summary="Requests in flight (--enable-server-load-tracking)."),
    RouteSpec(path="/version", endpoint=version, summary="Version of tokenwire."),
    RouteSpec(path="/metrics", endpoint=metrics, summary="Figures for Prometheus."),
]
