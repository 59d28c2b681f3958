"""The four `/render` routes: conversations and prompts into requests that `/inference/v1/generate` takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tokenwire.errors import UnsupportedFeatureError
from tokenwire.server.body import body_format
from tokenwire.server.context import Server, server_of
from tokenwire.server.errors import MEDIA_TYPES
from tokenwire.server.headers import reply_format, request_context
from tokenwire.server.reading import read_request
from tokenwire.server.routing import RouteSpec
from tokenwire.service.context import RequestContext
from tokenwire.service.render import RenderService
from tokenwire.service.tokenizerless import without_tokenizer
from tokenwire.wire.chat import ChatCompletionRequest
from tokenwire.wire.codec import encode
from tokenwire.wire.completion import CompletionRequest
from tokenwire.wire.generate import GenerateRequest
from tokenwire.wire.messages import MessagesRequest
from tokenwire.wire.responses import ResponsesRequest

Render = Callable[[RenderService, Any, RequestContext], Awaitable[Any]]


async def _render(request: Request, kind: type[Any], render: Render) -> Response:
    service = render_of(server_of(request.scope))
    _, body = await read_request(kind, request.scope, request.receive)
    context = request_context(request.scope, body_format(request.scope))
    fmt = reply_format(request.scope)
    rendered = await render(service, body, context)
    if fmt == "msgpack":
        rendered = [one.with_raw_ids() for one in rendered] if isinstance(rendered, list) else rendered.with_raw_ids()
    return Response(encode(rendered, fmt), media_type=MEDIA_TYPES[fmt].decode())


def render_of(server: Server) -> RenderService:
    """Raises `UnsupportedFeatureError` on a server without a tokenizer."""
    if server.render is None:
        raise UnsupportedFeatureError(
            "render",
            value="...",
            where=without_tokenizer(server.engine),
            way_out="Ask a server that loads one: tokenwire render needs no engine.",
        )
    return server.render


async def render_chat(request: Request) -> Response:
    return await _render(request, ChatCompletionRequest, RenderService.chat)


async def render_completion(request: Request) -> Response:
    return await _render(request, CompletionRequest, RenderService.completion)


async def render_messages(request: Request) -> Response:
    return await _render(request, MessagesRequest, RenderService.messages)


async def render_responses(request: Request) -> Response:
    return await _render(request, ResponsesRequest, RenderService.responses)


def _spec(path: str, endpoint: Any, request: Any, response: Any, what: str) -> RouteSpec:
    return RouteSpec(
        path=f"{path}/render",
        endpoint=endpoint,
        summary=f"{what} as a token request.",
        methods=("POST",),
        request=request,
        response=response,
        tag="text",
    )


ROUTES = [
    _spec("/v1/chat/completions", render_chat, ChatCompletionRequest, GenerateRequest, "A chat"),
    _spec("/v1/completions", render_completion, CompletionRequest, list[GenerateRequest], "Prompts, each"),
    _spec("/v1/messages", render_messages, MessagesRequest, GenerateRequest, "An Anthropic conversation"),
    _spec("/v1/responses", render_responses, ResponsesRequest, GenerateRequest, "A stateless responses input"),
]
